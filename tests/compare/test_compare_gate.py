"""Verdicts worked out by hand: pass, fail, or not known."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from handmade_points import around, make_side
from hypothesis import given, settings
from hypothesis import strategies as st

from longbench_sched.compare.comparison import Side
from longbench_sched.compare.figure import find_figure
from longbench_sched.compare.gate import Verdict, check, counts
from longbench_sched.compare.noise import noise_floor
from longbench_sched.compare.policy import default_policy, read_policy
from longbench_sched.errors import EXIT_GATE_FAILED, EXIT_INCONCLUSIVE, EXIT_OK, UsageError

TTFT_5 = read_policy('[[rule]]\nmetric = "ttft_p50"\nrelative = "5%"\n', "gate.toml")


def verdict_of(base: list[float], candidate: list[float], policy: Any = TTFT_5, **changes: Any) -> Verdict:
    return check(make_side("base", {"ttft_p50": base}), make_side("new", {"ttft_p50": candidate}, **changes), policy)


def test_c12_one_run_a_side_is_never_a_plain_pass_or_fail() -> None:
    """+8 % of a median TTFT against a limit of 5 %, one run each."""
    verdict = verdict_of([1.0], [1.08])
    (finding,) = verdict.findings
    assert (finding.status, finding.because) == ("inconclusive", "need >= 3 runs")
    assert verdict.exit_code == EXIT_INCONCLUSIVE
    assert verdict_of([1.0], [0.5]).exit_code == EXIT_INCONCLUSIVE


def test_e04_each_metric_is_judged_by_itself() -> None:
    """TTFT 130 to 390 ms fails, though TPOT went from 30 to 25 ms and throughput from 100 to 110; 5 runs, CV 2 %."""
    base = {"ttft_p50": 0.130, "tpot_p50": 0.030, "total_throughput": 100.0}
    candidate = {"ttft_p50": 0.390, "tpot_p50": 0.025, "total_throughput": 110.0}
    verdict = check(
        make_side("old", {key: around(value, 0.02, 5) for key, value in base.items()}),
        make_side("new", {key: around(value, 0.02, 5) for key, value in candidate.items()}),
        read_policy("".join(f'[[rule]]\nmetric = "{key}"\nrelative = "5%"\n' for key in base), "gate.toml"),
    )
    assert [finding.status for finding in verdict.findings] == ["fail", "pass", "pass"]
    assert verdict.exit_code == EXIT_GATE_FAILED


# Five runs a side with CV c: standard error c sqrt(2/5), df 8, t(0.975, 8) = 2.306, one-sided t(0.95, 8) = 1.860.
@pytest.mark.parametrize(
    ("change", "cv", "status"),
    [
        (1.00, 0.01, "pass"),  # the interval reaches +1.5 %
        (1.03, 0.01, "pass"),  # +4.5 %
        (1.04, 0.01, "inconclusive"),  # +5.5 %: not within, and the best estimate is not beyond
        (1.08, 0.01, "fail"),
        (1.08, 0.05, "fail"),  # 7.7 % / 3.16 % = 2.43 > 1.86
        (1.08, 0.10, "inconclusive"),  # 7.7 % / 6.3 % = 1.22
        (0.90, 0.10, "pass"),  # ln 0.9 + 2.306 x 0.0632 = 0.0405, below ln 1.05 = 0.0488
        (0.80, 0.10, "pass"),
    ],
)
def test_a_rule_passes_fails_or_is_undecided(change: float, cv: float, status: str) -> None:
    verdict = verdict_of(around(1.0, cv, 5), around(change, cv, 5))
    assert verdict.findings[0].status == status
    assert verdict.exit_code == {"pass": EXIT_OK, "fail": EXIT_GATE_FAILED, "inconclusive": EXIT_INCONCLUSIVE}[status]


def test_both_limits_must_be_passed_to_fail() -> None:
    """+10 % of 1 ms is 0.1 ms: beyond 5 %, but within 5 ms."""
    policy = read_policy('[[rule]]\nmetric = "ttft_p50"\nrelative = "5%"\nabsolute = "5ms"\n', "gate.toml")
    assert verdict_of(around(0.001, 0.01, 5), around(0.0011, 0.01, 5), policy).status == "pass"
    assert verdict_of(around(1.0, 0.01, 5), around(1.1, 0.01, 5), policy).status == "fail"


def test_a_loss_of_throughput_is_a_loss() -> None:
    policy = read_policy('[[rule]]\nmetric = "total_throughput"\nrelative = "5%"\n', "gate.toml")
    base = make_side("a", {"total_throughput": around(100, 0.01, 5)})
    for value, status in ((90.0, "fail"), (99.0, "pass"), (120.0, "pass")):
        assert check(base, make_side("b", {"total_throughput": around(value, 0.01, 5)}), policy).status == status


def test_direction_can_be_stated_where_the_catalogue_has_none() -> None:
    policy = read_policy('[[rule]]\nmetric = "tokens_per_chunk_mean"\ndirection = "higher"\nrelative = "5%"\n', "gate.toml")
    base = make_side("a", {"tokens_per_chunk_mean": around(3.0, 0.01, 5)})
    assert check(base, make_side("b", {"tokens_per_chunk_mean": around(1.57, 0.01, 5)}), policy).status == "fail"


@pytest.mark.parametrize(("ok", "status"), [(256, "pass"), (254, "pass"), (250, "fail")], ids=["none", "0.8 %", "2.3 %"])
def test_errors_are_counted_and_need_no_spread(ok: int, status: str) -> None:
    policy = read_policy('[[rule]]\nmetric = "error_rate"\nat_most = "1%"\n', "gate.toml")
    assert verdict_of([1.0], [1.0], policy, ok=ok).status == status


@pytest.mark.parametrize(
    ("ok", "changes", "status"),
    [
        (200, {"cached_share": 0.9}, "fail"),
        (200, {"osl_mean": 300.0}, "fail"),
        (200, {"complete": False}, "fail"),
        (200, {"marks": ("server-late",)}, "fail"),
        (256, {"osl_mean": 300.0}, "inconclusive"),
        (256, {"complete": False}, "inconclusive"),
        (200, {"schedule": "other"}, "inconclusive"),
        (200, {"marks": ("client-limited",)}, "inconclusive"),
    ],
)
def test_too_many_errors_are_not_excused_by_what_else_differs(ok: int, changes: dict[str, Any], status: str) -> None:
    policy = read_policy('[[rule]]\nmetric = "error_rate"\nat_most = "1%"\n', "gate.toml")
    assert verdict_of([1.0] * 3, [1.0] * 3, policy, ok=ok, **changes).findings[0].status == status


def test_a_block_that_the_candidate_lacks_is_pointed_out() -> None:
    """The engine died in one block of five: four pairs pass, and the page says that there should have been five."""
    values = {"ttft_p50": around(1.0, 0.001, 5)}
    base, candidate = (make_side(name, values, blocks=True) for name in ("old", "new"))
    verdict = check(base, Side("new", candidate.points[:4]), TTFT_5)
    assert verdict.findings[0].status == "pass"
    assert any("(5 and 4 runs, 4 pairs)" in note for note in verdict.notes)


def test_errors_fail_a_check_even_where_latencies_are_no_longer_comparable() -> None:
    policy = read_policy(
        '[[rule]]\nmetric = "error_rate"\nat_most = "1%"\n[[rule]]\nmetric = "ttft_p50"\nrelative = "5%"\n', "gate.toml"
    )
    verdict = verdict_of([1.0] * 5, [0.1] * 5, policy, ok=128)
    assert [(f.status, f.because) for f in verdict.findings] == [("fail", ""), ("inconclusive", "not comparable: failures")]
    assert verdict.exit_code == EXIT_GATE_FAILED


@pytest.mark.parametrize(
    "change",
    [{"schedule": "other"}, {"osl_mean": 400.0}, {"cached_share": 0.9}, {"complete": False}, {"marks": ("client-limited",)}],
    ids=["plan", "osl", "cache", "incomplete", "client"],
)
def test_runs_that_are_not_like_with_like_decide_nothing(change: dict[str, Any]) -> None:
    verdict = verdict_of([1.0] * 5, [3.0] * 5, **change)
    assert verdict.exit_code == EXIT_INCONCLUSIVE
    assert verdict.findings[0].because.startswith("not comparable: ")


def test_e14_a_rule_on_itl_is_undecided_where_packing_differs() -> None:
    policy = read_policy('[[rule]]\nmetric = "itl_p99"\nrelative = "5%"\n', "gate.toml")
    base = make_side("a", {"itl_p99": [0.01] * 5})
    verdict = check(base, make_side("b", {"itl_p99": [0.01] * 5}, tokens_per_chunk=10.0), policy)
    assert verdict.findings[0].because == "not comparable: packing-differs"


def test_an_undecided_rule_says_how_many_runs_would_decide_it() -> None:
    """+8 %, CV 10 %, 5 a side: decided when t(0.975, 2n - 2) x 0.1 sqrt(2/n) <= ln 1.08 = 0.07696.

    n = 14: 2.0555 x 0.03780 = 0.0777, too wide; n = 15: 2.0484 x 0.03651 = 0.0748.
    """
    (finding,) = verdict_of(around(1.0, 0.1, 5), around(1.08, 0.1, 5)).findings
    assert finding.runs_to_decide == 15


def test_a_change_as_large_as_its_limit_cannot_be_decided() -> None:
    (finding,) = verdict_of(around(1.0, 0.05, 5), around(1.0499, 0.05, 5)).findings
    assert finding.status == "inconclusive"
    assert finding.is_far


def test_a_rule_on_what_was_not_measured_is_undecided() -> None:
    policy = read_policy('[[rule]]\nmetric = "goodput"\nrelative = "5%"\n', "gate.toml")
    verdict = verdict_of([1.0] * 5, [1.0] * 5, policy)
    assert verdict.exit_code == EXIT_INCONCLUSIVE
    assert "not measured" in verdict.findings[0].because


@pytest.mark.parametrize(("failed", "status"), [((0, 0), "pass"), ((0, 8), "fail"), ((8, 8), "pass")])
def test_a_rule_on_the_change_of_errors_passes_where_there_are_none(failed: tuple[int, int], status: str) -> None:
    policy = read_policy('[[rule]]\nmetric = "error_rate"\nabsolute = "1%"\n', "gate.toml")
    base, candidate = (make_side(name, {"ttft_p50": [1.0] * 3}, ok=256 - n) for name, n in zip("ab", failed, strict=True))
    (finding,) = check(base, candidate, policy).findings
    assert finding.status == status, finding
    (finding,) = check(base, make_side("b", {"ttft_p50": [1.0]}), policy).findings
    assert (finding.status, finding.because) == ("inconclusive", "need >= 3 runs")


def test_loads_without_a_partner_and_rules_without_a_load_are_named() -> None:
    policy = read_policy('[[rule]]\nmetric = "ttft_p50"\nrelative = "5%"\ncell = "other-*"\n', "gate.toml")
    verdict = verdict_of([1.0] * 5, [1.0] * 5, policy)
    assert verdict.exit_code == EXIT_INCONCLUSIVE
    assert verdict.notes == ("No load of these runs is covered by the rule on ttft_p50.",)


def test_a_load_that_the_candidate_was_not_measured_under_has_not_passed() -> None:
    """The engine died under concurrency 64: what it did under 8 is not all that was asked."""
    values = {"ttft_p50": [1.0] * 5}
    base = make_side("a", values, cell="c8").points + make_side("a", values, cell="c64").points
    verdict = check(Side("a", base), make_side("b", values, cell="c8"), TTFT_5)
    assert [(finding.cell, finding.status) for finding in verdict.findings] == [("c64", "inconclusive"), ("c8", "pass")]
    assert verdict.findings[0].because == "not measured on the candidate's side"
    assert verdict.exit_code == EXIT_INCONCLUSIVE
    assert check(make_side("b", values, cell="c8"), Side("a", base), TTFT_5).exit_code == EXIT_OK


def test_the_false_alarms_of_all_rules_are_kept_together() -> None:
    """One rule at p = 0.03 fails alone; as one of three, 3 x 0.03 > 0.05 leaves it undecided."""
    cv = 0.08
    step = 2.189 * cv * math.sqrt(2 / 5)  # t(0.97, 8), one-sided p = 0.03
    base = {"ttft_p50": around(1.0, cv, 5), "e2e_p50": around(1.0, cv, 5), "tpot_p50": around(1.0, cv, 5)}
    moved = base | {"ttft_p50": around(math.exp(step), cv, 5)}
    three = read_policy("".join(f'[[rule]]\nmetric = "{key}"\nrelative = "5%"\n' for key in base), "gate.toml")
    assert check(make_side("a", base), make_side("b", moved), TTFT_5).status == "fail"
    verdict = check(make_side("a", base), make_side("b", moved), three)
    assert verdict.findings[0].p == pytest.approx(0.03, abs=2e-4)
    assert counts(verdict)["fail"] == 0


@settings(max_examples=50)
@given(st.lists(st.floats(0.001, 1000), min_size=3, max_size=8))
def test_comparing_runs_with_themselves_fails_nothing(values: list[float]) -> None:
    verdict = verdict_of(values, values)
    assert verdict.status != "fail"


def test_comparing_paired_runs_with_themselves_passes_every_gate() -> None:
    figures = ("ttft_p50", "ttft_p99", "tpot_p50", "itl_p99", "e2e_p99", "total_throughput")
    side = make_side("a", {key: [1.0, 2.0, 1.5] for key in figures}, blocks=True)
    assert check(side, Side("again", side.points), default_policy()).exit_code == EXIT_OK


def test_the_noise_floor_is_what_runs_of_one_build_differ_by() -> None:
    """CV 4 % from 6 runs; sets of 3: t(0.975, 5) = 2.5706 x 0.04 x sqrt(2/3) = 8.396 %, as a ratio 8.76 %."""
    points = make_side("a", {"ttft_p50": around(1.0, 0.04, 6)}).points
    floor = noise_floor(find_figure("ttft_p50"), points, "whole", 3)
    assert floor.cv == pytest.approx(0.04)
    assert floor.change == pytest.approx(math.expm1(2.570582 * 0.04 * math.sqrt(2 / 3)))


def test_a_limit_below_the_noise_floor_is_pointed_out() -> None:
    noise = make_side("a", {"ttft_p50": around(1.0, 0.04, 6)}).points
    sides = [make_side(name, {"ttft_p50": around(1.0, 0.04, 3)}) for name in "ab"]
    verdict = check(sides[0], sides[1], TTFT_5, noise)
    assert verdict.notes[0].startswith("TTFT p50: two sets of runs of one build differ by up to 8.76 %, more than the 5.00 %")


def test_the_noise_floor_of_sets_that_are_no_pairs_bounds_no_paired_check() -> None:
    side = make_side("a", {"ttft_p50": around(1.0, 0.04, 3)}, blocks=True)
    noise = make_side("a", {"ttft_p50": around(1.0, 0.04, 6)}).points
    verdict = check(side, make_side("b", {"ttft_p50": around(1.0, 0.04, 3)}, blocks=True), TTFT_5, noise)
    assert (verdict.paired, verdict.notes) == (True, ())
    assert verdict.findings[0].floor is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cell": "other"}, "has no runs under 30k-500-c64"),
        ({"isl_mean": 2000.0}, r"is not of this load \(isl-differs\)"),
        ({"marks": ("client-limited",)}, r"is not of this load \(client-limited\)"),
        ({"facts": {"version": "0.1", "token_budget": 8192}}, "is of neither build; what differs: version"),
        ({"schedule": "other draws"}, None),
    ],
    ids=["load", "lengths", "mark", "build", "draws"],
)
def test_a_noise_floor_that_does_not_fit_is_pointed_out(changes: dict[str, Any], message: str | None) -> None:
    noise = make_side("a", {"ttft_p50": around(1.0, 0.001, 6)}, **changes).points
    sides = [make_side(name, {"ttft_p50": around(1.0, 0.04, 3)}) for name in "ab"]
    notes = check(sides[0], sides[1], TTFT_5, noise).notes
    assert re.search(message, " ".join(notes)) if message else notes == ()


def test_a_noise_floor_of_one_run_is_pointed_out() -> None:
    sides = [make_side(name, {"ttft_p50": around(1.0, 0.04, 3)}) for name in "ab"]
    assert "has 1 run under" in check(sides[0], sides[1], TTFT_5, sides[0].points[:1]).notes[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is none"),
        ('[[rule]]\nmetric = "ttft_p50"\nabsolute = "5"', "'5' has no unit"),
        ('[[rule]]\nmetric = "ttft_p50"\nat_most = "0.2"', "'0.2' has no unit"),
        ('[[rule]]\nmetric = "total_throughput"\nrelative = "100%"', "would never fail"),
        ('[[rule]]\nmetric = "ttft_p50"\nat_least = "2s"\nat_most = "1s"', "no value keeps both"),
        ("[[rule]]\nrelative = '5%'", "metric: is missing"),
        ('[[rule]]\nmetric = "ttft_p98"\nrelative = "5%"', "Did you mean ttft_p99"),
        ('[[rule]]\nmetric = "ttft_p50"', "there is no limit"),
        ('[[rule]]\nmetric = "ttft_p50"\nrelative = 5', "would be 500 %"),
        ('[[rule]]\nmetric = "ttft_p50"\nabsolute = 5', "has no unit"),
        ('[[rule]]\nmetric = "ttft_p50"\nrelativ = "5%"', "Did you mean relative"),
        ('[[rule]]\nmetric = "osl_mean"\nrelative = "5%"', "no better way of its own"),
        ('[[rule]]\nmetric = "ttft_p50"\nrelative = "5%"\nat_most = "1s"', "not both"),
        ("[[rule]", "this is not TOML"),
    ],
)
def test_a_policy_that_makes_no_sense_is_answered_with_what_would(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"^gate.toml: .*{message}"):
        read_policy(text, "gate.toml")


def test_a_policy_is_read_in_the_units_of_its_figures() -> None:
    (rule,) = read_policy(
        '[[rule]]\nmetric = "ttft_p50"\nrelative = "5 %"\nabsolute = "20ms"\nmin_runs = 7\nlane = "decode"\n', "gate.toml"
    ).rules
    assert (rule.relative, rule.absolute, rule.min_runs, rule.better) == (0.05, 0.02, 7, "lower")
    assert rule.covers("any", "lane decode")
    assert not rule.covers("any", "whole")
