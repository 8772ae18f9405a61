"""Kernel stamps on the run's clock: exact values from samples made by hand, on a clock that begins at 0."""

from __future__ import annotations

import sys
import time
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longbench_sched.load.stamps import NO_LATENESS, STEP_LIMIT_NS, RealtimeOffset, kernel_stamps_work

S = 1_000_000_000
WALL = 1_700_000_000 * S  # an ordinary CLOCK_REALTIME - CLOCK_MONOTONIC


def _convert(offset: RealtimeOffset, *reads: tuple[int, int]) -> list[tuple[int, int]]:
    """(stamp, lateness) of (kernel, read) pairs."""
    kernel, read = array("q", [k for k, _ in reads]), array("q", [r for _, r in reads])
    return list(zip(*offset.monotonic_ns(kernel, read), strict=True))


def test_a_kernel_stamp_is_put_on_the_monotonic_clock_with_the_lateness_of_its_read() -> None:
    offset = RealtimeOffset([(0, WALL), (10 * S, WALL)])
    assert _convert(offset, (WALL + 2 * S, 2 * S + 300), (WALL + 5 * S, 5 * S)) == [(2 * S, 300), (5 * S, 0)]


def test_the_offset_is_interpolated_between_two_samples() -> None:
    """It grows by 1000 ns over 1 s: 250 ns after a quarter of it."""
    offset = RealtimeOffset([(0, WALL), (S, WALL + 1000)])
    kernel = WALL + S // 4
    assert _convert(offset, (kernel, S // 4)) == [(S // 4 - 250, 250)]


@pytest.mark.parametrize(("read", "offset_then"), [(0, 0), (S, 1000), (2 * S, 5000)], ids=["first", "middle", "last"])
def test_at_a_sample_the_offset_is_that_of_the_sample(read: int, offset_then: int) -> None:
    offset = RealtimeOffset([(0, WALL), (S, WALL + 1000), (2 * S, WALL + 5000)])
    assert _convert(offset, (WALL + read, read)) == [(read - offset_then, offset_then)]


def test_a_read_before_the_first_sample_takes_that_sample() -> None:
    offset = RealtimeOffset([(S, WALL + 7), (2 * S, WALL + 7)])
    assert _convert(offset, (WALL + S // 2, S // 2)) == [(S // 2 - 7, 7)]


def test_where_the_clock_was_stepped_the_read_counts_and_the_run_is_marked() -> None:
    """NTP sets the clock 5 ms on, between 1 s and 2 s: only what was read in that second keeps its user stamp."""
    offset = RealtimeOffset([(0, WALL), (S, WALL), (2 * S, WALL + 5_000_000), (3 * S, WALL + 5_000_000)])
    before, inside, after = (WALL + S - 90, S - 50), (WALL + S + 10, S + 60), (WALL + 2 * S + 5_000_010, 2 * S + 60)
    assert _convert(offset, before, inside, after) == [(S - 90, 40), (S + 60, NO_LATENESS), (2 * S + 10, 50)]
    assert (offset.stepped, offset.step_max_ns) == (True, 5_000_000)


@pytest.mark.parametrize(
    ("step", "is_stepped"),
    [(STEP_LIMIT_NS, False), (-STEP_LIMIT_NS, False), (STEP_LIMIT_NS + 1, True), (-STEP_LIMIT_NS - 1, True)],
)
def test_a_step_is_a_change_of_more_than_100_us_either_way(step: int, is_stepped: bool) -> None:
    offset = RealtimeOffset([(0, WALL), (S, WALL + step)])
    assert (offset.stepped, offset.step_max_ns) == (is_stepped, abs(step))
    stamp, lateness = _convert(offset, (WALL + S // 2 - STEP_LIMIT_NS, S // 2))[0]
    assert (lateness == NO_LATENESS) == is_stepped
    if not is_stepped:
        assert stamp == S // 2 - STEP_LIMIT_NS - step // 2


def test_a_stamp_later_than_its_own_read_is_not_believed() -> None:
    offset = RealtimeOffset([(0, WALL), (10 * S, WALL)])
    assert _convert(offset, (WALL + S + 1, S)) == [(S, NO_LATENESS)]
    assert _convert(offset, (WALL + S, S)) == [(S, 0)]


def test_a_read_without_a_stamp_counts_itself() -> None:
    offset = RealtimeOffset([(0, WALL), (10 * S, WALL)])
    assert _convert(offset, (0, S), (WALL + 2 * S, 2 * S + 5)) == [(S, NO_LATENESS), (2 * S, 5)]


def test_a_stream_never_goes_back_in_time() -> None:
    """One segment read in two goes, 0.3 s apart, while the offset grows by 100 ns a second: 30 ns would be lost."""
    offset = RealtimeOffset([(0, WALL), (10 * S, WALL + 1000)])
    kernel = WALL + S
    assert _convert(offset, (kernel, S), (kernel, S + 3 * S // 10)) == [(S - 100, 100), (S - 100, 300_000_100)]


def test_a_stamp_after_a_read_without_one_is_not_put_before_it() -> None:
    offset = RealtimeOffset([(0, WALL), (10 * S, WALL)])
    assert _convert(offset, (0, S), (WALL + S - 50, S + 10)) == [(S, NO_LATENESS), (S, 10)]


def test_nothing_gives_nothing() -> None:
    assert _convert(RealtimeOffset([(0, 0)])) == []


def test_a_read_after_the_last_sample_has_one_taken() -> None:
    """A kernel stamp of now, read now: its instant lies between the two looks at the clock around it."""
    offset = RealtimeOffset()
    before = time.monotonic_ns()
    kernel = time.clock_gettime_ns(time.CLOCK_REALTIME)
    read = time.monotonic_ns()
    stamp, lateness = _convert(offset, (kernel, read))[0]
    if lateness != NO_LATENESS:  # the error of a sample may put it after its read
        assert before - STEP_LIMIT_NS <= stamp <= read
        assert lateness == read - stamp


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux stamps TCP segments")
def test_linux_stamps_tcp_segments() -> None:
    assert kernel_stamps_work()


SAMPLES = st.lists(st.tuples(st.integers(1, S), st.integers(-200_000, 200_000)), min_size=1, max_size=6)
READS = st.lists(st.tuples(st.integers(0, S), st.integers(-300_000, 300_000), st.booleans()), max_size=20)


@given(SAMPLES, READS)
def test_a_stamp_is_never_later_than_its_read_and_the_lateness_tells_which_clock_it_is(
    samples: list[tuple[int, int]], reads: list[tuple[int, int, bool]]
) -> None:
    at, series = 0, [(0, WALL)]
    for gap, change in samples:
        at += gap
        series.append((at, series[-1][1] + change))
    pairs = sorted((r % (at + 1), drift, has_stamp) for r, drift, has_stamp in reads)
    kernel_and_read = [(WALL + r + drift if has_stamp else 0, r) for r, drift, has_stamp in pairs]
    for (kernel, read), (stamp, lateness) in zip(
        kernel_and_read, _convert(RealtimeOffset(series), *kernel_and_read), strict=True
    ):
        assert stamp <= read
        assert (stamp, lateness) == (read, NO_LATENESS) or lateness == read - stamp >= 0
        assert kernel or lateness == NO_LATENESS


@given(
    drift_ns=st.integers(-STEP_LIMIT_NS - 10, STEP_LIMIT_NS + 10),
    read_ns=st.integers(0, 2 * S),
    late_ns=st.integers(-1000, 10**6),
    has_stamp=st.booleans(),
)
def test_a_single_stamp_is_converted_as_one_of_many(drift_ns: int, read_ns: int, late_ns: int, has_stamp: bool) -> None:
    offset = RealtimeOffset([(0, WALL), (S, WALL + drift_ns), (2 * S, WALL)])
    kernel_ns = WALL + read_ns - late_ns if has_stamp else 0
    assert offset.instant_ns(kernel_ns, read_ns) == _convert(offset, (kernel_ns, read_ns))[0][0]
