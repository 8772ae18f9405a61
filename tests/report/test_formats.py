"""Files for others: nothing in them acts, nothing in them is NaN, nothing in them is big."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import replace
from typing import Any

import handmade_summaries as handmade
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longbench_sched.errors import UsageError
from longbench_sched.metrics.definitions import DISTRIBUTIONS, RATES
from longbench_sched.metrics.stat import Rate, Section, Stat, Summary
from longbench_sched.report import FORMATS, markdown, render_for
from longbench_sched.report.csv import guard
from longbench_sched.report.page import build_page
from longbench_sched.report.untrusted import clean


def text_of(suffix: str, *summaries: Summary) -> str:
    text = render_for(f"x{suffix}", build_page(summaries))
    assert isinstance(text, str)
    return text


def table_of(*summaries: Summary) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text_of(".csv", *summaries))))


class TestFormats:
    def test_a_format_that_does_not_exist_is_answered_with_those_that_do(self) -> None:
        known = r"Known: .md, .html, .csv, .tidy.csv, .json, .txt, .parquet"
        with pytest.raises(UsageError, match=rf"no format with the suffix '.xlsx'. {known}"):
            render_for("out.xlsx", build_page([]))

    def test_a_dash_is_markdown(self) -> None:
        assert str(render_for("-", build_page([]))).startswith("# No runs")

    @pytest.mark.parametrize("suffix", FORMATS)
    def test_no_runs_can_be_written(self, suffix: str) -> None:
        assert render_for(f"x{suffix}", build_page([]))

    @pytest.mark.parametrize("suffix", FORMATS)
    def test_b10_no_file_of_a_failed_run_holds_nan_or_infinity(self, suffix: str) -> None:
        broken = Stat("ttft", "s", 3, math.nan, math.inf, -math.inf, math.nan, math.nan, math.nan, math.nan)
        whole = Section("whole", 0.0, 1.0, {"ttft": broken}, {"goodput": Rate("goodput", "1/s", math.nan)})
        page = build_page([handmade.all_failed()])
        assert not re.search(rb"\b(nan|inf(inity)?)\b", _bytes(render_for(f"x{suffix}", page)), re.IGNORECASE)
        # And the second lock: even if a metric let one through.
        page = build_page([handmade.make_summary(whole=whole, steady=None, facts={"x": math.inf})])
        assert not re.search(rb"\b(nan|inf(inity)?)\b", _bytes(render_for(f"x{suffix}", page)), re.IGNORECASE)


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


class TestCsv:
    def test_a_row_is_a_run_and_window_with_units_in_the_names(self) -> None:
        whole, steady = table_of(handmade.make_summary())
        assert (whole["window"], steady["window"]) == ("whole", "steady")
        assert whole["ttft_p50_s"] == "11.2"
        assert whole["ttft_n"] == "256"
        assert whole["output_throughput_tok_per_s"] == "411.4"
        assert whole["goodput_per_s"] == "0.41"

    def test_b09_what_is_not_defined_is_an_empty_cell(self) -> None:
        (row,) = table_of(handmade.all_failed())
        assert row["tpot_p50_s"] == ""
        assert row["output_throughput_tok_per_s"] == ""
        assert row["total_throughput_tok_per_s"] == "0.0"

    def test_the_tidy_csv_has_a_row_a_figure(self) -> None:
        rows = list(csv.DictReader(io.StringIO(text_of(".tidy.csv", handmade.make_summary()))))
        ttft = [row for row in rows if (row["metric"], row["figure"], row["window"]) == ("ttft", "p50", "whole")]
        assert [(row["value"], row["low"], row["high"], row["n"], row["unit"]) for row in ttft] == [
            ("11.2", "10.9", "11.5", "256", "s")
        ]
        assert len(rows) == 2 * (5 * 7 + 5)  # two windows, five metrics of seven figures, five rates
        assert {row["run_id"] for row in rows} == {"2026-11-30T1012-vllm-30k-500-c64"}

    def test_c11_the_csv_of_five_cells_is_less_than_50_kb(self) -> None:
        """Every metric of the catalogue, both windows, values with all their digits."""
        figures: dict[str, Any] = dict.fromkeys(
            ("mean", "p50", "p90", "p95", "p99", "min", "max", "low", "high"), 31.60123456789012
        )
        stats = {name: Stat(name, definition.unit, 127_744, **figures) for name, definition in DISTRIBUTIONS.items()}
        rates = {name: Rate(name, definition.unit, 411.4123456789, 1 / 3, 2 / 3) for name, definition in RATES.items()}
        summary = handmade.make_summary(
            whole=Section("whole", 0, 9, stats, rates), steady=Section("steady", 0, 9, stats, rates)
        )
        assert len(text_of(".csv", *[summary] * 5)) < 50_000
        assert table_of(summary)[0]["ttft_p50_s"] == "31.6012"  # six digits
        assert len(text_of(".md", *[summary] * 5)) < 50_000

    @pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", " =", "\ufeff=", "\u200b="])
    def test_no_text_begins_a_formula(self, start: str) -> None:
        guarded = guard(f"{start}1+1")
        assert guarded[0] not in "=+-@\t\r\n"

    def test_numbers_are_not_touched(self) -> None:
        summary = handmade.make_summary(whole=Section("whole", 0, 9, {"x": Stat("x", "s", 1, mean=-0.5)}, {}), steady=None)
        assert table_of(summary)[0]["x_mean_s"] == "-0.5"

    def test_a_hostile_server_writes_no_formula_and_no_line(self) -> None:
        rows = table_of(handmade.hostile())
        assert len(rows) == 3  # whole, steady, one lane
        for row in rows:
            assert None not in row
            for name, cell in row.items():
                assert cell == "" or cell[0] not in "=@\t\r" or name.endswith(("_s", "_n"))
                assert not re.search(r"[\x00-\x1f\u202e]", cell)


class TestJson:
    def test_d04_it_states_its_schema_version(self) -> None:
        assert json.loads(text_of(".json"))["schema_version"] == 1

    def test_figures_are_at_full_precision_and_undefined_ones_null(self) -> None:
        stat = Stat("ttft", "s", 3, mean=1 / 3)
        whole = Section("whole", 0.0, 1.0, {"ttft": stat}, {})
        (run,) = json.loads(text_of(".json", handmade.make_summary(whole=whole)))["runs"]
        assert run["whole"]["stats"]["ttft"]["mean"] == 1 / 3
        assert run["whole"]["stats"]["ttft"]["p50"] is None
        assert run["whole"]["stats"]["ttft"]["p99_is_marked"] is True
        assert run["meta"]["digest"].startswith("9f3c21")

    def test_half_a_surrogate_pair_does_no_harm(self) -> None:
        meta = handmade.make_meta(engine_facts={"model": "\ud83d"})
        (run,) = json.loads(text_of(".json", handmade.make_summary(meta)))["runs"]
        assert run["meta"]["engine_facts"]["model"] == "?"


class TestTidyParquet:
    def test_it_has_a_row_for_each_figure(self) -> None:
        content = render_for("x.parquet", build_page([handmade.make_summary()]))
        rows = pq.read_table(io.BytesIO(_bytes(content))).to_pylist()
        assert len(rows) == 2 * (5 * 7 + 5)  # windows x (metrics x figures + rates)
        (p50,) = [row for row in rows if (row["window"], row["metric"], row["figure"]) == ("whole", "ttft", "p50")]
        assert (p50["value"], p50["low"], p50["high"], p50["unit"], p50["n"]) == (11.2, 10.9, 11.5, "s", 256)
        assert p50["over_s"] == 181.0
        (rate,) = [row for row in rows if (row["window"], row["metric"]) == ("steady", "total_throughput")]
        assert (rate["figure"], rate["value"], rate["low"], rate["over_s"]) == ("value", 25_105.0, 24_900.0, 142.0)

    def test_lanes_are_windows_of_their_own(self) -> None:
        summary = handmade.make_summary(lanes={"long": handmade.make_summary().whole}, steady=None)
        rows = pq.read_table(io.BytesIO(_bytes(render_for("x.parquet", build_page([summary]))))).to_pylist()
        assert {row["window"] for row in rows} == {"whole", "lane long"}


class TestMarkdown:
    def test_a_hostile_server_ends_no_cell_and_writes_no_tag_link_or_code(self) -> None:
        text = text_of(".md", handmade.hostile())
        for character in "`<>[]|":
            unescaped = re.findall(rf"(?<!\\)(?:\\\\)*{re.escape(character)}", _without_structure(text))
            assert not unescaped, character
        assert "http://" not in text
        assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", text)

    def test_every_row_of_a_table_has_as_many_cells_as_its_heading(self) -> None:
        for block in text_of(".md", handmade.hostile()).split("\n\n"):
            rows = [re.split(r"(?<!\\)\|", line) for line in block.splitlines() if line.startswith("|")]
            assert len({len(row) for row in rows}) <= 1

    @pytest.mark.parametrize(
        ("text", "escaped"),
        [
            ("a|b", "a\\|b"),
            ("<b>", "\\<b\\>"),
            ("a_b*c`d", "a\\_b\\*c\\`d"),
            ("https://x.y", "https\\://x.y"),
            ("www.x.y", "www\\.x.y"),
            ("@someone #1", "\\@someone \\#1"),
            ("11.2 s", "11.2 s"),
        ],
    )
    def test_what_could_mean_something_is_escaped(self, text: str, escaped: str) -> None:
        assert markdown.escape(text) == escaped


def _without_structure(text: str) -> str:
    """The document less the pipes of its tables and the marks of its quotes."""
    lines = (line.removeprefix("> ") for line in text.splitlines() if not line.startswith("|-"))
    return "\n".join(re.sub(r"^\| | \|$|(?<!\\) \| |\|  \|  \|", " ", line) if line.startswith("|") else line for line in lines)


class TestUntrusted:
    @settings(max_examples=300)
    @given(st.text(max_size=60))
    def test_a_clean_text_is_one_line_in_which_nothing_acts(self, text: str) -> None:
        cleaned = clean(text)
        assert cleaned.isprintable()
        assert clean(cleaned) == cleaned

    @settings(max_examples=200)
    @given(st.text(max_size=400), st.integers(1, 60))
    def test_a_clean_text_keeps_to_its_limit(self, text: str, limit: int) -> None:
        assert len(clean(text, limit)) <= limit

    @pytest.mark.parametrize(
        ("text", "cleaned"),
        [
            ("a\x1b[31mb", "a\\x1b[31mb"),
            ("a\u202eb", "a\\u202eb"),
            ("a\nb\tc", "a b c"),
            ("a\u2028b", "a b"),
            ("\ud83d", "\\ud83d"),
            ("\U000e0041", "\\U000e0041"),
            ("日本語 é", "日本語 é"),
        ],
        ids=["escape", "bidi", "lines", "separator", "surrogate", "tag", "words"],
    )
    def test_what_acts_is_written_out(self, text: str, cleaned: str) -> None:
        assert clean(text) == cleaned


def test_pages_do_not_change_their_summaries() -> None:
    summary = handmade.make_summary()
    before = replace(summary)
    for suffix in FORMATS:
        render_for(f"x{suffix}", build_page([summary]))
    assert summary == before
