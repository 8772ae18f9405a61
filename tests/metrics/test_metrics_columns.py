"""Ragged operations on rows of chunks."""

from __future__ import annotations

from array import array
from itertools import pairwise

import numpy as np
from handmade import row, run_of
from hypothesis import given
from hypothesis import strategies as st

from longbench_sched.metrics.columns import Columns, Samples, as_ints, gaps_ns, sum_rows
from longbench_sched.run import NONE

rows = st.lists(st.lists(st.integers(-5, 50), max_size=6), max_size=8)


@given(rows)
def test_rows_are_summed_as_a_loop_would_empty_ones_to_zero(ragged: list[list[int]]) -> None:
    flat = np.array([value for values in ragged for value in values], dtype=np.int64)
    counts = np.array([len(values) for values in ragged], dtype=np.int64)
    assert sum_rows(flat, counts).tolist() == [sum(values) for values in ragged]


@given(rows)
def test_gaps_never_reach_over_the_end_of_a_row(ragged: list[list[int]]) -> None:
    flat = np.array([value for values in ragged for value in values], dtype=np.int64)
    counts = np.array([len(values) for values in ragged], dtype=np.int64)
    gaps, has_gap = gaps_ns(flat, counts)
    assert gaps.tolist() == [b - a for values in ragged for a, b in pairwise(values)]
    assert has_gap.sum() == len(gaps)


def test_buffers_are_read_where_they_are() -> None:
    buffer = array("q", [1, 2, 3])
    view = as_ints(buffer)
    buffer[0] = 7
    assert view.tolist() == [7, 2, 3]


def test_counts_come_from_the_server_then_from_the_events_and_never_from_the_plan() -> None:
    records = [
        row(0, [1.0, 2.0], tokens=[1, 3], output=9, osl=50),
        row(0, [1.0, 2.0], index=1, tokens=[1, 3], output=None, osl=50),
        row(0, [1.0, 2.0], index=2, tokens=None, output=None, osl=50),
        row(0, [1.0], index=3, isl=70, prompt=None),
    ]
    columns = Columns.of(run_of(records))
    assert columns.output_tokens.tolist() == [9, 4, NONE, 1]
    assert columns.shown_tokens.tolist() == [4, 4, NONE, 1]
    assert columns.first_tokens.tolist() == [1, 1, NONE, 1]
    assert columns.prompt_tokens.tolist() == [100, 100, 100, 70]


def test_due_order_breaks_ties_by_send_then_by_index() -> None:
    records = [
        row(5.0, [9.0], index=0, due=1.0),
        row(3.0, [9.0], index=2, due=1.0),
        row(3.0, [9.0], index=1, due=1.0),
        row(9.0, [9.5], index=3, due=0.5),
    ]
    assert Columns.of(run_of(records)).due_order.tolist() == [3, 2, 1, 0]


def test_samples_of_some_rows_keep_their_place() -> None:
    samples = Samples(np.array([1.0, 2.0, 3.0, 4.0]), np.array([2, 0, 1, 1]), np.array([1, 2, 3, 4]))
    some = samples.within(np.array([True, True, False, True]))
    assert some.values.tolist() == [1.0, 2.0, 4.0]
    assert some.counts.tolist() == [2, 0, 0, 1]
    assert some.weights is not None
    assert some.weights.tolist() == [1, 2, 4]
    assert some.n == 7
