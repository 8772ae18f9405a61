"""Orders with ties, sets that nobody dominates, and what a GPU and a dollar give."""

from __future__ import annotations

from dataclasses import replace

import pytest
from handmade_points import around, make_side

from longbench_sched.compare.comparison import Side, Wish, compare
from longbench_sched.compare.frontier import dominates, find_frontier
from longbench_sched.compare.ranking import order
from longbench_sched.report import terminal
from longbench_sched.report.layout import Table
from longbench_sched.report.versus import build_comparison


def test_e01_the_order_is_found_and_overlapping_intervals_are_ties() -> None:
    """TTFT 1.0, 1.2, 1.5, 2.5 s, sd 5 %, 3 repeats: half width t(0.975, 2) x 0.05 / sqrt(3) = 12.4 % each way.

    1.0 reaches up to 1.132 and 1.2 down to 1.060: a tie. 1.2 reaches 1.359 and 1.5 begins at 1.325: a tie. 2.5 is alone.
    """
    values = {name: around(ttft, 0.05, 3) for name, ttft in (("d", 2.5), ("b", 1.2), ("a", 1.0), ("c", 1.5))}
    places = order(values, lower_is_better=True)
    assert [(place.name, place.rank, sorted(place.ties)) for place in places] == [
        ("a", 1, ["b"]),
        ("b", 1, ["a", "c"]),
        ("c", 2, ["b"]),
        ("d", 4, []),
    ]


def test_e01_a_comparison_of_several_ranks_them_by_every_figure() -> None:
    sides = [make_side(name, {"ttft_p50": around(ttft, 0.05, 3)}) for name, ttft in (("b", 1.2), ("a", 1.0), ("d", 2.5))]
    (ranking,) = compare(sides[0], sides[1:]).rankings
    assert ranking.figure.key == "ttft_p50"
    assert [place.name for place in ranking.places] == ["a", "b", "d"]


def test_more_throughput_ranks_first() -> None:
    places = order({"a": [100.0, 101.0], "b": [200.0, 201.0]}, lower_is_better=False)
    assert [(place.name, place.rank) for place in places] == [("b", 1), ("a", 2)]


def test_a_side_with_one_run_ties_with_everyone() -> None:
    places = order({"a": [1.0, 1.01, 0.99], "b": [9.0]}, lower_is_better=True)
    assert [(place.name, place.rank, place.ties, place.low) for place in places][1] == ("b", 1, ("a",), None)


SWEEP = {2048: (4.0, 0.030, 900.0), 8192: (2.5, 0.060, 1000.0), 16384: (2.4, 0.120, 990.0), 32768: (2.6, 0.240, 980.0)}


def test_e02_the_pareto_set_of_a_chunk_size_sweep() -> None:
    sides = {
        f"{chunk // 1024}K": make_side(
            f"{chunk}",
            {"ttft_p50": [ttft] * 3, "itl_p99": [itl] * 3, "total_throughput": [throughput] * 3},
            facts={"token_budget": chunk, "version": "1"},
        ).points
        for chunk, (ttft, itl, throughput) in reversed(SWEEP.items())
    }
    frontier = find_frontier("40k-256", "whole", sides)
    assert frontier.setting == "token_budget"
    assert [(s.name, s.setting, s.is_on_frontier) for s in frontier.standings] == [
        ("2K", 2048, True),
        ("8K", 8192, True),
        ("16K", 16384, True),
        ("32K", 32768, False),
    ]
    assert "8K" in frontier.standings[-1].dominated_by


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ((1.0, 5.0), (1.0, 4.0), True),
        ((1.0, 4.0), (1.0, 4.0), False),
        ((1.0, None), (2.0, 1.0), False),
        ((2.0, 9.0), (1.0, 1.0), False),
    ],
    ids=["better in one", "equal", "unknown", "a trade"],
)
def test_one_dominates_only_if_it_loses_nothing(one: tuple[float, ...], other: tuple[float, ...], expected: bool) -> None:
    assert dominates(one, other, (True, False)) is expected


def test_e09_throughput_is_given_in_total_and_for_each_gpu() -> None:
    a = make_side("A", {"total_throughput": [4000.0] * 3}, gpus=8, dollars_per_hour=16.0)
    b = make_side("B", {"total_throughput": [14_000.0] * 3}, gpus=32)
    frontier = find_frontier("x", "whole", {"A": a.points, "B": b.points})
    assert [(s.values[2], s.per_gpu) for s in frontier.standings] == [
        (pytest.approx(4000.0), pytest.approx(500.0)),
        (pytest.approx(14_000.0), pytest.approx(437.5)),
    ]
    # 4000 tok/s x 3600 s for 16 dollars.
    assert [s.per_dollar for s in frontier.standings] == [pytest.approx(900_000.0), None]


def test_settings_of_different_engines_are_no_sweep() -> None:
    sides = [
        make_side(name, {"ttft_p50": [1.0, 1.1]}, engine=name, facts={"token_budget": n})
        for name, n in (("v", 1), ("s", 2), ("t", 3))
    ]
    (frontier,) = compare(sides[0], sides[1:], Wish(figures=("ttft_p50",))).frontiers
    assert frontier.setting is None


THREE = {"ttft_p50": around(1.0, 0.05, 4), "itl_p99": around(0.1, 0.05, 4), "total_throughput": around(1e4, 0.05, 4)}


def test_e10_candidates_in_different_cache_states_are_not_ranked_where_the_base_does_not_tell() -> None:
    base = make_side("base", THREE, cached_share=None)
    shown = compare(base, [make_side("hot", THREE, cached_share=0.92), make_side("cold", THREE, cached_share=0.20)])
    assert shown.rankings == ()
    assert shown.frontiers == ()
    assert any("hot and cold are not like with like (cache-differs)" in note for note in shown.notes)


def test_a_ranking_is_over_the_blocks_that_all_sides_have() -> None:
    """The base's last block is incomplete and nobody else's: it stands in no match and in no ranking."""
    sides = [make_side(name, THREE, blocks=True) for name in "abc"]
    base = Side("a", (*sides[0].points[:3], replace(sides[0].points[3], complete=False)))
    shown = compare(base, [Side(side.name, side.points[:3]) for side in sides[1:]])
    assert {place.n for ranking in shown.rankings for place in ranking.places} == {3}
    first = {place.name: place.value for place in shown.rankings[0].places}
    assert first["a"] == pytest.approx(first["b"])


def test_a_ranking_takes_the_window_that_all_sides_have() -> None:
    def with_steady(side: Side) -> Side:
        values = {"whole": {"ttft_p50": 1.0}, "steady": {"ttft_p50": 2.0}}
        return replace(side, points=tuple(replace(point, values=values) for point in side.points))

    ones = [make_side(name, {"ttft_p50": [1.0] * 4}) for name in "abc"]
    shown = compare(with_steady(ones[0]), [with_steady(ones[1]), ones[2]])
    assert [match.window for match in shown.matches] == ["steady", "whole"]
    assert [(ranking.window, [place.value for place in ranking.places]) for ranking in shown.rankings] == [
        ("whole", [pytest.approx(1.0)] * 3)
    ]


def test_e14_the_trade_off_takes_tpot_where_packing_differs() -> None:
    sides = [
        make_side("a", THREE | {"tpot_p99": [0.02] * 4}),
        make_side("b", THREE | {"tpot_p99": [0.01] * 4}, tokens_per_chunk=10.0),
    ]
    (frontier,) = compare(sides[0], sides[1:]).frontiers
    assert frontier.objectives == ("ttft_p50", "tpot_p99", "total_throughput")
    assert [standing.values[1] for standing in frontier.standings] == [pytest.approx(0.02), pytest.approx(0.01)]


def by_chunk(chunk: int, ttft_s: float, **more: object) -> Side:
    """A side with a chunk size, and the KV that it leaves room for."""
    facts = {"token_budget": chunk, "kv_tokens": 10**7 - chunk, "kv_capacity_tokens": 10**7 - chunk + 16, **more}
    return make_side(f"c{chunk}", THREE | {"ttft_p50": [ttft_s] * 4}, facts=facts)


def test_e02_a_chunk_size_is_what_was_swept_though_the_engine_fits_less_kv_beside_it() -> None:
    shown = compare(by_chunk(4096, 1.0), [by_chunk(8192, 2.0, memory_fraction=0.91), by_chunk(2048, 0.5, prefix_hit_tokens=7)])
    assert [frontier.setting for frontier in shown.frontiers] == ["token_budget"]
    trend = next(trend for trend in shown.trends if trend.figure.key == "ttft_p50")
    assert (trend.parameter, trend.candidate) == ("token_budget", "")
    assert [(step.at, step.delta.ratio) for step in trend.steps] == [
        (2048, pytest.approx(0.5)),
        (4096, 1.0),
        (8192, pytest.approx(2.0)),
    ]
    assert trend.per_doubling == pytest.approx(2.0)
    table = next(table for table in build_comparison(shown).blocks if "change over token budget" in getattr(table, "title", ""))
    assert isinstance(table, Table)
    assert table.rows[0] == ("TTFT p50", "-50.0\u00a0%", "0.0\u00a0%", "+100\u00a0%", "+100\u00a0%")


def test_a_setting_that_is_not_alone_is_no_sweep() -> None:
    sides = [by_chunk(4096, 1.0), by_chunk(8192, 2.0, max_num_seqs=7), by_chunk(2048, 0.5)]
    shown = compare(sides[0], sides[1:])
    assert shown.frontiers[0].setting is None
    assert shown.trends == ()


def test_a_sweep_of_many_steps_fits_80_columns_with_every_step() -> None:
    shown = compare(by_chunk(1024, 1.0), [by_chunk(1024 * 2**n, 1.0 + 0.1 * n) for n in range(1, 9)])
    lines = terminal.render(build_comparison(shown), columns=80).splitlines()
    assert max(map(len, lines)) <= 80
    start = next(i for i, line in enumerate(lines) if "change over token budget" in line)
    assert lines[start + 1].split()[:4] == ["token", "budget", "TTFT", "p50"]
    assert [line.split()[0] for line in lines[start + 2 : start + 11]] == [str(1024 * 2**n) for n in range(9)]
    assert lines[start + 3].split()[1:3] == ["+10.0", "%"]
