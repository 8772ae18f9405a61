"""Noise floor: what two sets of runs of one and the same build differ by.

A limit below the floor fails nothing that it should and passes nothing that it could: the check stays undecided. The floor
comes from runs of one build (A/A): their spread gives the difference that stays unexceeded in 19 of 20 pairs of sets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from longbench_sched.compare import student
from longbench_sched.compare.delta import ALPHA, LEVEL, POWER
from longbench_sched.compare.figure import Figure
from longbench_sched.compare.point import RunPoint
from longbench_sched.compare.power import spread


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """The floor of one figure."""

    figure: Figure
    n_runs: int  # of one build, that it rests on
    cv: float | None  # standard deviation of the logarithms between runs
    change: float | None  # that two sets of `n_a_side` runs of one build stay below in 19 of 20 cases (0.02 = 2 %)
    visible: float | None  # the smallest true change that they would show in 4 of 5 cases
    n_a_side: int


def noise_floor(figure: Figure, points: Sequence[RunPoint], window: str, n_a_side: int) -> NoiseFloor:
    """The floor for comparisons of `n_a_side` runs, from runs of one build under one load."""
    values = [value for point in points if (value := point.value(figure.key, window)) is not None]
    cv = spread(values)
    if cv is None:
        return NoiseFloor(figure, len(values), None, None, None, n_a_side)
    df = float(len(values) - 1)
    error = cv * math.sqrt(2 / n_a_side)
    found, seen = student.quantile((1 + LEVEL) / 2, df), student.quantile(1 - ALPHA / 2, df) + student.quantile(POWER, df)
    return NoiseFloor(figure, len(values), cv, _expm1(found * error), _expm1(seen * error), n_a_side)


def _expm1(step: float) -> float | None:
    return math.expm1(step) if step < 20 else None
