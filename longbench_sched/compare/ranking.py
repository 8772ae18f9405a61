"""Ranking: an order by one figure, in which what the runs cannot tell apart is a tie.

Each side's value has an interval from its own runs (t on logarithms). A side's rank is one more than the number of sides that
are surely better, that is, whose interval lies wholly on the better side of its own. Overlap is a tie; a side with a single
run has no interval and ties with everyone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from longbench_sched.compare import student
from longbench_sched.compare.delta import LEVEL
from longbench_sched.compare.figure import Figure
from longbench_sched.compare.point import RunPoint


@dataclass(frozen=True, slots=True)
class Place:
    """One side in an order."""

    name: str
    rank: int
    value: float
    low: float | None
    high: float | None
    n: int
    ties: tuple[str, ...]  # sides whose intervals overlap this one


@dataclass(frozen=True, slots=True)
class Ranking:
    """The sides by one figure under one load, best first."""

    cell: str
    window: str
    figure: Figure
    places: tuple[Place, ...]


def rank(cell: str, window: str, sides: Mapping[str, Sequence[RunPoint]], figures: Sequence[Figure]) -> list[Ranking]:
    """A ranking for each figure that has a better way and is known on every side."""
    rankings = []
    for figure in figures:
        values = {name: _known(points, figure.key, window) for name, points in sides.items()}
        if figure.better is not None and all(values.values()) and all(min(found) > 0 for found in values.values()):
            rankings.append(Ranking(cell, window, figure, order(values, lower_is_better=figure.better == "lower")))
    return rankings


def order(values: Mapping[str, Sequence[float]], *, lower_is_better: bool) -> tuple[Place, ...]:
    """Rank sides by their run-level values, all above 0; best first."""
    spans = {name: span(found) for name, found in values.items()}
    places = [
        Place(
            name=name,
            rank=1 + sum(_is_surely_better(spans[other], spans[name], lower_is_better) for other in spans if other != name),
            value=centre,
            low=low,
            high=high,
            n=len(values[name]),
            ties=tuple(other for other in spans if other != name and _overlap(spans[other], spans[name])),
        )
        for name, (centre, low, high) in spans.items()
    ]
    return tuple(sorted(places, key=lambda place: place.value if lower_is_better else -place.value))


Span = tuple[float, float | None, float | None]


def span(values: Sequence[float]) -> Span:
    """Geometric mean with its 95 % interval; no interval for a single value."""
    logs = [math.log(value) for value in values]
    centre = math.fsum(logs) / len(logs)
    if len(logs) < 2:
        return math.exp(centre), None, None
    variance = math.fsum((log - centre) ** 2 for log in logs) / (len(logs) - 1)
    half = student.quantile((1 + LEVEL) / 2, len(logs) - 1) * math.sqrt(variance / len(logs))
    return math.exp(centre), math.exp(centre - half), math.exp(min(centre + half, 700.0))


def _overlap(one: Span, other: Span) -> bool:
    if one[1] is None or one[2] is None or other[1] is None or other[2] is None:
        return True
    return one[1] <= other[2] and other[1] <= one[2]


def _is_surely_better(one: Span, than: Span, lower_is_better: bool) -> bool:
    return not _overlap(one, than) and (one[0] < than[0]) == lower_is_better


def _known(points: Sequence[RunPoint], key: str, window: str) -> list[float]:
    return [value for point in points if (value := point.value(key, window)) is not None]
