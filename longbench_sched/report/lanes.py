"""Lanes: the timeline of what acts side by side, a row for each engine of each pool and for each pipeline stage.

A tinted box is a step: as wide as it took, orange if it computed prompts. In it stand prompt tokens above the axis and hang
decoding requests below, as in the picture of one engine. White is time in which nothing was done: a bubble, or no work. Boxes
of one micro-batch carry the same number from stage to stage, where there is room for it. Below the row of an engine a strip
shows when KV is on its link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from longbench_sched.quantity import significant
from longbench_sched.report import svg
from longbench_sched.report.bars import (
    DECODE,
    GAP,
    INK,
    KV,
    LEFT,
    MAX_BARS,
    MAX_TITLED,
    PREFILL,
    QUEUE,
    RIGHT,
    WIDTH,
    Axis,
    Bar,
    bars,
    panel_of_level,
)
from longbench_sched.steps import TRANSFER, PoolFacts, StepTable

MAX_LANES = 16
LINK, PREFILL_TINT, DECODE_TINT = "#937860", "#f8e3d6", "#dbe3f1"
_HALF, _STRIP, _LEAST_BARS = 20, 6, 400
_SEEN_APART = 6  # px from which on a box is parted from the next
_DIGIT = 5.5  # px of a digit of a number in a box


@dataclass(frozen=True, slots=True)
class Lane:
    """Where steps come one after the other, and the link beside it."""

    pool: PoolFacts
    instance: int
    stage: int
    rows: list[int]
    transfers: list[int]

    @property
    def name(self) -> str:
        """`stage 2`, `prefill 1`, `engine 0 stage 1`."""
        words = [self.pool.pool or ("engine" if self.pool.n_engines > 1 else "")]
        words += [str(self.instance)] if self.pool.n_engines > 1 else []
        words += [f"stage {self.stage}"] if self.pool.n_stages > 1 else []
        return " ".join(word for word in words if word)


def lanes_of(steps: StepTable) -> list[Lane]:
    """All of them, those that never had a step as well."""
    found = {
        (pool.pool, instance, stage): Lane(pool, instance, stage, [], [])
        for pool in steps.facts.engines
        for instance in range(pool.n_engines)
        for stage in range(pool.n_stages)
    }
    pools, instances, stages, phases = steps.texts["pool"], steps.ints["instance"], steps.ints["stage"], steps.texts["phase"]
    for row in range(steps.n):
        lane = found[pools[row], instances[row], stages[row]]
        (lane.transfers if phases[row] == TRANSFER else lane.rows).append(row)
    return list(found.values())


def legend(steps: StepTable) -> list[tuple[str, str]]:
    """Colours that the picture of one engine has not, and what they mean."""
    has_transfers = any(phase == TRANSFER for phase in steps.texts["phase"])
    return [(DECODE_TINT, "busy"), *([(LINK, "KV on the link")] if has_transfers else [])]


def panels(steps: StepTable, lanes: Sequence[Lane], axis: Axis, top: float) -> tuple[list[str], float]:
    """A row for each lane, then queue and KV memory; and where they end."""
    shown = _shown(lanes)
    most = max(_LEAST_BARS, MAX_BARS // len(shown))
    bars_of = [bars(steps, lane.rows, axis, most) for lane in shown]
    is_titled = sum(map(len, bars_of)) <= MAX_TITLED
    parts: list[str] = []
    for lane, own in zip(shown, bars_of, strict=True):
        alike = [bar for other, more in zip(shown, bars_of, strict=True) if other.pool is lane.pool for bar in more]
        parts += _row(lane.name, own, alike, axis, top, is_titled)
        top += 2 * _HALF
        if any(other.transfers for other in shown if other.pool is lane.pool):
            parts += _strip(steps, lane.transfers, axis, top + 2, most)
            top += _STRIP + 2
        top += GAP / 2
    if len(shown) < len(lanes):
        parts.append(svg.text(LEFT, top + 10, f"not drawn: {len(lanes) - len(shown)} more", size=10, colour="#777"))
        top += 16
    top += GAP / 2
    for pool in dict.fromkeys(lane.pool for lane in shown):
        firsts = [own for lane, own in zip(shown, bars_of, strict=True) if lane.pool is pool and lane.stage == 0]
        if pool.pool != "decode":  # what is there is taken in at once
            parts += panel_of_level(firsts, axis, top, "waiting", QUEUE, lambda bar: bar.waiting, None)
            top += 30 + GAP
        parts += panel_of_level(firsts, axis, top, f"KV {pool.pool or 'used'}", KV, lambda bar: bar.kv, float(pool.kv_tokens))
        top += 30 + GAP
    return parts, top


def _x(axis: Axis, at_ns: float) -> float:
    """As it will be written, so that a box ends exactly where the next begins."""
    return round(axis.x(at_ns), 2)


def _shown(lanes: Sequence[Lane]) -> list[Lane]:
    """The first of each pool, as many as there is room for."""
    by_pool = [[lane for lane in lanes if lane.pool is pool] for pool in dict.fromkeys(lane.pool for lane in lanes)]
    in_turn = [lane for several in zip_longest(*by_pool) for lane in several if lane is not None]
    taken = {id(lane) for lane in in_turn[:MAX_LANES]}
    return [lane for lane in lanes if id(lane) in taken]


def _row(name: str, own: Sequence[Bar], alike: Sequence[Bar], axis: Axis, top: float, is_titled: bool) -> list[str]:
    """One lane; heights are to one scale in all lanes that are alike."""
    middle = top + _HALF
    most_prefill = max((bar.prefill for bar in alike), default=0) or 1
    most_decode = max((bar.decode for bar in alike), default=0) or 1
    is_numbered = all(bar.number >= 0 for bar in own)
    parts, numbers, busy_ns = _tints(own, axis, middle), [], 0.0
    for bar in own:
        x = _x(axis, bar.begin_ns)
        width = max(_x(axis, bar.end_ns) - x, 0.3)
        inner = width - (1.0 if width > _SEEN_APART else 0.0)
        busy_ns += bar.busy * (min(bar.end_ns, axis.to_ns) - max(bar.begin_ns, axis.from_ns))
        words = None
        if is_titled:
            ms = (bar.end_ns - bar.begin_ns) / 1e6
            words = f"{significant(ms)} ms: {bar.prefill:.0f} prompt tokens, {bar.decode:.0f} requests decode"
        if bar.prefill:
            height = max(1.0, _HALF * bar.prefill / most_prefill)
            parts.append(svg.box(x, middle - height, inner, height, PREFILL, words))
        if bar.decode:
            height = max(1.0, _HALF * bar.decode / most_decode)
            parts.append(svg.box(x, middle, inner, height, DECODE, words))
        number = str(bar.number)
        if is_numbered and inner > _DIGIT * len(number) + 4:
            numbers.append(svg.text(x + inner / 2, middle - _HALF / 2 + 3.5, number, size=9, anchor="middle", colour=INK))
    share = busy_ns / (axis.to_ns - axis.from_ns)
    return [
        *parts,
        *numbers,
        svg.line(LEFT, middle, WIDTH - RIGHT, middle, "#bbb", 0.5),
        svg.text(LEFT - 6, middle - 2, name, size=10 if len(name) < 15 else 9, anchor="end"),
        svg.text(LEFT - 6, middle + 11, f"busy {100 * share:.0f} %", size=9, anchor="end", colour="#777"),
    ]


def _tints(own: Sequence[Bar], axis: Axis, middle: float) -> list[str]:
    """Behind the bars, where something is done: several steps drawn together are as high as they were busy.

    What follows without a gap and is too thin to be seen apart is one box: edges of many would leave white between them.
    """
    parts: list[str] = []
    began_ns = 0
    for bar, after in zip_longest(own, own[1:]):
        began_ns = began_ns or bar.begin_ns
        x = _x(axis, began_ns)
        is_thin = _x(axis, bar.end_ns) - _x(axis, bar.begin_ns) <= _SEEN_APART
        is_alike = after is not None and (bool(bar.prefill), bar.busy) == (bool(after.prefill), after.busy)
        if is_thin and is_alike and after.begin_ns == bar.end_ns:
            continue
        width = max(_x(axis, bar.end_ns) - x, 0.3) - (0.0 if is_thin else 1.0)
        tint = PREFILL_TINT if bar.prefill else DECODE_TINT
        parts.append(svg.box(x, middle - bar.busy * _HALF, width, 2 * bar.busy * _HALF, tint))
        began_ns = 0
    return parts


def _strip(steps: StepTable, transfers: Sequence[int], axis: Axis, top: float, most: int) -> list[str]:
    """When KV is on the link."""
    parts = []
    for bar in bars(steps, transfers, axis, most):
        x = _x(axis, bar.begin_ns)
        height = max(1.0, bar.busy * _STRIP)
        parts.append(svg.box(x, top + _STRIP - height, max(_x(axis, bar.end_ns) - x, 0.3), height, LINK))
    return parts
