"""Bars: steps on an axis of time, and what every panel of a timeline is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from longbench_sched.quantity import compact
from longbench_sched.report import svg
from longbench_sched.steps import StepTable

PREFILL, DECODE, WAIT, STALL, QUEUE, KV, INK, RULE = (
    "#dd8452", "#4c72b0", "#d5d5d5", "#c44e52", "#8172b3", "#55a868", "#333333", "#e4e4e4",
)  # fmt: skip
WIDTH, LEFT, RIGHT = 960, 96, 16
HALF, GAP = 70, 14
MAX_TITLED = 400  # bars that say their numbers beside the pointer; with more the file grows and no pointer hits one
MAX_BARS = (WIDTH - LEFT - RIGHT) * 2


@dataclass(frozen=True, slots=True)
class Axis:
    """Instants in ns -> x."""

    from_ns: int
    to_ns: int
    origin_ns: int

    def x(self, at_ns: float) -> float:
        """Where an instant lies; at the edge what lies outside."""
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
class Bar:
    """One step, or several that are too thin to be seen apart."""

    begin_ns: int
    end_ns: int
    prefill: float
    decode: float
    waiting: float
    kv: float
    busy: float = 1.0  # share of the time from begin to end
    number: int = -1  # of its micro-batch; -1: of several


def bars(steps: StepTable, rows: Sequence[int], axis: Axis, most: int = MAX_BARS) -> list[Bar]:
    """Those of the steps that are in view; of more than `most`, neighbours are put together, weighted by time."""
    ints = steps.ints
    rows = [r for r in rows if ints["end_ns"][r] > axis.from_ns and ints["begin_ns"][r] < axis.to_ns]
    if len(rows) <= most:
        return [_bar(steps, [row]) for row in rows]
    slot_ns = (axis.to_ns - axis.from_ns) / most
    groups: dict[int, list[int]] = {}
    for row in rows:
        groups.setdefault(int((ints["begin_ns"][row] - axis.from_ns) / slot_ns), []).append(row)
    return [_bar(steps, group) for group in groups.values()]


def _bar(steps: StepTable, rows: Sequence[int]) -> Bar:
    ints = steps.ints
    lengths = [ints["end_ns"][row] - ints["begin_ns"][row] for row in rows]
    total = sum(lengths)

    def mean(name: str) -> float:
        return sum(ints[name][row] * length for row, length in zip(rows, lengths, strict=True)) / total

    return Bar(
        begin_ns=ints["begin_ns"][rows[0]],
        end_ns=ints["end_ns"][rows[-1]],
        prefill=mean("prefill_tokens"),
        decode=mean("n_decode"),
        waiting=mean("n_waiting"),
        kv=mean("kv_used_tokens"),
        busy=total / (ints["end_ns"][rows[-1]] - ints["begin_ns"][rows[0]]),
        number=ints["micro_batch"][rows[0]] if len(rows) == 1 else -1,
    )


def panel_of_level(
    lines: Sequence[Sequence[Bar]],
    axis: Axis,
    top: float,
    name: str,
    colour: str,
    pick: Callable[[Bar], float],
    full: float | None,
) -> list[str]:
    """A line over time for each of these, from 0 to `full` or to the largest value."""
    largest = max((pick(bar) for line in lines for bar in line), default=0)
    most = full or largest or 1
    words = f"{100 * largest / most:.0f} %" if full else count_text(largest)
    parts = [
        svg.line(LEFT, top + 30, WIDTH - RIGHT, top + 30, RULE),
        svg.text(LEFT - 6, top + 14, name, size=10, anchor="end"),
        svg.text(LEFT - 6, top + 28, f"max {words}", size=9, anchor="end", colour="#777"),
    ]
    for line in lines:
        points = [point for bar in line for point in _level(bar, axis, top + 30 * (1 - min(pick(bar) / most, 1)))]
        parts += [svg.path(points, colour)] if points else []
    return parts


def _level(bar: Bar, axis: Axis, y: float) -> tuple[tuple[float, float], tuple[float, float]]:
    return (axis.x(bar.begin_ns), y), (axis.x(bar.end_ns), y)


def count_text(value: float) -> str:
    """A whole number, short."""
    return f"{value:.0f}" if value < 10_000 else compact(value)


def _round_step(step: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** int(f"{step:e}".partition("e")[2])
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= step * 0.999)
