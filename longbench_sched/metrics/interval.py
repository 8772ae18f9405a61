"""Intervals: how far a mean or a median would move in another run of the same kind.

Neighbouring requests are not independent: they share a queue and a batch. So whole blocks of neighbours in due order are drawn
(circular moving-block bootstrap, Politis & Romano 1992), and the block length comes from the data (Politis & White 2004, as
corrected by Patton, Politis & White 2009): 1 for independent values, longer the longer the autocorrelation lasts, at most
min(3 sqrt(n), n / 3).

Both intervals are those of a ratio of sums over requests. The mean is sum(values) / sum(counts). For a median m it is the share
of values at or below m; the interval of that share is turned back into values by the distribution itself (Woodruff 1952). For
independent values that is the classical interval from order statistics, and for tokens it keeps those of one request together.
Either takes a few milliseconds for any number of requests, since only sums over blocks are drawn.

These intervals say how sure this run's figure is, not how runs differ from each other.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longbench_sched.metrics.columns import Columns, Floats, Samples, add_rows
from longbench_sched.metrics.distribution import Ordered, percentiles

LEVEL = 0.95
DRAWS = 1000
MIN_N = 8  # requests; with fewer there is no interval
_MAX_BLOCKS = 500  # more add cost, not certainty
_FIRST_LAGS, _LONG = 32, 10_000


def block_length(series: Floats) -> int:
    """Block length for the circular bootstrap of the mean of a series (Politis & White 2004; 2009 correction)."""
    n = len(series)
    centred = series - series.mean()
    variance = float(centred @ centred) / n
    scale = float(np.abs(series).max())
    if n < 4 or variance <= (1e-12 * scale) ** 2:
        return 1
    quiet = max(5, math.ceil(math.sqrt(math.log10(n))))
    lags = min(n - 1, math.ceil(math.sqrt(n)) + quiet)
    limit = 2 * math.sqrt(math.log10(n) / n)
    # A long series usually forgets within a few lags, and then a transform over all of it is not needed.
    covariance = _autocovariance(centred, min(_FIRST_LAGS, lags))
    m = _last_lag(covariance, limit, quiet)
    if m is None or 2 * m >= len(covariance):
        covariance = _autocovariance(centred, lags)
        m = _last_lag(covariance, limit, quiet)
    if m is None:
        not_small = np.flatnonzero(np.abs(covariance[1:]) >= limit * covariance[0])
        m = int(not_small[-1]) + 1 if len(not_small) else 0
    if m == 0:
        return 1
    m = min(2 * m, lags)
    lag = np.arange(1, m + 1)
    taper = np.minimum(1.0, 2.0 * (1.0 - lag / m))  # flat-top: 1 up to m / 2, then down to 0
    g = 2 * float((taper * lag * covariance[1 : m + 1]).sum())
    long_run = float(covariance[0] + 2 * (taper * covariance[1 : m + 1]).sum())
    if long_run <= 0:
        return 1
    length = math.cbrt(2 * g * g / (4 / 3 * long_run**2) * n)
    return max(1, min(math.ceil(length), math.ceil(min(3 * math.sqrt(n), n / 3))))


def _last_lag(covariance: Floats, limit: float, quiet: int) -> int | None:
    """The first lag after which `quiet` lags in a row are negligible; None if there is none."""
    small = np.abs(covariance[1:]) < limit * covariance[0]
    if len(small) < quiet:
        return None
    starts = np.flatnonzero(np.convolve(small, np.ones(quiet, dtype=np.int64), "valid") == quiet)
    return int(starts[0]) if len(starts) else None


def _autocovariance(centred: Floats, lags: int) -> Floats:
    """The autocovariance at lags 0 to `lags`, directly where they are few for the length, else by a Fourier transform."""
    n = len(centred)
    if lags <= _FIRST_LAGS and n > _LONG:
        # Not `@`: for long series that starts threads, which wait for each other on a busy machine.
        return np.array([np.einsum("i,i", centred[lag:], centred[: n - lag]) for lag in range(lags + 1)]) / n
    spectrum = np.fft.rfft(centred, 1 << (n + lags).bit_length())
    covariance: Floats = np.fft.irfft(np.abs(spectrum) ** 2)[: lags + 1] / n
    return covariance


def ratio_deviation(numerator: Floats, denominator: Floats, seed: int) -> tuple[float, float]:
    """How far sum(numerator) / sum(denominator) falls and rises in 95 % of draws: (below <= 0, above >= 0).

    Both have one entry a request, in due order; the denominator's are positive.
    """
    n = len(numerator)
    ratio = float(numerator.sum() / denominator.sum())
    influence = numerator - ratio * denominator
    length = max(block_length(influence), math.ceil(n / _MAX_BLOCKS))
    n_blocks = math.ceil(n / length)
    starts = np.random.default_rng(seed).integers(0, n, (DRAWS, n_blocks))
    moved = _block_sums(influence, length)[starts].sum(axis=1) / _block_sums(denominator, length)[starts].sum(axis=1)
    # Blocks that overshoot n draw more than n requests: that much too narrow.
    moved *= math.sqrt(n_blocks * length / n)
    tail = (1 - LEVEL) / 2
    below, above = np.quantile(moved, (tail, 1 - tail))
    return min(0.0, float(below)), max(0.0, float(above))


def _block_sums(series: Floats, length: int) -> Floats:
    """Sum of the block of `length` entries from each position on, around the end."""
    upto = np.concatenate([[0.0], np.cumsum(np.concatenate([series, series[: length - 1]]))])
    sums: Floats = upto[length:] - upto[:-length]
    return sums


def mean_interval(columns: Columns, samples: Samples, seed: int) -> tuple[float, float] | None:
    """95 % interval of the mean; None with too few requests."""
    weighted = samples.values if samples.weights is None else samples.values * samples.weights
    sums, counts = _in_due_order(columns, samples, weighted)
    if len(sums) < MIN_N:
        return None
    centre = float(sums.sum() / counts.sum())
    below, above = ratio_deviation(sums, counts, seed)
    return centre + below, centre + above


def median_interval(
    columns: Columns, samples: Samples, ordered: Samples | Ordered, median: float, seed: int
) -> tuple[float, float] | None:
    """95 % interval of the median; None with too few requests. `ordered` are the same samples, as percentiles want them."""
    is_below = samples.values <= median
    at_or_below, counts = _in_due_order(columns, samples, is_below if samples.weights is None else is_below * samples.weights)
    if len(counts) < MIN_N:
        return None
    below, above = ratio_deviation(at_or_below, counts, seed)
    low, high = percentiles(ordered, (max(0.0, 0.5 - above), min(1.0, 0.5 - below)))
    return min(low, median), max(high, median)


def _in_due_order(columns: Columns, samples: Samples, values: NDArray[Any]) -> tuple[Floats, Floats]:
    """Sums of `values` and total weights of the rows that have samples, in due order."""
    sums = add_rows(values, samples.counts)[columns.due_order]
    weights = samples.counts if samples.weights is None else add_rows(samples.weights, samples.counts)
    counts = weights[columns.due_order].astype(np.float64)
    filled = counts > 0
    return sums[filled], counts[filled]


def share_interval(n_yes: int, n: int) -> tuple[float, float] | None:
    """95 % interval of a share of independent yes-or-no outcomes (Wilson 1927): sensible at 0 and 1 and for small n."""
    if n == 0:
        return None
    z = 1.959963984540054
    share = n_yes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return (centre - half if n_yes else 0.0), (centre + half if n_yes < n else 1.0)  # rounding would miss these two by 1e-18
