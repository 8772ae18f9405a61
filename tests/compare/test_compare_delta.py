"""Intervals between runs, worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longbench_sched.compare import delta
from longbench_sched.compare.delta import Estimate, estimate_paired, estimate_unpaired, holm, judge, measure, smallest_visible
from longbench_sched.compare.figure import find_figure

TTFT = find_figure("ttft_p50")
THROUGHPUT = find_figure("total_throughput")


def test_paired_runs_give_students_interval_of_the_log_ratios() -> None:
    # Log ratios 0.1, 0.2, 0.3: mean 0.2, sd 0.1, standard error 0.1 / sqrt(3); t(0.975, 2) = 4.3027.
    base = [10.0, 20.0, 5.0]
    found = measure(TTFT, base, [b * math.exp(x) for b, x in zip(base, (0.1, 0.2, 0.3), strict=True)], paired=True)
    half = 4.302653 * 0.1 / math.sqrt(3)
    assert found.method == "paired"
    assert found.ratio == pytest.approx(math.exp(0.2))
    assert (found.low, found.high) == (pytest.approx(math.exp(0.2 - half)), pytest.approx(math.exp(0.2 + half)))
    assert found.base == pytest.approx(10.0)  # the geometric mean of 10, 20, 5


def test_unpaired_runs_give_welchs_interval() -> None:
    # Variances 0.02 and 0.08, so standard error sqrt(0.01 + 0.04) and df 0.05^2 / (0.01^2 + 0.04^2) = 1.470588.
    found = estimate_unpaired([0.0, 0.2], [1.0, 1.4])
    assert found is not None
    assert found.centre == pytest.approx(1.1)
    assert found.error == pytest.approx(math.sqrt(0.05))
    assert found.df == pytest.approx(25 / 17)


def test_the_difference_is_in_the_figures_own_unit() -> None:
    # Differences 1, 2, 3: mean 2, standard error 1 / sqrt(3).
    found = measure(TTFT, [10.0, 10.0, 10.0], [11.0, 12.0, 13.0], paired=True)
    assert found.difference == pytest.approx(2.0)
    assert found.difference_low == pytest.approx(2.0 - 4.302653 / math.sqrt(3))


def test_pairing_takes_out_what_both_sides_of_a_block_share() -> None:
    base, candidate = [10.0, 14.0, 9.0, 12.0], [10.6, 14.8, 9.5, 12.8]
    paired, unpaired = (measure(TTFT, base, candidate, paired=way) for way in (True, False))
    assert paired.low is not None
    assert paired.low > 1
    assert unpaired.low is not None
    assert unpaired.low < 1


def test_a_value_of_zero_has_a_difference_but_no_ratio() -> None:
    found = measure(find_figure("goodput"), [0.0, 0.1, 0.2], [0.3, 0.3, 0.3], paired=False)
    assert found.ratio is None
    assert found.base == pytest.approx(0.1)
    assert found.difference == pytest.approx(0.2)


def test_one_run_a_side_is_not_judged() -> None:
    found = judge(measure(TTFT, [10.0], [10.8], paired=False))
    assert (found.ratio, found.low, found.p, found.call) == (pytest.approx(1.08), None, None, "not judged")


def test_intervals_inside_single_runs_are_for_information_only() -> None:
    # ln(10.5/10) = 0.04879 and ln(8/7.7) = 0.03822 below; added in squares 0.06198.
    found = delta.with_intervals_inside(measure(TTFT, [10.0], [8.0], paired=False), (9.5, 10.5), (7.7, 8.4))
    assert found.method == "within run"
    assert found.low == pytest.approx(0.8 * math.exp(-math.hypot(math.log(8 / 7.7), math.log(1.05))))
    assert found.high == pytest.approx(0.8 * math.exp(math.hypot(math.log(1.05), math.log(10 / 9.5))))
    assert judge(found).call == "not judged"


def test_runs_that_do_not_differ_at_all_show_no_difference() -> None:
    found = measure(TTFT, [10.0, 11.0, 12.0], [10.0, 11.0, 12.0], paired=True)
    assert (found.ratio, found.low, found.high, found.p) == (1.0, 1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("p_values", "adjusted"),
    [
        ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),  # 3 x 0.01; 2 x 0.03; 1 x 0.04, but not below the one before
        ([0.5, 0.6], [1.0, 1.0]),
        ([0.02], [0.02]),
        ([], []),
    ],
    ids=["three", "capped at 1", "one", "none"],
)
def test_holm_multiplies_the_smallest_most(p_values: list[float], adjusted: list[float]) -> None:
    assert holm(p_values) == pytest.approx(adjusted)


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_keeps_the_order_and_never_lowers_a_p(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    assert all(a >= p for a, p in zip(adjusted, p_values, strict=True))
    assert all(
        a <= b + 1e-15
        for a, p in zip(adjusted, p_values, strict=True)
        for b, q in zip(adjusted, p_values, strict=True)
        if p < q
    )


@pytest.mark.parametrize(
    ("figure", "factor", "p_adjusted", "call"),
    [
        (TTFT, 0.5, 0.01, "better"),
        (TTFT, 2.0, 0.01, "worse"),
        (THROUGHPUT, 2.0, 0.01, "better"),
        (THROUGHPUT, 0.5, 0.01, "worse"),
        (TTFT, 2.0, 0.08, "unsure"),
        (find_figure("osl_mean"), 2.0, 0.01, "different"),
    ],
    ids=["latency down", "latency up", "throughput up", "throughput down", "lost in correction", "neither way better"],
)
def test_a_difference_is_called_by_the_way_that_is_better(figure: object, factor: float, p_adjusted: float, call: str) -> None:
    from dataclasses import replace

    base = [10.0, 10.1, 9.9]
    found = measure(figure, base, [factor * value for value in base], paired=False)  # type: ignore[arg-type]
    assert judge(replace(found, p_adjusted=p_adjusted)).call == call


def test_better_and_worse_go_by_the_ratio_that_is_shown() -> None:
    """Nine blocks 10 % faster, one block of a thousand times the size 10 % slower: a typical run is faster."""
    base = [1.0] * 9 + [1000.0]
    found = measure(TTFT, base, [0.9 * value for value in base[:9]] + [1100.0], paired=True)
    assert found.high is not None
    assert found.high < 1
    assert found.difference is not None
    assert found.difference > 0
    assert judge(replace(found, p_adjusted=found.p)).call == "better"


@pytest.mark.parametrize(("factor", "call"), [(1.0004, "no difference shown"), (1.0006, "worse"), (0.9994, "better")])
def test_a_change_that_is_shown_as_nothing_is_called_nothing(factor: float, call: str) -> None:
    """Simulated runs have no noise: the smallest change is sure, and 0.0 % on the page."""
    base = [10.0, 11.0, 12.0]
    found = measure(TTFT, base, [factor * value * (1 + i * 1e-9) for i, value in enumerate(base)], paired=True)
    assert judge(replace(found, p_adjusted=found.p)).call == call


def test_the_smallest_visible_change_is_that_of_80_percent_power() -> None:
    # t(0.975, 8) + t(0.8, 8) = 2.3060 + 0.8889, times 0.01: 3.2466 %.
    assert smallest_visible(Estimate(0.0, 0.01, 8.0)) == pytest.approx(math.expm1(0.0319489), rel=1e-4)


@given(
    st.lists(st.floats(0.01, 100), min_size=2, max_size=8),
    st.floats(0.5, 2.0),
    st.booleans(),
)
def test_the_ratio_follows_a_change_of_units_and_of_sides(values: list[float], factor: float, paired: bool) -> None:
    other = [factor * value * (1 + 0.01 * i) for i, value in enumerate(values)]
    there, back = measure(TTFT, values, other, paired=paired), measure(TTFT, other, values, paired=paired)
    in_ms = measure(TTFT, [1e3 * v for v in values], [1e3 * v for v in other], paired=paired)
    assert there.ratio is not None
    assert back.ratio is not None
    assert there.ratio * back.ratio == pytest.approx(1)
    assert in_ms.low == pytest.approx(there.low, rel=1e-6)


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=8))
def test_a_set_of_runs_compared_with_itself_shows_nothing(values: list[float]) -> None:
    found = estimate_paired(values, values)
    assert found is not None
    assert (found.centre, found.error, found.p_any()) == (0.0, 0.0, 1.0)
