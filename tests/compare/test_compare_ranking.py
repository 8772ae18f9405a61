"""Orders with ties, sets that nobody dominates, and what a GPU and a dollar give."""

from __future__ import annotations

import pytest
from handmade_points import around, make_side

from longbench_sched.compare.comparison import Wish, compare
from longbench_sched.compare.frontier import dominates, find_frontier
from longbench_sched.compare.ranking import order


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
