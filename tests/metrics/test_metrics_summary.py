"""The summary as a whole: outcomes, what the load really was, self-checks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from handmade import OPEN_LOOP, advice_ids, assert_finite, failed, row, run_of, steps
from hypothesis import given, settings
from hypothesis import strategies as st

from longbench_sched.metrics.summary import summarize
from longbench_sched.record import Reason, Status
from longbench_sched.slo import Slo


def test_b08_one_refused_request_divides_by_nothing() -> None:
    summary = summarize(run_of([failed(Reason.CONNECT_REFUSED, sent=0, end=1)]), Slo(ttft_s=1.0, tpot_s=0.05))
    assert (summary.outcomes.ok, summary.outcomes.attempted) == (0, 1)
    assert summary.whole.rates["success_rate"].value == 0.0
    assert {stat.mean for name, stat in summary.whole.stats.items() if stat.n == 0} == {None}
    assert summary.whole.rates["output_throughput"].value is None
    assert_finite(summary)


def test_b09_one_token_answers_lose_tpot_only() -> None:
    summary = summarize(run_of([row(10.0 * i, [10.0 * i + 300], index=i) for i in range(20)]))
    stats = summary.whole.stats
    assert (stats["ttft"].n, stats["e2e"].n, summary.outcomes.ok) == (20, 20, 20)
    assert stats["ttft"].p50 == pytest.approx(0.3)
    assert (stats["tpot"].n, stats["tpot"].mean) == (0, None)
    assert "SINGLE-CHUNK" not in advice_ids(summary)  # one token in one chunk is no fault


def test_b10_a_run_where_all_failed_has_nulls_and_one_cause() -> None:
    records = [failed(Reason.HTTP_STATUS, sent=0, end=5, index=i, http_status=500, detail="boom") for i in range(8)]
    summary = summarize(run_of(records))
    assert (summary.outcomes.ok, summary.outcomes.failed) == (0, 8)
    (reason,) = summary.outcomes.reasons
    assert (reason.reason, reason.n, reason.sample_request_id, reason.sample_detail) == ("http-status 500", 8, "r0", "boom")
    assert summary.steady is None
    assert "FAILURES" in advice_ids(summary)
    assert_finite(summary)


def test_b17_every_cause_is_counted_with_a_sample() -> None:
    records = [row(0, [100.0], index=i) for i in range(97)]
    records += [
        failed(Reason.CONNECT_REFUSED, sent=0, index=97),
        failed(Reason.RESET, sent=0, chunks=steps(100, 10, 3), index=98),
        failed(Reason.HTTP_STATUS, sent=0, index=99, http_status=429, detail="slow down"),
    ]
    outcomes = summarize(run_of(records, plan={"requests": 100})).outcomes
    assert (outcomes.ok, outcomes.attempted, outcomes.planned) == (97, 100, 100)
    assert {(reason.reason, reason.n, reason.sample_request_id) for reason in outcomes.reasons} == {
        ("connect-refused", 1, "r97"),
        ("reset", 1, "r98"),
        ("http-status 429", 1, "r99"),
    }


def test_b07_an_in_band_error_keeps_its_code() -> None:
    summary = summarize(run_of([failed(Reason.IN_BAND_ERROR, sent=0, http_status=200, error_code=504)]))
    assert [reason.reason for reason in summary.outcomes.reasons] == ["in-band-error 504"]


def test_a14_the_servers_prompt_lengths_stand_beside_what_was_asked() -> None:
    records = [row(0, [100.0], index=i, isl=1024, prompt=1100 if i % 2 else 1024) for i in range(10)]
    summary = summarize(run_of(records))
    isl = summary.facts["isl"]
    assert isinstance(isl, dict)
    assert isl["asked"]["mean"] == 1024.0
    assert isl["server"] == {"min": 1024.0, "mean": 1062.0, "max": 1100.0}
    assert isl["n_mismatch"] == 5
    assert "isl-mismatch" in summary.marks
    (warning,) = [advice for advice in summary.advice if advice.id == "ISL-MISMATCH"]
    assert "Asked 1024 on average, the server counted 1024 / 1062 / 1100" in warning.text


def test_a15_a_run_on_shorter_prompts_carries_the_mark() -> None:
    summary = summarize(run_of([row(0, [100.0], index=i, isl=10_000, prompt=5827) for i in range(4)]))
    assert summary.marks == ("isl-mismatch",)
    assert summary.facts["isl"]["n_mismatch"] == 4  # type: ignore[index]


@pytest.mark.parametrize(("prompt", "is_marked"), [(10_200, False), (10_201, True), (9_800, False), (9_799, True)])
def test_a15_the_tolerance_is_two_percent(prompt: int, is_marked: bool) -> None:
    summary = summarize(run_of([row(0, [100.0], isl=10_000, prompt=prompt)]))
    assert ("isl-mismatch" in summary.marks) is is_marked


def test_a15_a_chat_of_shorter_prompts_is_no_template() -> None:
    """A template only adds: 5,827 counted of 10,000 in every row is no overhead of -4,173."""
    cut = [row(0, [100.0], index=i, isl=10_000, prompt=5827) for i in range(4)]
    assert "isl-mismatch" in summarize(run_of(cut, target={"api": "chat"})).marks


def test_a16_a_chat_templates_constant_overhead_is_no_mismatch_but_a_changing_one_is() -> None:
    chat = {"api": "chat"}
    constant = [row(0, [100.0], index=i, isl=1024, prompt=1061) for i in range(9)]
    assert "isl-mismatch" not in summarize(run_of(constant, target=chat)).marks
    cut = row(0, [100.0], index=9, isl=1024, prompt=700)
    assert summarize(run_of([*constant, cut], target=chat)).facts["isl"]["n_mismatch"] == 1  # type: ignore[index]
    assert "isl-mismatch" in summarize(run_of(constant)).marks  # without a template there is nothing to explain it


def test_a19_realised_output_is_shown_as_a_share_of_what_was_asked() -> None:
    """160 requests of 1024 tokens; 40 stop at 100."""
    records = [row(0, [100.0, 200.0], tokens=None, output=100 if i < 40 else 1024, osl=1024, index=i) for i in range(160)]
    summary = summarize(run_of(records))
    osl = summary.facts["osl"]
    assert isinstance(osl, dict)
    assert round(osl["share"] * 100, 1) == 77.4
    assert osl["realised"] == {"min": 100.0, "mean": 793.0, "max": 1024.0}
    assert "osl-short" in summary.marks
    assert "77.4 %" in next(advice.text for advice in summary.advice if advice.id == "OSL-SHORT")


def test_a10_planned_and_achieved_rate_are_over_first_to_last() -> None:
    """2000 requests due at 200/s, sent at 183.5/s."""
    records = [row(i * 1e3 / 183.5, [i * 1e3 / 183.5 + 1], index=i, due=i * 5.0, slot=i * 5.0) for i in range(2000)]
    summary = summarize(run_of(records, plan=OPEN_LOOP))
    sends = summary.facts["sends"]
    assert isinstance(sends, dict)
    assert sends["planned_rate_per_s"] == pytest.approx(200.0)
    assert sends["achieved_rate_per_s"] == pytest.approx(183.5)
    assert "client-rate" in summary.marks
    assert summary.whole.stats["lateness"].p99 == pytest.approx(0.99 * 1999 * (1 / 183.5 - 1 / 200), rel=1e-3)
    on_time = [row(i * 5.0, [i * 5.0 + 1], index=i) for i in range(2000)]
    assert "client-rate" not in summarize(run_of(on_time, plan=OPEN_LOOP)).marks


def test_c13_how_irregular_the_sends_were() -> None:
    """Gaps of 1, 3, 1, 3 s: mean 2, standard deviation 1."""
    records = [row(at * 1e3, [at * 1e3 + 10], index=i) for i, at in enumerate([0, 1, 4, 5, 8])]
    sends = summarize(run_of(records, plan=OPEN_LOOP)).facts["sends"]
    assert isinstance(sends, dict)
    assert sends["achieved_cv"] == sends["planned_cv"] == pytest.approx(0.5)
    assert sends["achieved_rate_per_s"] == pytest.approx(0.5)


def test_a_closed_loop_has_no_planned_rate() -> None:
    sends = summarize(run_of([row(0, [10.0]), row(10.0, [20.0], index=1)])).facts["sends"]
    assert isinstance(sends, dict)
    assert (sends["n"], sends["planned_rate_per_s"], sends["share"]) == (0, None, None)


def test_a11_cached_prompt_tokens_are_counted_and_mark_the_run() -> None:
    records = [row(0, [100.0], index=i, isl=16_384, cached=16_000) for i in range(16)]
    summary = summarize(run_of(records))
    assert summary.facts["cache"] == {"n": 16, "cached_tokens": 256_000, "share": pytest.approx(16_000 / 16_384)}
    assert "cache-assisted" in summary.marks
    assert "cache-assisted" not in summarize(run_of(records, plan={"shared_prefix_tokens": 16_000})).marks


@pytest.mark.parametrize(
    ("hits", "cached_tokens", "is_marked"),
    [(30_000, 20_000, True), (10_000, 0, False), (10_199, 199, False), (10_200, 200, True), (99_000, 20_000, True)],
    ids=["all-known", "only-the-warm-up-known", "under-1-percent", "1-percent", "other-clients-too"],
)
def test_a11_the_servers_counter_speaks_where_no_answer_says_what_was_cached(
    hits: int, cached_tokens: int, is_marked: bool
) -> None:
    """vLLM says nothing of its cache in an answer unless it is started so. Two prompts of 10,000 and a warm-up as long."""
    records = [row(0, [100.0], index=i, isl=10_000) for i in range(2)] + [row(-200, [-100.0], isl=10_000, phase="warmup")]
    run = run_of(records)
    summary = summarize(replace(run, meta=replace(run.meta, engine_facts={"prefix_hit_tokens": hits})))
    assert summary.facts["cache"] == {"n": 2, "cached_tokens": cached_tokens, "share": cached_tokens / 20_000}
    assert ("cache-assisted" in summary.marks) is is_marked


def test_a11_silence_of_an_engine_that_reports_its_cache_is_nothing_cached() -> None:
    """SGLang with --enable-cache-report tells cached tokens only where there are some: 1 of 4 prompts is 25 %, not 100 %."""
    records = [row(0, [100.0], index=0, isl=10_000, cached=10_000)]
    records += [row(0, [100.0], index=i, isl=10_000) for i in range(1, 4)]
    run = run_of(records)
    assert summarize(run).facts["cache"] == {"n": 1, "cached_tokens": 10_000, "share": 1.0}
    summary = summarize(replace(run, meta=replace(run.meta, engine_facts={"cache_report": True})))
    assert summary.facts["cache"] == {"n": 4, "cached_tokens": 10_000, "share": 0.25}


@pytest.mark.parametrize(("cached", "is_marked"), [(99, False), (100, True), (0, False), (None, False)])
def test_a11_the_limit_is_one_percent(cached: int | None, is_marked: bool) -> None:
    summary = summarize(run_of([row(0, [100.0], isl=10_000, cached=cached)]))
    assert ("cache-assisted" in summary.marks) is is_marked


def test_a27_a_missing_ttft_is_in_no_percentile() -> None:
    """40 requests; 10 bring no token, 30 have a TTFT of 300 to 600 ms."""
    records = [row(0, [300.0 + 300 * i / 29], index=i) for i in range(30)]
    records += [failed(Reason.EMPTY_STREAM, sent=0, end=20, index=30 + i, http_status=200) for i in range(10)]
    summary = summarize(run_of(records))
    ttft = summary.whole.stats["ttft"]
    assert (ttft.n, ttft.min, ttft.p50) == (30, pytest.approx(0.3), pytest.approx(0.45))
    assert (summary.outcomes.failed, summary.outcomes.reasons[0].reason) == (10, "empty-stream")


@pytest.mark.parametrize(
    ("record", "cause"),
    [
        pytest.param(row(100.0, [100.0, 200.0]), "token-before-send", id="a27 ttft 0"),
        pytest.param(row(100.0, [50.0, 200.0]), "token-before-send", id="token before send"),
        pytest.param(row(0, [100.0, 90.0], end=200), "chunks-out-of-order", id="out of order"),
        pytest.param(row(0, [100.0, 300.0], end=200), "token-after-end", id="token after end"),
        pytest.param(row(100.0, [], end=50, output=None), "end-before-send", id="end before send"),
        pytest.param(row(100.0, [150.0], body_sent=90.0), "upload-below-zero", id="upload below zero"),
        pytest.param(row(0, [], output=1000), "tokens-without-event", id="a28 tokens without an event"),
        pytest.param(row(0, [10.0], isl=250_000), "prefill-rate", id="a28 25 million prompt tokens a second"),
        pytest.param(row(0, [10.0, 10.1], tokens=[1, 500]), "output-speed", id="a29 5 million tokens a second"),
    ],
)
def test_values_that_cannot_be_trip_a_check(record, cause: str) -> None:
    summary = summarize(run_of([record]))
    assert summary.facts["impossible"] == {cause: 1}
    assert summary.marks == ("impossible-values",)
    assert summary.advice[0].id == "IMPOSSIBLE"
    assert_finite(summary)


def test_a28_asked_tokens_are_never_credited() -> None:
    records = [failed(Reason.EMPTY_STREAM, sent=0, end=10, index=i, isl=250_000, osl=1000, http_status=200) for i in range(5)]
    summary = summarize(run_of(records))
    assert (summary.outcomes.ok, summary.outcomes.failed) == (0, 5)
    assert summary.facts["tokens"] == {"prompt": 0, "output": 0, "output_unsuccessful": 0}
    assert summary.whole.rates["input_throughput"].value is None


def test_littles_law_holds_on_consistent_records() -> None:
    law = summarize(run_of([row(100.0 * i, [100.0 * i + 1000], index=i, end=100.0 * i + 1050) for i in range(50)])).facts[
        "littles_law"
    ]
    assert isinstance(law, dict)
    # 50 stays of 1.05 s within 5.95 s.
    assert law["mean_in_flight"] == pytest.approx(50 * 1.05 / 5.95)
    assert law["expected"] == pytest.approx(law["mean_in_flight"])
    assert law["holds"] is True


def test_littles_law_fails_when_rows_have_no_end() -> None:
    records = [row(0, [1000.0]), row(0, [1000.0], index=1)]
    records[1].end_ns = None
    records[1].decoded.status = Status.LOST
    summary = summarize(run_of(records))
    assert summary.facts["littles_law"]["holds"] is False  # type: ignore[index]
    assert "LITTLES-LAW" in advice_ids(summary)
    assert "self-check-failed" in summary.marks


def test_a_killed_run_is_not_held_to_littles_law_for_rows_that_were_lost() -> None:
    records = [row(0, [1000.0]), row(0, [1000.0], index=1)]
    records[1].end_ns = None
    records[1].decoded.status = Status.LOST
    killed = run_of(records)
    summary = summarize(replace(killed, meta=replace(killed.meta, complete=False)))
    assert summary.facts["littles_law"] is None
    assert "self-check-failed" not in summary.marks


def test_an_empty_run_has_a_summary() -> None:
    summary = summarize(run_of([]))
    assert summary.outcomes.attempted == 0
    assert summary.steady is None
    assert_finite(summary)


streams = st.lists(
    st.tuples(
        st.sampled_from(list(Status)),
        st.integers(0, 5000),
        st.lists(st.tuples(st.integers(0, 500), st.integers(-1, 3)), max_size=6),
        st.sampled_from([None, -1, 0, 7]),
        st.sampled_from(["measured", "measured", "warmup"]),
    ),
    max_size=14,
)


@settings(max_examples=60)
@given(streams, st.booleans())
def test_whatever_comes_every_number_is_finite_and_outcomes_add_up(cases: list, has_limits: bool) -> None:
    """Law for any records at all: nothing raises, nothing is NaN or infinite, attempted is the sum of its parts."""
    records = []
    for index, (status, sent, stream, output, phase) in enumerate(cases):
        now, at = float(sent), []
        for gap, _ in stream:
            now += gap
            at.append(now)
        reason = None if status is Status.OK else Reason.CUT
        tokens = [k for _, k in stream] or 1
        records.append(row(sent, at, index=index, tokens=tokens, output=output, status=status, reason=reason, phase=phase))
    summary = summarize(run_of(records), Slo(ttft_s=0.5, tpot_s=0.05, itl_s=0.1, e2e_s=2.0) if has_limits else None)
    assert_finite(summary)
    done = summary.outcomes
    assert done.attempted == done.ok + done.failed + done.timeout + done.cancelled + done.lost
    assert sum(reason.n for reason in done.reasons) == done.attempted - done.ok
    assert done.attempted == sum(1 for case in cases if case[4] == "measured")


def test_d04_a_stored_limit_that_a_later_version_added_is_passed_over() -> None:
    run = run_of([row(0, [100.0])], slo={"ttft": 0.2, "ttfa": 0.1})
    assert summarize(run).meta.slo == {"ttft": 0.2}
    assert summarize(run).whole.rates["good_share"].value == 1.0


def test_a19_more_tokens_than_were_asked_for_are_not_laid_to_an_early_end() -> None:
    (warning,) = [advice for advice in summarize(run_of([row(0, [1, 2, 3], osl=2)])).advice if advice.id == "OSL-SHORT"]
    assert "150 % of the output tokens" in warning.text
    assert "does not honour max_tokens" in warning.cause


def test_b17_requests_that_went_with_a_killed_run_are_counted_as_lost() -> None:
    (cause,) = summarize(run_of([row(0, [], status=Status.LOST)])).outcomes.reasons
    assert (cause.status, cause.reason) == ("lost", "lost")
