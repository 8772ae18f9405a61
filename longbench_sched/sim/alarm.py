"""An alarm for an asyncio loop that rings within microseconds of an absolute instant.

asyncio waits in whole milliseconds on Linux, which is half a decode step on a clock compressed x6. A timer file descriptor
has the kernel's resolution; where there is none, the loop's own timer is used.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK, _TFD_CLOEXEC, _TFD_TIMER_ABSTIME = 0o4000, 0o2000000, 1


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("it_interval", _Timespec), ("it_value", _Timespec))


class Alarm:
    """Calls `ring` once at the instant set last. Instants are seconds of `time.monotonic()`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None
        self._fd = _timer_fd()
        self._spec = _Itimerspec()
        if self._fd is not None:
            self._libc = ctypes.CDLL(None, use_errno=True)
            loop.add_reader(self._fd, self._rung)

    def set(self, at_s: float) -> None:
        """Ring at this instant instead of any other; at once if it has passed."""
        if self._fd is None:
            self.clear()
            self._handle = self._loop.call_later(max(0.0, at_s - time.monotonic()), self._ring)
            return
        nanoseconds = max(1, int(at_s * 1e9))  # 0 would disarm it
        value = self._spec.it_value
        value.tv_sec, value.tv_nsec = divmod(nanoseconds, 1_000_000_000)
        self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(self._spec), None)

    def clear(self) -> None:
        """Do not ring."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._fd is not None:
            self._spec.it_value.tv_sec = self._spec.it_value.tv_nsec = 0
            self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(self._spec), None)

    def close(self) -> None:
        """Give the timer back."""
        self.clear()
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def _rung(self) -> None:
        assert self._fd is not None
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # set anew in the meantime
            return
        self._ring()


def _timer_fd() -> int | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        fd = int(ctypes.CDLL(None, use_errno=True).timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC))
    except (OSError, AttributeError):
        return None
    return fd if fd >= 0 else None
