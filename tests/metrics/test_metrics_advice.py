"""Each warning fires on its condition, stays silent just below its limit, and is documented."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from handmade import OPEN_LOOP, advice_ids, failed, health, row, run_of, steps

from longbench_sched.metrics import advice
from longbench_sched.metrics.summary import summarize
from longbench_sched.record import Reason, Status, TokenSource
from longbench_sched.run import Run

DOCS = Path(__file__).parents[2] / "docs" / "advice.md"


def streams(n: int = 4, **fields) -> list:
    """Plain answers of 400 ms, one every 100 ms: TTFT 200 ms, 21 tokens, 10 ms apart. 4 are in flight."""
    return [row(100.0 * i, steps(100.0 * i + 200, 10, 21), index=i, **fields) for i in range(n)]


def stalled(n_stalls: int, gap: float = 100.0) -> list:
    """Two streams of 100 tokens 10 ms apart in which some gaps are longer."""
    records = []
    for index in range(2):
        at = [200.0]
        for k in range(100):
            at.append(at[-1] + (gap if k < n_stalls else 10.0))
        records.append(row(0, at, index=index))
    return records


def queue(n: int, step: float) -> list:
    """n requests at once on a server that takes them one by one."""
    return [row(0, [step * (i + 1)], index=i) for i in range(n)]


def held_back(late_ms: float) -> list:
    """100 requests due at 10/s that wait for a place ever longer."""
    return [row(100.0 * i + late_ms * i, [100.0 * i + late_ms * i + 10], index=i, due=100.0 * i) for i in range(100)]


def late(factor: float) -> list:
    """100 requests due at 1000/s, sent slower by this factor."""
    return [row(i * factor, [i * factor + 50], index=i, due=float(i), slot=float(i)) for i in range(100)]


FIRES: list[tuple[str, Run, Run]] = [
    ("IMPOSSIBLE", run_of([row(10, [5.0])]), run_of(streams())),
    ("INCOMPLETE", run_of(streams(), complete=False), run_of(streams())),
    ("INCOMPLETE", run_of(streams(), interrupted="SIGINT"), run_of(streams())),
    ("FAILURES", run_of([*streams(), failed(Reason.RESET, sent=0, index=9)]), run_of(streams())),
    ("UNPARSED", run_of([failed(Reason.UNPARSED, sent=0)]), run_of([failed(Reason.CUT, sent=0)])),
    ("UNPARSED", run_of([row(0, [1, 2], marks=["unknown-field"])]), run_of([row(0, [1, 2], marks=["retried"])])),
    (
        "CLIENT-LIMITED",
        run_of(streams(), client=health(lateness_p99_ms=10.1)),
        run_of(streams(), client=health(lateness_p99_ms=10.0)),
    ),
    (
        "CLIENT-LIMITED",
        run_of(streams(), client=health(clock="user", loop_lag_p99_ms=11.0)),
        run_of(streams(), client=health(clock="kernel", loop_lag_p99_ms=11.0)),
    ),
    (
        "CLIENT-LIMITED",
        run_of(streams(), client=health(read_lateness_p99_ms=101.0)),
        run_of(streams(), client=health(read_lateness_p99_ms=100.0)),
    ),
    ("CLIENT-LIMITED", run_of(streams(), client=health(cpu_s=91.0)), run_of(streams(), client=health(cpu_s=90.0))),
    (
        "CLIENT-LIMITED",
        run_of(streams(), client=health(cpu_s=1.0, wall_s=1.0)),
        run_of(streams(), client=health(cpu_s=0.99, wall_s=0.99)),
    ),
    ("CLIENT-LIMITED", run_of(streams(), marks=("client-limited",)), run_of(streams())),
    ("CLIENT-RATE", run_of(late(1.02), plan=OPEN_LOOP), run_of(late(1.005), plan=OPEN_LOOP)),
    ("CLIENT-RATE", run_of(late(1.02), plan=OPEN_LOOP), run_of(held_back(20.0), plan=OPEN_LOOP)),
    ("CAP-HELD", run_of(held_back(20.0), plan=OPEN_LOOP), run_of(held_back(0.005), plan=OPEN_LOOP)),
    (
        "CLOCK-STEP",
        run_of(streams(), client=health(clock_step_max_us=101.0)),
        run_of(streams(), client=health(clock_step_max_us=99.0)),
    ),
    ("CLOCK-STEP", run_of(streams(), marks=("clock-stepped",)), run_of(streams())),
    (
        "SERVER-LATE",
        run_of(streams(), client=health(server_lateness_p99_ms=2.1)),  # TPOT 10 ms, limit 2 ms
        run_of(streams(), client=health(server_lateness_p99_ms=1.9)),
    ),
    ("ISL-MISMATCH", run_of(streams(prompt=103)), run_of(streams(prompt=102))),
    (
        "BELOW-NOMINAL",
        run_of(streams(isl=7373), plan={"isl": {"nominal_mean": 8192.0}}),
        run_of(streams(isl=8192), plan={"isl": {"nominal_mean": 8192.0}}),
    ),
    ("OSL-SHORT", run_of(streams(osl=22)), run_of(streams(osl=21))),
    ("CACHE-ASSISTED", run_of(streams(cached=1)), run_of(streams(cached=0))),
    ("COUNT-UNKNOWN", run_of(streams(tokens=None, output=21)), run_of(streams())),
    ("COUNT-INFERRED", run_of(streams(chunk_source=TokenSource.INFERRED)), run_of(streams())),
    ("COUNT-INFERRED", run_of(streams(output_source=TokenSource.LOCAL)), run_of(streams())),
    ("COUNT-DISAGREE", run_of(streams(output=42)), run_of(streams(output=22))),
    ("PACKING", run_of(streams(tokens=[2] * 2 + [1] * 19)), run_of(streams(tokens=[2] + [1] * 20))),
    ("SHARED-READS", run_of(streams(shared_reads=2)), run_of(streams(shared_reads=1))),
    ("SINGLE-CHUNK", run_of([row(0, [100.0], tokens=[5])]), run_of([row(0, [100.0])])),
    ("ITL-PREFILL", run_of(stalled(2)), run_of(stalled(2, gap=39.0))),
    ("ITL-PREFILL", run_of(stalled(2)), run_of(stalled(2)[:1])),  # alone: nobody else's prefill
    ("QUEUEING", run_of(queue(16, 100)), run_of(queue(4, 100))),
    ("RETRIED", run_of(streams(marks=("retried",))), run_of(streams())),
    ("FEW-REQUESTS", run_of(streams(99)), run_of(streams(100))),
    ("NO-STEADY-WINDOW", run_of([row(0, [10_000.0]), *[row(500, [505.0], index=i) for i in range(1, 9)]]), run_of(streams(9))),
    (
        "BIMODAL",
        run_of([row(0, [1400.0 if i >= 98 else 100.0], index=i) for i in range(100)]),
        run_of([row(0, [150.0 if i >= 98 else 100.0], index=i) for i in range(100)]),
    ),
]


@pytest.mark.parametrize(
    ("warning", "given", "silent"), FIRES, ids=[f"{place}-{warning}" for place, (warning, _, _) in enumerate(FIRES)]
)
def test_a_warning_fires_on_its_condition_and_not_beside_it(warning: str, given: Run, silent: Run) -> None:
    assert warning in advice_ids(summarize(given))
    assert warning not in advice_ids(summarize(silent))


def test_every_warning_is_tested() -> None:
    tested = {warning for warning, _, _ in FIRES} | {
        "LITTLES-LAW",
        "DEGENERATE-OUTPUT",
    }  # test_metrics_summary.py, _degenerate.py
    assert tested == {rule.id for rule in advice.RULES}


def test_a_clean_run_has_no_warning_and_no_mark() -> None:
    records = [row(100.0 * i, steps(100.0 * i + 200, 10, 21), index=i) for i in range(200)]
    summary = summarize(run_of(records, client=health(lateness_p99_ms=0.3, loop_lag_p99_ms=0.4, clock_step_max_us=3.0)))
    assert summary.advice == ()
    assert summary.marks == ()


def test_d03_a_warning_names_what_was_measured_the_limit_and_what_to_do() -> None:
    """Planned 5000/s, achieved 4000."""
    records = [row(i / 4.0, [i / 4.0 + 1], index=i, due=i / 5.0, slot=i / 5.0) for i in range(500)]
    (found,) = [item for item in summarize(run_of(records, plan=OPEN_LOOP)).advice if item.id == "CLIENT-RATE"]
    assert found.text == "Planned 5000 requests/s, achieved 4000 (80.0 %, limit 99.0 %)."
    assert "processes" in found.next_step


def test_a23_the_loop_lag_stands_in_the_warning() -> None:
    run = run_of(streams(), client=health(clock="user", loop_lag_p99_ms=25.0))
    summary = summarize(run)
    assert summary.marks == ("client-limited",)
    assert "event loop lag p99 25.0 ms (limit 10.0 ms)" in next(a.text for a in summary.advice if a.id == "CLIENT-LIMITED")


def test_on_a_compressed_clock_the_tools_own_lateness_says_whose_time_it_is() -> None:
    """The limits hold for this machine's time; all else on the page is the engine's."""
    run = run_of(streams(), client=health(lateness_p99_ms=25.0), time_scale=6.0)
    (found,) = [a for a in summarize(run).advice if a.id == "CLIENT-LIMITED"]
    assert found.text == (
        "The tool itself could not keep up: send lateness p99 25.0 ms (limit 10.0 ms). "
        "These are as measured here; in engine time they are x 6."
    )


def test_a21_lateness_counts_against_the_ttft_it_blurs() -> None:
    """20 ms late is nothing for a TTFT of 30 s, on whatever clock the engine runs."""
    long = [row(0, [30_000.0 + 10 * k for k in range(5)])]
    assert "client-limited" not in summarize(run_of(long, client=health(lateness_p99_ms=20.0))).marks
    scaled = run_of([row(0, [500.0, 510.0])], client=health(lateness_p99_ms=20.0), time_scale=6.0)
    assert "client-limited" in summarize(scaled).marks  # 500 ms as measured, 3 s of the engine's


def test_lateness_of_the_rows_counts_where_the_client_did_not_say() -> None:
    run = run_of([row(50.0, [250.0, 260.0], slot=0.0, index=i) for i in range(3)])
    assert "send lateness p99 50.0 ms" in summarize(run).advice[0].text


def test_a_mix_of_lanes_cut_short_by_time_is_not_below_its_nominal_length() -> None:
    """Few of the short prompts were sent, or few of the long ones: the plan's own mean is what its label promises."""
    plan = {"osl": {"nominal_mean": 252.0, "mean": 252.0}}
    assert "BELOW-NOMINAL" not in advice_ids(summarize(run_of(streams(osl=21), plan=plan)))
    assert "BELOW-NOMINAL" in advice_ids(summarize(run_of(streams(osl=21), plan={"osl": {"nominal_mean": 252.0}})))


def test_marks_of_the_run_are_kept_and_not_doubled() -> None:
    summary = summarize(run_of(streams(prompt=150), marks=("recovered", "isl-mismatch")))
    assert summary.marks == ("recovered", "isl-mismatch")


def test_findings_before_the_run_are_passed_on() -> None:
    finding = {"id": "LENGTH-CONTROL", "text": "asked 2048, got 371", "cause": "ignored", "next_step": "check"}
    summary = summarize(run_of(streams(100), preflight=(finding,)))
    assert [(item.id, item.text, item.cause, item.next_step) for item in summary.advice] == [tuple(finding.values())]


def test_what_the_preflight_found_is_not_said_again_where_the_run_shows_it() -> None:
    finding = {"id": "ISL-MISMATCH", "text": "one", "cause": "", "next_step": ""}
    summary = summarize(run_of(streams(100, prompt=150), preflight=(finding,)))
    assert [item.text for item in summary.advice if item.id == "ISL-MISMATCH"] != ["one"]
    assert len([item for item in summary.advice if item.id == "ISL-MISMATCH"]) == 1


def test_lengths_that_were_estimated_are_not_blamed_on_the_server() -> None:
    plan = {"extra": {"isl_source": "estimate"}}
    [advice] = [item for item in summarize(run_of(streams(prompt=150), plan=plan)).advice if item.id == "ISL-MISMATCH"]
    assert advice.cause.startswith("There was no tokenizer at hand")
    assert "--tokenizer" in advice.next_step


def test_a_failure_is_shown_in_the_servers_own_words() -> None:
    """Seen on llama.cpp: a page that said HTTP 400 and nothing else."""
    records = [
        failed(Reason.HTTP_STATUS, sent=0, index=i, http_status=400, detail="request (9000 tokens) is too long")
        for i in range(2)
    ]
    text = next(item.text for item in summarize(run_of(records)).advice if item.id == "FAILURES")
    assert text.endswith(': 2 x http-status 400. For example: "request (9000 tokens) is too long".')


def test_a_timeout_and_a_failure_are_named_by_cause() -> None:
    records = [*streams(), *[failed(Reason.HTTP_STATUS, sent=0, index=5 + i, http_status=429) for i in range(2)]]
    records.append(failed(Reason.TIMEOUT_IDLE, status=Status.TIMEOUT, sent=0, index=9))
    text = next(item.text for item in summarize(run_of(records)).advice if item.id == "FAILURES")
    assert text == "3 of 7 requests did not succeed (limit 0): 2 x http-status 429, 1 x timeout-idle."


def test_every_warning_is_documented_and_no_other() -> None:
    documented = re.findall(r"^## ([A-Z][A-Z-]+)$", DOCS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert documented == [rule.id for rule in advice.RULES]


def test_every_warning_has_a_cause_and_a_next_step_without_line_breaks() -> None:
    for _, run, _ in FIRES:
        for item in summarize(run).advice:
            for words in (item.text, item.cause, item.next_step):
                assert words.endswith("."), item
                assert "\n" not in words
                assert "None" not in words
                assert "nan" not in words


@pytest.mark.parametrize(("scale", "is_named"), [(1.0, False), (6.0, True)])
def test_a_slower_clock_is_advised_only_where_it_can_be_had(scale: float, is_named: bool) -> None:
    run = run_of(streams(), client=health(server_lateness_p99_ms=50.0))
    (advice,) = [
        one for one in summarize(replace(run, meta=replace(run.meta, time_scale=scale))).advice if one.id == "SERVER-LATE"
    ]
    assert ("--time-scale" in advice.next_step) is is_named
    assert "fewer requests in flight" in advice.next_step
