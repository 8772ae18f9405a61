"""The shape of a stall: what running decodes see while a long prompt is prefilled, on a real engine and as the simulator says.

Counts and order, not times: on how many steps of the prefill each decode waited, how many tokens it got between them, and
whether the prompt's first token came before the decodes went on or with them. vLLM gives each decode a token with every chunk;
SGLang lets all of them stand still until the prompt is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median

from longbench_sched.experiment.sweep import Base, make_cells
from longbench_sched.experiment.virtual_run import Origin, plan_virtual, simulate
from longbench_sched.metrics.stalls import FACTOR
from longbench_sched.run import Run
from longbench_sched.workload.overrides import Overrides

WORKLOAD = Path(__file__).with_name("joined.toml")
N_DECODES = 3  # of that workload
LONG_TOKENS = 1000  # prompts above this are long
LEAST_SHARE = 0.15  # of the longest gap: a step with a chunk takes at least so long, a hiccup of the machine does not


@dataclass(frozen=True, slots=True)
class Shape:
    """What one decode saw of the prefill of a long prompt."""

    n_stalls: int  # long gaps between its tokens
    n_tokens: int  # that came between the first and the last of them
    is_last: bool  # the token that ends the last of them comes in a later step than the prompt's first, not in the same one

    def __str__(self) -> str:
        stalls = "1 stall" if self.n_stalls == 1 else f"{self.n_stalls} stalls"
        tokens = f"{self.n_tokens or 'no'} token{'s' * (self.n_tokens > 1)}"
        return f"{stalls}, {tokens} between, then the prompt's first token {'before theirs' if self.is_last else 'with theirs'}"


@dataclass(frozen=True, slots=True)
class _Stream:
    """Events of one answer that bore tokens: when, and how many."""

    at_ns: list[int]
    tokens: list[int]


def predict(engine: str, flags: Sequence[str]) -> Shape:
    """What every decode sees of the simulated engine under these flags of its own. Raises LongbenchError."""
    base = Base(str(WORKLOAD), Overrides(), 0, engine, "H200", "Qwen2.5-Coder-7B-Instruct", tuple(flags))
    (cell,) = make_cells(base, [])
    origin = Origin("predicted", datetime.now(UTC), {})
    (shape,) = set(watch(simulate(plan_virtual(cell.workload, cell.seed), cell.setting, origin).run))
    return shape


def watch(run: Run) -> list[Shape]:
    """What each decode saw that had begun before the long prompt was sent and ended after its first token."""
    table = run.table
    rows = [i for i in range(table.n) if table.texts["phase"][i] == "measured" and table.texts["status"][i] == "ok"]
    long = [i for i in rows if table.ints["isl"][i] > LONG_TOKENS]
    if len(long) != 1:
        return []
    sent_ns, prompt = int(table.ints["sent_ns"][long[0]]), _stream(run, long[0])
    decodes = [_stream(run, i) for i in rows if table.texts["lane"][i] == "decode"]
    running = [decode for decode in decodes if decode.at_ns[0] < sent_ns and decode.at_ns[-1] > prompt.at_ns[0]]
    return [_shape(decode, sent_ns, prompt.at_ns) for decode in running]


def judge(predicted: Shape, seen: Sequence[Shape]) -> str | None:
    """What is not as predicted; None if nothing is."""
    if len(seen) != N_DECODES:
        return f"{len(seen)} of {N_DECODES} decodes ran from before the long prompt until after its first token"
    other = [shape for shape in seen if shape != predicted]
    return f"{len(other)} of {N_DECODES} decodes saw: {'; '.join(map(str, dict.fromkeys(other)))}" if other else None


def _stream(run: Run, row: int) -> _Stream:
    begin, end = run.table.offsets[row], run.table.offsets[row + 1]
    return _Stream(*(list(map(int, run.table.lists[name][begin:end])) for name in ("chunk_at_ns", "chunk_tokens")))


def _shape(decode: _Stream, sent_ns: int, prompt_ns: Sequence[int]) -> Shape:
    gaps = [(begin, end) for begin, end in pairwise(decode.at_ns) if end > sent_ns and begin < prompt_ns[0]]
    usual_ns = median(end - begin for begin, end in pairwise(decode.at_ns))
    limit_ns = max(FACTOR * usual_ns, LEAST_SHARE * max(end - begin for begin, end in gaps))
    stalls = [(begin, end) for begin, end in gaps if end - begin > limit_ns]
    if not stalls:
        return Shape(0, 0, False)
    (_, from_ns), (to_ns, end_ns) = stalls[0], stalls[-1]
    n_tokens = sum(n for at_ns, n in zip(decode.at_ns, decode.tokens, strict=True) if from_ns <= at_ns <= to_ns)
    # Tokens of one step come at nearly the same time: which of the prompt's came with the one that ends the last stall?
    return Shape(len(stalls), n_tokens, _nearest(prompt_ns, end_ns) > 0)


def _nearest(at_ns: Sequence[int], wanted_ns: int) -> int:
    """The place of the instant that is nearest, the first of several."""
    return min(range(len(at_ns)), key=lambda place: abs(at_ns[place] - wanted_ns))
