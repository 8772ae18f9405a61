"""One run, several runs: what the page says of outcomes, windows and differences."""

from __future__ import annotations

from dataclasses import replace

import handmade_summaries as handmade
import pytest

from longbench_sched.metrics.stat import Advice, Outcomes, ReasonCount, Section, Stat
from longbench_sched.report import several
from longbench_sched.report.layout import Lines, Page, Table
from longbench_sched.report.outcomes import outcome_text
from longbench_sched.report.page import build_page


def tables(page: Page) -> dict[str, Table]:
    return {block.title: block for block in page.blocks if isinstance(block, Table)}


def said(page: Page) -> dict[str, str]:
    return {
        line.label: line.text.replace("\u00a0", " ")
        for block in page.blocks
        if isinstance(block, Lines)
        for line in block.lines
    }


class TestOutcomes:
    def test_b10_a_run_in_which_all_failed_says_so(self) -> None:
        page = build_page([handmade.all_failed()])
        assert said(page)["Outcomes"] == "0/8 ok, 8 x HTTP 500"

    def test_b17_97_of_100_have_three_reasons_with_counts_and_samples(self) -> None:
        reasons = (
            ReasonCount("failed", "connect-refused", 1, "x-r3", None),
            ReasonCount("failed", "reset", 1, "x-r40", "reset after 3 tokens"),
            ReasonCount("failed", "http-status 429", 1, "x-r77", "Rate limit"),
        )
        outcomes = Outcomes(100, 97, 3, 0, 0, 0, reasons, 100)
        page = build_page([handmade.make_summary(outcomes=outcomes)])
        assert said(page)["Outcomes"] == "97/100 ok, 1 x connect-refused, 1 x reset, 1 x HTTP 429"
        assert tables(page)["Requests that are not ok"].rows == (
            ("1", "failed", "connect-refused", "x-r3", "-"),
            ("1", "failed", "reset", "x-r40", "reset after 3 tokens"),
            ("1", "failed", "HTTP 429", "x-r77", "Rate limit"),
        )

    def test_b17_attempted_is_the_sum_of_what_became_of_each(self) -> None:
        outcomes = Outcomes(10, 4, 3, 1, 1, 1, (), 10)
        page = build_page([handmade.make_summary(outcomes=outcomes)])
        assert "10 attempted = 4 ok + 3 failed + 1 timeout + 1 cancelled + 1 lost" in [
            line.text for block in page.blocks if isinstance(block, Lines) for line in block.lines
        ]

    def test_success_needs_no_words(self) -> None:
        assert outcome_text(handmade.make_outcomes()) == "256 ok"

    def test_failures_have_their_place_in_the_percentiles(self) -> None:
        stat = replace(
            handmade.make_stats()["ttft"], adjusted={"p50": 11.3, "p90": None, "p99": None}, adjusted_at_least={"p90": 1800.0}
        )
        outcomes = handmade.make_outcomes(ok=200, failed=26, timeout=30)
        page = build_page([handmade.make_summary(outcomes=outcomes, whole=Section("whole", 0, 9, {"ttft": stat}, {}))])
        (table,) = [table for title, table in tables(page).items() if title.startswith("With every failure")]
        assert table.rows == (("TTFT", "s", "11.3", "≥ 1800", "unbounded"),)

    def test_without_failures_the_percentiles_are_not_said_twice(self) -> None:
        assert not [title for title in tables(build_page([handmade.make_summary()])) if title.startswith("With every failure")]


class TestWindows:
    def test_whole_run_and_steady_window_are_apart_and_named(self) -> None:
        titles = [title.replace("\u00a0", " ") for title in tables(build_page([handmade.make_summary()]))]
        assert titles[:2] == ["Whole run, 181 s", "Steady window, 142 s from 12.0 s on (requests due in it)"]

    def test_a_run_without_a_steady_window_says_so(self) -> None:
        page = build_page([handmade.make_summary(steady=None)])
        assert said(page)["Steady"].startswith("no steady window")

    def test_a_throughput_names_its_interval(self) -> None:
        assert said(build_page([handmade.make_summary()]))["Throughput"] == (
            "25.1k tok/s in+out · 411 tok/s out   (steady window, 142 s)"
        )

    def test_goodput_is_silent_without_limits(self) -> None:
        assert "Goodput" not in said(build_page([handmade.make_summary(handmade.make_meta(slo={}))]))

    def test_c13_the_realised_pace_of_an_open_loop_is_said(self) -> None:
        sends = {
            "planned_rate_per_s": 10.0, "planned_cv": 3.0, "achieved_rate_per_s": 9.98, "achieved_cv": 2.97, "n_held_back": 4,
        }  # fmt: skip
        page = build_page([handmade.make_summary(facts={"sends": sends})])
        assert said(page)["Sends"] == "planned 10.0/s, CV 3.00 · achieved 9.98/s, CV 2.97"

    def test_e13_requests_in_prefill_and_in_decode_are_said(self) -> None:
        assert said(build_page([handmade.make_summary()]))["In flight"] == (
            "mean 63.8: 22.5 in prefill, 41.2 in decode   (steady window)"
        )


class TestSeveral:
    def test_runs_of_different_engines_are_called_by_their_engine(self) -> None:
        assert several.labels([handmade.simulated("vllm", 1), handmade.simulated("sglang", 1)]) == ["vllm", "sglang"]

    def test_runs_of_one_engine_are_told_apart_by_version_workload_or_id(self) -> None:
        a, b = (handmade.make_summary(handmade.make_meta(engine_facts={"version": v})) for v in ("1.0", "2.0"))
        assert several.labels([a, b]) == ["vllm 1.0", "vllm 2.0"]
        a, b = (handmade.make_summary(handmade.make_meta(workload=w)) for w in ("smoke", "ladder"))
        assert several.labels([a, b]) == ["vllm smoke", "vllm ladder"]
        a, b = (handmade.make_summary(handmade.make_meta(run_id=i)) for i in ("one", "two"))
        assert several.labels([a, b]) == ["one", "two"]
        assert several.labels([a, a]) == ["1: one", "2: one"]

    def test_runs_of_an_experiment_are_called_by_target_block_or_load(self) -> None:
        def labels(*places: tuple[str, int, str]) -> list[str]:
            metas = [
                handmade.make_meta(run_id=f"r{i}", experiment={"id": "x", "target": target, "block": block, "cell": cell})
                for i, (target, block, cell) in enumerate(places)
            ]
            return several.labels([handmade.make_summary(meta) for meta in metas])

        assert labels(("a", 0, "30k"), ("b", 0, "30k")) == ["a", "b"]
        assert labels(("a", 0, "30k"), ("a", 1, "30k")) == ["a block 1", "a block 2"]
        assert labels(("a", 0, "30k"), ("a", 0, "8k")) == ["a 30k", "a 8k"]
        grid = [("a", block, load) for block in (0, 1) for load in ("30k", "8k")]
        assert labels(*grid) == ["a 30k block 1", "a 8k block 1", "a 30k block 2", "a 8k block 2"]
        assert labels(("a", 0, "30k"), ("a", 0, "30k")) == ["r0", "r1"]

    def test_each_metric_is_a_group_of_rows_in_one_unit(self) -> None:
        a = handmade.make_summary(whole=Section("whole", 0, 9, {"ttft": Stat("ttft", "s", 5, p50=0.9)}, {}), steady=None)
        b = replace(
            a, meta=handmade.make_meta(run_id="b"), whole=Section("whole", 0, 9, {"ttft": Stat("ttft", "s", 5, p50=1.1)}, {})
        )
        (table,) = [table for title, table in tables(build_page([a, b])).items() if title.startswith("Whole run")]
        assert [(row[0], row[1], row[4]) for row in table.rows] == [("TTFT", "s", "0.900"), ("", "", "1.10")]

    def test_other_requests_than_the_first_run_are_pointed_out(self) -> None:
        a, b = handmade.make_summary(), handmade.make_summary(handmade.make_meta(digest="ffffff", run_id="b"))
        assert "did not send the same requests" in " ".join(line.text for line in build_page([a, b]).head)
        assert "did not send" not in " ".join(line.text for line in build_page([a, a]).head)

    def test_runs_of_one_schedule_that_say_other_things_are_told_apart_from_another_load(self) -> None:
        plan = handmade.PLAN | {"extra": {"schedule_digest": "5c5c5c5c"}}
        a, b, simulated = (
            handmade.make_summary(handmade.make_meta(plan=plan, digest=digest, run_id=digest))
            for digest in ("9f3c21aa", "ffffffff", "5c5c5c5c")
        )
        heads = [" ".join(line.text for line in build_page(pair).head) for pair in ([a, b], [a, simulated])]
        assert "the same lengths and arrivals, but other prompts" in heads[0]
        assert "plans differ" not in heads[1]
        assert "plan 9f3c21 · schedule 5c5c5c" in heads[1].replace("\u00a0", " ")

    def test_a_warning_of_several_runs_is_said_once(self) -> None:
        (notice,) = build_page([handmade.simulated("vllm", 1), handmade.simulated("sglang", 1)]).notices
        assert notice.text.startswith("vllm: ITL p99 is 7.5 x")
        assert "sglang: ITL p99" in notice.text

    @pytest.mark.parametrize("n", [2, 5])
    def test_a_metric_that_one_run_lacks_leaves_the_others_alone(self, n: int) -> None:
        page = build_page([handmade.all_failed(), *(handmade.simulated(f"e{k}", 1.0) for k in range(1, n))])
        (table,) = [table for title, table in tables(page).items() if title.startswith("Whole run")]
        assert [row[3] for row in table.rows][:2] == ["-", "12.3"]
        assert [row[9] for row in table.rows][:2] == ["0", "128"]


def test_advice_comes_after_the_numbers_with_cause_and_next_step() -> None:
    advice = Advice("X-Y", "seen 3 of 4", "because", "do this")
    (notice,) = build_page([handmade.make_summary(advice=(advice,))]).notices
    assert (notice.id, notice.text, notice.cause, notice.next_step) == ("X-Y", "seen 3 of 4", "because", "do this")
