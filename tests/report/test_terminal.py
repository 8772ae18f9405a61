"""The page for people: golden pages at 80 columns, narrow terminals, colour."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import handmade_summaries as handmade
import pytest

from longbench_sched.metrics.stat import Section, Stat, Summary
from longbench_sched.report import render_for
from longbench_sched.report.page import build_page
from longbench_sched.report.terminal import render
from longbench_sched.report.untrusted import width

GOLDEN = Path(__file__).parent / "golden"
FILES = {"Stored": "results/2026-11-30T1012-vllm-30k-500-c64.parquet"}

PAGES: dict[str, list[Summary]] = {
    "one": [handmade.make_summary()],
    "failed": [handmade.all_failed()],
    "hostile": [handmade.hostile()],
    "several": [
        handmade.simulated("vllm", 1.0, version="0.33.0", token_budget=8192),
        handmade.simulated("sglang", 1.2, version="0.5.23", mixed_chunk=False),
        handmade.simulated("trtllm", 1.1, chunked_prefill=True),
    ],
}


@pytest.mark.parametrize("suffix", [".txt", ".md", ".csv", ".json"])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_reads_as_it_did(name: str, suffix: str) -> None:
    """Set UPDATE_GOLDEN=1 to write the pages anew, and read the difference."""
    text = render_for(f"x{suffix}", build_page(PAGES[name], FILES))
    assert isinstance(text, str)
    path = GOLDEN / f"{name}{suffix}"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("columns", [40, 60, 80])
@pytest.mark.parametrize("name", PAGES)
def test_no_line_is_wider_than_the_terminal(name: str, columns: int) -> None:
    lines = render(build_page(PAGES[name], FILES), columns=columns).splitlines()
    too_wide = [line for line in lines if width(line) > columns]
    # A path or another word without a space is not cut; nor does a table give up what it is for.
    if columns == 80:
        assert not too_wide
    assert all(FILES["Stored"] in line or line.startswith("  ") for line in too_wide)


def test_a_path_is_never_cut() -> None:
    """It is there to be copied."""
    assert FILES["Stored"] in render(build_page(PAGES["one"], FILES), columns=40)


def test_e12_mean_median_p90_p99_max_and_n_stay_together_on_a_narrow_terminal() -> None:
    heading = next(line for line in render(build_page(PAGES["one"]), columns=50).splitlines() if "mean" in line)
    assert heading.split() == ["mean", "p50", "p90", "p99", "max", "n"]


def test_there_are_no_escape_codes_without_colour_and_only_ours_with_it() -> None:
    page = build_page(PAGES["hostile"])
    assert "\x1b" not in render(page)
    codes = set(re.findall(r"\x1b.{0,4}", render(page, colour=True)))
    assert codes
    assert all(re.match(r"\x1b\[(0|1|33)m", code) for code in codes)


def test_numbers_do_not_leave_their_units_at_the_end_of_a_line() -> None:
    for columns in range(40, 81):
        text = render(build_page(PAGES["one"]), columns=columns)
        assert not re.search(r"\d\n\s*(%|ms|s|tok/s)\s", text)
        assert "\u00a0" not in text


def test_e12_a_second_mode_is_said_under_the_table() -> None:
    """98 values of 100 ms and 2 of 1400 ms: median 100, mean 126, p99 1400."""
    stat = Stat("ttft", "s", 100, 0.126, 0.1, 0.1, 0.1, 1.4, 0.1, 1.4, hint="2 % in a second mode")
    summary = handmade.make_summary(whole=Section("whole", 0, 10, {"ttft": stat}, {}), steady=None)
    text = render(build_page([summary]))
    assert "TTFT  ms   126  100  100  100  1400  1400  100  -" in text
    assert "TTFT: 2 % in a second mode." in text


def test_b09_a_metric_that_is_not_defined_is_a_dash_and_removes_only_itself() -> None:
    stats = handmade.make_stats(20) | {"tpot": Stat("tpot", "s", 0), "itl": Stat("itl", "s", 0)}
    summary = handmade.make_summary(whole=Section("whole", 0, 10, stats, {}), steady=None)
    lines = render(build_page([summary])).splitlines()
    assert next(line for line in lines if line.startswith("  TPOT")).split() == ["TPOT", "s", *"------", "0", "-"]
    assert next(line for line in lines if line.startswith("  TTFT")).split()[2:4] == ["12.3", "11.2"]


def test_a_median_of_0_does_not_choose_the_unit() -> None:
    """Gaps within one read are 0: an ITL with such a median is still one of milliseconds."""
    stat = Stat("itl", "s", 2032, 0.00447, 0.0, 0.0144, 0.02, 0.0344, 0.0, 0.151, 0.0, 0.00162)
    text = render(build_page([handmade.make_summary(whole=Section("whole", 0, 9, {"itl": stat}, {}), steady=None)]))
    assert "ITL  ms  4.47    0  14.4  20.0  34.4  151  2032  0 … 1.62" in text


def test_a_steady_window_from_the_start_on_begins_at_0_s() -> None:
    steady = Section("steady", 0.0, 9.0, handmade.make_stats(20), {})
    text = render(build_page([handmade.make_summary(steady=steady)]))
    assert "Steady window, 9.00 s from 0 s on" in text


def test_p99_of_fewer_than_100_values_is_marked() -> None:
    few, many = (
        render(build_page([handmade.make_summary(whole=Section("whole", 0, 10, handmade.make_stats(n), {}), steady=None)]))
        for n in (99, 100)
    )
    assert "31.6*" in few
    assert "* p99 of fewer than 100 values" in few
    assert "*" not in many


def test_an_interrupted_run_says_how_much_was_not_sent() -> None:
    outcomes = replace(handmade.make_outcomes(), attempted=143, ok=143)
    text = render(build_page([handmade.make_summary(outcomes=outcomes)]))
    assert "143/143 ok · 113 of 256 planned were not sent" in text


def test_no_runs_are_a_page_too() -> None:
    assert render(build_page([])) == "No runs\n"
