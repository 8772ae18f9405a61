"""Timeline: a picture of what the engine did in each step, and of what each request saw of it.

Above the axis stand the prompt tokens of every step, below it hang the requests that decoded in it: a step that only computes
prompts leaves the lower half empty, and every request that was decoding waits. Under this, queue and KV memory; then a row a
request, from its arrival to its last token: grey while it waits for its first token, a tick for every token, red where the next
one is late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from longbench_sched.quantity import compact, significant
from longbench_sched.report import svg
from longbench_sched.report.untrusted import clean
from longbench_sched.run import NONE, Run
from longbench_sched.steps import StepTable

PREFILL, DECODE, WAIT, STALL, QUEUE, KV, INK, RULE = (
    "#dd8452", "#4c72b0", "#d5d5d5", "#c44e52", "#8172b3", "#55a868", "#333333", "#e4e4e4",
)  # fmt: skip
WIDTH, LEFT, RIGHT = 960, 96, 16
HALF, GAP, ROW, MAX_ROWS = 70, 14, 9, 32
STALL_FACTOR = 3.0  # a gap this many times the median of all gaps of the requests shown is drawn as a wait
MAX_TITLED = 400  # bars that say their numbers beside the pointer; with more the file grows and no pointer hits one
_MAX_BARS = (WIDTH - LEFT - RIGHT) * 2


@dataclass(frozen=True, slots=True)
class View:
    """Which part of a run is drawn, in seconds from the start of its measured phase; None: from its start, or to its end."""

    from_s: float | None = None
    to_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Axis:
    """Instants in ns -> x."""

    from_ns: int
    to_ns: int
    origin_ns: int

    def x(self, at_ns: float) -> float:
        share = (at_ns - self.from_ns) / (self.to_ns - self.from_ns)
        return LEFT + min(max(share, 0.0), 1.0) * (WIDTH - LEFT - RIGHT)

    def ticks(self) -> Iterator[tuple[float, str]]:
        """X and label of round times."""
        from_s, to_s = (self.from_ns - self.origin_ns) / 1e9, (self.to_ns - self.origin_ns) / 1e9
        step = _round_step((to_s - from_s) / 8)
        digits = max(0, -int(f"{step:e}".partition("e")[2]))
        k = -int(-from_s // step)
        while k * step <= to_s:
            yield self.x(self.origin_ns + k * step * 1e9), f"{k * step:.{digits}f}{' s' if k * step + step > to_s else ''}"
            k += 1


@dataclass(frozen=True, slots=True)
class _Bar:
    """One step, or several that are too thin to be seen apart."""

    begin_ns: int
    end_ns: int
    prefill: float
    decode: float
    waiting: float
    kv: float


def draw(steps: StepTable, run: Run | None = None, view: View = View(), title: str | None = None) -> str:
    """The picture as an SVG document; with `run`, a row for each of its first requests in view. Empty view: a bare frame."""
    axis = _axis(steps, view)
    bars = _bars(steps, axis)
    facts = steps.facts
    words = title or f"{clean(facts.engine)} · {clean(facts.model)} · {clean(facts.gpu)}"
    parts = [svg.text(LEFT, 18, words, size=13, colour=INK), *_legend()]
    top = 52.0
    bottom = top + 2 * HALF
    parts += _steps_panel(bars, axis, top)
    bottom += GAP
    parts += _small_panel(bars, axis, bottom, "waiting", QUEUE, lambda bar: bar.waiting, None)
    bottom += 30 + GAP
    parts += _small_panel(bars, axis, bottom, "KV used", KV, lambda bar: bar.kv, float(facts.kv_tokens))
    bottom += 30 + GAP
    if run is not None:
        rows = _requests_in(run, axis)
        parts += _request_rows(run, rows, axis, bottom)
        bottom += ROW * len(rows) + (GAP if rows else 0)
    parts += _time_axis(axis, top, bottom)
    return svg.picture(WIDTH, bottom + 30, f"Timeline of steps: {words}", parts)


def length_s(steps: StepTable) -> float:
    """When the last step ends, from the start of the measured phase."""
    return max(0.0, (steps.ints["end_ns"][steps.n - 1] - steps.facts.measured_from_ns) / 1e9) if steps.n else 0.0


def _axis(steps: StepTable, view: View) -> _Axis:
    origin = steps.facts.measured_from_ns
    begins, ends = steps.ints["begin_ns"], steps.ints["end_ns"]
    from_ns = max(origin, begins[0]) if steps.n else origin
    to_ns = ends[steps.n - 1] if steps.n else origin
    if view.from_s is not None:
        from_ns = origin + round(view.from_s * 1e9)
    if view.to_s is not None:
        to_ns = origin + round(view.to_s * 1e9)
    return _Axis(from_ns, max(to_ns, from_ns + 1), origin)


def _bars(steps: StepTable, axis: _Axis) -> list[_Bar]:
    """The steps in view; where there are more than two a pixel, neighbours are put together, weighted by time."""
    ints = steps.ints
    rows = [r for r in range(steps.n) if ints["end_ns"][r] > axis.from_ns and ints["begin_ns"][r] < axis.to_ns]
    if len(rows) <= _MAX_BARS:
        return [_bar(steps, [row]) for row in rows]
    slot_ns = (axis.to_ns - axis.from_ns) / _MAX_BARS
    groups: dict[int, list[int]] = {}
    for row in rows:
        groups.setdefault(int((ints["begin_ns"][row] - axis.from_ns) / slot_ns), []).append(row)
    return [_bar(steps, group) for group in groups.values()]


def _bar(steps: StepTable, rows: Sequence[int]) -> _Bar:
    ints = steps.ints
    lengths = [ints["end_ns"][row] - ints["begin_ns"][row] for row in rows]
    total = sum(lengths)

    def mean(name: str) -> float:
        return sum(ints[name][row] * length for row, length in zip(rows, lengths, strict=True)) / total

    return _Bar(
        begin_ns=ints["begin_ns"][rows[0]],
        end_ns=ints["end_ns"][rows[-1]],
        prefill=mean("prefill_tokens"),
        decode=mean("n_decode"),
        waiting=mean("n_waiting"),
        kv=mean("kv_used_tokens"),
    )


def _legend() -> list[str]:
    parts, x = [], float(LEFT)
    for colour, words in (
        (PREFILL, "prompt tokens in the step"),
        (DECODE, "requests that decode / tokens"),
        (WAIT, "before the first token"),
        (STALL, "stalled between tokens"),
    ):
        parts += [svg.box(x, 27, 10, 10, colour), svg.text(x + 14, 36, words, size=10)]
        x += 26 + 5.6 * len(words)
    return parts


def _steps_panel(bars: Sequence[_Bar], axis: _Axis, top: float) -> list[str]:
    middle = top + HALF
    most_prefill = max((bar.prefill for bar in bars), default=0) or 1
    most_decode = max((bar.decode for bar in bars), default=0) or 1
    parts = []
    for bar in bars:
        x = axis.x(bar.begin_ns)
        width = max(axis.x(bar.end_ns) - x, 0.3)
        gap = 1.0 if width > 6 else 0.0
        ms = (bar.end_ns - bar.begin_ns) / 1e6
        words = None
        if len(bars) <= MAX_TITLED:
            words = f"{significant(ms)} ms: {bar.prefill:.0f} prompt tokens, {bar.decode:.0f} requests decode"
        if bar.prefill:
            height = max(1.0, HALF * bar.prefill / most_prefill)
            parts.append(svg.box(x, middle - height, width - gap, height, PREFILL, words))
        if bar.decode:
            height = max(1.0, HALF * bar.decode / most_decode)
            parts.append(svg.box(x, middle, width - gap, height, DECODE, words))
    parts.append(svg.line(LEFT, middle, WIDTH - RIGHT, middle, INK))
    parts += [
        svg.text(LEFT - 6, top + 8, _count(most_prefill), size=10, anchor="end"),
        svg.text(LEFT - 6, middle - 24, "prompt", size=10, anchor="end"),
        svg.text(LEFT - 6, middle - 12, "tokens", size=10, anchor="end"),
        svg.text(LEFT - 6, middle + 20, "decoding", size=10, anchor="end"),
        svg.text(LEFT - 6, middle + HALF, _count(most_decode), size=10, anchor="end"),
    ]
    return parts


def _small_panel(
    bars: Sequence[_Bar], axis: _Axis, top: float, name: str, colour: str, pick: Callable[[_Bar], float], full: float | None
) -> list[str]:
    """A line over time, from 0 to `full` or to its largest value."""
    largest = max((pick(bar) for bar in bars), default=0)
    most = full or largest or 1
    points = [point for bar in bars for point in _level(bar, axis, top + 30 * (1 - min(pick(bar) / most, 1)))]
    words = f"{100 * largest / most:.0f} %" if full else _count(largest)
    parts = [
        svg.line(LEFT, top + 30, WIDTH - RIGHT, top + 30, RULE),
        svg.text(LEFT - 6, top + 14, name, size=10, anchor="end"),
        svg.text(LEFT - 6, top + 28, f"max {words}", size=9, anchor="end", colour="#777"),
    ]
    return [*parts, svg.path(points, colour)] if points else parts


def _level(bar: _Bar, axis: _Axis, y: float) -> tuple[tuple[float, float], tuple[float, float]]:
    return (axis.x(bar.begin_ns), y), (axis.x(bar.end_ns), y)


def _time_axis(axis: _Axis, top: float, bottom: float) -> list[str]:
    parts = [svg.line(LEFT, bottom, WIDTH - RIGHT, bottom, INK)]
    for x, label in axis.ticks():
        parts += [svg.line(x, bottom, x, bottom + 4, INK), svg.text(x, bottom + 17, label, size=10, anchor="middle")]
    return parts


def _requests_in(run: Run, axis: _Axis) -> list[int]:
    """Rows of the run's first requests that are in view, in the order in which they were sent."""
    table = run.table
    sent, end = table.ints["sent_ns"], table.ints["end_ns"]
    rows = [r for r in range(table.n) if sent[r] != NONE and sent[r] < axis.to_ns and (end[r] == NONE or end[r] > axis.from_ns)]
    return sorted(rows, key=lambda row: (sent[row], table.ints["index"][row]))[:MAX_ROWS]


def _request_rows(run: Run, rows: Sequence[int], axis: _Axis, top: float) -> list[str]:
    stamps = [_stamps(run, row) for row in rows]
    gaps = sorted(b - a for one in stamps for a, b in pairwise(one))
    late_ns = STALL_FACTOR * gaps[len(gaps) // 2] if gaps else float("inf")
    parts = []
    for place, (row, tokens_ns) in enumerate(zip(rows, stamps, strict=True)):
        y = top + ROW * place
        parts.append(svg.text(LEFT - 6, y + 7, clean(run.table.texts["request_id"][row] or "", 12), size=8, anchor="end"))
        sent_ns = run.table.ints["sent_ns"][row]
        first_ns = tokens_ns[0] if tokens_ns else run.table.ints["end_ns"][row]
        parts += _span(axis, sent_ns, first_ns, y, WAIT)
        parts += _token_spans(axis, tokens_ns, late_ns, y)
    return parts


def _token_spans(axis: _Axis, tokens_ns: Sequence[int], late_ns: float, y: float) -> list[str]:
    """Ticks of tokens, joined where they touch; waits between tokens in their own colour."""
    parts: list[str] = []
    run_from: float | None = None
    run_to = 0.0
    before: int | None = None
    for at_ns in tokens_ns:
        if before is not None and at_ns - before > late_ns:
            parts += _span(axis, before, at_ns, y, STALL)
        before = at_ns
        if not axis.from_ns <= at_ns <= axis.to_ns:
            continue
        x = axis.x(at_ns)
        if run_from is not None and x - run_to <= 1.6:
            run_to = x
            continue
        if run_from is not None:
            parts.append(svg.box(run_from - 0.5, y + 1, run_to - run_from + 1, ROW - 3, DECODE))
        run_from = run_to = x
    if run_from is not None:
        parts.append(svg.box(run_from - 0.5, y + 1, run_to - run_from + 1, ROW - 3, DECODE))
    return parts


def _span(axis: _Axis, from_ns: int, to_ns: int, y: float, colour: str) -> list[str]:
    if to_ns <= axis.from_ns or from_ns >= axis.to_ns:
        return []
    x = axis.x(from_ns)
    return [svg.box(x, y + 2.5, max(axis.x(to_ns) - x, 0.3), ROW - 6, colour)]


def _stamps(run: Run, row: int) -> list[int]:
    offsets = run.table.offsets
    return [int(at) for at in run.table.lists["chunk_at_ns"][offsets[row] : offsets[row + 1]]]


def _count(value: float) -> str:
    return f"{value:.0f}" if value < 10_000 else compact(value)


def _round_step(step: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** int(f"{step:e}".partition("e")[2])
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= step * 0.999)
