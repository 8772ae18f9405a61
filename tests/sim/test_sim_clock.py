from __future__ import annotations

import asyncio

import pytest

from longbench_sched.sim.clock import EPOCH_NS, DeadlockError, VirtualClock, VirtualLoop, run_virtually


def test_an_hour_passes_at_once_and_to_the_nanosecond() -> None:
    hour_ns = 3_600_000_000_001

    async def scenario(loop: VirtualLoop) -> int:
        await VirtualClock(loop).sleep_until(EPOCH_NS + hour_ns)
        return loop.now_ns

    assert run_virtually(scenario) == EPOCH_NS + hour_ns


def test_what_is_done_at_one_instant_is_done_before_time_moves() -> None:
    async def scenario(loop: VirtualLoop) -> list[tuple[str, int]]:
        seen: list[tuple[str, int]] = []

        async def sleep_then_yield(name: str, at_ns: int) -> None:
            await VirtualClock(loop).sleep_until(at_ns)
            for _ in range(5):
                await asyncio.sleep(0)
            seen.append((name, loop.now_ns))

        await asyncio.gather(sleep_then_yield("first", EPOCH_NS + 5), sleep_then_yield("second", EPOCH_NS + 6))
        return seen

    assert run_virtually(scenario) == [("first", EPOCH_NS + 5), ("second", EPOCH_NS + 6)]


def test_waiting_for_what_never_comes_is_an_error_and_not_a_hang() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        await loop.create_future()

    with pytest.raises(DeadlockError, match="nothing is due"):
        run_virtually(scenario)


def test_a_source_acts_before_time_moves_to_a_later_timer() -> None:
    class Bell:
        """Rings every 10 ns, and says so at the third ring."""

        def __init__(self, loop: VirtualLoop, rung: asyncio.Future[None]) -> None:
            self.loop, self.rung, self.rings, self.asked = loop, rung, 0, []

        def advance(self, until_ns: int | None) -> int | None:
            self.asked.append(until_ns)
            while self.rings < 3:
                self.rings += 1
            if not self.rung.done():
                self.rung.set_result(None)
                return EPOCH_NS + 30
            return until_ns

    async def scenario(loop: VirtualLoop) -> tuple[int, list[int | None]]:
        bell = Bell(loop, loop.create_future())
        loop.source = bell
        timer = asyncio.ensure_future(VirtualClock(loop).sleep_until(EPOCH_NS + 100))
        await bell.rung
        at_ns = loop.now_ns
        await timer
        return at_ns, bell.asked

    assert run_virtually(scenario) == (EPOCH_NS + 30, [EPOCH_NS + 100, EPOCH_NS + 100])
