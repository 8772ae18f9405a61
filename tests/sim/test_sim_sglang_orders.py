"""The orders in which SGLang serves its queue, on cases small enough to work out by hand: one place, and who gets it next."""

from __future__ import annotations

import pytest
from checked_engine import Arrival, drive, sglang

from longbench_sched.errors import UsageError
from longbench_sched.sim.hardware import GPUS
from longbench_sched.sim.policy.sglang import Sglang042Options, SglangOptions

P, D = "prefill", "decode"


def admitted(work: list[Arrival], places: int = 1, **flags) -> list[int]:
    return drive(sglang(max_running_requests=places, **flags), work).admitted


def test_longest_output_first() -> None:
    work = [Arrival(0, 10, osl) for osl in (2, 5, 3, 5)]
    assert admitted(work, schedule_policy="lof") == [1, 3, 2, 0]
    assert admitted(work) == [0, 1, 2, 3]


def test_a_random_order_follows_from_the_seed() -> None:
    work = [Arrival(0, 10, 2) for _ in range(8)]
    orders = {seed: admitted(work, schedule_policy="random", random_seed=seed) for seed in (0, 1)}
    assert orders[0] == admitted(work, schedule_policy="random", random_seed=0)
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(8))


def test_a_routing_key_that_nobody_has_changes_nothing() -> None:
    assert admitted([Arrival(0, 10, osl) for osl in (2, 5, 3)], schedule_policy="routing-key") == [0, 1, 2]


def family(group: int, at_s: float = 1.0, isl: int = 80) -> Arrival:
    """A prompt of which the first 64 tokens are the group's."""
    return Arrival(at_s, isl, 2, group=group, prefix=64)


def test_depth_first_the_branch_with_most_of_the_queue_comes_first() -> None:
    """0 and 1 fill the tree. Of those that come at 1 s two go on from 0, one from 1, one from nowhere; they run in turn."""
    work = [family(0, 0.0), family(1, 0.1), family(1), family(0), family(0), Arrival(1.0, 80, 2)]
    assert admitted(work, schedule_policy="dfs-weight") == [0, 1, 3, 4, 2, 5]
    assert admitted(work, schedule_policy="fcfs") == [0, 1, 2, 3, 4, 5]


def test_depth_first_who_ends_at_a_fork_comes_after_those_below_it() -> None:
    """0 leaves 64 + 16 tokens. 1 finds the 64, 2 finds all 80 and is below it."""
    deep = Arrival(0.0, 80, 1, group=0, prefix=80)
    work = [deep, Arrival(1.0, 100, 1, group=0, prefix=64), Arrival(1.0, 100, 1, group=0, prefix=80)]
    assert admitted(work, schedule_policy="dfs-weight") == [0, 2, 1]


def test_the_longest_prefix_first_where_the_cache_has_any() -> None:
    work = [family(0, 0.0), Arrival(1.0, 80, 2), family(0)]
    assert admitted(work, schedule_policy="lpm") == [0, 2, 1]
    assert admitted(work, schedule_policy="lpm", disable_radix_cache=True) == [0, 1, 2]


@pytest.mark.parametrize("order", ["lpm", "dfs-weight", "hrrn"])
def test_orders_by_prefix_are_the_order_of_arrival_without_a_cache(order: str) -> None:
    work = [Arrival(0, isl, 2) for isl in (50, 10, 30)]
    assert admitted(work, schedule_policy=order, disable_radix_cache=True) == [0, 1, 2]


def test_the_highest_response_ratio_goes_first() -> None:
    """All have waited for 0's 100 tokens but 3. 2: 100 / 50, 1: 100 / 200, 3: 0 / 10; then 1: 150 / 200 and 3: 50 / 10."""
    work = [Arrival(0, 100, 3), Arrival(0, 200, 1), Arrival(0, 50, 1), Arrival(0.0001, 10, 1)]
    assert admitted(work, schedule_policy="hrrn") == [0, 2, 3, 1]


def test_a_request_that_waits_long_enough_passes_a_shorter_one() -> None:
    """1 (200 tokens) has waited for 1000, 2 (10 tokens) for none: 5 against 0."""
    work = [Arrival(0, 1000, 2), Arrival(0, 200, 1), Arrival(0.0001, 10, 1)]
    assert admitted(work, schedule_policy="hrrn") == [0, 1, 2]
    assert admitted(work, schedule_policy="shortest-prefill-first") == [1, 2, 0]


def test_the_shortest_prefill_goes_first_and_what_is_found_does_not_count() -> None:
    """2 has 80 tokens of which 64 are found: 16 are left, fewer than the 20 of 1."""
    work = [family(0, 0.0), Arrival(1.0, 20, 1), family(0), Arrival(1.0, 10, 1)]
    assert admitted(work, schedule_policy="shortest-prefill-first") == [0, 3, 2, 1]


def test_the_prompt_in_progress_leaves_room_for_shorter_ones() -> None:
    """Chunks of 16: 0 has 24 tokens left when 1 comes with 4, so it takes 12 and 1 goes along."""
    work = [Arrival(0, 40, 1), Arrival(0.0001, 4, 1)]
    plans = {
        order: drive(sglang(chunked_prefill_size=16, schedule_policy=order), work).plans
        for order in ("shortest-prefill-first", "fcfs")
    }
    assert plans["shortest-prefill-first"] == [[(0, 16, 0, P)], [(0, 12, 16, P), (1, 4, 0, P)], [(0, 12, 28, P)]]
    assert plans["fcfs"] == [[(0, 16, 0, P)], [(0, 16, 16, P)], [(0, 8, 32, P), (1, 4, 0, P)]]


def test_it_leaves_none_for_those_that_are_not_shorter_or_do_not_fit() -> None:
    """1 has more tokens than 0 has left (24); 15 of 16 would leave 0 a token, 16 would leave it none."""
    for isl, second in ((30, 16), (15, 1), (16, 16)):
        work = [Arrival(0, 40, 1), Arrival(0.0001, isl, 1)]
        engine = sglang(chunked_prefill_size=16, schedule_policy="shortest-prefill-first")
        assert drive(engine, work).plans[1][0] == (0, second, 16, P), isl


def test_those_that_go_along_leave_memory_for_the_rest_of_it() -> None:
    """282 tokens of KV: if the shorter ones took all that the chunk leaves, the 182 of the first would not fit any more."""
    work = [Arrival(i / 10_000, isl, osl) for i, (isl, osl) in enumerate([(182, 7), (40, 2), (61, 5), (82, 3)])]
    story = drive(sglang(282, chunked_prefill_size=64, schedule_policy="shortest-prefill-first"), work)
    assert story.preempted == []


def urgent(*priorities: int) -> list[Arrival]:
    return [Arrival(0, 10, 2, priority=priority) for priority in priorities]


def test_the_more_urgent_go_first_and_equals_in_their_order() -> None:
    work = urgent(0, 5, 3, 5)
    assert admitted(work, enable_priority_scheduling=True) == [1, 3, 2, 0]
    assert admitted(work, enable_priority_scheduling=True, schedule_low_priority_values_first=True) == [0, 2, 1, 3]
    assert admitted(work) == [0, 1, 2, 3], "priorities count only where they are switched on"


def test_among_equals_the_longest_output_goes_first() -> None:
    work = [Arrival(0, 10, osl, priority=priority) for osl, priority in ((2, 0), (9, 0), (3, 1))]
    assert admitted(work, enable_priority_scheduling=True, schedule_policy="lof") == [2, 1, 0]


def takeover(late: int, **flags) -> tuple[list[int], list]:
    """0 runs in the only place when 1 comes: who was preempted, and the first three steps."""
    work = [Arrival(0, 4, 6, priority=0), Arrival(0.0001, 4, 1, priority=late)]
    engine = sglang(max_running_requests=1, enable_priority_scheduling=True, disable_radix_cache=True, **flags)
    story = drive(engine, work)
    return story.preempted, story.plans[:3]


def test_one_more_urgent_by_more_than_the_threshold_takes_a_place() -> None:
    """0 comes back with its 4 tokens and the one that it had."""
    assert takeover(11) == ([0], [[(0, 4, 0, P)], [(1, 4, 0, P)], [(0, 5, 0, P)]])


@pytest.mark.parametrize(
    ("late", "flags"),
    [
        pytest.param(10, {}, id="not by more than 10"),
        pytest.param(11, {"disable_priority_preemption": True}, id="switched off"),
        pytest.param(11, {"schedule_low_priority_values_first": True}, id="less urgent"),
    ],
)
def test_and_else_it_waits(late: int, flags: dict) -> None:
    assert takeover(late, **flags) == ([], [[(0, 4, 0, P)], [(0, 1, 4, D)], [(0, 1, 5, D)]])


def test_the_least_urgent_and_among_equals_the_latest_loses_its_place() -> None:
    work = [*urgent(3, 0, 0), Arrival(0.0001, 10, 1, priority=20)]
    story = drive(sglang(max_running_requests=3, enable_priority_scheduling=True), work)
    assert story.preempted == [2]


@pytest.mark.parametrize(
    ("kind", "flags", "message"),
    [
        (SglangOptions, {"schedule_policy": "priority"}, "Give --enable-priority-scheduling"),
        (SglangOptions, {"schedule_policy": "dfs"}, "Known in 0.5.23: fcfs, lpm, dfs-weight, lof, random, hrrn"),
        (Sglang042Options, {"schedule_policy": "lof"}, "Known in 0.4.2: lpm, random, fcfs, dfs-weight"),
        (SglangOptions, {"schedule_policy": "lpm", "enable_priority_scheduling": True}, "needs --schedule-policy fcfs or lof"),
        (Sglang042Options, {"schedule_policy": "fcfs", "enable_priority_scheduling": True}, "does not exist in SGLang 0.4.2"),
        (SglangOptions, {"schedule_policy": "shortest-prefill-first", "disable_radix_cache": True}, "leave --disable-radix"),
    ],
    ids=str,
)
def test_what_the_engine_does_not_have_is_refused(kind: type[SglangOptions], flags: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        kind(**flags).resolved(GPUS["H200"], 32_768)
