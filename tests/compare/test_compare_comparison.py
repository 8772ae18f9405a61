"""Like with like or not at all; and what is said when it is."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from handmade_points import around, make_point, make_side

from longbench_sched.compare.comparison import Side, Wish, compare, pair_blocks
from longbench_sched.compare.figure import find_figure, known
from longbench_sched.compare.gate import check
from longbench_sched.compare.parity import find_disparities
from longbench_sched.compare.policy import read_policy
from longbench_sched.errors import EXIT_INCONCLUSIVE, NotComparableError, UsageError
from longbench_sched.report.layout import Table
from longbench_sched.report.versus import build_comparison

FIVE = {"ttft_p50": around(1.0, 0.01, 5), "itl_p99": around(0.1, 0.01, 5), "tpot_p50": around(0.02, 0.01, 5)}


def test_e04_a_regression_is_not_hidden_by_what_improved() -> None:
    base = make_side("old", {"ttft_p50": around(0.130, 0.02, 5), "tpot_p50": around(0.030, 0.02, 5)})
    candidate = make_side("new", {"ttft_p50": around(0.390, 0.02, 5), "tpot_p50": around(0.025, 0.02, 5)})
    (match,) = compare(base, [candidate]).matches
    assert {delta.figure.key: delta.call for delta in match.deltas} == {"ttft_p50": "worse", "tpot_p50": "better"}


@pytest.mark.parametrize(
    ("change", "name", "consequence"),
    [
        ({"schedule": "ffff"}, "plans-differ", "refuse"),
        ({"isl_mean": 29300.0}, "isl-differs", "refuse"),
        ({"complete": False}, "incomplete", "refuse"),
        ({"ok": 200}, "failures", "refuse"),
        ({"ok": 255}, "some-failures", "mark"),
        ({"cached_share": 0.2}, "cache-differs", "rank"),
        ({"cached_share": 0.04}, None, None),
        ({"marks": ("client-limited",)}, "client-limited", "rank"),
        ({"tokens_per_chunk": 10.0}, "packing-differs", "chunks"),
        ({"slo": {"ttft": 0.1}}, "limits-differ", "limits"),
        ({"slo": {"ttft": 3.0}}, None, None),
        ({"slo": {}}, None, None),  # no goodput on that side
        ({"slo": None}, None, None),  # a baseline that does not tell
        ({"simulated": True}, "simulated-and-real", "mark"),
        ({"simulated": True, "is_virtual": True}, "simulated-and-real", "mark"),
        ({"is_virtual": True}, "virtual-and-wall", "mark"),
        ({"is_virtual": None}, None, None),
        ({"time_scale": 6.0}, "clock-scales-differ", "rank"),
        ({"time_scale": None}, None, None),
        ({"time_scale": 6.0, "is_virtual": True}, "virtual-and-wall", "mark"),
        ({"marks": ("imported",)}, "imported-and-own", "mark"),
        ({"machine": {"cpu": "Y", "cores": 8}}, "machines-differ", "mark"),
        ({"osl_mean": 491.0}, None, None),  # 1.8 % apart
    ],
)
def test_every_disparity_has_a_name_and_a_consequence(
    change: dict[str, Any], name: str | None, consequence: str | None
) -> None:
    usual: dict[str, Any] = {"slo": {"ttft": 3.0}, "time_scale": 1.0, "is_virtual": False}
    found = find_disparities([make_point(**usual)], [make_point(**usual | change)])
    assert [(d.id, d.consequence) for d in found] == ([(name, consequence)] if name else [])


def test_goodput_under_other_limits_is_not_comparable_and_the_rest_is() -> None:
    base = make_side("old", {"goodput": around(11.4, 0.02, 5), "ttft_p50": around(0.130, 0.02, 5)}, slo={"ttft": 5.0})
    candidate = make_side("new", {"goodput": around(2.0, 0.02, 5), "ttft_p50": around(0.390, 0.02, 5)}, slo={"ttft": 0.03})
    (match,) = compare(base, [candidate], Wish(("goodput", "ttft_p50"))).matches
    assert {delta.figure.key: delta.call for delta in match.deltas} == {"goodput": "not comparable", "ttft_p50": "worse"}
    assert "ttft:5000 and ttft:30" in match.disparities[0].text
    verdict = check(base, candidate, read_policy('[[rule]]\nmetric = "goodput"\nrelative = "5%"\n', "gate.toml"))
    assert verdict.findings[0].because == "not comparable: limits-differ"


def test_a19_runs_whose_answers_were_not_equally_long_are_refused() -> None:
    """40 of 160 answers stopped at 100 of 1024 tokens: 126,880 of 163,840 tokens, 77.4 %, 793 on average."""
    candidate = make_side("short", FIVE, osl_mean=126_880 / 160, osl_share=126_880 / 163_840)
    base = make_side("full", FIVE, osl_mean=1024.0)
    with pytest.raises(NotComparableError, match=r"osl-differs.*1024 and 793(?s:.*)77\.4 %") as refusal:
        compare(base, [candidate])
    assert refusal.value.exit_code == EXIT_INCONCLUSIVE
    shown = compare(base, [candidate], Wish(anyway=True))
    assert {delta.call for match in shown.matches for delta in match.deltas} == {"not comparable"}


def test_e10_runs_in_different_cache_states_are_shown_but_not_ranked() -> None:
    base, candidate = make_side("a", FIVE, cached_share=0.92), make_side("b", FIVE, cached_share=0.20)
    shown = compare(base, [candidate])
    assert not shown.is_comparable
    (disparity,) = shown.matches[0].disparities
    assert disparity.text.startswith("Cache state differs: 92.0 % and 20.0 %")
    assert {delta.call for delta in shown.matches[0].deltas} == {"not comparable"}
    assert shown.rankings == ()


def test_e14_with_different_packing_itl_is_not_comparable_and_tpot_is() -> None:
    """A: 1 token each 10 ms; B: 10 tokens each 100 ms. TPOT is equal, ICG ten times apart."""
    values = {"tpot_p50": [0.010] * 3, "itl_p99": [0.010] * 3, "icg_p50": [0.010] * 3}
    packed = {"tpot_p50": [0.010] * 3, "itl_p99": [0.010] * 3, "icg_p50": [0.100] * 3}
    wish = Wish(figures=tuple(values))
    (match,) = compare(make_side("a", values), [make_side("b", packed, tokens_per_chunk=10.0)], wish).matches
    assert next(d.text for d in match.disparities).startswith("Packing differs: 1.00 vs 10.0")
    assert {delta.figure.key: delta.call for delta in match.deltas} == {
        "tpot_p50": "no difference shown",
        "itl_p99": "not comparable",
        "icg_p50": "not comparable",
    }


def test_d06_facts_that_differ_are_listed_and_those_that_do_not_are_not() -> None:
    base = make_side("a", FIVE, facts={"version": "0.32.0", "token_budget": 8192, "block_size": 16})
    candidate = make_side("b", FIVE, facts={"version": "0.33.0", "token_budget": 2048, "block_size": 16})
    facts = compare(base, [candidate]).facts
    assert {fact.name: fact.values for fact in facts} == {"version": ("0.32.0", "0.33.0"), "token_budget": ("8192", "2048")}


def test_a_fact_that_one_side_does_not_tell_is_listed_as_such() -> None:
    base = make_side("a", FIVE, facts={"mixed_chunk": False})
    candidate = make_side("b", FIVE, facts={}, engine="sglang")
    facts = compare(base, [candidate]).facts
    assert {fact.name: fact.values for fact in facts} == {"engine": ("vllm", "sglang"), "mixed_chunk": ("off", "not told")}


def test_runs_of_the_same_blocks_are_paired_and_others_left_out() -> None:
    base = make_side("a", {"ttft_p50": [1.0, 2.0, 3.0, 4.0]}, blocks=True)
    candidate = make_side("b", {"ttft_p50": [1.1, 2.1, 3.1]}, blocks=True)
    ours, theirs, paired = pair_blocks(base.points, candidate.points[::-1])
    assert paired
    assert [(a.block, b.block) for a, b in zip(ours, theirs, strict=True)] == [(0, 0), (1, 1), (2, 2)]
    shown = compare(base, [candidate])
    assert shown.matches[0].paired
    assert any("left out" in note for note in shown.notes)


def test_runs_of_one_block_under_other_schedules_are_no_pair() -> None:
    base = make_side("a", {"ttft_p50": [1.0, 2.0, 3.0]}, blocks=True)
    candidate = make_side("b", {"ttft_p50": [1.0, 2.0, 3.0]}, blocks=True, schedule="other")
    assert pair_blocks(base.points, candidate.points)[2] is False


def test_runs_of_different_experiments_are_not_paired() -> None:
    base = make_side("a", FIVE, blocks=True)
    candidate = Side("b", tuple(replace(point, experiment="y") for point in base.points))
    shown = compare(base, [candidate])
    assert not shown.matches[0].paired
    assert any("drift" in note for note in shown.notes)


def test_one_run_a_side_is_said_to_judge_nothing() -> None:
    shown = compare(make_side("a", {"ttft_p50": [1.0]}), [make_side("b", {"ttft_p50": [1.08]})])
    assert shown.matches[0].deltas[0].call == "not judged"
    assert any("one run on a side" in note for note in shown.notes)


def test_the_correction_is_over_all_figures_of_the_page() -> None:
    """p = 0.02 alone is a difference; among three figures with p near 1 it is 0.06, and unsure."""
    noisy = {"ttft_p50": around(1.0, 0.05, 5), "tpot_p50": around(1.0, 0.05, 5), "e2e_p50": around(1.0, 0.05, 5)}
    step = 0.05 * math.sqrt(2 / 5) * 2.896459  # t(0.99, 8): two-sided p = 0.02
    moved = noisy | {"ttft_p50": [value * math.exp(step) for value in noisy["ttft_p50"]]}
    (alone,) = compare(make_side("a", noisy), [make_side("b", moved)], Wish(figures=("ttft_p50",))).matches[0].deltas
    among = compare(make_side("a", noisy), [make_side("b", moved)]).matches[0].delta("ttft_p50")
    assert alone.p == pytest.approx(0.02, rel=1e-4)
    assert alone.call == "worse"
    assert among is not None
    assert among.p_adjusted == pytest.approx(0.06, rel=1e-4)
    assert among.call == "unsure"


def test_draws_of_the_load_in_other_shares_are_another_load() -> None:
    one, other = make_point(schedule="aaaa"), make_point(schedule="bbbb")
    assert find_disparities([one] * 2 + [other] * 2, [one, other]) == ()
    (found,) = find_disparities([one] * 4 + [other], [one] + [other] * 4)
    assert (found.id, found.consequence) == ("plans-differ", "refuse")
    assert "aaaa x 4, bbbb x 1" in found.text


def test_a_table_without_figures_says_so() -> None:
    (match_table, *_) = build_comparison(compare(make_side("a", FIVE), [make_side("b", FIVE)], Wish(("goodput",)))).blocks
    assert isinstance(match_table, Table)
    assert match_table.notes[0].startswith("Nothing to show")


def test_a_candidate_that_is_refused_costs_no_other() -> None:
    base, good = make_side("a", FIVE), make_side("b", FIVE)
    shown = compare(base, [make_side("broken", FIVE, ok=200), good])
    assert [match.candidate for match in shown.matches] == ["b"]
    assert [(match.candidate, match.disparities[0].id) for match in shown.refused] == [("broken", "failures")]
    assert not shown.is_comparable
    assert shown.rankings == ()
    alarms = build_comparison(shown).alarms
    assert [alarm.id for alarm in alarms] == ["FAILURES"]
    assert "broken, 30k-500-c64 is left out" in alarms[0].text


def test_a_load_that_is_refused_costs_no_other() -> None:
    """The engine fell over at the highest concurrency; what it did below still counts."""
    low = [make_side(name, FIVE, cell="c8").points for name in "ab"]
    high = [make_side(name, FIVE, cell="c64", ok=ok).points for name, ok in (("a", 256), ("b", 100))]
    shown = compare(Side("a", (*low[0], *high[0])), [Side("b", (*low[1], *high[1]))])
    assert [match.cell for match in shown.matches] == ["c8"]
    assert [match.cell for match in shown.refused] == ["c64"]


def test_runs_that_stand_on_both_sides_are_pointed_out() -> None:
    side = make_side("a", FIVE)
    assert any("5 of its 5 runs stand on the base's side" in note for note in compare(side, [side]).notes)
    gate = read_policy('[[rule]]\nmetric = "ttft_p50"\nrelative = "5%"\n', "gate.toml")
    assert any("stand on the base's side" in note for note in check(side, side, gate).notes)


def test_loads_that_nobody_shares_are_refused() -> None:
    with pytest.raises(NotComparableError, match="no load in common"):
        compare(make_side("a", FIVE), [make_side("b", FIVE, cell="other")])


def test_e15_each_input_length_has_its_own_interval_and_no_figure_is_pooled() -> None:
    """Ratios 1.033, 1.084, 1.093 at 32K, 197K, 259K; 5 runs a side, CV 1 %: half width t(0.975, 8) x 0.01 x sqrt(2/5)."""
    lengths = {32_000: 1.033, 197_000: 1.084, 259_000: 1.093}
    base = Side("2048", tuple(p for isl in lengths for p in cell_of("2048", isl, 1.0)))
    candidate = Side("6144", tuple(p for isl, ratio in lengths.items() for p in cell_of("6144", isl, ratio)))
    shown = compare(base, [candidate], Wish(figures=("total_throughput",)))
    half = 2.306004 * 0.01 * math.sqrt(2 / 5)
    rows = [(match.params["isl"], match.deltas[0].ratio, match.deltas[0].low, match.deltas[0].high) for match in shown.matches]
    assert rows == [
        (isl, pytest.approx(ratio), pytest.approx(ratio * math.exp(-half)), pytest.approx(ratio * math.exp(half)))
        for isl, ratio in lengths.items()
    ]
    (trend,) = shown.trends
    assert trend.parameter == "isl"
    assert [step.at for step in trend.steps] == [32_000, 197_000, 259_000]


def test_e05_a_sweep_of_one_workload_has_its_trend_beside_another_workload() -> None:
    def measured(name: str, factor: float) -> Side:
        loads = [("ladder", isl, factor * isl) for isl in (1000.0, 4000.0)] + [
            ("other", 9.0, 5.0),
            ("steps", 1.0, 1.0),
            ("steps", 2.0, 1.0),
        ]
        sides = [
            make_side(name, {"ttft_p50": around(ttft_s, 0.01, 3)}, workload=load, cell=f"{load} {isl}", params={"isl": isl})
            for load, isl, ttft_s in loads
        ]
        return Side(name, tuple(point for side in sides for point in side.points))

    shown = compare(measured("a", 1.0), [measured("b", 2.0)])
    assert [(trend.workload, [step.at for step in trend.steps]) for trend in shown.trends] == [
        ("ladder", [1000.0, 4000.0]),
        ("steps", [1.0, 2.0]),
    ]
    titles = [getattr(block, "title", "") for block in build_comparison(shown).blocks]
    assert [title for title in titles if "change over" in title] == ["b, ladder: change over isl", "b, steps: change over isl"]


def cell_of(name: str, isl: int, ratio: float) -> tuple[Any, ...]:
    params = {"isl": float(isl), "osl": 500.0, "concurrency": 1.0}
    values = {"total_throughput": around(1000.0 * ratio, 0.01, 5)}
    return make_side(name, values, cell=f"isl {isl}", schedule=f"s{isl}", params=params).points


def test_e05_the_loss_at_each_concurrency_is_shown_and_the_first_that_fails_is_named() -> None:
    ratios = {1: 1.0, 8: 1.1, 32: 1.4, 64: 2.0}
    base, candidate = (
        Side(
            name,
            tuple(
                point
                for concurrency, ratio in ratios.items()
                for point in make_side(
                    name,
                    {"ttft_p50": around(ratio if name == "new" else 1.0, 0.01, 5)},
                    cell=f"c{concurrency}",
                    schedule=f"s{concurrency}",
                    params={"isl": 4000.0, "concurrency": float(concurrency)},
                ).points
            ),
        )
        for name in ("old", "new")
    )
    (trend,) = compare(base, [candidate]).trends
    assert [(step.at, step.delta.ratio) for step in trend.steps] == [(c, pytest.approx(r)) for c, r in ratios.items()]
    first = trend.first_beyond(1.2)
    assert first is not None
    assert first.at == 32
    assert trend.first_beyond(2.5) is None
    assert trend.slope is not None
    # Least squares over x = 0, 3, 5, 6 (mean 3.5, spread 21): (-3.5 ln 1 - 0.5 ln 1.1 + 1.5 ln 1.4 + 2.5 ln 2) / 21.
    slope = (-0.5 * math.log(1.1) + 1.5 * math.log(1.4) + 2.5 * math.log(2.0)) / 21
    assert trend.per_doubling == pytest.approx(math.exp(slope))
    # Each step has error 0.01 sqrt(2/5), so the slope's is that over sqrt(21).
    assert trend.slope.error == pytest.approx(0.01 * math.sqrt(2 / 5 / 21))


def test_lanes_of_a_load_are_compared_each_by_itself() -> None:
    both = {"whole": {"ttft_p50": 1.0}, "lane decode": {"ttft_p50": 0.1}, "lane prefill": {"ttft_p50": 5.0}}
    sides = [Side(name, tuple(make_point(run_id=f"{name}{i}", values=None) for i in range(3))) for name in "ab"]
    sides = [Side(side.name, tuple(replace(point, values=both) for point in side.points)) for side in sides]
    shown = compare(sides[0], sides[1:])
    assert [(match.window, match.deltas[0].base) for match in shown.matches] == [
        ("whole", pytest.approx(1.0)),
        ("lane decode", pytest.approx(0.1)),
        ("lane prefill", pytest.approx(5.0)),
    ]


def test_the_steady_window_is_taken_only_if_every_run_has_one() -> None:
    values = {"whole": {"ttft_p50": 1.0}, "steady": {"ttft_p50": 2.0}}
    with_steady = replace(make_point(), values=values)
    without = replace(make_point(), values={"whole": {"ttft_p50": 1.0}})
    for other, window in ((with_steady, "steady"), (without, "whole")):
        shown = compare(Side("a", (with_steady, with_steady)), [Side("b", (with_steady, other))])
        assert shown.matches[0].window == window


def test_a_figure_that_does_not_exist_is_answered_with_a_near_one() -> None:
    with pytest.raises(UsageError, match="Did you mean ttft_p99"):
        find_figure("ttft_p98")
    assert all(find_figure(key).key == key for key in known())
