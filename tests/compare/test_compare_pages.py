"""Pages of comparisons and verdicts: what stands where, in 80 columns, and the same figures for machines."""

from __future__ import annotations

import csv
import io
import json
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from handmade_points import around, make_side

from longbench_sched.compare.comparison import Side, Wish, compare
from longbench_sched.compare.gate import check
from longbench_sched.compare.policy import default_policy, read_policy
from longbench_sched.errors import UsageError
from longbench_sched.report import csv as csv_form
from longbench_sched.report import junit, machine, markdown, parquet, terminal
from longbench_sched.report.layout import Page
from longbench_sched.report.needs import build_needs
from longbench_sched.report.page import build_page
from longbench_sched.report.verdict import allowed_text, build_verdict
from longbench_sched.report.versus import build_comparison, signed

HOSTILE = "\x1b[31mred\u202e | <b>`x`</b>"

BASE = {"ttft_p50": 11.2, "ttft_p99": 31.6, "itl_p99": 0.161, "total_throughput": 25_100.0}
CANDIDATE = {"ttft_p50": 10.4, "ttft_p99": 29.9, "itl_p99": 2.31, "total_throughput": 26_800.0}
SPREAD = {"ttft_p50": 0.012, "ttft_p99": 0.06, "itl_p99": 0.02, "total_throughput": 0.005}


def side(name: str, values: dict[str, float], **changes: Any) -> Side:
    return make_side(name, {key: around(value, SPREAD[key], 5) for key, value in values.items()}, **changes)


def page(**changes: Any) -> Page:
    fields: dict[str, Any] = {"engine": "sglang", "facts": {"version": "0.5.23", "token_budget": 32768}} | changes
    return build_comparison(compare(side("vllm-8k", BASE), [side("sglang-32k", CANDIDATE, **fields)]))


def test_a_comparison_says_who_what_differs_and_then_the_numbers() -> None:
    # Half widths t(0.975, 8) x CV x sqrt(2/5): 1.75 %, 8.75 % and 0.73 % in logarithms.
    assert terminal.render(page()) == (
        "vllm-8k against sglang-32k\n"
        "\n"
        "base       vllm-8k · vllm 0.33.0 · token budget 8192 · 5 runs · 2026-11-30\n"
        "candidate  sglang-32k · sglang 0.5.23 · token budget 32768 · 5 runs · 2026-11-30\n"
        "           same lengths and arrivals (schedule 9f3c21), not paired\n"
        "differs    engine vllm / sglang · version 0.33.0 / 0.5.23 ·\n"
        "           token budget 8192 / 32768\n"
        "\n"
        "30k-500-c64, whole run\n"
        "               base  candidate   change    95 % interval\n"
        "  TTFT p50   11.2 s     10.4 s   -7.1 %    -8.8 … -5.5 %  better\n"
        "  TTFT p99   31.6 s     29.9 s   -5.4 %   -13.3 … +3.3 %  no difference shown\n"
        "  ITL p99    161 ms     2.31 s  +1330 %  +1290 … +1380 %  worse\n"
        "  tok/s all   25.1k      26.8k   +6.8 %    +6.0 … +7.6 %  better\n"
        "\n"
        "  Note  sglang-32k, 30k-500-c64: not measured in the same blocks, so a drift\n"
        "        between the two (heat, neighbours, time of day) would be taken for a\n"
        "        difference.\n"
    )


def test_d06_the_facts_that_differ_stand_above_the_numbers() -> None:
    for text in (terminal.render(page()), markdown.render(page())):
        assert text.index("8192 / 32768") < text.index("TTFT p50")


def test_e10_a_cache_state_that_differs_is_a_warning_above_the_table() -> None:
    shown = build_comparison(compare(side("a", BASE, cached_share=0.92), [side("b", CANDIDATE, cached_share=0.20)]))
    for text in (terminal.render(shown), markdown.render(shown).replace("\\", "")):
        assert "Cache state differs: 92.0 % and 20.0 %" in " ".join(text.split())
        assert text.index("CACHE-DIFFERS") < text.index("TTFT p50")
        assert "better" not in text[text.index("TTFT p50") :]
        assert "not comparable" in text


def test_e14_a_packing_that_differs_is_said_below_and_marked_in_its_row() -> None:
    text = terminal.render(page(tokens_per_chunk=10.0))
    assert "Packing differs: 1.00 vs 10.0 tokens in a chunk" in " ".join(text.split())
    (row,) = [line for line in text.splitlines() if line.startswith("  ITL p99")]
    assert row.endswith("not comparable")


def test_e05_and_e01_sweeps_and_rankings_have_tables_of_their_own() -> None:
    ratios = {1: 1.0, 8: 1.1, 32: 1.4, 64: 2.0}

    def swept(name: str, factors: dict[int, float]) -> Side:
        points = [
            point
            for c, factor in factors.items()
            for point in make_side(
                name, {"ttft_p50": around(factor, 0.01, 5)}, cell=f"c{c}", schedule=f"s{c}", params={"concurrency": float(c)}
            ).points
        ]
        return Side(name, tuple(points))

    text = terminal.render(build_comparison(compare(swept("old", dict.fromkeys(ratios, 1.0)), [swept("new", ratios)])))
    assert "new: change over concurrency" in text
    assert "TTFT p50: worse by more than a factor 1.2 from concurrency 32 on." in text
    sides = [
        make_side(name, {"ttft_p50": around(ttft, 0.05, 3)}) for name, ttft in (("a", 1.0), ("b", 1.2), ("c", 1.5), ("d", 2.5))
    ]
    shown = build_comparison(compare(sides[0], sides[1:]))
    rows = [line.split() for line in terminal.render(shown).splitlines()]
    assert [row for row in rows if len(row) == 2 and row[0] in "abcd"] == [["a", "1="], ["b", "1="], ["c", "2="], ["d", "4"]]
    # e^(+-4.3027 x 0.05 / sqrt(3)) = 0.883 and 1.132, in the unit of the value.
    assert "| 1 | a | 1.00 s | 0.883 s … 1.13 s | 3 | b |" in markdown.render(shown)


def test_e09_totals_stand_beside_what_each_gpu_gives() -> None:
    a = make_side("A", {"total_throughput": [4000.0] * 3}, gpus=8)
    b = make_side("B", {"total_throughput": [14_000.0] * 3}, gpus=32)
    text = terminal.render(build_comparison(compare(a, [b])))
    rows = [line.split() for line in text.splitlines() if line.split()[:1] in (["A"], ["B"]) and " - " in line]
    assert [(row[0], row[3], row[4], row[5]) for row in rows] == [("A", "4.00k", "8", "500"), ("B", "14.0k", "32", "438")]


@pytest.mark.parametrize(
    ("share", "text"),
    [(-0.0714, "-7.1"), (13.3, "+1330"), (0.0, "0.0"), (-0.0001, "0.0"), (0.9994, "+99.9"), (1.0, "+100"), (1e9, "+>1000000")],
)
def test_changes_are_printed_with_their_sign(share: float, text: str) -> None:
    assert signed(share, unit=False) == text


def verdict_page() -> Page:
    policy = read_policy(
        '[[rule]]\nmetric = "ttft_p50"\nrelative = "5%"\nabsolute = "20ms"\n'
        '[[rule]]\nmetric = "itl_p99"\nrelative = "10%"\n'
        '[[rule]]\nmetric = "ttft_p99"\nrelative = "5%"\n'
        '[[rule]]\nmetric = "error_rate"\nat_most = "1%"\n',
        "gate.toml",
    )
    candidate = CANDIDATE | {"ttft_p99": 32.5}
    return build_verdict(check(side("main", BASE), side("new", candidate), policy))


def test_a_verdict_says_what_was_allowed_what_could_be_seen_and_what_would_decide() -> None:
    text = terminal.render(verdict_page())
    lines = text.splitlines()
    table = lines[lines.index("30k-500-c64, whole run") + 1 :]
    assert [line.split()[-1] for line in table[1:5]] == ["pass", "FAIL", "inconclusive", "pass"]
    assert table[0].split() == ["change", "allowed", "95", "%", "interval", "smallest", "visible"]
    # ITL: exp((2.3060 + 0.8889) x 0.02 x sqrt(2/5)) - 1 = 4.12 %.
    assert table[2].split()[-3:-1] == ["4.12", "%"]
    assert "  FAILED  1 of 4 rules, 1 undecided. 5 + 5 runs." in lines
    assert "To decide TTFT p99, about" in text
    assert max(map(len, lines)) <= 80


def test_a_verdict_is_junit_xml_with_a_test_case_a_rule() -> None:
    suite = ET.fromstring(junit.render(verdict_page()))
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("4", "1", "1")
    assert [(case.get("name"), [child.tag for child in case]) for case in suite] == [
        ("ttft_p50", []),
        ("itl_p99", ["failure"]),
        ("ttft_p99", ["error"]),
        ("error_rate", []),
    ]
    message = suite[1][0].get("message")
    assert message is not None
    assert message.startswith("ITL p99 +1330 %")


def test_a_warning_says_which_of_several_candidates_it_is_about() -> None:
    warm = make_side("warm", {"ttft_p50": [1.0] * 3}, cached_share=0.9)
    shown = compare(make_side("base", {"ttft_p50": [1.0] * 3}), [warm, make_side("cold", {"ttft_p50": [1.0] * 3})])
    assert [alarm.text.partition(" differs")[0] for alarm in build_comparison(shown).alarms] == ["warm: Cache state"]
    alone = compare(make_side("base", {"ttft_p50": [1.0] * 3}), [warm])
    assert [alarm.text.partition(" differs")[0] for alarm in build_comparison(alone).alarms] == ["Cache state"]


def test_a_check_whose_rules_cover_nothing_is_no_green_suite() -> None:
    policy = read_policy('[[rule]]\nmetric = "ttft_p50"\nrelative = "5%"\ncell = "nope"\n', "gate.toml")
    suite = ET.fromstring(junit.render(build_verdict(check(side("main", BASE), side("new", BASE), policy))))
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("1", "0", "1")
    assert "No load of these runs is covered by the rule on ttft_p50" in str(suite[0][0].get("message"))


def test_a_rule_with_two_limits_on_a_value_says_both() -> None:
    policy = read_policy('[[rule]]\nmetric = "ttft_p50"\nat_least = "1s"\nat_most = "5s"\n', "gate.toml")
    assert allowed_text(policy.rules[0]).replace("\u00a0", " ") == ">= 1.00 s <= 5.00 s"


@pytest.mark.parametrize("varies", [False, True])
def test_intervals_without_width_are_said_to_mean_little(varies: bool) -> None:
    """Blocks of a simulation without draws are all alike: 54 % more, +54.1 to +54.1, is no certainty."""
    base = make_side("a", {"ttft_p50": [1.0] * 3})
    candidate = make_side("b", {"ttft_p50": [1.54, 1.54, 1.55 if varies else 1.54]})
    pages = (build_comparison(compare(base, [candidate])), build_verdict(check(base, candidate, default_policy())))
    assert [("intervals without width" in terminal.render(page)) for page in pages] == [not varies] * 2


def test_junit_is_for_verdicts_and_parquet_for_runs() -> None:
    with pytest.raises(UsageError, match="form of a check only"):
        junit.render(page())
    with pytest.raises(UsageError, match="no Parquet form"):
        parquet.render(verdict_page())


def test_machines_get_every_figure_at_full_precision() -> None:
    shown = page()
    rows = list(csv.DictReader(io.StringIO(csv_form.render(shown))))
    assert [row["metric"] for row in rows] == list(BASE)
    assert float(rows[0]["ratio"]) == pytest.approx(10.4 / 11.2, rel=1e-5)
    document = json.loads(machine.render(shown))["comparison"]
    assert document["matches"][0]["deltas"][0]["ratio"] == pytest.approx(10.4 / 11.2)
    assert document["facts_that_differ"][0] == {"fact": "engine", "values": ["vllm", "sglang"]}
    verdict = json.loads(machine.render(verdict_page()))["verdict"]
    assert (verdict["status"], verdict["exit_code"]) == ("fail", 1)
    assert [row["status"] for row in csv.DictReader(io.StringIO(csv_form.render(verdict_page())))][1] == "fail"


def test_words_of_a_server_are_harmless_on_every_page() -> None:
    facts = {"version": HOSTILE, HOSTILE: HOSTILE}
    base, candidate = side("a", BASE), side(HOSTILE, CANDIDATE, engine=HOSTILE, facts=facts, cell="30k-500-c64")
    pages = [
        build_comparison(compare(base, [candidate])),
        build_verdict(check(base, candidate, default_policy())),
        build_needs(candidate, ("ttft_p50",), 0.05),
    ]
    for shown in pages:
        for text in (terminal.render(shown), markdown.render(shown), csv_form.render(shown)):
            assert "\x1b" not in text
            assert "\u202e" not in text
        assert "<b>" not in markdown.render(shown).replace("\\<b\\>", "")
    assert "\x1b" not in junit.render(pages[1])


def test_what_a_precision_costs_is_said_with_its_formula() -> None:
    pilot = make_side("pilot", {"ttft_p50": around(1.0, 0.08, 3)})
    text = " ".join(terminal.render(build_needs(pilot, ("ttft_p50",), 0.03)).split())
    assert "8.00 % - 30 28" in text
    assert "t(0.975, n-1) x CV / sqrt(n)" in text
    assert "about 50 min of measuring for 30 runs" in text
    assert "treat these numbers as an order of magnitude" in text


def test_one_pilot_run_is_told_apart_from_no_spread() -> None:
    text = terminal.render(build_needs(make_side("pilot", {"ttft_p50": [1.0]}), ("ttft_p50",), 0.03))
    assert "one pilot run does not tell how runs differ" in text


def test_a_page_of_runs_is_as_it_was() -> None:
    assert (build_page([]).comparison, build_page([]).verdict, build_page([]).alarms) == (None, None, ())


def test_numbers_of_a_refused_comparison_are_judged_by_nobody() -> None:
    shown = compare(side("a", BASE), [side("b", CANDIDATE, osl_mean=400.0)], Wish(anyway=True))
    text = terminal.render(build_comparison(shown))
    assert text.index("OSL-DIFFERS") < text.index("TTFT p50")
    assert text.count("not comparable") >= 4
