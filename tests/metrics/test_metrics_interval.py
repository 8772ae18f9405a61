"""Intervals by moving-block bootstrap: on data whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from handmade import row, run_of

from longbench_sched.metrics import interval
from longbench_sched.metrics.columns import Columns, Samples
from longbench_sched.metrics.summary import summarize


def autoregressive(n: int, rho: float, rng: np.random.Generator) -> np.ndarray:
    """A stationary AR(1) series of variance 1."""
    noise = rng.normal(0, math.sqrt(1 - rho * rho), n)
    series = np.empty(n)
    series[0] = rng.normal()
    for i in range(1, n):
        series[i] = rho * series[i - 1] + noise[i]
    return series


def interval_of_median(values: np.ndarray) -> tuple[float, float]:
    """The interval for one value a request, in due order."""
    run = run_of([row(float(i), [float(i) + 1], index=i) for i in range(len(values))])
    samples = Samples(values, np.ones(len(values), dtype=np.int64))
    found = interval.median_interval(Columns.of(run), samples, samples, float(np.median(values)), 1)
    assert found is not None
    return found


def test_independent_values_need_no_blocks() -> None:
    rng = np.random.default_rng(1)
    assert np.mean([interval.block_length(rng.normal(size=400)) for _ in range(50)]) < 4


def test_blocks_grow_with_the_autocorrelation() -> None:
    rng = np.random.default_rng(2)
    lengths = [np.mean([interval.block_length(autoregressive(400, rho, rng)) for _ in range(20)]) for rho in (0.0, 0.5, 0.9)]
    assert lengths[0] < lengths[1] < lengths[2]
    # For AR(1) the best block of the circular bootstrap is (1.5 (2 rho / (1 - rho^2))^2 n)^(1/3).
    assert lengths[1] == pytest.approx((1.5 * (2 * 0.5 / (1 - 0.25)) ** 2 * 400) ** (1 / 3), rel=0.5)


def test_a_constant_or_short_series_has_blocks_of_one() -> None:
    assert interval.block_length(np.full(100, 0.1)) == 1
    assert interval.block_length(np.array([1.0, 2.0, 3.0])) == 1


@pytest.mark.parametrize("rho", [0.0, 0.7])
def test_the_mean_interval_covers_the_truth_nearly_as_often_as_it_says(rho: float) -> None:
    """200 series of known mean 0: 95 % intervals must cover it in about 95 %; blocks keep that under autocorrelation."""
    rng = np.random.default_rng(11)
    covered = 0
    for _ in range(200):
        series = autoregressive(256, rho, rng)
        below, above = interval.ratio_deviation(series, np.ones(256), 5)
        covered += series.mean() + below <= 0 <= series.mean() + above
    # Standard error of the count about 3; block intervals are a little narrow when blocks are few.
    assert covered >= (184 if rho == 0 else 172)


def test_the_median_interval_is_that_of_order_statistics_for_independent_values() -> None:
    """n = 100: the textbook 95 % interval of the median is from the 40th to the 61st value."""
    values = np.random.default_rng(4).permutation(np.arange(1.0, 101.0))
    low, high = interval_of_median(values)
    assert low == pytest.approx(40.5, abs=3.0)
    assert high == pytest.approx(60.5, abs=3.0)


def test_due_order_matters_and_row_order_does_not() -> None:
    """A trend in due order must widen the interval; the same values shuffled over due times must not."""
    values = np.linspace(1.0, 2.0, 128)
    shuffled = np.random.default_rng(9).permutation(values)
    trend, chance = interval_of_median(values), interval_of_median(shuffled)
    assert trend[1] - trend[0] > 2 * (chance[1] - chance[0])
    order = np.random.default_rng(10).permutation(128)
    records = [row(float(i), [float(i) + values[i] * 1000], index=int(i)) for i in order]
    stat = summarize(run_of(records)).whole.stats["ttft"]
    assert stat.low == pytest.approx(trend[0], rel=0.02)


def test_tokens_of_one_request_stay_together() -> None:
    """10 requests of 100 equal gaps each: certainty is that of 10 values, not of 1000."""
    records = [row(0, [100.0 + 10 * (i + 1) * k for k in range(101)], index=i) for i in range(10)]
    stat = summarize(run_of(records)).whole.stats["itl"]
    assert stat.n == 1000
    assert stat.low is not None
    assert stat.high is not None
    assert stat.high - stat.low >= 0.030  # of values 10, 20, ... 100 ms


def test_the_same_run_gives_the_same_interval_and_few_requests_none() -> None:
    records = [row(float(i), [float(i) + 100 + (i * 37) % 50], index=i) for i in range(40)]
    first, second = summarize(run_of(records)), summarize(run_of(records))
    assert first.whole.stats == second.whole.stats
    few = summarize(run_of(records[:7])).whole.stats["ttft"]
    assert (few.low, few.high, few.mean_low, few.mean_high) == (None, None, None, None)
    assert few.p99_is_marked


def test_every_interval_holds_its_figure() -> None:
    rng = np.random.default_rng(8)
    records = [
        row(float(i), [float(i) + 50 + float(rng.exponential(30)) + 7 * k for k in range(4)], index=i) for i in range(60)
    ]
    for stat in summarize(run_of(records)).whole.stats.values():
        if stat.low is not None and stat.p50 is not None and stat.high is not None:
            assert stat.low <= stat.p50 <= stat.high, stat.metric
        if stat.mean_low is not None and stat.mean is not None and stat.mean_high is not None:
            assert stat.mean_low <= stat.mean + 1e-12, stat.metric
            assert stat.mean - 1e-12 <= stat.mean_high, stat.metric


@pytest.mark.parametrize(
    ("yes", "n", "low", "high"),
    [(97, 100, 0.9155, 0.9897), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0)],  # Wilson, from tables
)
def test_shares_have_wilsons_interval(yes: int, n: int, low: float, high: float) -> None:
    assert interval.share_interval(yes, n) == (pytest.approx(low, abs=2e-4), pytest.approx(high, abs=2e-4))
    assert interval.share_interval(0, 0) is None


def test_a_share_of_none_or_all_has_an_exact_bound() -> None:
    for n in range(1, 200):
        none, all_ = interval.share_interval(0, n), interval.share_interval(n, n)
        assert none is not None
        assert all_ is not None
        assert (none[0], all_[1]) == (0.0, 1.0)
