"""Distribution: percentiles, means and shape of samples.

Percentiles of successes interpolate linearly between neighbours (numpy's default, as most tools do). Weighted samples give
exactly what the same values repeated `weight` times would give. Error-adjusted percentiles take the nearest rank, since one
cannot interpolate towards a request that never came back.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longbench_sched.metrics.columns import Floats, Samples

SECOND_MODE_RATIO = 2.0  # neighbours in sorted order so far apart are two modes
SECOND_MODE_GAP = 2.0  # the step between the modes, at least, in widths of the larger one
SECOND_MODE_MIN_N = 20

_PART = 1 << 20


class Ordered:
    """Order statistics of unweighted values, which are sorted only as far as they are asked for.

    A hundred million gaps take seconds to sort and less to be parted at a few ranks: each rank asked for parts the stretch
    between those known already. The values are kept as a copy of their own.
    """

    def __init__(self, values: Floats, *, is_sorted: bool = False) -> None:
        self._values = values if is_sorted else values.copy()
        self._known = [-1, len(values)]
        self._is_sorted = is_sorted

    def __len__(self) -> int:
        return len(self._values)

    def at(self, rank: int) -> float:
        """The value with `rank` values below it in order, from 0 on."""
        place = bisect.bisect_left(self._known, rank)
        if not self._is_sorted and self._known[place] != rank:
            first, end = self._known[place - 1] + 1, self._known[place]
            self._values[first:end].partition(rank - first)
            self._known.insert(place, rank)
        return float(self._values[rank])

    def quantile(self, share: float) -> float:
        """The value below which this share lies, linear between neighbours (as numpy's default, to the last bit)."""
        position = share * (len(self._values) - 1)
        below = min(int(position), len(self._values) - 1)
        low, high, part = self.at(below), self.at(min(below + 1, len(self._values) - 1)), position - below
        return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)


def ordered(samples: Samples) -> Samples | Ordered:
    """The samples in such an order that percentiles of them are cheap; weighted ones ascending, without their rows."""
    if samples.weights is None:
        return Ordered(samples.values)
    order = np.argsort(samples.values, kind="stable")
    return Samples(samples.values[order], np.array([len(order)]), samples.weights[order])


def percentiles(samples: Samples | Ordered, shares: Sequence[float]) -> list[float]:
    """The values below which these shares lie. `samples` must not be empty; weighted ones must be `ordered`."""
    if isinstance(samples, Ordered):
        return [samples.quantile(share) for share in shares]
    if samples.weights is None:
        return percentiles(Ordered(samples.values), shares)
    values, upto = samples.values, np.cumsum(samples.weights)
    position = np.asarray(shares) * (upto[-1] - 1)
    below = np.floor(position).astype(np.int64)
    low = values[np.searchsorted(upto, below, side="right")]
    high = values[np.searchsorted(upto, np.minimum(below + 1, upto[-1] - 1), side="right")]
    return [float(value) for value in low + (high - low) * (position - below)]


def mean(samples: Samples) -> float:
    """The mean, each value as often as it counts."""
    if samples.weights is None:
        return float(samples.values.mean())
    return float((samples.values * samples.weights).sum() / samples.weights.sum())


def nearest_rank(values: Floats, share: float) -> float:
    """The smallest value with at least this share of all at or below it; may be infinite."""
    rank = max(1, math.ceil(share * len(values) - 1e-9))
    return float(np.partition(values, rank - 1)[rank - 1])


def adjusted(
    values: Floats, bounds: Floats, n_unbounded: int, shares: Sequence[float]
) -> tuple[dict[str, float | None], dict[str, float]]:
    """Percentiles with every failure as +inf, and lower bounds of those that fall on one.

    values: of successes. bounds: for each timeout, what its value is at least. n_unbounded: failures about which nothing is
    known. A percentile that falls on a failure is None; its lower bound takes each timeout at its bound, and where that too
    falls on an unbounded failure, the largest bound there is.
    """
    if not len(values) + len(bounds) + n_unbounded:
        return {}, {}
    never = np.full(n_unbounded, np.inf)
    as_failures = np.concatenate([values, np.full(len(bounds), np.inf), never])
    as_bounds = np.concatenate([values, bounds, never])
    exact: dict[str, float | None] = {}
    at_least: dict[str, float] = {}
    for share in shares:
        name = f"p{share * 100:g}"
        value = nearest_rank(as_failures, share)
        exact[name] = value if math.isfinite(value) else None
        if math.isinf(value) and len(bounds):
            bound = nearest_rank(as_bounds, share)
            at_least[name] = bound if math.isfinite(bound) else float(bounds.max())
    return exact, at_least


def second_mode(values: Floats, *, is_sorted: bool = False) -> str | None:
    """A hint if the values lie in two heaps far apart: "2 % in a second mode".

    The widest step between neighbours in sorted order must double the value, leave at least 2 values and 1 % on each side, and
    be twice as wide as the larger heap itself: the tail of a broad distribution is no mode.
    """
    n = len(values)
    if n < SECOND_MODE_MIN_N:
        return None
    ordered = values if is_sorted else np.sort(values)
    least = max(2, math.ceil(n / 100))
    lower, upper = ordered[least - 1 : n - least], ordered[least : n - least + 1]
    ratio = upper / np.maximum(lower, np.finfo(np.float64).tiny)
    at = int(np.argmax(ratio))
    cut = at + least
    larger = ordered[:cut] if cut >= n - cut else ordered[cut:]
    if lower[at] <= 0 or ratio[at] < SECOND_MODE_RATIO or upper[at] - lower[at] <= SECOND_MODE_GAP * (larger[-1] - larger[0]):
        return None
    share = min(cut, n - cut) / n
    return f"{share * 100:.0f} % in a second mode"


def most_common(counts: NDArray[Any]) -> int:
    """The most frequent of some whole numbers from 0 on (the smallest of them if several are)."""
    times = np.zeros(1, dtype=np.int64)
    for first in range(0, len(counts), _PART):  # bincount makes a copy in its own type
        part = np.bincount(counts[first : first + _PART], minlength=len(times))
        part[: len(times)] += times
        times = part
    return int(np.argmax(times))
