"""A run of more chunks than one block holds gives what plain loops over its rows give."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from handmade import row, run_of
from hypothesis import given
from hypothesis import strategies as st

from longbench_sched.metrics import deadlines, latency
from longbench_sched.metrics.columns import Columns, Samples
from longbench_sched.metrics.distribution import Ordered, percentiles
from longbench_sched.metrics.summary import summarize
from longbench_sched.run import Run
from longbench_sched.slo import Slo

N_ROWS, N_CHUNKS = 3, 120_000  # a block is 262,144 chunks: two rows, then the third


@pytest.fixture(scope="module", params=[1, 2], ids=["one token a chunk", "some chunks of two"])
def long_rows(request: pytest.FixtureRequest) -> tuple[Run, list[list[int]], list[list[int]]]:
    """A run, and the gaps (in us) and tokens of its rows."""
    rng = random.Random(5)
    gaps = [[rng.choice((10, 11, 12, 500)) for _ in range(N_CHUNKS - 1)] for _ in range(N_ROWS)]
    tokens = [[1, *(rng.choice((1, request.param)) for _ in range(N_CHUNKS - 1))] for _ in range(N_ROWS)]
    records = []
    for index in range(N_ROWS):
        chunks = (1000.0 + np.cumsum([0, *gaps[index]]) / 1e3).tolist()
        records.append(row(0.0, chunks, index=index, tokens=tokens[index]))
    return run_of(records), gaps, tokens


def test_gaps_are_those_of_the_rows(long_rows: tuple[Run, list[list[int]], list[list[int]]]) -> None:
    run, gaps, tokens = long_rows
    columns = Columns.of(run)
    icg = latency.icg_of_rows(columns, Slo(), np.array([True, False, True]))
    assert icg.counts.tolist() == [N_CHUNKS - 1, 0, N_CHUNKS - 1]
    np.testing.assert_allclose(icg.values, np.array(gaps[0] + gaps[2]) / 1e6)
    itl = latency.itl_of_rows(columns, Slo(), np.array([True, False, True]))
    np.testing.assert_allclose(itl.values, np.array(gaps[0] + gaps[2]) / 1e6 / np.array(tokens[0][1:] + tokens[2][1:]))
    assert itl.n == sum(tokens[0][1:]) + sum(tokens[2][1:])


def test_totals_and_deadlines_are_those_of_the_rows(long_rows: tuple[Run, list[list[int]], list[list[int]]]) -> None:
    run, gaps, tokens = long_rows
    summary = summarize(run, Slo(ttft_s=1.0, tpot_s=20e-6))
    output = summary.whole.rates["output_throughput"]
    assert output.n == sum(map(sum, tokens))
    missed, total = deadlines.count(Columns.of(run), Slo(ttft_s=1.0, tpot_s=20e-6))
    for index in range(N_ROWS):
        at_us, due_us, misses = 0, 0, 0  # the first token comes at its deadline
        for gap, (before, _) in zip(gaps[index], pairwise(tokens[index]), strict=True):
            due_us = max(due_us + 20 * before, at_us + 20 * before)
            at_us += gap
            if at_us > due_us:
                misses += (at_us - due_us) // 20 + 1
                due_us = at_us
        assert missed[index] == misses
        assert total[index] >= misses


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.lists(st.floats(0, 1), max_size=12), st.booleans())
def test_values_sorted_only_as_far_as_asked_give_numpys_quantiles(
    values: list[float], shares: list[float], is_sorted: bool
) -> None:
    array = np.array(values)
    ordered = Ordered(np.sort(array), is_sorted=True) if is_sorted else Ordered(array)
    assert percentiles(ordered, shares) == pytest.approx([float(np.quantile(array, share)) for share in shares], abs=1e-9)
    assert array.tolist() == values
    assert percentiles(Samples(array, np.array([len(array)])), (0.5,))[0] == pytest.approx(float(np.median(array)), abs=1e-9)
