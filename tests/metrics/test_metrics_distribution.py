"""Percentiles, adjusted percentiles and second modes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from handmade import failed, row, run_of
from hypothesis import given
from hypothesis import strategies as st

from longbench_sched.metrics import distribution
from longbench_sched.metrics.columns import Samples
from longbench_sched.metrics.summary import summarize
from longbench_sched.record import Reason, Status


def samples(values: list[float], weights: list[int] | None = None) -> Samples:
    """Samples of one row."""
    n = len(values)
    return Samples(np.array(values), np.array([n]), None if weights is None else np.array(weights))


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 6)), min_size=1, max_size=40),
    st.sampled_from([0.0, 0.01, 0.25, 0.5, 0.9, 0.99, 1.0]),
)
def test_weighted_percentiles_are_those_of_the_repeated_values(pairs: list[tuple[int, int]], share: float) -> None:
    values, weights = [float(value) for value, _ in pairs], [weight for _, weight in pairs]
    repeated = np.repeat(values, weights)
    weighted = samples(values, weights)
    assert distribution.percentiles(distribution.ordered(weighted), (share,))[0] == pytest.approx(
        float(np.quantile(repeated, share))
    )
    assert distribution.mean(weighted) == pytest.approx(float(repeated.mean()))


@pytest.mark.parametrize(
    ("share", "value"),
    [(0.5, 5.0), (0.9, 9.0), (0.99, 10.0), (0.0, 1.0), (1.0, 10.0), (0.3, 3.0)],
)
def test_nearest_rank_is_a_value_that_was_seen(share: float, value: float) -> None:
    assert distribution.nearest_rank(np.arange(1.0, 11.0), share) == value


def test_b14_timed_out_requests_are_in_the_error_adjusted_percentiles() -> None:
    """8 of 10 requests take 1 s, 2 are cut off at 2 s by the total limit."""
    records = [row(0, [1000.0], index=i) for i in range(8)]
    records += [failed(Reason.TIMEOUT_TOTAL, status=Status.TIMEOUT, sent=0, end=2000, index=8 + i) for i in range(2)]
    summary = summarize(run_of(records))
    for name in ("ttft", "e2e"):
        stat = summary.whole.stats[name]
        assert stat.p90 == pytest.approx(1.0)
        assert stat.adjusted == {"p50": pytest.approx(1.0), "p90": None, "p99": None}
        assert stat.adjusted_at_least == {"p90": pytest.approx(2.0), "p99": pytest.approx(2.0)}
    assert [(reason.status, reason.reason, reason.n) for reason in summary.outcomes.reasons] == [
        ("timeout", "timeout-total", 2)
    ]


def test_a_timeout_after_its_first_token_is_bounded_by_its_ttft() -> None:
    records = [row(0, [1000.0]), failed(Reason.TIMEOUT_IDLE, status=Status.TIMEOUT, sent=0, chunks=[300.0], end=9000, index=1)]
    stats = summarize(run_of(records)).whole.stats
    assert stats["ttft"].adjusted_at_least["p99"] == pytest.approx(1.0)  # rank 2 of (0.3, 1.0)
    assert stats["e2e"].adjusted_at_least["p99"] == pytest.approx(9.0)


def test_a_plain_failure_gives_no_bound() -> None:
    records = [row(0, [1000.0]), failed(Reason.RESET, sent=0, end=5, index=1)]
    stat = summarize(run_of(records)).whole.stats["ttft"]
    assert stat.adjusted == {"p50": pytest.approx(1.0), "p90": None, "p99": None}
    assert stat.adjusted_at_least == {}


@given(
    st.lists(st.floats(0.001, 100), max_size=20),
    st.lists(st.floats(0.001, 100), max_size=10),
    st.integers(0, 5),
)
def test_adjusted_percentiles_are_never_below_their_bounds(ok: list[float], bounds: list[float], n_unbounded: int) -> None:
    exact, at_least = distribution.adjusted(np.array(ok), np.array(bounds), n_unbounded, (0.5, 0.9, 0.99))
    for name, value in exact.items():
        assert value is None or math.isfinite(value)
        assert (value is None) or name not in at_least
    if ok and not bounds and not n_unbounded:
        assert exact["p99"] == distribution.nearest_rank(np.array(ok), 0.99)
    assert all(math.isfinite(value) for value in at_least.values())


def test_e12_mean_median_p99_and_a_hint_at_the_second_mode() -> None:
    """98 requests of 100 ms and 2 of 1400 ms."""
    summary = summarize(run_of([row(0, [1400.0 if i >= 98 else 100.0], index=i) for i in range(100)]))
    ttft = summary.whole.stats["ttft"]
    assert (ttft.p50, ttft.mean, ttft.p99, ttft.n) == (
        pytest.approx(0.100), pytest.approx(0.126), pytest.approx(1.400), 100
    )  # fmt: skip
    assert ttft.hint == "2 % in a second mode"
    assert not ttft.p99_is_marked
    (bimodal,) = [advice for advice in summary.advice if advice.id == "BIMODAL"]
    assert "(min 100 ms, p50 100 ms, max 1.40 s)" in bimodal.text


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([0.1 * i for i in range(1, 65)], id="a queue: 0.1, 0.2, 0.3..."),
        pytest.param([1.0] * 30, id="all alike"),
        pytest.param([1.0] * 99 + [50.0], id="one outlier"),
        pytest.param([1.0, 1.0, 5.0, 5.0], id="too few to say"),
        pytest.param([*np.linspace(1, 20, 40), 41.0, 42.0], id="a tail beyond a broad heap"),
        pytest.param([1.0, 1.0, *np.linspace(2.5, 20, 40)], id="two before a broad heap"),
        pytest.param(list(np.exp(np.random.default_rng(3).normal(0, 1, 200))), id="a broad tail"),
        pytest.param([0.0] * 20 + [1.0] * 20, id="zeros have no ratio"),
    ],
)
def test_one_heap_is_not_called_two(values: list[float]) -> None:
    assert distribution.second_mode(np.array(values)) is None


def test_the_smaller_heap_is_named_also_if_it_is_the_fast_one() -> None:
    assert distribution.second_mode(np.array([0.1] * 10 + [2.0] * 90)) == "10 % in a second mode"
