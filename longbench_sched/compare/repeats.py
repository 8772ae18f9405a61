"""Repeats: what several runs of one engine under one load come to, figure by figure.

Mean, standard deviation and coefficient of variation of the run-level values, and Student's 95 % interval of their mean. It
says how far the mean of as many other runs would lie from this one; the interval inside a run does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from longbench_sched.compare import student
from longbench_sched.compare.delta import LEVEL
from longbench_sched.compare.figure import DEFAULT, Figure, find_figure
from longbench_sched.compare.point import RunPoint, common_window


@dataclass(frozen=True, slots=True)
class Repeats:
    """One figure over several runs."""

    figure: Figure
    n: int
    mean: float
    sd: float  # n - 1 in the denominator
    low: float  # 95 % interval of the mean
    high: float

    @property
    def cv(self) -> float | None:
        """The standard deviation as a share of the mean."""
        return self.sd / self.mean if self.mean else None


def over_runs(figure: Figure, values: Sequence[float]) -> Repeats:
    """Summarise at least two run-level values."""
    n = len(values)
    mean = math.fsum(values) / n
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = student.quantile((1 + LEVEL) / 2, n - 1) * sd / math.sqrt(n)
    return Repeats(figure, n, mean, sd, mean - half, mean + half)


def repeats_of(points: Sequence[RunPoint], keys: Sequence[str] = DEFAULT) -> tuple[str, list[Repeats]]:
    """The window that all runs have, and each figure that at least two of them know and that is not 0 throughout."""
    window = common_window(points)
    found = []
    for key in keys:
        values = [value for point in points if (value := point.value(key, window)) is not None]
        if len(values) >= 2 and any(values):
            found.append(over_runs(find_figure(key), values))
    return window, found
