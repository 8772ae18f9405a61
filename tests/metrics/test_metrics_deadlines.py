"""Token deadlines against the published recurrence."""

from __future__ import annotations

import pytest
from handmade import row, run_of, steps
from hypothesis import given
from hypothesis import strategies as st

from longbench_sched.metrics import deadlines
from longbench_sched.metrics.columns import Columns
from longbench_sched.metrics.summary import summarize
from longbench_sched.slo import Slo

SLO = Slo(ttft_s=1.0, tpot_s=0.05)


def count(record, slo: Slo = SLO) -> tuple[int, int]:
    """Missed and total deadlines of one request."""
    missed, total = deadlines.count(Columns.of(run_of([record])), slo)
    return int(missed[0]), int(total[0])


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        pytest.param(row(0, steps(900, 50, 10)), (0, 10), id="on pace"),
        pytest.param(row(0, steps(1000, 50, 10)), (0, 10), id="exactly on time"),
        # 1.02 s: 20 ms late is one miss, then the clock starts anew and the rest is on time.
        pytest.param(row(0, steps(1020, 50, 10)), (1, 10), id="first token late"),
        # 120 ms late: floor(120 / 50) + 1 = 3 misses for one token; 3 missed + 9 met.
        pytest.param(row(0, steps(1120, 50, 10)), (3, 12), id="a long stall is many misses"),
        # Slack of 500 ms from the early first token swallows a gap of 500 ms.
        pytest.param(row(0, [500.0, 550.0, 1050.0]), (0, 3), id="slack is carried on"),
        # Due at 1.0, 1.05, 1.1 s; the third comes at 1.3: 200 ms late, 5 misses; the fourth is due at 1.35.
        pytest.param(row(0, [1000.0, 1050.0, 1300.0, 1350.0]), (5, 8), id="a stall without slack"),
        # A chunk of 4: its first token is late by 10 ms, the other three come with it, early.
        pytest.param(row(0, [1000.0, 1060.0, 1260.0], tokens=[1, 4, 1]), (1, 6), id="packed"),
    ],
)
def test_stalls_are_counted_in_missed_deadlines(record, expected: tuple[int, int]) -> None:
    assert count(record) == expected


def test_fluidity_is_the_share_met_and_needs_limits() -> None:
    record = row(0, steps(1120, 50, 10))
    summary = summarize(run_of([record]), SLO)
    assert summary.whole.stats["fluidity"].mean == pytest.approx(1 - 3 / 12)
    assert summary.whole.rates["deadline_misses"].value == pytest.approx(0.25)
    assert summarize(run_of([record])).whole.stats["fluidity"].n == 0
    assert summarize(run_of([record]), Slo(ttft_s=1.0)).whole.stats["fluidity"].n == 0
    assert count(record, Slo(ttft_s=1.0, itl_s=0.05)) == (3, 12)


def test_unknown_token_counts_have_no_deadlines() -> None:
    assert count(row(0, steps(100, 50, 3), tokens=None, output=9)) == (0, 0)


def published(at_ns: list[int], first_ns: int, pace_ns: int) -> tuple[int, int]:
    """Algorithm 1 of arXiv 2507.09019, token by token."""
    missed = total = slack = before = 0
    for number, at in enumerate(at_ns):
        taken, allowed = at - before, first_ns if number == 0 else pace_ns
        before = at
        if taken <= allowed + slack:
            slack += allowed - taken
            total += 1
        else:
            misses = (taken - slack - allowed) // pace_ns + 1
            missed += misses
            total += misses
            slack = 0
    return missed, total


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 4)), max_size=15), max_size=6),
    st.integers(1, 500),
    st.integers(1, 100),
)
def test_the_closed_form_is_the_published_recurrence(streams: list[list[tuple[int, int]]], first_ms: int, pace_ms: int) -> None:
    records, expected = [], []
    for index, stream in enumerate(streams):
        now, at, tokens = 0, [], []
        each: list[int] = []
        for gap, k in stream:
            now += gap
            at.append(float(now))
            tokens.append(k)
            each += [now * 10**6] * k
        records.append(row(0, at, index=index, tokens=tokens or 1))
        expected.append(published(each, first_ms * 10**6, pace_ms * 10**6))
    missed, total = deadlines.count(Columns.of(run_of(records)), Slo(ttft_s=first_ms / 1e3, tpot_s=pace_ms / 1e3))
    assert list(zip(missed.tolist(), total.tolist(), strict=True)) == expected
