import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longbench_sched.workload import exact
from longbench_sched.workload.arrivals import (
    ArrivalProcess,
    Burst,
    Constant,
    Gamma,
    Poisson,
    RateStage,
    due_ns,
    expected_requests,
    realised,
)

S = 1_000_000_000


def test_a10_constant_arrivals_are_absolute_and_never_drift() -> None:
    """A-10: 2000 requests at 200/s; request i is due at exactly i * 5 ms."""
    assert due_ns(Constant(), [RateStage(200.0)], exact.rng(0, "due"), 2000) == [i * 5_000_000 for i in range(2000)]


def test_a_rate_that_no_double_holds_exactly_does_not_drift_either() -> None:
    due = due_ns(Constant(), [RateStage(3.0)], exact.rng(0, "due"), 3_001)
    assert due[3_000] == 1000 * S


def test_c13_gamma_arrivals_have_the_rate_and_cv_asked_for() -> None:
    """C-13: rate 10/s, CV 3, 1000 requests, seed 3: realised rate 10 +- 10 %, CV 3 +- 15 %, equal on a rerun."""
    due = due_ns(Gamma(3.0), [RateStage(10.0)], exact.rng(3, "due", "main"), 1000)
    figures = realised(due)
    assert figures is not None
    rate, cv = figures
    assert abs(rate / 10 - 1) < 0.1
    assert abs(cv / 3 - 1) < 0.15
    assert due == due_ns(Gamma(3.0), [RateStage(10.0)], exact.rng(3, "due", "main"), 1000)
    assert due != due_ns(Gamma(3.0), [RateStage(10.0)], exact.rng(4, "due", "main"), 1000)


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
def test_gamma_gaps_have_their_cv_whatever_the_shape(cv: float) -> None:
    figures = realised(due_ns(Gamma(cv), [RateStage(1.0)], exact.rng(0, "due"), 4000))
    assert figures is not None
    assert abs(figures[1] / cv - 1) < 0.06


def test_poisson_gaps_have_cv_one_and_the_right_median() -> None:
    due = due_ns(Poisson(), [RateStage(1.0)], exact.rng(0, "due"), 4000)
    figures = realised(due)
    assert figures is not None
    assert abs(figures[1] - 1) < 0.05
    gaps = sorted(b - a for a, b in pairwise(due))
    assert abs(gaps[2000] / S - math.log(2)) < 0.05  # the median of an exponential


@pytest.mark.parametrize("process", [Poisson(), Gamma(3.0), Constant()], ids=lambda p: p.name)
def test_the_load_offered_is_the_load_asked_for(process: ArrivalProcess) -> None:
    """n requests take n mean gaps, the last of which follows the last request."""
    for seed in range(5):
        due = due_ns(process, [RateStage(2.0)], exact.rng(seed, "due"), 100)
        assert due[0] == 0
        assert due[-1] <= 50 * S


def test_burst_sends_all_at_once() -> None:
    assert due_ns(Burst(), [], exact.rng(0, "due"), 4) == [0, 0, 0, 0]


def test_bursts_come_again_and_again() -> None:
    """3 requests every 10 s are 0.3/s."""
    due = due_ns(Burst(3), [RateStage(0.3)], exact.rng(0, "due"), 8)
    assert due == [0, 0, 0, 10 * S, 10 * S, 10 * S, 20 * S, 20 * S]


def test_a_ramp_changes_rate_where_its_stages_meet() -> None:
    """2 s at 1/s, then 2 s at 4/s, then 1/s for good: requests at 0, 1 | 2, 2.25, ... 3.75 | 4, 5."""
    stages = [RateStage(1.0, 2.0), RateStage(4.0, 2.0), RateStage(1.0)]
    due = due_ns(Constant(), stages, exact.rng(0, "due"), 12)
    assert due == [0, S, *(2 * S + i * S // 4 for i in range(8)), 4 * S, 5 * S]


def test_after_the_last_stage_its_rate_goes_on() -> None:
    assert due_ns(Constant(), [RateStage(1.0, 1.0), RateStage(2.0, 1.0)], exact.rng(0, "due"), 5)[3:] == [2 * S, 2.5 * S]


@pytest.mark.parametrize(
    ("stages", "duration_s", "n"),
    [
        pytest.param([RateStage(2.5)], 10.0, 25, id="one rate"),
        pytest.param([RateStage(1.0, 10.0), RateStage(3.0, 10.0)], 20.0, 40, id="ramp"),
        pytest.param([RateStage(1.0, 10.0), RateStage(3.0, 10.0)], 15.0, 25, id="ramp cut short"),
        pytest.param([RateStage(0.1)], 2.0, 0, id="too short for one"),
    ],
)
def test_the_number_of_requests_follows_from_rate_and_time(stages: list[RateStage], duration_s: float, n: int) -> None:
    assert expected_requests(stages, duration_s) == n


@given(
    st.sampled_from([Poisson(), Constant(), Gamma(0.3), Gamma(4.0), Burst(3)]),
    st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.1, 10)), min_size=1, max_size=4),
    st.integers(0, 10**6),
    st.integers(1, 60),
)
def test_due_times_ascend_from_zero(process: ArrivalProcess, stages: list[tuple[float, float]], seed: int, n: int) -> None:
    due = due_ns(process, [RateStage(*stage) for stage in stages], exact.rng(seed, "due"), n)
    assert len(due) == n
    assert due[0] == 0
    assert due == sorted(due)
    assert all(isinstance(t, int) for t in due)


def test_gaps_too_small_for_a_double_fall_together() -> None:
    """CV 100 has shape 1e-4: a lone gap is u^10000, which is 0 as a double."""
    assert due_ns(Gamma(100.0), [RateStage(1.0)], exact.rng(0, "due"), 1) == [0]


def test_too_few_arrivals_have_no_rate() -> None:
    assert realised([0, S]) is None
    assert realised([0, 0, 0]) is None
