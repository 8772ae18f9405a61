"""Timeline: a picture of what the engine did in each step, and of what each request saw of it.

Above the axis stand the prompt tokens of every step, below it hang the requests that decoded in it: a step that only computes
prompts leaves the lower half empty, and every request that was decoding waits. Under this, queue and KV memory; then a row a
request, from its arrival to its last token: grey while it waits for its first token, a tick for every token, red where the next
one is late. Where several engines or stages act side by side, each has a row of its own instead (`lanes.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from longbench_sched.quantity import significant
from longbench_sched.report import lanes, svg
from longbench_sched.report.bars import (
    DECODE,
    GAP,
    HALF,
    INK,
    KV,
    LEFT,
    MAX_TITLED,
    PREFILL,
    QUEUE,
    RIGHT,
    STALL,
    WAIT,
    WIDTH,
    Axis,
    Bar,
    bars,
    count_text,
    panel_of_level,
)
from longbench_sched.report.untrusted import clean
from longbench_sched.run import NONE, Run
from longbench_sched.steps import StepTable

ROW, MAX_ROWS = 9, 32
STALL_FACTOR = 3.0  # a gap this many times the median of all gaps of the requests shown is drawn as a wait


@dataclass(frozen=True, slots=True)
class View:
    """Which part of a run is drawn, in seconds from the start of its measured phase; None: from its start, or to its end."""

    from_s: float | None = None
    to_s: float | None = None


def draw(steps: StepTable, run: Run | None = None, view: View = View(), title: str | None = None) -> str:
    """The picture as an SVG document; with `run`, a row for each of its first requests in view. Empty view: a bare frame."""
    axis = _axis(steps, view)
    facts, places = steps.facts, lanes.lanes_of(steps)
    words = title or f"{clean(facts.engine)} · {clean(facts.model)} · {clean(facts.gpu)}"
    parts = [svg.text(LEFT, 18, words, size=13, colour=INK), *_legend(lanes.legend(steps) if len(places) > 1 else ())]
    top = 52.0
    panels, bottom = lanes.panels(steps, places, axis, top) if len(places) > 1 else _panels(steps, axis, top)
    parts += panels
    if run is not None:
        rows = _requests_in(run, axis)
        parts += _request_rows(run, rows, axis, bottom)
        bottom += ROW * len(rows) + (GAP if rows else 0)
    parts += _time_axis(axis, top, bottom)
    return svg.picture(WIDTH, bottom + 30, f"Timeline of steps: {words}", parts)


def length_s(steps: StepTable) -> float:
    """When the last step ends, from the start of the measured phase."""
    return max(0.0, (max(steps.ints["end_ns"]) - steps.facts.measured_from_ns) / 1e9) if steps.n else 0.0


def _axis(steps: StepTable, view: View) -> Axis:
    origin = steps.facts.measured_from_ns
    begins, ends = steps.ints["begin_ns"], steps.ints["end_ns"]
    from_ns = max(origin, begins[0]) if steps.n else origin
    to_ns = max(ends) if steps.n else origin
    if view.from_s is not None:
        from_ns = origin + round(view.from_s * 1e9)
    if view.to_s is not None:
        to_ns = origin + round(view.to_s * 1e9)
    return Axis(from_ns, max(to_ns, from_ns + 1), origin)


def _legend(more: Sequence[tuple[str, str]]) -> list[str]:
    parts, x = [], float(LEFT)
    for colour, words in (
        (PREFILL, "prompt tokens in the step"),
        (DECODE, "requests that decode / tokens"),
        (WAIT, "before the first token"),
        (STALL, "stalled between tokens"),
        *more,
    ):
        parts += [svg.box(x, 27, 10, 10, colour), svg.text(x + 14, 36, words, size=10)]
        x += 26 + 5.6 * len(words)
    return parts


def _panels(steps: StepTable, axis: Axis, top: float) -> tuple[list[str], float]:
    """One engine: its steps, its queue and its memory; and where they end."""
    found = bars(steps, range(steps.n), axis)
    queue, memory = top + 2 * HALF + GAP, top + 2 * HALF + GAP + 30 + GAP
    full = float(steps.facts.kv_tokens)
    return [
        *_steps_panel(found, axis, top),
        *panel_of_level([found], axis, queue, "waiting", QUEUE, lambda bar: bar.waiting, None),
        *panel_of_level([found], axis, memory, "KV used", KV, lambda bar: bar.kv, full),
    ], memory + 30 + GAP


def _steps_panel(steps: Sequence[Bar], axis: Axis, top: float) -> list[str]:
    middle = top + HALF
    most_prefill = max((bar.prefill for bar in steps), default=0) or 1
    most_decode = max((bar.decode for bar in steps), default=0) or 1
    parts = []
    for bar in steps:
        x = axis.x(bar.begin_ns)
        width = max(axis.x(bar.end_ns) - x, 0.3)
        gap = 1.0 if width > 6 else 0.0
        ms = (bar.end_ns - bar.begin_ns) / 1e6
        words = None
        if len(steps) <= MAX_TITLED:
            words = f"{significant(ms)} ms: {bar.prefill:.0f} prompt tokens, {bar.decode:.0f} requests decode"
        if bar.prefill:
            height = max(1.0, HALF * bar.prefill / most_prefill)
            parts.append(svg.box(x, middle - height, width - gap, height, PREFILL, words))
        if bar.decode:
            height = max(1.0, HALF * bar.decode / most_decode)
            parts.append(svg.box(x, middle, width - gap, height, DECODE, words))
    parts.append(svg.line(LEFT, middle, WIDTH - RIGHT, middle, INK))
    parts += [
        svg.text(LEFT - 6, top + 8, count_text(most_prefill), size=10, anchor="end"),
        svg.text(LEFT - 6, middle - 24, "prompt", size=10, anchor="end"),
        svg.text(LEFT - 6, middle - 12, "tokens", size=10, anchor="end"),
        svg.text(LEFT - 6, middle + 20, "decoding", size=10, anchor="end"),
        svg.text(LEFT - 6, middle + HALF, count_text(most_decode), size=10, anchor="end"),
    ]
    return parts


def _time_axis(axis: Axis, top: float, bottom: float) -> list[str]:
    parts = [svg.line(LEFT, bottom, WIDTH - RIGHT, bottom, INK)]
    for x, label in axis.ticks():
        parts += [svg.line(x, bottom, x, bottom + 4, INK), svg.text(x, bottom + 17, label, size=10, anchor="middle")]
    return parts


def _requests_in(run: Run, axis: Axis) -> list[int]:
    """Rows of the run's first requests that are in view, in the order in which they were sent."""
    table = run.table
    sent, end = table.ints["sent_ns"], table.ints["end_ns"]
    rows = [r for r in range(table.n) if sent[r] != NONE and sent[r] < axis.to_ns and (end[r] == NONE or end[r] > axis.from_ns)]
    return sorted(rows, key=lambda row: (sent[row], table.ints["index"][row]))[:MAX_ROWS]


def _request_rows(run: Run, rows: Sequence[int], axis: Axis, top: float) -> list[str]:
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


def _token_spans(axis: Axis, tokens_ns: Sequence[int], late_ns: float, y: float) -> list[str]:
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


def _span(axis: Axis, from_ns: int, to_ns: int, y: float, colour: str) -> list[str]:
    if to_ns <= axis.from_ns or from_ns >= axis.to_ns:
        return []
    x = axis.x(from_ns)
    return [svg.box(x, y + 2.5, max(axis.x(to_ns) - x, 0.3), ROW - 6, colour)]


def _stamps(run: Run, row: int) -> list[int]:
    offsets = run.table.offsets
    return [int(at) for at in run.table.lists["chunk_at_ns"][offsets[row] : offsets[row + 1]]]
