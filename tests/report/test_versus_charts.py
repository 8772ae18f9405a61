"""Pictures of comparisons and verdicts: what is drawn of which numbers, and that the page shows them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from longbench_sched.compare.comparison import Comparison, Side, compare
from longbench_sched.compare.difference import FactDifference
from longbench_sched.compare.gate import check
from longbench_sched.compare.policy import read_policy
from longbench_sched.metrics.curves import ECDFS, Ecdf
from longbench_sched.report import html
from longbench_sched.report.charts import Chart
from longbench_sched.report.verdict import build_verdict
from longbench_sched.report.versus import build_comparison, fact_lines
from longbench_sched.report.versus_charts import comparison_charts, mean_ecdf, verdict_charts
from tests.compare.handmade_points import around, make_side

BASE = {"ttft_p50": 11.2, "itl_p99": 0.161, "output_speed_p50": 40.0, "total_throughput": 25_000.0}
CANDIDATE = {"ttft_p50": 10.4, "itl_p99": 2.31, "output_speed_p50": 44.0, "total_throughput": 26_000.0}


def side(name: str, values: Mapping[str, float], **changes: Any) -> Side:
    made = make_side(name, {key: around(value, 0.01, 5) for key, value in values.items()}, **changes)
    points = [
        replace(point, ecdfs={metric: Ecdf(metric, "s", 3, (1.0 + i, 2.0 + i, 3.0 + i), (0.25, 0.5, 1.0)) for metric in ECDFS})
        for i, point in enumerate(made.points)
    ]
    return Side(name, tuple(points))


def comparison(**changes: Any) -> Comparison:
    return compare(side("vllm-8k", BASE), [side("sglang-32k", CANDIDATE, **changes)])


def named(drawn: Sequence[Chart]) -> dict[str, Chart]:
    found = {chart.name: chart for chart in drawn}
    assert len(found) == len(drawn)
    return found


def test_each_change_is_drawn_with_its_interval_and_what_is_said_of_it() -> None:
    compared = comparison()
    rows = named(comparison_charts(compared))["change-1"].spec["data"]["values"]
    (match,) = compared.matches
    assert [(row["figure"], row["said"]) for row in rows] == [
        ("TTFT p50", "better"), ("ITL p99", "worse"), ("tok/s all", "better"),
    ]  # fmt: skip
    for row, delta in zip(rows, match.deltas, strict=True):
        assert (row["ratio"], row["low"], row["high"]) == (
            pytest.approx(delta.ratio), pytest.approx(delta.low), pytest.approx(delta.high),
        )  # fmt: skip


def test_a_change_beyond_the_axis_stands_at_its_end() -> None:
    far = compare(side("a", BASE), [side("b", CANDIDATE | {"itl_p99": 500.0})])
    rows = named(comparison_charts(far))["change-1"].spec["data"]["values"]
    assert [row["ratio"] for row in rows if row["figure"] == "ITL p99"] == [20.0]


def test_the_mean_distribution_of_two_runs_lies_between_them_value_by_value() -> None:
    one = Ecdf("ttft", "s", 2, (1.0, 3.0), (0.5, 1.0))
    other = Ecdf("ttft", "s", 4, (2.0, 3.0, 4.0), (0.5, 0.75, 1.0))
    mean = mean_ecdf([one, other])
    assert list(zip(mean.values, mean.shares, strict=True)) == [(1.0, 0.25), (2.0, 0.5), (3.0, 0.875), (4.0, 1.0)]
    assert mean.n == 6


def test_both_distributions_are_drawn_over_each_other_with_every_run_beside_them() -> None:
    drawn = named(comparison_charts(comparison()))
    assert [name for name in drawn if name.startswith("ecdf-")] == [f"ecdf-{metric}" for metric in ECDFS]
    rows = drawn["ecdf-ttft"].spec["data"]["values"]
    assert {(row["run"], row["one"]) for row in rows} == {
        (name, one) for name in ("vllm-8k", "sglang-32k") for one in (-1, 0, 1, 2, 3, 4)
    }


def test_a_baseline_without_distributions_has_its_changes_drawn_alone() -> None:
    base = make_side("main", {key: around(value, 0.01, 5) for key, value in BASE.items()})
    assert list(named(comparison_charts(compare(base, [side("new", CANDIDATE)])))) == ["change-1", "frontier"]


def test_the_trade_off_is_that_of_one_gpu_where_all_say_how_many_they_have() -> None:
    chart = named(comparison_charts(comparison(gpus=4)))["frontier"]
    assert [row["carried"] for row in chart.spec["data"]["values"]] == [pytest.approx(25_000), pytest.approx(6_500)]
    assert chart.spec["encoding"]["y"]["title"] == "input + output, tok/s per GPU"
    chart = named(comparison_charts(comparison(gpus=None)))["frontier"]
    assert [row["carried"] for row in chart.spec["data"]["values"]] == [pytest.approx(25_000), pytest.approx(26_000)]
    assert chart.spec["encoding"]["y"]["title"] == "input + output, tok/s of all GPUs"


def test_a_check_draws_what_each_rule_allows() -> None:
    policy = read_policy(
        '[[rule]]\nmetric = "ttft_p50"\nrelative = "5%"\n[[rule]]\nmetric = "total_throughput"\nrelative = "5%"\n'
        '[[rule]]\nmetric = "error_rate"\nat_most = "1%"\n',
        "gate.toml",
    )
    verdict = check(side("old", BASE), side("new", BASE), policy)
    chart = named(verdict_charts(verdict))["change-1"]
    assert {row["figure"]: row["allowed"] for row in chart.spec["data"]["values"]} == {
        "TTFT p50": pytest.approx(1.05), "tok/s all": pytest.approx(0.95),
    }  # fmt: skip
    assert "a bar is the limit" in chart.spec["title"]["subtitle"]
    assert html.render(build_verdict(verdict)).count("<svg ") == 5


def test_the_page_of_a_comparison_shows_its_charts_and_what_must_be_known_before_them() -> None:
    text = html.render(build_comparison(comparison()))
    assert text.count("<svg ") == 1 + 4 + 1
    assert "+1000 %" in text  # not +1e+3
    assert "<h2>Charts</h2>" in text
    alarmed = compare(side("a", BASE), [side("b", CANDIDATE, marks=("client-limited",))])
    page = html.render(build_comparison(alarmed))
    assert page.index("CLIENT-LIMITED") < page.index("<h2>Numbers</h2>")


def test_the_page_of_a_comparison_says_what_the_engines_are_and_how_it_was_compared() -> None:
    text = html.render(build_comparison(comparison(facts={"version": "<b>", "token_budget": 8192})))
    facts = text[text.index("Engines, as they say of themselves") :]
    assert ">vllm-8k</th>" in facts
    assert '<td class="l">0.33.0</td><td class="l">&lt;b&gt;</td>' in facts
    assert facts.index("version") < facts.index("token_budget")  # what differs comes first
    assert "How it was compared" in facts


def test_figures_over_a_sweep_are_curves_with_intervals_between_runs() -> None:
    """CV 1 %, 5 runs: t(0.975, 4) x 0.01 / sqrt(5) = 1.2417 %."""

    def swept(name: str, ttft_s: float) -> Side:
        loads = [
            make_side(name, {"ttft_p50": around(ttft_s * n, 0.01, 5)}, cell=f"c{n}", params={"concurrency": float(n)})
            for n in (1, 8, 64)
        ]
        return Side(name, tuple(point for load in loads for point in load.points))

    chart = named(comparison_charts(compare(swept("a", 0.1), [swept("b", 0.2)])))["sweep-1"]
    rows = chart.spec["data"]["values"]
    assert [(row["run"], row["at"]) for row in rows] == [(name, at) for name in "ab" for at in (1.0, 8.0, 64.0)]
    half = math.exp(2.776445 * 0.01 / math.sqrt(5))
    unit = 1e3 if "ms" in chart.spec["layer"][0]["encoding"]["y"]["title"] else 1.0
    assert (rows[1]["value"], rows[1]["low"], rows[1]["high"]) == (
        pytest.approx(0.8 * unit), pytest.approx(0.8 * unit / half), pytest.approx(0.8 * unit * half),
    )  # fmt: skip


def test_every_chart_of_simulated_runs_says_so_and_names_of_sides_are_words_alone() -> None:
    hostile = "\x1b[31m</svg><script>alert(1)</script>"
    sides = [side(name, BASE, simulated=True) for name in ("plain", hostile)]
    compared = compare(sides[0], sides[1:])
    for chart in comparison_charts(compared):
        assert "(simulated)" in chart.spec["title"]["text"], chart.name
    text = html.render(build_comparison(compared))
    assert "<script" not in text
    assert "\x1b" not in text


def test_a_long_list_of_what_differs_breaks_after_a_slash_alone() -> None:
    fact = FactDifference("kv_tokens", ("2122531", "2169717", "1448821", "2122531", "2126496", "2102592"))
    (line,) = fact_lines([fact])
    assert line.text.replace("\u00a0", "_").split(" ")[1:] == ["2169717_/", "1448821_/", "2122531_/", "2126496_/", "2102592"]
    (short,) = fact_lines([FactDifference("token_budget", ("8192", "32768"))])
    assert " " not in short.text
