"""How many runs, how many requests, how long: what a wanted precision costs.

Runs: the half width of a 95 % interval of a mean of n runs is t(0.975, n - 1) CV / sqrt(n) as a share of it. The normal
formula n = (1.96 CV / precision)^2 ignores that the spread itself is estimated from those runs, and is too small where n is.

Requests: what one run's value varies by has a part that more requests shrink (chance inside the run, as 1 / sqrt(n)) and a part
that they do not (heat, neighbours, placement). The part inside is what the moving-block bootstrap of the pilot says; once it is
well below the spread between runs, more requests buy nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from longbench_sched.compare import student
from longbench_sched.compare.delta import LEVEL, Estimate
from longbench_sched.compare.figure import Figure, find_figure
from longbench_sched.compare.point import RunPoint, common_window
from longbench_sched.errors import UsageError

MAX_RUNS = 100  # beyond this the answer is "look for the noise", not "run more"
_SEARCHED = 100_000
_NO_SPREAD = 1e-12  # relative: rounding, not noise
_Z = 1.959963984540054  # of the normal distribution, 97.5 %


@dataclass(frozen=True, slots=True)
class Need:
    """What it takes to know one figure to within a precision."""

    figure: Figure
    n_pilot: int
    cv: float | None  # between runs; None with a single pilot run
    cv_inside: float | None  # of one run's figure, by the bootstrap inside the runs
    runs: int | None  # by t
    runs_normal: int | None  # by the normal formula, for those who compare
    runs_to_see: int | None  # a side, to find a change of that size with a power of 80 %
    requests: int | None  # a run, so that chance inside a run is at most half of the spread allowed
    n_requests: int | None  # of the pilot
    duration_s: float | None  # of all runs of one side, as long as the pilot's


def runs_for_precision(cv: float, precision: float) -> int:
    """Runs for a 95 % interval of +- precision (a share), the spread being estimated from those runs (t).

    CV 8 % and 3 % asked: 30, since t(0.975, 29) x 0.08 / sqrt(30) = 2.99 %.
    """
    n = 2
    while student.quantile((1 + LEVEL) / 2, n - 1) * cv / math.sqrt(n) > precision:
        n = n + 1 if n < 1000 else n + n // 100
        if n > _SEARCHED:
            break
    return n


def runs_normal(cv: float, precision: float) -> int:
    """The same by the normal formula, (1.96 CV / precision)^2 rounded up: 28 for CV 8 % and 3 % asked."""
    return max(1, math.ceil((_Z * cv / precision) ** 2))


def runs_to_see(cv: float, change: float) -> int:
    """Runs a side to find a true change of that size (a share) in 4 of 5 comparisons, unpaired, two-sided 5 %."""
    step = math.log1p(change)
    n = 2
    while True:
        df = 2.0 * (n - 1)
        if (student.quantile(0.975, df) + student.quantile(0.8, df)) * cv * math.sqrt(2 / n) <= step or n > _SEARCHED:
            return n
        n = n + 1 if n < 1000 else n + n // 100


def runs_for_half_width(estimate: Estimate, n: int, half_width: float) -> int | None:
    """Runs a side that bring the interval's half width down to this, at the spread seen with `n` a side.

    None if it takes more than MAX_RUNS.
    """
    if half_width <= 0:
        return None
    spread, df_each = estimate.error * math.sqrt(n), estimate.df / max(1, n - 1)

    def is_enough(runs: int) -> bool:
        return student.quantile((1 + LEVEL) / 2, df_each * (runs - 1)) * spread / math.sqrt(runs) <= half_width

    # The half width shrinks with every run, so the first that is enough is found by halving.
    low, high = n + 1, max(MAX_RUNS, n + 1)
    if not is_enough(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle + 1, high)
    return low


def need(points: Sequence[RunPoint], key: str, precision: float) -> Need:
    """What the pilot runs (of one side, under one load) say about a figure. Raises UsageError if none has it."""
    figure, window = find_figure(key), common_window(points)
    values = [value for point in points if (value := point.value(key, window)) is not None]
    if not values:
        raise UsageError(f"{key} was not measured in these runs. Choose another --metric.")
    inside = _cv_inside(points, key, window)
    n_requests = _requests(points, figure, window)
    cv = spread(values)
    return Need(
        figure=figure,
        n_pilot=len(values),
        cv=cv,
        cv_inside=inside,
        runs=None if cv is None else runs_for_precision(cv, precision),
        runs_normal=None if cv is None else runs_normal(cv, precision),
        runs_to_see=None if cv is None else runs_to_see(cv, precision),
        requests=_requests_needed(n_requests, inside, precision),
        n_requests=n_requests,
        duration_s=None
        if cv is None
        else runs_for_precision(cv, precision) * math.fsum(point.duration_s for point in points) / len(points),
    )


def spread(values: Sequence[float]) -> float | None:
    """Standard deviation of the logarithms: the coefficient of variation, for small ones. None with fewer than two values."""
    if len(values) < 2 or min(values) <= 0:
        return None
    logs = [math.log(value) for value in values]
    mean = math.fsum(logs) / len(logs)
    deviation = math.sqrt(math.fsum((log - mean) ** 2 for log in logs) / (len(logs) - 1))
    return deviation if deviation > _NO_SPREAD else 0.0


def _cv_inside(points: Sequence[RunPoint], key: str, window: str) -> float | None:
    """Half widths of the intervals inside the runs, in logarithms, as a standard deviation; their root mean square."""
    found = []
    for point in points:
        ends = point.within.get(window, {}).get(key)
        if ends is not None and min(ends) > 0:
            found.append((math.log(ends[1]) - math.log(ends[0])) / (2 * _Z))
    return math.sqrt(math.fsum(cv * cv for cv in found) / len(found)) if found else None


def _requests(points: Sequence[RunPoint], figure: Figure, window: str) -> int | None:
    """Requests of a pilot run that the figure rests on; of the rarest run."""
    counts = [point.counts.get(window, {}).get("ttft") for point in points]
    known = [count for count in counts if count]
    return min(known) if known else None


def _requests_needed(n: int | None, cv_inside: float | None, precision: float) -> int | None:
    """Requests a run at which chance inside it alone would give an interval of half the precision asked."""
    if n is None or cv_inside is None:
        return None
    return max(1, math.ceil(n * (_Z * cv_inside / (precision / 2)) ** 2))
