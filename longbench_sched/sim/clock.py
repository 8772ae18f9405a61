"""Virtual time: an asyncio loop that waits for nothing.

When no callback is ready, the clock jumps to the next timer. Whatever else makes things happen by itself (an engine made of
arithmetic) is asked first: all that is done at one instant is done before time moves, so the order of events is the same in
every run, and an hour of a load takes as long as its events.

    loop = VirtualLoop()
    run_virtually(main, loop)
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

NS = 1_000_000_000
EPOCH_NS = NS  # where a virtual clock begins: not 0, which no instant of a run should look like

T = TypeVar("T")


class DeadlockError(RuntimeError):
    """Everything waits and nothing is due: in real time this would hang for ever."""


class Source(Protocol):
    """Something that acts by itself as time passes."""

    def advance(self, until_ns: int | None) -> int | None:
        """Act until then (None: no timer is set), or until something wakes a task; the instant reached.

        It never lies behind `until_ns`. None if there is nothing to do and nothing will ever come of waiting.
        """
        ...


class _JumpingSelector(selectors.SelectSelector):
    """Never waits; where it should have, the loop's clock jumps."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout != 0:
            self.loop.jump()
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time, a whole number of ns that begins at `from_ns`."""

    def __init__(self, from_ns: int = EPOCH_NS) -> None:
        selector = _JumpingSelector()
        selector.loop = self
        self.now_ns = from_ns
        self.source: Source | None = None
        super().__init__(selector)
        self._clock_resolution = 0.5e-9  # a timer may not fire one ns early

    def time(self) -> float:
        """The loop's clock, as asyncio asks for it."""
        return self.now_ns / 1e9

    def jump(self) -> None:
        """Move the clock to what happens next. Raises DeadlockError."""
        # A heap whose head is not cancelled: the loop has just dropped cancelled timers from its front.
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        until_ns = round(timers[0].when() * 1e9) if timers else None
        at_ns = self.source.advance(until_ns) if self.source is not None else until_ns
        if at_ns is None:
            raise DeadlockError("everything waits and nothing is due")
        self.now_ns = max(self.now_ns, at_ns)


class VirtualClock:
    """`load.clock.Clock` on a virtual loop."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now_ns(self) -> int:
        """The current instant."""
        return self._loop.now_ns

    async def sleep_until(self, at_ns: int) -> None:
        """Return at that instant, or at once if it has passed."""
        if at_ns > self._loop.now_ns:
            future: asyncio.Future[None] = self._loop.create_future()
            handle = self._loop.call_at(at_ns / 1e9, future.set_result, None)
            try:
                await future
            finally:
                handle.cancel()


def run_virtually(scenario: Callable[[VirtualLoop], Awaitable[T]]) -> T:
    """Run a coroutine on a fresh virtual loop."""
    loop = VirtualLoop()

    async def main() -> T:
        return await scenario(loop)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main())
