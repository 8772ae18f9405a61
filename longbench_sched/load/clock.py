"""The run's clock: CLOCK_MONOTONIC, and a way to sleep until an instant without being late.

uvloop's own timers are whole milliseconds. Sends are due at instants, so on Linux a timerfd wakes the loop within tens of
microseconds; elsewhere the loop's timer is set a little early and the rest is yielded away.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import heapq
import os
import struct
import sys
import time
from typing import Protocol

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK = 0o4000
_TFD_CLOEXEC = 0o2000000
_TFD_TIMER_ABSTIME = 1


class Clock(Protocol):
    """What the driver needs of time; a simulated run has another one."""

    def now_ns(self) -> int:
        """The current instant."""
        ...

    async def sleep_until(self, at_ns: int) -> None:
        """Return at that instant, or at once if it has passed."""
        ...


class MonotonicClock:
    """Real time. Make it inside the running loop; `close` it there."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._n = 0
        self._timer = _TimerFd() if sys.platform.startswith("linux") else None
        if self._timer is not None:
            self._loop.add_reader(self._timer.fd, self._wake)

    @staticmethod
    def now_ns() -> int:
        """CLOCK_MONOTONIC."""
        return time.monotonic_ns()

    async def sleep_until(self, at_ns: int) -> None:
        """Sleep until the instant; never early."""
        if self._timer is None:
            while (left_ns := at_ns - time.monotonic_ns()) > 0:
                await asyncio.sleep(max(0.0, left_ns / 1e9 - 0.002))
            return
        if at_ns <= time.monotonic_ns():
            return
        future: asyncio.Future[None] = self._loop.create_future()
        self._n += 1
        heapq.heappush(self._waiting, (at_ns, self._n, future))
        if self._waiting[0][2] is future:
            self._timer.set(at_ns)
        await future

    def _wake(self) -> None:
        assert self._timer is not None
        self._timer.clear()
        now = time.monotonic_ns()
        while self._waiting and (self._waiting[0][0] <= now or self._waiting[0][2].done()):
            future = heapq.heappop(self._waiting)[2]
            if not future.done():
                future.set_result(None)
        if self._waiting:
            self._timer.set(self._waiting[0][0])

    def close(self) -> None:
        """Give the timer back."""
        if self._timer is not None:
            self._loop.remove_reader(self._timer.fd)
            self._timer.close()
            self._timer = None


class _TimerFd:
    """timerfd of Linux through libc (the os module has it from Python 3.13 on)."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def set(self, at_ns: int) -> None:
        seconds, nanos = divmod(max(at_ns, 1), 10**9)
        value = struct.pack("@llll", 0, 0, seconds, nanos)
        if self._libc.timerfd_settime(self.fd, _TFD_TIMER_ABSTIME, value, None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 8)

    def close(self) -> None:
        os.close(self.fd)
