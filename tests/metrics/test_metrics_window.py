"""Whole run and steady window."""

from __future__ import annotations

import random

import numpy as np
import pytest
from handmade import closed_loop, row, run_of, steps
from hypothesis import given
from hypothesis import strategies as st

from longbench_sched.metrics.summary import summarize
from longbench_sched.metrics.window import Flight


def a26_records(turnaround_ms: float = 0.0) -> list:
    """4 slots starting at 0, 1, 2, 3 s; each does two 10 s requests of 100 evenly spaced tokens."""
    records = []
    for slot in range(4):
        for turn in range(2):
            start = 1000.0 * slot + (10_000 + turnaround_ms) * turn
            records.append(row(start, steps(start + 100, 100, 100), index=2 * slot + turn))
    return records


def test_a26_ramp_and_drain_are_not_in_the_steady_window() -> None:
    summary = summarize(run_of(a26_records()))
    assert summary.whole.rates["output_throughput"].value == pytest.approx(800 / 23)
    assert summary.steady is not None
    assert (summary.steady.from_s, summary.steady.to_s) == (pytest.approx(3.0), pytest.approx(20.0))
    assert summary.steady.rates["output_throughput"].value == pytest.approx(40.0)
    assert summary.steady.rates["output_throughput"].over_s == pytest.approx(17.0)
    # Due inside: the four second ones. The fourth slot's first opens the window, so it belongs to the ramp.
    assert summary.steady.stats["ttft"].n == 4


def test_a_moment_between_two_requests_of_a_slot_does_not_end_the_window() -> None:
    summary = summarize(run_of(a26_records(turnaround_ms=50.0)))
    assert summary.steady is not None
    assert summary.steady.to_s - summary.steady.from_s == pytest.approx(17.05)


@pytest.mark.parametrize(("dip_ns", "stretch"), [(2, (0, 32)), (3, (13, 33))], ids=["bridged", "a real dip"])
def test_a_dip_longer_than_a_moment_ends_the_window(dip_ns: int, stretch: tuple[int, int]) -> None:
    """One place: busy for 10 ns, free for a moment, busy for 20 ns; moments of up to 2 ns are overlooked."""
    again = 10 + dip_ns
    flight = Flight.of(np.array([0, again]), np.array([10, again + 20]))
    assert flight.longest_above(0.9, bridged_ns=2) == stretch


def test_a12_warm_ups_are_in_no_figure_and_not_in_the_window() -> None:
    records = [row(-20_000 + 5000 * i, [-15_000 + 5000 * i], index=i, phase="warmup") for i in range(3)]
    records += [row(100.0 * i, [100.0 * i + 100], index=i) for i in range(10)]
    summary = summarize(run_of(records))
    assert summary.whole.stats["ttft"].n == summary.outcomes.attempted == 10
    assert summary.whole.stats["ttft"].max == pytest.approx(0.1)
    assert summary.facts["tokens"] == {"prompt": 1000, "output": 10, "output_unsuccessful": 0}
    assert (summary.whole.from_s, summary.whole.to_s) == (pytest.approx(0.0), pytest.approx(1.0))


def test_quantiles_are_over_requests_due_inside_not_over_those_that_end_inside() -> None:
    """The last two requests are due inside the window and end long after it: they must count."""
    records = [row(0, [1000.0 + i], index=i) for i in range(18)] + [row(1.0 * i, [8000.0], index=17 + i) for i in (1, 2, 3)]
    summary = summarize(run_of(records))
    assert summary.steady is not None
    assert (summary.steady.from_s, summary.steady.to_s) == (pytest.approx(0.001), pytest.approx(1.002))
    assert summary.steady.stats["ttft"].n == 2
    assert summary.steady.stats["ttft"].max == pytest.approx(7.998)


@pytest.mark.parametrize("apart_ms", [0.0, 0.01], ids=["virtual", "live"])
def test_the_burst_that_fills_a_closed_loop_is_not_in_the_steady_window(apart_ms: float) -> None:
    """Ten at once, in virtual time at one instant, on a wire a moment apart; then ten more as places become free."""
    burst = [row(0, [1000.0], index=i) for i in range(10)]
    for i, record in enumerate(burst):
        assert record.sent_ns is not None
        record.sent_ns += round(i * apart_ms * 1e6)
    records = burst + [row(1000.0, [1500.0], index=10 + i) for i in range(10)]
    summary = summarize(run_of(records))
    assert summary.steady is not None
    assert summary.steady.stats["ttft"].n == 10
    assert summary.steady.stats["ttft"].max == pytest.approx(0.5)


def test_without_enough_load_for_long_enough_there_is_no_steady_window() -> None:
    """A burst of ten for 5 ms in a run of 10 s."""
    records = [row(0, [10_000.0])] + [row(500.0, [505.0], index=i) for i in range(1, 11)]
    assert summarize(run_of(records)).steady is None


def closed_loop_records(users: int, requests: int, stay_ms: random.Random) -> list:
    """Each user sends the next request when the one before has ended."""
    free = [0.0] * users
    records = []
    for index in range(requests):
        user = min(range(users), key=free.__getitem__)
        start, stay = free[user], stay_ms.uniform(900, 1100)
        free[user] = start + stay
        records.append(row(start, [start + 100, start + stay], index=index))
    return records


def test_c14_in_flight_is_64_from_ramp_to_drain() -> None:
    run = run_of(closed_loop_records(64, 256, random.Random(5)), plan=closed_loop(64))
    in_flight = summarize(run).facts["in_flight"]
    assert isinstance(in_flight, dict)
    assert (in_flight["planned"], in_flight["peak"]) == (64, 64)
    assert in_flight["steady"]["mean"] >= 63.5


def serial_prefill_records(users: int, requests: int, osl: int, apart_ms: float = 0.0) -> list:
    """A closed loop on a server that prefills one prompt at a time in 100 ms and decodes in 20 ms a token."""
    free, server_free = [apart_ms * user for user in range(users)], 0.0
    records = []
    for index in range(requests):
        user = min(range(users), key=free.__getitem__)
        sent = free[user]
        first = max(sent, server_free) + 100
        server_free = first
        chunks = steps(first, 20, osl)
        free[user] = chunks[-1]
        records.append(row(sent, chunks, index=index))
    return records


def test_e13_how_many_wait_for_their_first_token_and_how_many_decode() -> None:
    """OSL 1: all 32 wait, TTFT 3.2 s. OSL 500: an answer takes 10.08 s, so 3.17/s x 0.1 s = 0.32 are in prefill.

    The users of the long answers come 315 ms apart, as they do once the queue of a first wave has spread them.
    """
    short, long = (
        summarize(run_of(serial_prefill_records(32, 320, osl, apart_ms))) for osl, apart_ms in ((1, 0.0), (500, 315.0))
    )
    for summary, prefill, decode, ttft_s in ((short, 32.0, 0.0, 3.2), (long, 0.32, 31.7, 0.1)):
        assert summary.steady is not None
        in_flight = summary.facts["in_flight"]
        assert isinstance(in_flight, dict)
        assert in_flight["steady"]["mean_prefill"] == pytest.approx(prefill, rel=0.03)
        assert in_flight["steady"]["mean_decode"] == pytest.approx(decode, rel=0.03, abs=0.01)
        assert summary.steady.stats["ttft"].p90 == pytest.approx(ttft_s, rel=0.01)


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 300)), min_size=1, max_size=30))
def test_the_flight_curve_holds_every_stay(stays: list[tuple[int, int]]) -> None:
    """Law: the area under the curve is the sum of the stays, and it is never negative."""
    starts = np.array([start for start, _ in stays], dtype=np.int64)
    stops = starts + np.array([length for _, length in stays], dtype=np.int64)
    flight = Flight.of(starts, stops)
    assert (flight.level >= 0).all()
    assert int((flight.level * np.diff(flight.at_ns)).sum()) == int((stops - starts).sum())
    assert flight.peak <= len(stays)
