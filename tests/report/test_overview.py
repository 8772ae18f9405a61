"""Many runs, or the cells of a sweep: one row each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import handmade_summaries as handmade

from longbench_sched.metrics.stat import Rate, Section, Stat, Summary
from longbench_sched.report import overview, several, terminal
from longbench_sched.report.layout import Page, Table
from longbench_sched.report.page import build_page


def run(cell: dict[str, str], ttft_s: float = 2.0, **changes: Any) -> Summary:
    """A run of a sweep, with a TTFT and a throughput."""
    meta = handmade.make_meta(target={"engine": "sglang", "cell": cell}, run_id=str(cell), **changes)
    stats = {"ttft": Stat("ttft", "s", 5, p50=ttft_s, p99=3 * ttft_s), "tpot": Stat("tpot", "s", 5, p50=0.02)}
    rates = {"total_throughput": Rate("total_throughput", "tok/s", 25_100.0), "good_share": Rate("good_share", "1", 0.5)}
    return handmade.make_summary(meta, whole=Section("whole", 0, 9, stats, rates), steady=None)


def only_table(page: Page) -> Table:
    (table,) = [block for block in page.blocks if isinstance(block, Table)]
    return table


def test_a_sweep_has_a_column_a_knob_and_a_row_a_cell() -> None:
    summaries = [run({"chunk": chunk, "rate": rate}, ttft) for chunk, rate, ttft in (("2k", "1", 2.0), ("8k", "1", 1.0))]
    table = only_table(build_page(summaries))
    titles = [column.title for column in table.columns]
    assert titles[:4] == ["chunk", "rate", "TTFT p50 s", "p99 s"]
    assert [row[:4] for row in table.rows] == [("2k", "1", "2.00", "6.00"), ("8k", "1", "1.00", "3.00")]
    by_title = dict(zip(titles, table.rows[0], strict=True))
    assert (by_title["TPOT p50 ms"], by_title["tok/s"], by_title["good"]) == ("20.0", "25.1k", "50.0\u00a0%")
    assert several.labels(summaries) == ["chunk=2k rate=1", "chunk=8k rate=1"]


def test_long_names_of_knobs_become_letters_that_are_explained() -> None:
    cell = {"chunked_prefill_size": "2048", "max_running_requests": "64"}
    table = overview.table(["a"], [run(cell)])
    assert [column.title for column in table.columns[:2]] == ["A", "B"]
    assert table.notes[0] == "A: chunked_prefill_size, B: max_running_requests"


def test_a_hundred_runs_fit_into_80_columns_and_warn_once_each() -> None:
    summaries = [run({"chunk": str(n), "x": "1"}, 1.0 + n) for n in range(100)]
    summaries = [replace(one, advice=handmade.simulated("sglang", 1).advice) for one in summaries]
    page = build_page(summaries)
    text = terminal.render(page)
    assert max(map(len, text.splitlines())) <= 80
    assert len(text.splitlines()) < 130
    assert len(only_table(page).rows) == 100
    assert [notice.text.partition(":")[0] for notice in page.notices] == ["in 100 of 100 runs, for example chunk=0 x=1"]


def test_a_run_with_failures_says_how_many_succeeded() -> None:
    bad = replace(run({"x": "1"}), outcomes=handmade.make_outcomes(ok=250, failed=6))
    table = overview.table(["a", "b"], [bad, run({"x": "2"})])
    assert (table.columns[-1].title, [row[-1] for row in table.rows]) == ("ok", ["250/256", "256/256"])


def test_more_runs_than_fit_are_named_where_there_is_no_cell() -> None:
    summaries = [handmade.make_summary(handmade.make_meta(run_id=f"run{n}")) for n in range(7)]
    table = only_table(build_page(summaries))
    assert [row[0] for row in table.rows] == [f"run{n}" for n in range(7)]


def test_a_figure_that_a_run_lacks_is_a_dash() -> None:
    bare = replace(run({"x": "1"}), whole=Section("whole", 0, 9, {}, {}))
    assert set(overview.table(["a"], [bare]).rows[0][1:]) == {"-"}


def test_the_note_says_over_which_part_the_figures_are() -> None:
    none, one = run({"chunk": "2k"}), run({"chunk": "8k"})
    steady = replace(one, steady=one.whole)
    assert overview.table(["a", "b"], [none, none]).notes[-1] == "over whole runs: none has a steady window"
    assert overview.table(["a", "b"], [none, steady]).notes[-1] == "over whole runs: 1 of 2 lack a steady window"
    assert overview.table(["a", "b"], [steady, steady]).notes[-1] == "over each run's steady window"


def test_rows_that_stand_under_each_other_are_over_one_window() -> None:
    """A run of which only the whole is known, beside one with a steady window: both over the whole."""
    none, one = run({"chunk": "2k"}), run({"chunk": "8k"})
    steady = replace(one, steady=Section("steady", 1, 2, {}, {}))
    assert overview.table(["a", "b"], [none, steady]).rows[1][1:] == overview.table(["a", "b"], [none, one]).rows[1][1:]
    assert set(overview.table(["b"], [steady]).rows[0][1:]) == {"-"}
    failed = replace(none, outcomes=replace(none.outcomes, ok=0))
    assert overview.table(["a", "b"], [failed, steady]).notes[-1] == "over each run's steady window"
