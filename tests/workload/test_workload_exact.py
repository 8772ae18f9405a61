import hashlib
import math
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longbench_sched.workload import exact


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_ln_agrees_with_the_c_library_to_the_last_digits(x: float) -> None:
    assert math.isclose(exact.ln(x), math.log(x), rel_tol=4e-16, abs_tol=4e-16)


@given(st.floats(min_value=-300, max_value=300))
def test_exp_agrees_with_the_c_library_to_the_last_digits(x: float) -> None:
    assert math.isclose(exact.exp(x), math.exp(x), rel_tol=1e-13)


@given(st.floats(min_value=1e-12, max_value=1 - 1e-12))
def test_normal_quantile_agrees_with_the_statistics_module(p: float) -> None:
    assert math.isclose(exact.normal_quantile(p), NormalDist().inv_cdf(p), rel_tol=2e-9, abs_tol=1e-9)


def test_a_purpose_names_its_own_stream() -> None:
    first = [exact.rng(0, "isl", "main").random() for _ in range(2)]
    assert first[0] == first[1]
    others = [
        exact.rng(1, "isl", "main"),
        exact.rng(0, "osl", "main"),
        exact.rng(0, "islmain"),
        exact.rng(0, "isl", "mai", "n"),
    ]
    assert first[0] not in [other.random() for other in others]


def test_random_bytes_are_shake_256_of_the_key() -> None:
    assert exact.random_bytes(5, 7, "ids", 3) == hashlib.shake_256(b"7\x1fids\x1f3").digest(5)


@pytest.mark.parametrize("n", [1, 2, 7, 100])
def test_one_draw_falls_into_each_stratum(n: int) -> None:
    draws = exact.strata(exact.rng(3, "strata"), n)
    assert sorted(int(u * n) for u in draws) == list(range(n))


def test_strata_come_in_random_order() -> None:
    draws = exact.strata(exact.rng(3, "strata"), 50)
    assert draws != sorted(draws)
    assert draws != exact.strata(exact.rng(4, "strata"), 50)


def test_unit_draws_have_a_logarithm() -> None:
    source = exact.rng(0, "unit")
    assert all(0 < exact.unit(source) < 1 for _ in range(1000))
