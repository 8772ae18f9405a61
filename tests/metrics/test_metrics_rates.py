"""Throughput, goodput and shares, over a stated interval."""

from __future__ import annotations

import pytest
from handmade import failed, row, run_of, steps

from longbench_sched.metrics.summary import summarize
from longbench_sched.record import Reason, Status
from longbench_sched.slo import Slo


def test_a16_input_throughput_uses_the_servers_count() -> None:
    """A chat prompt of 1024 tokens that the template makes 1061."""
    run = run_of([row(0, [1000.0], isl=1024, prompt=1061)], target={"api": "chat"})
    summary = summarize(run)
    assert summary.whole.rates["input_throughput"].value == pytest.approx(1061.0)
    assert summary.facts["isl"] == {
        "nominal": None,
        "asked": {"min": 1024.0, "mean": 1024.0, "max": 1024.0},
        "server": {"min": 1061.0, "mean": 1061.0, "max": 1061.0},
        "overhead": {"min": 37.0, "mean": 37.0, "max": 37.0},
        "n_server": 1,
        "n_mismatch": 0,
    }


def test_total_throughput_is_input_and_output_together() -> None:
    rates = summarize(run_of([row(0, steps(1000, 100, 11), isl=3000)])).whole.rates
    assert rates["input_throughput"].value == pytest.approx(1500.0)
    assert rates["output_throughput"].value == pytest.approx(5.5)
    assert rates["total_throughput"].value == pytest.approx(1505.5)
    assert (rates["total_throughput"].n, rates["total_throughput"].over_s) == (3011, pytest.approx(2.0))


def test_a25_the_completion_rate_leaves_the_filling_of_the_pipeline_out() -> None:
    rates = summarize(run_of([row(0, [1000.0 * (10 + i)], index=i) for i in range(10)])).whole.rates
    assert rates["request_rate"].value == pytest.approx(10 / 19)
    assert rates["completion_rate"].value == pytest.approx(1.0)
    assert rates["completion_rate"].over_s == pytest.approx(9.0)


def test_b05_tokens_of_failed_requests_are_not_in_the_throughput_of_successes() -> None:
    run = run_of([row(0, steps(100, 100, 10)), failed(Reason.IN_BAND_ERROR, sent=0, chunks=steps(10, 10, 37), index=1)])
    summary = summarize(run)
    assert summary.whole.rates["output_throughput"].value == pytest.approx(10.0)
    assert summary.whole.rates["output_throughput_all"].value == pytest.approx(47.0)
    assert summary.whole.rates["input_throughput"].value == pytest.approx(100.0)
    assert summary.facts["tokens"] == {"prompt": 100, "output": 10, "output_unsuccessful": 37}
    assert summary.whole.stats["ttft"].n == 1


def test_b18_successes_failures_and_all_attempts_are_apart() -> None:
    """90 good ones with a TTFT of 1 s, 10 that fail after 60 s."""
    records = [row(10.0 * i, [10.0 * i + 1000], index=i) for i in range(90)]
    records += [failed(Reason.HTTP_STATUS, sent=0, end=60_000, index=90 + i, http_status=503) for i in range(10)]
    summary = summarize(run_of(records), Slo(ttft_s=5.0))
    stats, rates = summary.whole.stats, summary.whole.rates
    assert stats["ttft"].n == 90
    assert stats["ttft"].max == pytest.approx(1.0)
    assert (stats["failed_duration"].n, stats["failed_duration"].p50) == (10, pytest.approx(60.0))
    assert rates["success_rate"].value == pytest.approx(0.9)
    assert rates["good_share"].value == pytest.approx(0.9)
    # First send 0, last token 1.89 s.
    assert rates["goodput"].value == pytest.approx(90 / 1.89)
    assert rates["goodput"].n == 90


def c03_run() -> list:
    """10 rows: TTFT 100..1000 ms; TPOT 20 ms but 60 ms in the second and the fourth."""
    return [row(0, steps(100.0 * (i + 1), 60 if i in (1, 3) else 20, 5), index=i) for i in range(10)]


@pytest.mark.parametrize(("ttft_ms", "good"), [(500, 3), (1000, 8)])
def test_c03_goodput_is_computed_afterwards_with_any_limits(ttft_ms: int, good: int) -> None:
    rates = summarize(run_of(c03_run()), Slo.parse([f"ttft:{ttft_ms}", "tpot:50"])).whole.rates
    assert rates["good_share"].value == pytest.approx(good / 10)
    assert rates["good_share"].n == 10
    assert rates["goodput"].n == good


def test_goodput_uses_the_limits_stored_with_the_run_and_says_which_it_used() -> None:
    run = run_of(c03_run(), slo={"ttft": 0.5, "tpot": 0.05})
    assert summarize(run).whole.rates["goodput"].n == 3
    other = summarize(run, Slo(ttft_s=1.0))
    assert other.whole.rates["goodput"].n == 10
    assert dict(other.meta.slo) == {"ttft": 1.0}


def test_without_limits_there_is_no_goodput() -> None:
    rates = summarize(run_of(c03_run())).whole.rates
    assert (rates["goodput"].value, rates["good_share"].value, rates["deadline_misses"].value) == (None, None, None)


@pytest.mark.parametrize(
    ("record", "is_good"),
    [
        pytest.param(row(0, [400.0], tokens=[500]), True, id="one chunk has no gap to be late"),
        pytest.param(row(0, [400.0, 430.0], tokens=None, output=None), False, id="unknown counts cannot be judged"),
        pytest.param(row(0, [400.0, 430.0, 530.0]), False, id="mean 65 ms"),
        pytest.param(failed(Reason.CUT, sent=0, chunks=[400.0, 410.0]), False, id="failed"),
    ],
)
def test_a_request_is_good_only_if_every_limit_is_known_to_be_met(record, is_good: bool) -> None:
    rates = summarize(run_of([record]), Slo(ttft_s=0.5, tpot_s=0.05)).whole.rates
    assert rates["good_share"].value == (1.0 if is_good else 0.0)


def test_the_itl_limit_bounds_the_largest_gap() -> None:
    run = run_of([row(0, [100.0, 110.0, 170.0]), row(0, [100.0, 120.0, 140.0], index=1)])
    assert summarize(run, Slo(itl_s=0.05)).whole.rates["goodput"].n == 1


def test_what_we_cancelled_or_lost_is_not_judged() -> None:
    run = run_of(
        [
            row(0, [100.0]),
            failed(Reason.RESET, sent=0, index=1),
            failed(Reason.INTERRUPTED, status=Status.CANCELLED, sent=0, index=2),
            failed(Reason.INTERRUPTED, status=Status.LOST, sent=0, index=3),
        ]
    )
    summary = summarize(run)
    assert summary.outcomes.attempted == 4
    assert (summary.whole.rates["success_rate"].value, summary.whole.rates["success_rate"].n) == (0.5, 2)


def test_lanes_have_figures_of_their_own_over_the_runs_interval() -> None:
    records = [row(0, steps(100, 100, 20), lane="decode"), row(500, steps(1500, 100, 5), index=1, lane="prefill", isl=30_000)]
    summary = summarize(run_of(records))
    assert set(summary.lanes) == {"decode", "prefill"}
    outputs = [summary.lanes[lane].rates["output_throughput"].value for lane in ("decode", "prefill")]
    assert outputs == [pytest.approx(10.0), pytest.approx(2.5)]
    assert summary.whole.rates["output_throughput"].value == pytest.approx(12.5)
    assert summary.lanes["prefill"].stats["ttft"].n == 1
    assert summarize(run_of([row(0, [1.0])])).lanes == {}
