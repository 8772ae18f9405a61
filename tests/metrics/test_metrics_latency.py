"""Per-request and per-token metrics on records written by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from handmade import failed, row, run_of, steps
from hypothesis import given
from hypothesis import strategies as st

from longbench_sched.metrics.columns import Columns
from longbench_sched.metrics.definitions import CATALOGUE, DISTRIBUTIONS
from longbench_sched.metrics.summary import summarize
from longbench_sched.record import Reason, TokenSource
from longbench_sched.run import Run
from longbench_sched.slo import Slo


def values(run: Run, metric: str) -> list[float]:
    """The raw values of a metric, in row order."""
    return [float(value) for value in DISTRIBUTIONS[metric].compute(Columns.of(run), Slo()).values]


def test_a04_chunk_gaps_and_token_gaps_are_two_metrics() -> None:
    """100 tokens in 25 chunks of 4, every 40 ms from 200 ms on."""
    summary = summarize(run_of([row(0, steps(200, 40, 25), tokens=4)]))
    stats = summary.whole.stats
    assert stats["icg"].mean == pytest.approx(0.040)
    assert stats["icg"].n == 24
    assert stats["itl"].mean == pytest.approx(0.010)
    assert stats["itl"].p50 == pytest.approx(0.010)
    assert stats["itl"].n == 96
    assert stats["tokens_per_chunk"].mean == pytest.approx(4.0)
    assert summary.facts["packing"] == {
        "mean": 4.0, "mode": 4, "n_chunks": 25, "n_unknown": 0, "n_disagree": 0, "n_single_chunk": 0
    }  # fmt: skip
    assert stats["e2e"].p50 == pytest.approx(1.160)
    assert stats["ttft"].p50 == pytest.approx(0.200)


def test_a05_tpot_uses_the_servers_count_not_the_number_of_chunks() -> None:
    """8192 tokens in 4096 chunks 20 ms apart; per-chunk counts unknown."""
    run = run_of([row(0, steps(100, 20, 4096), tokens=None, output=8192, chunk_source=None)])
    # 4095 gaps of 20 ms over 8191 tokens.
    assert values(run, "tpot") == pytest.approx([4095 * 0.020 / 8191])
    assert values(run, "osl") == [8192.0]
    assert values(run, "itl") == []
    assert summarize(run).facts["sources"]["output_token_source"] == {"usage": 1}  # type: ignore[index]


def test_a06_tokens_of_a_packed_first_chunk_are_not_divided_by() -> None:
    run = run_of([row(0, [500.0, *steps(510, 10, 12)], tokens=[8, *[1] * 12], output=20)])
    assert values(run, "tpot") == pytest.approx([0.010])


def test_a06_without_chunk_counts_one_token_is_taken_for_the_first_chunk() -> None:
    run = run_of([row(0, [500.0, *steps(510, 10, 12)], tokens=None, output=20)])
    assert values(run, "tpot") == pytest.approx([0.120 / 19])


def test_a07_tpot_and_itl_leave_the_wait_for_the_first_token_out() -> None:
    run = run_of([row(0, steps(5000, 10, 11))])
    assert values(run, "tpot") == pytest.approx([0.010])
    assert max(values(run, "itl")) == pytest.approx(0.010)
    assert len(values(run, "itl")) == 10


def test_a08_reasoning_is_inside_the_output_count() -> None:
    """A single answer of 38 tokens of content and 474 of reasoning, counted as 512 by the server."""
    run = run_of([row(0, [900.0], tokens=None, output=512)])
    assert values(run, "osl") == [512.0]


def test_a09_queue_wait_and_ttft_from_arrival_hold_the_wait_for_a_slot() -> None:
    """8 requests planned 100 ms apart, one at a time, 500 ms each."""
    run = run_of([row(500.0 * i, [500.0 * i + 500], index=i, due=100.0 * i, slot=500.0 * i) for i in range(8)])
    stats = summarize(run).whole.stats
    assert values(run, "queue_wait") == pytest.approx([0.4 * i for i in range(8)])
    assert stats["queue_wait"].max == pytest.approx(2.8)
    assert stats["ttft_due"].mean == pytest.approx(1.9)
    assert stats["ttft_due"].max == pytest.approx(3.3)
    assert stats["ttft"].min == stats["ttft"].max == pytest.approx(0.5)


def test_lateness_is_the_tools_own_and_apart_from_queue_wait() -> None:
    run = run_of([row(30.0, [100.0], due=0.0, slot=20.0)])
    assert values(run, "queue_wait") == pytest.approx([0.020])
    assert values(run, "lateness") == pytest.approx([0.010])
    assert values(run, "ttft") == pytest.approx([0.070])
    assert values(run, "ttft_due") == pytest.approx([0.100])


def test_lateness_and_queue_wait_are_over_every_request_that_was_sent() -> None:
    run = run_of(
        [row(10.0, [20.0], slot=0.0), failed(Reason.RESET, sent=30.0, slot=0.0, index=1), failed(Reason.RESET, sent=None)]
    )
    lateness = summarize(run).whole.stats["lateness"]
    assert (lateness.n, lateness.max) == (2, pytest.approx(0.030))


def test_a29_a_single_chunk_has_no_tpot_but_keeps_its_row() -> None:
    summary = summarize(run_of([row(0, [4000.0], tokens=[500], isl=1000, marks=("single-chunk",))]))
    stats = summary.whole.stats
    assert stats["ttft"].p50 == stats["e2e"].p50 == pytest.approx(4.0)
    for name in ("tpot", "itl", "icg", "output_speed"):
        assert (stats[name].n, stats[name].mean, stats[name].p50) == (0, None, None)
    assert summary.whole.rates["output_throughput"].value == pytest.approx(125.0)
    assert summary.outcomes.ok == 1
    assert summary.facts["row_marks"] == {"single-chunk": 1}


def test_a29_a_single_chunk_of_unknown_tokens_has_no_tpot_either() -> None:
    """Its time between first and last event is 0, which 499 later tokens would turn into a speed without end."""
    stats = summarize(run_of([row(0, [4000.0], tokens=None, output=500)])).whole.stats
    for name in ("tpot", "itl", "icg", "output_speed"):
        assert (stats[name].n, stats[name].mean, stats[name].p50) == (0, None, None)


def test_a32_keep_alives_and_role_frames_are_first_byte_only() -> None:
    run = run_of([row(0, steps(9000, 20, 5), first_byte=15.0)])
    assert values(run, "first_byte") == pytest.approx([0.015])
    assert values(run, "ttft") == pytest.approx([9.0])
    assert max(values(run, "itl")) == pytest.approx(0.020)


def test_a02_the_first_answer_token_is_another_metric_than_the_first_token() -> None:
    run = run_of([row(0, steps(100, 20, 100), answer=2000.0)])
    assert values(run, "ttft") == pytest.approx([0.100])
    assert values(run, "ttfa") == pytest.approx([2.0])


def test_upload_is_a_column_of_its_own() -> None:
    run = run_of([row(0, [300.0], body_sent=40.0)])
    assert values(run, "upload") == pytest.approx([0.040])
    assert values(run, "ttft_body_sent") == pytest.approx([0.260])
    assert values(run, "ttft") == pytest.approx([0.300])


def test_e2e_ends_with_the_last_token_and_stream_end_with_the_answer() -> None:
    run = run_of([row(0, [100.0, 200.0], end=260.0)])
    assert values(run, "e2e") == pytest.approx([0.200])
    assert values(run, "stream_end") == pytest.approx([0.260])


def test_normalised_latency_is_e2e_over_output_tokens() -> None:
    assert values(run_of([row(0, steps(500, 100, 6))]), "normalised_latency") == pytest.approx([1.0 / 6])


def test_prefill_rate_is_prompt_tokens_over_ttft() -> None:
    assert values(run_of([row(0, [2000.0], isl=30_000)]), "prefill_rate") == pytest.approx([15_000.0])


def test_output_speed_is_the_inverse_of_tpot() -> None:
    run = run_of([row(0, steps(100, 25, 5)), row(0, [100.0, 100.0], index=1)])
    assert values(run, "output_speed") == pytest.approx([40.0])  # the second has no time between its tokens


def test_gaps_before_chunks_of_unknown_count_have_no_itl() -> None:
    run = run_of([row(0, [100.0, 140.0, 200.0, 210.0], tokens=[1, 4, -1, 1], output=10)])
    assert values(run, "icg") == pytest.approx([0.040, 0.060, 0.010])
    assert values(run, "itl") == pytest.approx([0.010, 0.010])  # 40 ms over 4 tokens (weight 4), then 10 ms over 1
    assert summarize(run).whole.stats["itl"].n == 5


def test_a_chunk_without_a_token_passes_its_time_on() -> None:
    run = run_of([row(0, [100.0, 130.0, 160.0], tokens=[1, 0, 2])])
    assert values(run, "itl") == pytest.approx([0.030])
    assert summarize(run).whole.stats["itl"].n == 2


def test_times_are_engine_time_and_rates_too() -> None:
    """A clock compressed x6: what takes 100 ms here takes 600 ms there."""
    records = [row(0, steps(100, 10, 11), due=-50.0)]
    plain, scaled = summarize(run_of(records)).whole, summarize(run_of(records, time_scale=6.0)).whole
    for name in ("ttft", "ttft_due", "itl", "icg", "tpot", "e2e", "queue_wait"):
        assert scaled.stats[name].mean == pytest.approx(6 * (plain.stats[name].mean or 0)), name
    for name in ("output_throughput", "input_throughput", "request_rate"):
        assert scaled.rates[name].value == pytest.approx((plain.rates[name].value or 0) / 6), name
    assert scaled.rates["output_throughput"].over_s == pytest.approx(1.2)
    assert scaled.stats["output_speed"].mean == pytest.approx((plain.stats["output_speed"].mean or 0) / 6)


def test_every_metric_has_a_docstring_and_a_stat_in_each_section() -> None:
    section = summarize(run_of([row(0, [1.0])])).whole
    assert set(section.stats) | set(section.rates) == set(CATALOGUE)
    for name, metric in CATALOGUE.items():
        assert metric.name == name
        assert metric.compute.__doc__, name


def test_every_metric_is_documented() -> None:
    words = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert [name for name in CATALOGUE if f"`{name}`" not in words] == []


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 10**9), st.integers(0, 9)), max_size=12),
        max_size=8,
    )
)
def test_token_gaps_add_up_to_the_time_after_the_first_token(streams: list[list[tuple[int, int]]]) -> None:
    """Law: the ITLs of a request, each as often as it counts, sum to E2E - TTFT less a tail that brought no token."""
    records, expected = [], 0.0
    for index, stream in enumerate(streams):
        at = np.cumsum([gap for gap, _ in stream]) / 1e6
        tokens = [k for _, k in stream]
        records.append(row(0, at.tolist(), index=index, tokens=tokens or 1, chunk_source=TokenSource.IDS))
        bearing = [i for i in range(1, len(tokens)) if tokens[i] > 0]
        expected += (at[bearing[-1]] - at[0]) / 1e3 if bearing else 0.0
    samples = DISTRIBUTIONS["itl"].compute(Columns.of(run_of(records)), Slo())
    weights = samples.weights if samples.weights is not None else np.ones(len(samples.values))
    assert float((samples.values * weights).sum()) == pytest.approx(expected, abs=1e-6)
    assert samples.counts.sum() == len(samples.values)
