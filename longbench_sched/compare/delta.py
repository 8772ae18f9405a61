"""Delta: how one figure differs between two sets of runs, and how sure that is.

The unit of evidence is the run. Requests inside a run share a server, a warm-up, a queue: a hundred more of them do not tell
how the next run will differ, and an interval made from them fails two runs of the same build (see docs/statistics.md). So each
run gives one value a figure, and the interval comes from how the values differ between runs:

- paired, where both sides ran in the same blocks: Student's t on the differences of logarithms, block by block;
- else Welch's t on the logarithms of both sides (Welch 1947; degrees of freedom by Satterthwaite 1946).

Logarithms, because engines differ by factors and latencies are skewed; exp of the mean difference is the ratio. The same is
done without logarithms for the difference in the figure's own unit.

With a single run a side there is no such evidence. What the moving-block bootstrap says inside each run is then carried along
for information, and nothing is judged by it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from longbench_sched.compare import student
from longbench_sched.compare.figure import Figure

LEVEL = 0.95
ALPHA = 1 - LEVEL
POWER = 0.8  # with which the smallest visible change would be found
# Below this a spread is rounding, not noise: two runs that agree to twelve digits are the same.
_NO_SPREAD = 1e-12

Method = Literal["paired", "unpaired", "within run", "none"]
NOTHING = 0.5e-3  # a change that is shown as 0.0 %: runs without noise would make every such one "better" or "worse"
Call = Literal["better", "worse", "different", "unsure", "no difference shown", "not judged", "not comparable"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean difference with its standard error, on whatever scale it was taken."""

    centre: float
    error: float  # standard error; 0 where the runs do not differ at all
    df: float

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Both ends of the interval."""
        half = student.quantile((1 + level) / 2, self.df) * self.error
        return self.centre - half, self.centre + half

    def p_above(self, limit: float) -> float:
        """One-sided p of "the true difference is at most `limit`": small if it is larger."""
        if self.error == 0:
            return 0.0 if self.centre > limit else 1.0
        return student.upper_tail((self.centre - limit) / self.error, self.df)

    def p_any(self) -> float:
        """Two-sided p of "there is no difference"."""
        if self.error == 0:
            return 1.0 if self.centre == 0 else 0.0
        return student.two_sided(self.centre / self.error, self.df)


@dataclass(frozen=True, slots=True)
class Delta:
    """One figure, base against candidate."""

    figure: Figure
    base: float | None  # geometric mean of the runs (arithmetic where a value is 0 or below)
    candidate: float | None
    n_base: int
    n_candidate: int
    method: Method
    logs: Estimate | None = None  # of ln(candidate / base)
    plain: Estimate | None = None  # of candidate - base, in the figure's unit
    ratio: float | None = None
    low: float | None = None  # 95 % interval of the ratio
    high: float | None = None
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None
    p: float | None = None
    p_adjusted: float | None = None  # over all figures of the comparison, by Holm
    smallest_visible: float | None = None  # a true change of this size (0.03 = 3 %) is found in 4 of 5 such comparisons
    call: Call = "not judged"
    note: str | None = None

    @property
    def has_spread(self) -> bool:
        """Whether runs differ in this figure at all, so that its interval has a width."""
        estimate = self.logs or self.plain
        return estimate is None or estimate.error > 0

    @property
    def change(self) -> float | None:
        """The ratio as a change: 0.05 = 5 % more than the base."""
        return None if self.ratio is None else self.ratio - 1


Values = Mapping[int, float]


def estimate_unpaired(base: Sequence[float], candidate: Sequence[float]) -> Estimate | None:
    """Welch's estimate of mean(candidate) - mean(base); None with fewer than two values on a side."""
    if len(base) < 2 or len(candidate) < 2:
        return None
    share_base, share_candidate = _variance(base) / len(base), _variance(candidate) / len(candidate)
    centre, total = _mean(candidate) - _mean(base), share_base + share_candidate
    scale = max(abs(value) for value in (*base, *candidate))
    if total <= (_NO_SPREAD * scale) ** 2:
        return Estimate(_rounded(centre, scale), 0.0, float(len(base) + len(candidate) - 2))
    df = total**2 / (share_base**2 / (len(base) - 1) + share_candidate**2 / (len(candidate) - 1))
    return Estimate(centre, math.sqrt(total), df)


def estimate_paired(base: Sequence[float], candidate: Sequence[float]) -> Estimate | None:
    """The estimate of the mean of candidate - base, pair by pair; None with fewer than two pairs."""
    differences = [after - before for before, after in zip(base, candidate, strict=True)]
    if len(differences) < 2:
        return None
    centre, error = _mean(differences), math.sqrt(_variance(differences) / len(differences))
    scale = max(abs(value) for value in (*base, *candidate))
    if error <= _NO_SPREAD * scale:
        return Estimate(_rounded(centre, scale), 0.0, float(len(differences) - 1))
    return Estimate(centre, error, float(len(differences) - 1))


def measure(figure: Figure, base: Sequence[float], candidate: Sequence[float], *, paired: bool) -> Delta:
    """The delta of run-level values; with `paired`, entry i of both sides is of one block."""
    estimate = estimate_paired if paired else estimate_unpaired
    plain = estimate(base, candidate)
    is_positive = bool(base and candidate) and min(*base, *candidate) > 0
    logs = estimate([math.log(v) for v in base], [math.log(v) for v in candidate]) if is_positive else None
    centre = _geometric_mean if is_positive else _mean
    delta = Delta(
        figure=figure,
        base=centre(base) if base else None,
        candidate=centre(candidate) if candidate else None,
        n_base=len(base),
        n_candidate=len(candidate),
        method="none" if plain is None else "paired" if paired else "unpaired",
        logs=logs,
        plain=plain,
    )
    return _with_intervals(delta, is_positive)


def _with_intervals(delta: Delta, is_positive: bool) -> Delta:
    base, candidate = delta.base, delta.candidate
    if base is None or candidate is None:
        return delta
    delta = replace(delta, ratio=candidate / base if is_positive else None, difference=candidate - base)
    if delta.plain is not None:
        low, high = delta.plain.interval()
        delta = replace(delta, difference=delta.plain.centre, difference_low=low, difference_high=high, p=delta.plain.p_any())
    if delta.logs is not None:
        low, high = delta.logs.interval()
        delta = replace(
            delta,
            ratio=math.exp(delta.logs.centre),
            low=_exp(low),
            high=_exp(high),
            p=delta.logs.p_any(),
            smallest_visible=smallest_visible(delta.logs),
        )
    return delta


def with_intervals_inside(delta: Delta, base: tuple[float, float] | None, candidate: tuple[float, float] | None) -> Delta:
    """A delta of one run a side, with the interval that the bootstrap inside each run gives: information, no judgement.

    The half widths of both logarithms are added as independent ones are, in squares, each end by itself.
    """
    if base is None or candidate is None or delta.ratio is None or delta.base is None or delta.candidate is None:
        return delta
    if min(*base, *candidate) <= 0:
        return delta
    below = math.hypot(math.log(delta.candidate / candidate[0]), math.log(base[1] / delta.base))
    above = math.hypot(math.log(candidate[1] / delta.candidate), math.log(delta.base / base[0]))
    return replace(delta, method="within run", low=delta.ratio * math.exp(-below), high=delta.ratio * math.exp(above))


def smallest_visible(logs: Estimate) -> float | None:
    """The true change that such a comparison finds with a power of 80 %, as a share; None if it is beyond any sense.

    (t(0.975, df) + t(0.8, df)) x standard error, the usual approximation to the noncentral t.
    """
    step = (student.quantile(1 - ALPHA / 2, logs.df) + student.quantile(POWER, logs.df)) * logs.error
    return math.expm1(step) if step < 20 else None


def judge(delta: Delta) -> Delta:
    """Say better, worse (or different), unsure or no difference shown, by the p corrected for the number of figures."""
    p, p_adjusted, figure = delta.p, delta.p_adjusted, delta.figure
    # Of the estimate that p is of: a mean of logarithms and a mean of values may lie on two sides of 0.
    estimate = delta.logs or delta.plain
    if delta.call == "not comparable" or p is None or p_adjusted is None or estimate is None:
        return delta
    call: Call
    is_nothing = delta.logs is not None and abs(delta.logs.centre) < NOTHING
    if p > ALPHA or estimate.centre == 0 or is_nothing:
        call = "no difference shown"
    elif p_adjusted > ALPHA:
        call = "unsure"
    elif figure.better is None:
        call = "different"
    else:
        call = "better" if (estimate.centre < 0) == (figure.better == "lower") else "worse"
    return replace(delta, call=call)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p values that keep the chance of any false claim among them below alpha (Holm 1979)."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for place, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(_mean([math.log(value) for value in values]))


def _variance(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _rounded(centre: float, scale: float) -> float:
    """0 for a difference that is nothing but rounding."""
    return 0.0 if abs(centre) <= _NO_SPREAD * scale else centre


def _exp(power: float) -> float:
    """Its exponential without overflow: an interval that wide ends at the largest float."""
    return math.exp(min(power, 700.0))
