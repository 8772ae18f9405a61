"""Where an engine's time went, by phase: what a step trace says in one table.

Shares of peak and bandwidth are means over time, not over steps: a phase is as busy as it was for as long as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from longbench_sched.quantity import compact, significant
from longbench_sched.report.figures import duration_text, percent_text, scale_of
from longbench_sched.report.headline import SEPARATOR
from longbench_sched.report.layout import NULL, TIE, Column, Line, Lines, Page, Table
from longbench_sched.steps import PHASES, StepTable


@dataclass(slots=True)
class _Sum:
    """Steps of one phase, added up."""

    steps_s: list[float] = field(default_factory=list)
    tokens: int = 0
    requests: int = 0
    flop: float = 0.0
    n_bytes: float = 0.0
    compute_s: float = 0.0  # utilisation x time
    memory_s: float = 0.0
    bound_s: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Time of all steps."""
        return sum(self.steps_s)


def with_steps(page: Page, steps: StepTable) -> Page:
    """The page of a run with its steps below what the run carried."""
    at = next((place + 1 for place, block in enumerate(page.blocks) if isinstance(block, Lines)), len(page.blocks))
    return replace(page, blocks=(*page.blocks[:at], *blocks(steps), *page.blocks[at:]))


def blocks(steps: StepTable) -> tuple[Table | Lines, ...]:
    """The table by phase and a few lines on queue and memory, over the measured phase; nothing for an empty trace."""
    rows = measured_rows(steps)
    if not rows:
        return ()
    return _table(steps, rows), Lines(tuple(_lines(steps, rows)))


def measured_rows(steps: StepTable) -> range:
    """The steps of the measured phase."""
    begins, from_ns = steps.ints["begin_ns"], steps.facts.measured_from_ns
    first = next((row for row in range(steps.n) if begins[row] >= from_ns), steps.n)
    return range(first, steps.n)


def _table(steps: StepTable, rows: Sequence[int]) -> Table:
    sums = _sums(steps, rows)
    busy_s = sum(one.seconds for one in sums.values())
    scale = scale_of("s", _middle([seconds for one in sums.values() for seconds in one.steps_s]))
    cells = [
        (
            phase,
            str(len(one.steps_s)),
            percent_text(one.seconds / busy_s),
            scale.number(_middle(one.steps_s)),
            compact(one.tokens / len(one.steps_s)),
            significant(one.requests / len(one.steps_s)),
            compact(one.flop / one.n_bytes) if one.n_bytes else NULL,
            percent_text(one.compute_s / one.seconds),
            percent_text(one.memory_s / one.seconds),
            _bound_text(one),
        )
        for phase, one in sums.items()
    ]
    columns = (
        Column("", "left"),
        Column("steps"),
        Column("time"),
        Column(f"p50 {scale.unit}"),
        Column("tokens", gives_way=1),
        Column("requests", gives_way=2),
        Column("FLOP/B"),
        Column("MFU"),
        Column("MBU"),
        Column("waits for", "left"),
    )
    note = "MFU, MBU: shares of the GPU's peak FLOP/s and memory bandwidth, over time. tokens, requests: a step's mean."
    return Table("Steps by phase", columns, tuple(cells), (note,))


def _sums(steps: StepTable, rows: Sequence[int]) -> dict[str, _Sum]:
    """By phase, in the order of PHASES; phases that do not occur are left out."""
    found: dict[str, _Sum] = {}
    ints, floats, texts = steps.ints, steps.floats, steps.texts
    for row in rows:
        one = found.setdefault(texts["phase"][row], _Sum())
        seconds = (ints["end_ns"][row] - ints["begin_ns"][row]) / 1e9
        one.steps_s.append(seconds)
        one.tokens += ints["prefill_tokens"][row] + ints["decode_tokens"][row]
        one.requests += ints["n_prefill"][row] + ints["n_decode"][row]
        one.flop += floats["flop"][row]
        one.n_bytes += floats["n_bytes"][row]
        one.compute_s += floats["compute_utilisation"][row] * seconds
        one.memory_s += floats["bandwidth_utilisation"][row] * seconds
        bound = texts["bound"][row]
        one.bound_s[bound] = one.bound_s.get(bound, 0.0) + seconds
    return {phase: found[phase] for phase in PHASES if phase in found}


def _bound_text(one: _Sum) -> str:
    """`compute`, or `memory 83 %, host 17 %`: what steps waited for, by time; under 1 % is left out."""
    shares = sorted(((seconds / one.seconds, bound) for bound, seconds in one.bound_s.items()), reverse=True)
    shown = [(share, bound) for share, bound in shares if share >= 0.01]
    if len(shown) == 1:
        return shown[0][1]
    return ", ".join(f"{bound} {significant(100 * share, 2)}{TIE}%" for share, bound in shown)


def _lines(steps: StepTable, rows: Sequence[int]) -> list[Line]:
    """Time at rest, queue and memory: means over time."""
    ints = steps.ints
    begins, ends = ints["begin_ns"], ints["end_ns"]
    span_ns = ends[rows[-1]] - begins[rows[0]]
    idle_ns = max(0, span_ns - sum(ends[row] - begins[row] for row in rows))
    lengths = [(ends[row] - begins[row]) / 1e9 for row in rows]
    busy_s = sum(lengths)

    def mean(name: str) -> float:
        return sum(ints[name][row] * length for row, length in zip(rows, lengths, strict=True)) / busy_s

    def most(name: str) -> int:
        return max(ints[name][row] for row in rows)

    capacity = steps.facts.kv_tokens
    preempted = sum(ints["n_preempted"][row] for row in rows)
    return [
        Line("Engine", f"{len(rows)} steps in {duration_text(span_ns / 1e9)}, idle {percent_text(idle_ns / span_ns)}"),
        Line("Batch", f"mean {significant(mean('n_running'))} running{SEPARATOR}at most {most('n_running')}"),
        Line("Queue", f"mean {significant(mean('n_waiting'))} waiting{SEPARATOR}at most {most('n_waiting')}"),
        Line(
            "KV",
            f"mean {percent_text(mean('kv_used_tokens') / capacity)} of {compact(capacity)} tokens{SEPARATOR}"
            f"at most {percent_text(most('kv_used_tokens') / capacity)}{SEPARATOR}{preempted} preemptions",
        ),
    ]


def _middle(values: Sequence[float]) -> float:
    """The median of a phase's steps, by nearest rank."""
    return sorted(values)[(len(values) - 1) // 2]
