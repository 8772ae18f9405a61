"""Quantiles of lateness: exact to 5 %."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longbench_sched.sim.lateness import Lateness


def test_nothing_noted_is_absent_not_zero() -> None:
    assert Lateness().summary() == {"n_steps": 0, "p50_ms": None, "p99_ms": None, "max_ms": None}


def test_quantiles_of_a_hundred_known_values() -> None:
    lateness = Lateness()
    for ms in range(1, 101):
        lateness.add(ms / 1e3)
    assert lateness.quantile_s(0.5) == pytest.approx(0.050, rel=0.05)
    assert lateness.quantile_s(0.99) == pytest.approx(0.099, rel=0.05)
    assert lateness.max_s == 0.1


@given(st.lists(st.floats(1e-6, 100), min_size=1), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_never_below_the_true_one_nor_5_percent_above(values: list[float], q: float) -> None:
    lateness = Lateness()
    for value in values:
        lateness.add(value)
    import math

    true = sorted(values)[math.ceil(q * len(values)) - 1]
    found = lateness.quantile_s(q)
    assert found is not None
    assert true * (1 - 1e-9) <= found <= true * 1.0501
