"""The t distribution against printed tables (Abramowitz & Stegun, table 26.10) and against closed forms."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longbench_sched.compare.student import incomplete_beta, quantile, two_sided, upper_tail

TABLE = [  # degrees of freedom, share, t as printed
    (1, 0.975, 12.706),
    (2, 0.975, 4.303),
    (3, 0.975, 3.182),
    (4, 0.975, 2.776),
    (5, 0.975, 2.571),
    (8, 0.975, 2.306),
    (9, 0.975, 2.262),
    (10, 0.975, 2.228),
    (18, 0.975, 2.101),
    (29, 0.975, 2.045),
    (120, 0.975, 1.980),
    (4, 0.95, 2.132),
    (8, 0.995, 3.355),
    (30, 0.9995, 3.646),
    (math.inf, 0.975, 1.960),
]


@pytest.mark.parametrize(("df", "share", "t"), TABLE)
def test_quantiles_are_those_of_the_printed_tables(df: float, share: float, t: float) -> None:
    assert quantile(share, df) == pytest.approx(t, abs=0.0006)


def test_one_degree_of_freedom_is_cauchys_distribution() -> None:
    for t in (0.1, 1.0, 7.0, 1e4):
        assert upper_tail(t, 1) == pytest.approx(0.5 - math.atan(t) / math.pi, rel=1e-9)


def test_two_degrees_of_freedom_have_a_closed_form() -> None:
    for t in (0.0, 0.3, 2.0, 40.0):
        assert upper_tail(t, 2) == pytest.approx(0.5 * (1 - t / math.sqrt(2 + t * t)), rel=1e-9)


def test_the_incomplete_beta_function_of_whole_numbers_is_a_binomial_sum() -> None:
    # I_x(2, 3) = P(at least 2 of 4 trials succeed) = 6 x^2 - 8 x^3 + 3 x^4.
    for x in (0.1, 0.5, 0.9):
        assert incomplete_beta(2, 3, x) == pytest.approx(6 * x**2 - 8 * x**3 + 3 * x**4, rel=1e-12)


@settings(max_examples=60)
@given(df=st.floats(1, 500), share=st.floats(0.5001, 0.9999))
def test_the_quantile_is_the_inverse_of_the_distribution_and_symmetric(df: float, share: float) -> None:
    assert 1 - upper_tail(quantile(share, df), df) == pytest.approx(share, abs=1e-9)
    assert quantile(1 - share, df) == pytest.approx(-quantile(share, df), rel=1e-6)


def test_two_sided_probabilities_do_not_depend_on_the_sign() -> None:
    assert two_sided(-2.776, 4) == two_sided(2.776, 4) == pytest.approx(0.05, abs=1e-4)
