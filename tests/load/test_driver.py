"""The driver's schedule in virtual time: every due, slot and sent instant is worked out by hand. Starts at 1 s = t0."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest
from virtual_loop import (
    MS,
    ParallelServer,
    S,
    SerialServer,
    VirtualClock,
    VirtualEngine,
    VirtualLoop,
    closed_lane,
    make_plan,
    make_requests,
    open_lane,
    run_virtually,
)

from longbench_sched.load.driver import Driver
from longbench_sched.plan import Plan, Request
from longbench_sched.record import Status, StreamRecord

T0 = S  # where a virtual loop's time begins


def _drive(
    plan: Plan,
    server: SerialServer | ParallelServer,
    aside: Callable[[Driver, VirtualEngine, VirtualClock], Awaitable[None]] | None = None,
) -> VirtualEngine:
    """Send a plan from T0 on, and do something aside meanwhile; the engine, and with it what was sent."""

    async def scenario(loop: VirtualLoop) -> VirtualEngine:
        clock = VirtualClock(loop)
        engine = VirtualEngine(clock, server)
        ended: list[StreamRecord] = []
        driver = Driver(engine, clock, lambda e: ended.append(e.record()))
        other = None if aside is None else asyncio.ensure_future(aside(driver, engine, clock))
        await driver.run(plan, T0)
        if other is not None:
            await other
        assert sorted(r.index for r in ended) == sorted(r.index for r in engine.records)
        assert (driver.n_sent, driver.n_in_flight) == (len(ended), 0)
        return engine

    return run_virtually(scenario)


def _always(ns: int) -> ParallelServer:
    return ParallelServer(lambda _: ns)


def _stop_at(at_ns: int, *, cancel: bool = False) -> Callable[[Driver, VirtualEngine, VirtualClock], Awaitable[None]]:
    async def stop(driver: Driver, engine: VirtualEngine, clock: VirtualClock) -> None:
        await clock.sleep_until(at_ns)
        driver.stop()
        if cancel:
            engine.cancel_all()

    return stop


# Open loop.


def test_a09_the_wait_for_a_place_is_in_the_record() -> None:
    """8 requests 100 ms apart, one place, 500 ms service: request i waits 0.4 i s, and TTFT from arrival shows it."""
    plan = make_plan(open_lane(make_requests(8, lambda i: i * 0.1), max_in_flight=1))
    records = _drive(plan, SerialServer(500 * MS)).records
    assert [r.due_ns - T0 for r in records] == [100 * MS * i for i in range(8)]
    assert [r.slot_ns - r.due_ns for r in records] == [400 * MS * i for i in range(8)]
    assert [r.sent_ns for r in records] == [r.slot_ns for r in records]
    from_due = [(r.end_ns or 0) - r.due_ns for r in records]
    from_sent = [(r.end_ns or 0) - (r.sent_ns or 0) for r in records]
    assert (sum(from_due) / 8, from_due[-1]) == (1900 * MS, 3300 * MS)
    assert set(from_sent) == {500 * MS}


def test_a10_sends_fall_exactly_on_absolute_due_times() -> None:
    """2000 requests at 200/s: nothing accumulates, so the last send is at 9.995 s to the ns."""
    plan = make_plan(open_lane(make_requests(2000, lambda i: i / 200)))
    records = _drive(plan, _always(1 * MS)).records
    assert [(r.sent_ns or 0) - T0 for r in records] == [5 * MS * i for i in range(2000)]
    assert all(r.due_ns == r.slot_ns == r.sent_ns for r in records)


def test_an_open_loop_does_not_wait_for_a_slow_server() -> None:
    engine = _drive(make_plan(open_lane(make_requests(10, lambda i: i * 0.1))), SerialServer(60 * S))
    assert [(r.sent_ns or 0) - T0 for r in engine.records] == [100 * MS * i for i in range(10)]
    assert engine.peak_in_flight == 10


def test_a_burst_is_sent_at_one_instant_in_order() -> None:
    engine = _drive(make_plan(open_lane(make_requests(50, lambda _: 2.0))), _always(1 * S))
    assert [r.index for r in engine.records] == list(range(50))
    assert {r.sent_ns for r in engine.records} == {T0 + 2 * S}


def test_a_burst_into_two_places_is_served_two_by_two() -> None:
    plan = make_plan(open_lane(make_requests(6, lambda _: 1.0), max_in_flight=2))
    engine = _drive(plan, _always(3 * S))
    assert [(r.index, r.slot_ns - T0) for r in engine.records] == [(i, (1 + 3 * (i // 2)) * S) for i in range(6)]
    assert {r.due_ns for r in engine.records} == {T0 + 1 * S}
    assert engine.peak_in_flight == 2


def test_a_place_that_was_free_in_time_costs_no_wait() -> None:
    plan = make_plan(open_lane(make_requests(3, float), max_in_flight=1))
    records = _drive(plan, _always(400 * MS)).records
    assert [r.slot_ns - T0 for r in records] == [0, 1 * S, 2 * S]


def test_a_driver_that_wakes_late_does_not_put_the_slot_before_the_place_was_free() -> None:
    """The place is free at 100.5 ms; request 1 is due at 100 ms and the driver wakes at 101 ms: slot 100.5, sent 101."""

    class LateClock(VirtualClock):
        async def sleep_until(self, at_ns: int) -> None:
            await super().sleep_until(at_ns + 1 * MS)

    async def scenario(loop: VirtualLoop) -> list[StreamRecord]:
        engine = VirtualEngine(VirtualClock(loop), _always(99_500_000))
        plan = make_plan(open_lane(make_requests(2, lambda i: i * 0.1), max_in_flight=1))
        await Driver(engine, LateClock(loop), lambda _: None).run(plan, T0)
        return engine.records

    records = run_virtually(scenario)
    assert [(r.due_ns - T0, r.slot_ns - T0, (r.sent_ns or 0) - T0) for r in records] == [
        (0, 0, 1 * MS),
        (100 * MS, 100_500_000, 101 * MS),
    ]


def test_a_duration_stops_an_open_loop_before_the_first_due_time_that_is_not_inside() -> None:
    plan = make_plan(open_lane(make_requests(10, lambda i: i * 0.5), duration_s=2.0))
    assert [r.index for r in _drive(plan, _always(10 * S)).records] == [0, 1, 2, 3]


# Closed loop.


def test_c14_a_closed_loop_keeps_its_number_in_flight() -> None:
    """64 users, 256 requests of 1 s each: four rounds of 64, never more and never less until the last round ends."""
    engine = _drive(make_plan(closed_lane(make_requests(256), (0.0, 64))), _always(1 * S))
    assert engine.peak_in_flight == 64
    for i, r in enumerate(engine.records):
        assert (r.index, r.due_ns, r.slot_ns, r.sent_ns) == (i, *[T0 + i // 64 * S] * 3)
    settled = dict(engine.in_flight_at)  # the last entry of an instant is what held after it
    assert settled == {T0: 64, T0 + S: 64, T0 + 2 * S: 64, T0 + 3 * S: 64, T0 + 4 * S: 0}


def test_the_next_request_of_a_closed_loop_is_due_when_the_place_became_free() -> None:
    """Two places; request 0 takes 5 s, all others 1 s: the second place serves the rest meanwhile."""
    server = ParallelServer(lambda r: 5 * S if r.index == 0 else 1 * S)
    records = _drive(make_plan(closed_lane(make_requests(6), (0.0, 2))), server).records
    assert [(r.index, (r.due_ns - T0) // S) for r in records] == [(0, 0), (1, 0), (2, 1), (3, 2), (4, 3), (5, 4)]


def test_fewer_requests_than_places_are_all_sent_at_once() -> None:
    assert _drive(make_plan(closed_lane(make_requests(3), (0.0, 64))), _always(S)).peak_in_flight == 3


def test_a_ramp_adds_and_removes_places_at_its_steps() -> None:
    """1 place, 4 from 10 s, 2 from 20 s; answers take 3 s. What is in flight at a step down runs to its end."""
    engine = _drive(make_plan(closed_lane(make_requests(100), (0, 1), (10, 4), (20, 2), duration_s=30)), _always(3 * S))
    sends: dict[int, int] = {}
    for r in engine.records:
        assert r.due_ns == r.slot_ns == r.sent_ns
        at_s = (r.due_ns - T0) // S
        sends[at_s] = sends.get(at_s, 0) + 1
    first_place = [0, 3, 6, 9, 12, 15, 18, 21, 24, 27]
    second_place = [10, 13, 16, 19, 22, 25, 28]
    third_and_fourth = [10, 13, 16, 19]  # free again at 22 s, when only two places are left
    wanted = {at: first_place.count(at) + second_place.count(at) + 2 * third_and_fourth.count(at) for at in range(30)}
    assert sends == {at: n for at, n in wanted.items() if n}
    assert engine.peak_in_flight == 4


def test_a_place_that_a_ramp_takes_away_comes_back_with_a_later_step() -> None:
    """2 places, 1 from 4 s, 2 again from 8 s: the second place is free at 6 s but due only at 8 s."""
    engine = _drive(make_plan(closed_lane(make_requests(100), (0, 2), (4, 1), (8, 2), duration_s=11)), _always(3 * S))
    due_s = sorted((r.due_ns - T0) // S for r in engine.records)
    assert due_s == [0, 0, 3, 3, 6, 8, 9]


def test_a_duration_stops_a_closed_loop_and_what_is_in_flight_ends() -> None:
    engine = _drive(make_plan(closed_lane(make_requests(100), (0.0, 2), duration_s=5.0)), _always(2 * S))
    assert [(r.due_ns - T0) // S for r in engine.records] == [0, 0, 2, 2, 4, 4]
    assert {r.decoded.status for r in engine.records} == {Status.OK}
    assert engine.in_flight_at[-1] == (T0 + 6 * S, 0)


# Both.


def test_lanes_run_side_by_side_and_do_not_hold_each_other_up() -> None:
    """A closed loop of 1 s decodes beside 10 s prompts every 5 s, as an interference workload has them."""
    decodes = closed_lane(make_requests(12), (0.0, 2))
    prompts = open_lane(make_requests(3, lambda i: 5.0 * i, lane=1, first=12))
    server = ParallelServer(lambda r: 1 * S if r.lane == 0 else 10 * S)
    records = _drive(make_plan(decodes, prompts), server).records
    assert [(r.due_ns - T0) // S for r in records if r.lane == "0"] == [i // 2 for i in range(12)]
    assert [((r.sent_ns or 0) - T0) // S for r in records if r.lane == "1"] == [0, 5, 10]


def test_two_open_lanes_with_caps_of_their_own_count_apart() -> None:
    one = open_lane(make_requests(3, lambda _: 0.0), max_in_flight=1)
    two = open_lane(make_requests(3, lambda _: 0.0, lane=1, first=3), max_in_flight=3)
    records = _drive(make_plan(one, two), _always(S)).records
    assert sorted((r.lane, (r.slot_ns - T0) // S) for r in records) == [
        ("0", 0),
        ("0", 1),
        ("0", 2),
        ("1", 0),
        ("1", 0),
        ("1", 0),
    ]


def test_warm_ups_keep_their_own_concurrency() -> None:
    async def scenario(loop: VirtualLoop) -> VirtualEngine:
        clock = VirtualClock(loop)
        engine = VirtualEngine(clock, _always(2 * S))
        driver = Driver(engine, clock, lambda _: None)
        await driver.warm_up([Request(i, "warmup", -1, "x", 1, 1) for i in range(7)], 3)
        assert clock.now_ns() == T0 + 6 * S
        return engine

    engine = run_virtually(scenario)
    assert engine.peak_in_flight == 3
    assert [(r.due_ns - T0) // S for r in engine.records] == [0, 0, 0, 2, 2, 2, 4]


def test_no_warm_ups_take_no_time() -> None:
    async def scenario(loop: VirtualLoop) -> int:
        clock = VirtualClock(loop)
        await Driver(VirtualEngine(clock, _always(S)), clock, lambda _: None).warm_up([], 1)
        return clock.now_ns()

    assert run_virtually(scenario) == T0


def test_a_cap_above_all_requests_holds_none_back_and_costs_no_memory() -> None:
    plan = make_plan(open_lane(make_requests(3, lambda _: 0.0), max_in_flight=2**62))
    assert [record.slot_ns - record.due_ns for record in _drive(plan, _always(S)).records] == [0, 0, 0]


@pytest.mark.parametrize("cap", [None, 1, 3])
def test_a_stopped_open_loop_sends_nothing_more_and_drains(cap: int | None) -> None:
    """Due each second, 10 s each, stopped at 3.5 s: what is in flight ends, what waits for a place is never sent."""
    engine = _drive(
        make_plan(open_lane(make_requests(100, float), max_in_flight=cap)), _always(10 * S), _stop_at(T0 + 3500 * MS)
    )
    assert len(engine.records) == (4 if cap is None else cap)
    assert {r.decoded.status for r in engine.records} == {Status.OK}
    last_sent = max(r.sent_ns or 0 for r in engine.records)
    assert engine.in_flight_at[-1] == (last_sent + 10 * S, 0)


def test_a_stopped_closed_loop_sends_nothing_more_and_drains() -> None:
    engine = _drive(make_plan(closed_lane(make_requests(100), (0, 2))), _always(2 * S), _stop_at(T0 + 5 * S))
    assert [(r.due_ns - T0) // S for r in engine.records] == [0, 0, 2, 2, 4, 4]


def test_a_place_that_waits_for_a_step_is_not_waited_for_after_a_stop() -> None:
    engine = _drive(make_plan(closed_lane(make_requests(100), (0, 1), (3600, 4))), _always(2 * S), _stop_at(T0 + 1 * S))
    assert engine.in_flight_at[-1] == (T0 + 2 * S, 0)
    assert len(engine.records) == 1


def test_cancelled_streams_end_the_run_at_once() -> None:
    engine = _drive(make_plan(closed_lane(make_requests(100), (0, 8))), _always(3600 * S), _stop_at(T0 + 1 * S, cancel=True))
    assert [r.decoded.status for r in engine.records] == [Status.CANCELLED] * 8
    assert engine.in_flight_at[-1] == (T0 + 1 * S, 0)


@pytest.mark.parametrize("kind", ["open", "closed"])
def test_a_driver_stopped_before_the_start_sends_nothing_and_does_not_wait(kind: str) -> None:
    """The first due time is an hour away: an interrupt during the warm-up must not wait for it."""

    async def scenario(loop: VirtualLoop) -> tuple[int, int]:
        clock = VirtualClock(loop)
        engine = VirtualEngine(clock, _always(S))
        driver = Driver(engine, clock, lambda _: None)
        driver.stop()
        lane = open_lane(make_requests(3, lambda i: 3600.0 + i)) if kind == "open" else closed_lane(make_requests(3), (3600, 1))
        await driver.run(make_plan(lane), T0)
        return len(engine.records), clock.now_ns()

    assert run_virtually(scenario) == (0, T0)


def test_due_times_never_depend_on_what_came_back() -> None:
    """The same open plan on a fast and on a slow server has the same due times."""
    plan = make_plan(open_lane(make_requests(20, lambda i: i**1.5 / 7), max_in_flight=2))
    fast, slow = (_drive(plan, _always(takes)).records for takes in (1, 3 * S))
    assert [r.due_ns for r in fast] == [r.due_ns for r in slow]
    assert all(a.slot_ns <= b.slot_ns for a, b in pairwise(slow))
