"""Arrival processes: when each request of an open loop is due.

A process gives the positions of its requests in units of the mean gap, beginning at 0; the rate (or the stages of a ramp)
turns positions into times. Times are absolute, in whole nanoseconds from the start, so that no sender can add up small
delays. The random processes are scaled so that n requests take n mean gaps: the load offered is exactly the load asked for
with any seed, and what is random is how it is spread (a Poisson process, given its count).

To add a process: one dataclass here, and its line in `spec.py`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from longbench_sched.workload import exact


class ArrivalProcess(Protocol):
    """How arrivals are spread at a given mean rate."""

    @property
    def name(self) -> str:
        """The word used in files and headlines."""
        ...

    def positions(self, rng: random.Random, n: int) -> list[float]:
        """`n` arrivals in units of the mean gap: ascending, the first at 0."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """Equal gaps."""

    name: str = "constant"

    def positions(self, rng: random.Random, n: int) -> list[float]:
        """0, 1, 2, ..."""
        return [float(i) for i in range(n)]


@dataclass(frozen=True, slots=True)
class Poisson:
    """Exponential gaps: many independent users."""

    name: str = "poisson"

    def positions(self, rng: random.Random, n: int) -> list[float]:
        """Running total of exponential gaps."""
        return _scaled([-exact.ln(exact.unit(rng)) for _ in range(n)])


@dataclass(frozen=True, slots=True)
class Gamma:
    """Gamma gaps with a coefficient of variation: 1 is Poisson, above it arrivals come in clumps.

    The shape is 1 / cv^2 (what other tools call burstiness).
    """

    cv: float
    name: str = "gamma"

    def positions(self, rng: random.Random, n: int) -> list[float]:
        """Running total of gamma gaps."""
        shape = 1 / (self.cv * self.cv)
        return _scaled([_gamma(rng, shape) for _ in range(n)])


@dataclass(frozen=True, slots=True)
class Burst:
    """`size` requests at the same instant, again and again; without a size all at once."""

    size: int | None = None
    name: str = "burst"

    def positions(self, rng: random.Random, n: int) -> list[float]:
        """0, 0, ..., size, size, ..."""
        size = self.size or n
        return [float(i // size * size) for i in range(n)]


@dataclass(frozen=True, slots=True)
class RateStage:
    """A rate, held for a time; `None` = to the end."""

    rate_per_s: float
    duration_s: float | None = None


def expected_requests(stages: Sequence[RateStage], duration_s: float) -> int:
    """How many requests the stages offer within `duration_s`, to the nearest whole one."""
    left, total = duration_s, []
    for stage in stages:
        span = left if stage.duration_s is None else min(left, stage.duration_s)
        total.append(stage.rate_per_s * span)
        left -= span
    return round(math.fsum(total))


def due_ns(process: ArrivalProcess, stages: Sequence[RateStage], rng: random.Random, n: int) -> list[int]:
    """Due times of `n` requests in ns from the start. Without stages (a burst of all) they are all due at 0.

    A position p falls where the stages have offered p requests: the inverse of the integral of the rate. After the last
    stage its rate goes on.
    """
    positions = process.positions(rng, n)
    if not stages:
        return [0] * n
    times: list[int] = []
    i, offered, from_s = 0, 0.0, 0.0
    for position in positions:
        while (span := stages[i].duration_s) is not None and i + 1 < len(stages):
            if position < offered + stages[i].rate_per_s * span:
                break
            offered += stages[i].rate_per_s * span
            from_s += span
            i += 1
        times.append(round((from_s + (position - offered) / stages[i].rate_per_s) * 1e9))
    return times


def realised(times_ns: Sequence[int]) -> tuple[float, float] | None:
    """Rate per s over first-to-last arrival, and the CV of the gaps; None for fewer than three arrivals or a single instant."""
    gaps = [(b - a) / 1e9 for a, b in pairwise(times_ns)]
    if len(gaps) < 2 or times_ns[-1] == times_ns[0]:
        return None
    mean = math.fsum(gaps) / len(gaps)
    variance = math.fsum((g - mean) ** 2 for g in gaps) / len(gaps)
    return 1 / mean, math.sqrt(variance) / mean


def _scaled(gaps: list[float]) -> list[float]:
    """Running totals from 0, scaled so that the gaps have mean 1 (the last gap follows the last request)."""
    # A gamma gap of a large CV may be too small for a double, and with few requests so may all of them.
    scale = len(gaps) / (math.fsum(gaps) or 1.0)
    positions, at = [], 0.0
    for gap in gaps:
        positions.append(at * scale)
        at += gap
    return positions


def _gamma(rng: random.Random, shape: float) -> float:
    """A gamma draw of scale 1 (G. Marsaglia and W. W. Tsang, 2000, ACM TOMS 26(3))."""
    if shape < 1:
        return _gamma(rng, shape + 1) * exact.exp(exact.ln(exact.unit(rng)) / shape)
    d = shape - 1 / 3
    c = 1 / math.sqrt(9 * d)
    while True:
        x = exact.normal_quantile(exact.unit(rng))
        v = 1 + c * x
        if v <= 0:
            continue
        v = v * v * v
        if exact.ln(exact.unit(rng)) < 0.5 * x * x + d - d * v + d * exact.ln(v):
            return d * v
