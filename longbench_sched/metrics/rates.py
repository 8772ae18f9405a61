"""The metrics that are one figure of a window: throughput, goodput, shares.

Every rate is over one stated interval, the window's, and counts events inside it: a token when its chunk came, a prompt when
its first token came, a request when its last token came. Tokens are those of successes, by the server's count; what failed
requests produced is only in the figures named `..._all`. The shares are over requests due inside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from longbench_sched.metrics import deadlines, latency
from longbench_sched.metrics.columns import Columns, Floats, Ints, Mask, Samples
from longbench_sched.metrics.interval import ratio_deviation, share_interval
from longbench_sched.metrics.window import Span
from longbench_sched.run import NONE
from longbench_sched.slo import Slo

_SLICES = 64  # of the steady window: what the interval of its throughput is drawn from


@dataclass(frozen=True, slots=True)
class Scene:
    """What a rate is taken from: a window, the rows whose events count, and those due inside."""

    columns: Columns
    slo: Slo
    span: Span | None  # None: no token came at all, no rate is defined
    rows: Mask
    due: Mask
    seed: int
    outputs: dict[bool, Flow] = field(default_factory=dict, compare=False, repr=False)  # known already; see `_outputs`

    @property
    def over_s(self) -> float | None:
        """Length of the window in seconds of engine time."""
        return None if self.span is None else self.span.length_ns * self.columns.scale_s


@dataclass(frozen=True, slots=True)
class Figure:
    """A value with how many things it counts; None where it is not defined."""

    value: float | None
    n: int = 0
    over_s: float | None = None
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Flow:
    """How much came inside a window; in a steady window also in each of its equal slices, (slices,)."""

    total: float
    slices: Floats | None = None

    def __add__(self, other: Flow) -> Flow:
        both = self.slices is not None and other.slices is not None
        return Flow(self.total + other.total, self.slices + other.slices if both else None)  # type: ignore[operator]  # both are


def _nothing(span: Span) -> Flow:
    # Over the whole run the slices would show ramp and drain, not chance.
    return Flow(0.0, np.zeros(_SLICES) if span.name == "steady" else None)


def _flow(span: Span, at_ns: Ints, amount: Floats) -> Flow:
    """Amounts at instants inside the window."""
    inside = span.holds(at_ns)
    at_ns, amount = at_ns[inside], amount[inside]
    total = float(amount.sum())
    if span.name != "steady":
        return Flow(total)
    slices = np.minimum((at_ns - span.from_ns) * _SLICES // span.length_ns, _SLICES - 1)
    return Flow(total, np.bincount(slices, amount, minlength=_SLICES).astype(np.float64))


def _per_second(scene: Scene, flow: Callable[[Span], Flow]) -> Figure:
    """What flows in the window per second; an interval in a steady window."""
    if scene.span is None or scene.over_s is None:
        return Figure(None)
    came = flow(scene.span)
    value = came.total / scene.over_s
    interval = None
    if came.slices is not None and came.total > 0:
        below, above = ratio_deviation(came.slices, np.full(_SLICES, scene.over_s / _SLICES), scene.seed)
        interval = (max(0.0, value + below), value + above)
    return Figure(value, round(came.total), scene.over_s, interval)


def _outputs(scene: Scene, span: Span, *, ok: bool) -> Flow:
    """Output tokens of the section's requests, those that succeeded or the others, by when their chunks came.

    Each row's chunks add up to its output tokens. Where the chunks' own counts are unknown (usage only at the end) the row's
    tokens are spread evenly over its chunks.
    """
    if ok not in scene.outputs:
        scene.outputs[ok] = _count_outputs(scene, span, ok)
    return scene.outputs[ok]


def _count_outputs(scene: Scene, span: Span, ok: bool) -> Flow:
    columns = scene.columns
    rows = scene.rows & (columns.ok if ok else ~columns.ok) & (columns.output_tokens != NONE) & (columns.n_chunks > 0)
    flow = _nothing(span)
    if flow.slices is None:
        # What came inside from first to last need not be looked at chunk by chunk.
        inside = rows & (columns.first_ns > span.from_ns) & (columns.last_ns <= span.to_ns) & ~columns.disordered
        flow = Flow(float(columns.output_tokens[inside].sum()))
        rows &= ~inside
        if not rows.any():
            return flow
    for block, chunks in columns.blocks():
        wanted = rows[block]
        keep = np.repeat(wanted, columns.n_chunks[block])
        counts, shown = columns.n_chunks[block][wanted], columns.shown_tokens[block][wanted]
        known = shown > 0
        each = np.where(np.repeat(known, counts), columns.chunk_tokens[chunks][keep], 1)
        share = columns.output_tokens[block][wanted] / np.where(known, shown, counts)
        flow += _flow(span, columns.chunk_at_ns[chunks][keep], each * np.repeat(share, counts))
    return flow


def _prompts(scene: Scene, span: Span) -> Flow:
    columns = scene.columns
    rows = scene.rows & columns.ok & (columns.first_ns != NONE) & (columns.prompt_tokens != NONE)
    return _flow(span, columns.first_ns[rows], columns.prompt_tokens[rows].astype(np.float64))


def _ends(scene: Scene, span: Span, rows: Mask) -> Flow:
    return _flow(span, scene.columns.last_ns[rows], np.ones(int(rows.sum())))


def output_throughput(scene: Scene) -> Figure:
    """Output tokens of successes per second."""
    return _per_second(scene, lambda span: _outputs(scene, span, ok=True))


def output_throughput_all(scene: Scene) -> Figure:
    """Output tokens of all attempts per second: what the server produced, useful or not."""
    return _per_second(scene, lambda span: _outputs(scene, span, ok=True) + _outputs(scene, span, ok=False))


def input_throughput(scene: Scene) -> Figure:
    """Prompt tokens of successes per second, by the server's count; a prompt counts when its first token came."""
    return _per_second(scene, lambda span: _prompts(scene, span))


def total_throughput(scene: Scene) -> Figure:
    """Input and output tokens of successes per second."""
    return _per_second(scene, lambda span: _prompts(scene, span) + _outputs(scene, span, ok=True))


def request_rate(scene: Scene) -> Figure:
    """Successes per second; a request counts when its last token came."""
    rows = scene.rows & scene.columns.ok & (scene.columns.last_ns != NONE)
    return _per_second(scene, lambda span: _ends(scene, span, rows))


def completion_rate(scene: Scene) -> Figure:
    """(successes - 1) / (last end - first end): the pace of completions, without the time the pipeline takes to fill."""
    rows = scene.rows & scene.columns.ok & (scene.columns.last_ns != NONE)
    ends = scene.columns.last_ns[rows]
    if scene.span is None:
        return Figure(None, len(ends))
    ends = ends[scene.span.holds(ends)]
    over_s = float(ends.max() - ends.min()) * scene.columns.scale_s if len(ends) > 1 else 0.0
    return Figure((len(ends) - 1) / over_s, len(ends), over_s) if over_s > 0 else Figure(None, len(ends))


def good(columns: Columns, slo: Slo) -> Mask:
    """Successes that meet every limit of the SLO.

    TPOT and ITL of an answer that came in a single chunk do not exist and cannot be missed. With more chunks but unknown token
    counts they cannot be judged, and the request is not good: nothing is credited that is not known.
    """
    return columns.once(("good", slo), lambda: _good(columns, slo))


def _good(columns: Columns, slo: Slo) -> Mask:
    met = columns.ok.copy()
    judges: dict[str, Callable[[Columns, Slo], Samples]] = {
        "ttft": latency.ttft_s,
        "tpot": latency.tpot_s,
        "itl": latency.itl_s,
        "e2e": latency.e2e_s,
    }
    for name, limit_s in slo.limits().items():
        worst_s = _worst(judges[name](columns, slo))
        if name in ("tpot", "itl"):
            worst_s[columns.n_chunks == 1] = 0.0
        # A nanosecond of slack: limits are decimal, stamps are not.
        met &= worst_s <= limit_s + 1e-9
    return met


def _worst(samples: Samples) -> Floats:
    """The largest value of each row, infinite where there is none."""
    worst = np.full(len(samples.counts), np.inf)
    filled = samples.counts > 0
    if filled.any():
        starts = np.cumsum(samples.counts) - samples.counts
        worst[filled] = np.maximum.reduceat(samples.values, starts[filled])
    return worst


def goodput(scene: Scene) -> Figure:
    """Requests per second that met the SLO; only successes can."""
    if not scene.slo.limits():
        return Figure(None)
    rows = scene.rows & good(scene.columns, scene.slo)
    return _per_second(scene, lambda span: _ends(scene, span, rows))


def good_share(scene: Scene) -> Figure:
    """Good requests of those that came to an end of their own (ok, failed, timed out)."""
    if not scene.slo.limits():
        return Figure(None)
    return _share(good(scene.columns, scene.slo), _ended(scene))


def success_rate(scene: Scene) -> Figure:
    """Successes of the requests that came to an end of their own; what we cancelled or lost is not judged."""
    return _share(scene.columns.ok, _ended(scene))


def deadline_misses(scene: Scene) -> Figure:
    """Missed token deadlines of all token deadlines, over the tokens of successes; see `deadlines.py`."""
    missed, total = deadlines.count(scene.columns, scene.slo)
    rows = scene.due & scene.columns.ok
    n = int(total[rows].sum())
    return Figure(float(missed[rows].sum() / n), n) if n else Figure(None)


def _ended(scene: Scene) -> Mask:
    return scene.due & (scene.columns.ok | scene.columns.failed)


def _share(yes: Mask, of: Mask) -> Figure:
    n_yes, n = int((yes & of).sum()), int(of.sum())
    return Figure(n_yes / n, n, interval=share_interval(n_yes, n)) if n else Figure(None)
