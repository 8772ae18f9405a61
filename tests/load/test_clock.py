"""The real clock wakes sleepers in order of their instants and never early."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from longbench_sched.load.clock import MonotonicClock

MS = 1_000_000

Run = Callable[[Callable[[MonotonicClock], Awaitable[None]]], None]


@pytest.fixture(params=["uvloop", "asyncio", "no-timerfd"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    if request.param == "no-timerfd":
        monkeypatch.setattr("longbench_sched.load.clock.sys.platform", "elsewhere")
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run_it(scenario: Callable[[MonotonicClock], Awaitable[None]]) -> None:
        async def main() -> None:
            clock = MonotonicClock()
            try:
                await asyncio.wait_for(scenario(clock), 20)
            finally:
                clock.close()

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())

    return run_it


def test_sleepers_wake_in_order_and_never_early(run: Run) -> None:
    """Set in any order, the earliest last: each set anew moves the timer."""
    woken: list[int] = []

    async def scenario(clock: MonotonicClock) -> None:
        start = clock.now_ns()

        async def sleep(ms: int) -> None:
            await clock.sleep_until(start + ms * MS)
            assert time.monotonic_ns() >= start + ms * MS
            woken.append(ms)

        await asyncio.gather(*(sleep(ms) for ms in (40, 60, 20, 80)))

    run(scenario)
    assert woken == [20, 40, 60, 80]


def test_an_instant_that_has_passed_is_no_sleep(run: Run) -> None:
    async def scenario(clock: MonotonicClock) -> None:
        sleep = clock.sleep_until(clock.now_ns())
        with pytest.raises(StopIteration):  # it never gave the loop a turn
            sleep.send(None)  # type: ignore[attr-defined]

    run(scenario)


def test_a_cancelled_sleeper_does_not_hold_up_the_others(run: Run) -> None:
    async def scenario(clock: MonotonicClock) -> None:
        now = clock.now_ns()
        first = asyncio.ensure_future(clock.sleep_until(now + 10 * MS))
        second = asyncio.ensure_future(clock.sleep_until(now + 20 * MS))
        hour = asyncio.ensure_future(clock.sleep_until(now + 3600_000 * MS))
        await asyncio.sleep(0)
        first.cancel()
        hour.cancel()
        await second
        assert clock.now_ns() >= now + 20 * MS
        assert (first.cancelled(), hour.cancelled()) == (True, True)
        await clock.sleep_until(clock.now_ns() + 5 * MS)

    run(scenario)
