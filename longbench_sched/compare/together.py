"""Together: the runs with which several sides stand beside each other under one load.

A match holds a candidate against the base. A ranking and a trade-off hold candidates against each other as well, so they need
more: the same blocks on all sides, and no two sides that are not like with like. Two candidates may each be close to the base
and too far from one another, or the base may not tell what they differ in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from longbench_sched.compare.figure import Figure
from longbench_sched.compare.parity import Disparity, find_disparities
from longbench_sched.compare.point import RunPoint, common_window

MIN_SHARED = 2  # blocks; with fewer there are no pairs


@dataclass(frozen=True, slots=True)
class Together:
    """All sides of a load, in one window."""

    window: str
    points: Mapping[str, tuple[RunPoint, ...]]  # by the name of the side
    barrier: tuple[str, str, Disparity] | None  # two sides, and why nothing is ranked
    disparities: tuple[Disparity, ...]  # that spoil some figures, of any two sides

    def spoils(self, figure: Figure) -> bool:
        """Whether that figure is not comparable between some two of them."""
        return any(disparity.spoils(figure) for disparity in self.disparities)


def stand_together(sides: Mapping[str, Sequence[RunPoint]], window: str | None = None) -> Together:
    """What of these sides may be ranked: by the blocks that all share, or by all runs where they share none."""
    shared = share_blocks(list(sides.values()))
    chosen = tuple(tuple(points) for points in sides.values()) if shared is None else shared
    points = dict(zip(sides, chosen, strict=True))
    found = [(one, other, d) for one, other in combinations(points, 2) for d in find_disparities(points[one], points[other])]
    return Together(
        window=window or common_window([point for side in chosen for point in side]),
        points=points,
        barrier=next((pair for pair in found if pair[2].consequence in ("refuse", "rank")), None),
        disparities=tuple(d for _, _, d in found if d.consequence in ("chunks", "limits")),
    )


def share_blocks(sides: Sequence[Sequence[RunPoint]]) -> tuple[tuple[RunPoint, ...], ...] | None:
    """The runs of each side in the blocks that all have, block by block; None where they share fewer than two."""
    blocks = [{(p.experiment, p.block): p for p in points if p.block is not None} for points in sides]
    shared = [
        key
        for key, first in blocks[0].items()
        if all(key in side and side[key].schedule == first.schedule for side in blocks[1:])
    ]
    return tuple(tuple(side[key] for key in shared) for side in blocks) if len(shared) >= MIN_SHARED else None
