"""What charts are drawn from: thinned, but not away from the truth."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from handmade import closed_loop, row, run_of
from test_metrics_stalls import ARRIVALS, interfered

from longbench_sched.metrics import curves
from longbench_sched.metrics.curves import Curves, Ecdf
from longbench_sched.metrics.summary import summarize
from longbench_sched.run import Run


def curves_of(run: Run) -> Curves:
    found = summarize(run, with_curves=True).curves
    assert found is not None
    return found


def spread(n: int) -> Run:
    """n requests one after the other whose TTFT are log-normal."""
    rng = random.Random(3)
    return run_of([row(4e4 * i, [4e4 * i + 1000 * rng.lognormvariate(0, 1), 4e4 * i + 3e4], index=i) for i in range(n)])


def share_at(ecdf: Ecdf, value: float) -> float:
    """The curve's height there, as a step function."""
    place = np.searchsorted(ecdf.values, value, side="right")
    return ecdf.shares[place - 1] if place else 0.0


def test_a_distribution_of_few_values_is_exact() -> None:
    run = run_of([row(0.0, [float(ms), 1000.0], index=i) for i, ms in enumerate((30, 10, 20, 40))])
    ecdf = curves_of(run).ecdfs["ttft"]
    assert (ecdf.n, ecdf.unit) == (4, "s")
    assert ecdf.values == pytest.approx((0.01, 0.02, 0.03, 0.04))
    assert ecdf.shares == pytest.approx((0.25, 0.5, 0.75, 1.0))


def test_a_distribution_of_many_values_is_nowhere_off_by_more_than_it_says() -> None:
    run = spread(5000)
    ecdf = curves_of(run).ecdfs["ttft"]
    assert len(ecdf.values) <= curves.RANKS + curves.TAIL_RANKS
    true = np.sort(
        [
            (at[0] - sent) * 1e-9
            for at, sent in zip(np.reshape(run.table.lists["chunk_at_ns"], (-1, 2)), run.table.ints["sent_ns"], strict=True)
        ]
    )
    off = [abs(share_at(ecdf, value) - (place + 1) / 5000) for place, value in enumerate(true)]
    assert max(off) < 1 / (curves.RANKS - 1)
    assert max(off[4960:]) < 0.01 / (curves.TAIL_RANKS - 1) + 1 / 5000
    assert (ecdf.values[0], ecdf.values[-1]) == (pytest.approx(true[0]), pytest.approx(true[-1]))


def test_tokens_of_one_chunk_count_each() -> None:
    """Gaps of 10 ms for one token and 30 ms for three: 4 tokens at 10 ms; then one of 20 ms."""
    run = run_of([row(0.0, [100.0, 110.0, 140.0, 160.0], tokens=[1, 1, 3, 1])])
    ecdf = curves_of(run).ecdfs["itl"]
    assert ecdf.n == 5
    assert share_at(ecdf, 0.0101) == pytest.approx(0.8)


def test_requests_over_time_are_points_and_many_are_bands() -> None:
    few = curves_of(spread(100)).trails["ttft"]
    assert (len(few.at_s), few.low) == (100, ())
    assert few.at_s == tuple(sorted(few.at_s))
    many = curves_of(spread(3000)).trails["ttft"]
    assert len(many.values) == len(many.low) == len(many.high) == curves.BINS
    assert all(low <= value <= high for low, value, high in zip(many.low, many.values, many.high, strict=True))


def test_a_timeline_is_unbroken_but_for_its_stalls() -> None:
    bars = curves_of(interfered(ARRIVALS, 500.0)).bars
    first = [bar for bar in bars if bar.request == "r0"]
    assert [bar.kind for bar in first] == ["prefill", *["decode", "stall"] * 5, "decode"]
    assert [bar.to_s - bar.from_s for bar in first if bar.kind == "stall"] == pytest.approx([0.5] * 5, abs=0.011)
    assert all(before.to_s == after.from_s for before, after in pairwise(first))
    arrived = next(bar for bar in bars if bar.request == "r4")
    assert (arrived.kind, arrived.from_s, arrived.to_s) == ("prefill", pytest.approx(0.5), pytest.approx(1.0))


def test_only_so_many_requests_and_stalls_are_drawn() -> None:
    """40 requests, 200 stalls each, of which those of 200 to 390 ms are longest."""
    ticks = [100.0]
    for place in range(1200):
        ticks.append(ticks[-1] + (100.0 + place / 4 if place % 6 == 0 else 10.0))
    run = run_of([row(0.0, ticks, index=i) for i in range(40)], plan=closed_loop(40))
    bars = curves_of(run).bars
    assert len({bar.request for bar in bars}) == curves.MAX_TIMELINES
    assert len(bars) <= curves.MAX_BARS + 2 * curves.MAX_TIMELINES
    assert min(bar.to_s - bar.from_s for bar in bars if bar.kind == "stall") > 0.2


def test_curves_are_only_made_if_asked_for() -> None:
    assert summarize(spread(10)).curves is None


def test_a_run_without_a_token_has_no_curves() -> None:
    found = curves_of(run_of([row(0.0, [])]))
    assert (found.ecdfs, found.trails, found.bars) == ({}, {}, ())
