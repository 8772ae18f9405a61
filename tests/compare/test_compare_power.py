"""How many runs and requests: worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from handmade_points import around, make_side

from longbench_sched.compare.delta import Estimate
from longbench_sched.compare.power import need, runs_for_half_width, runs_for_precision, runs_normal, runs_to_see
from longbench_sched.errors import UsageError


def test_d05_a_cv_of_8_percent_needs_30_runs_for_3_percent_and_28_by_the_normal_formula() -> None:
    """(1.96 x 8 / 3)^2 = 27.3; t(0.975, 28) x 8 / sqrt(29) = 3.043, t(0.975, 29) x 8 / sqrt(30) = 2.987."""
    points = make_side("pilot", {"ttft_p50": around(1.0, 0.08, 3)}).points
    found = need(points, "ttft_p50", 0.03)
    assert (found.cv, found.runs_normal, found.runs) == (pytest.approx(0.08), 28, 30)
    assert found.duration_s == pytest.approx(30 * 100.0)


@pytest.mark.parametrize(("cv", "precision", "runs"), [(0.01, 0.5, 2), (0.01, 0.03, 3), (0.05, 0.05, 7)])
def test_few_runs_need_the_t_distribution(cv: float, precision: float, runs: int) -> None:
    # n = 2: 12.71 x 1 / 1.414 = 8.98 %; n = 3: 4.303 / 1.732 = 2.48 %. 5 %: n = 7: 2.447 / 2.646 x 5 = 4.62, n = 6: 5.25.
    assert runs_for_precision(cv, precision) == runs
    assert runs_normal(cv, precision) <= runs


def test_the_runs_to_see_a_change_are_those_of_80_percent_power() -> None:
    """CV 5 %, change 10 %, ln 1.1 = 0.0953. n = 6: (2.2281 + 0.8791) x 0.05 sqrt(2/6) = 0.0897; n = 5: 0.1010."""
    assert runs_to_see(0.05, 0.10) == 6


def test_a_half_width_shrinks_with_the_root_of_runs_and_with_their_degrees_of_freedom() -> None:
    estimate = Estimate(0.0, 0.1 * math.sqrt(2 / 5), 8.0)
    assert runs_for_half_width(estimate, 5, 0.07696) == 15
    assert runs_for_half_width(estimate, 5, 1e-9) is None
    assert runs_for_half_width(estimate, 5, 10.0) == 6


def test_requests_are_said_from_the_spread_inside_the_pilot() -> None:
    """Half width 4 % inside one run of 256 requests; half of 3 % asked, so (4 / 1.5)^2 = 7.11 times as many."""
    (point,) = make_side("pilot", {"ttft_p50": [1.0]}).points
    inside = {"whole": {"ttft_p50": (math.exp(-0.04), math.exp(0.04))}}
    point = replace(point, within=inside, counts={"whole": {"ttft": 256}})
    found = need([point], "ttft_p50", 0.03)
    assert found.requests == math.ceil(256 * (0.04 / 0.015) ** 2)
    assert (found.cv, found.runs, found.duration_s) == (None, None, None)


def test_a_figure_that_the_pilot_lacks_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="goodput was not measured"):
        need(make_side("pilot", {"ttft_p50": [1.0]}).points, "goodput", 0.03)
