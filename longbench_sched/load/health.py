"""How the client itself is doing while it measures: loop lag, CPU, memory, the clock. Cheap enough for the timed path."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import resource
import sys
import time
from array import array
from pathlib import Path

from longbench_sched.load.stamps import RealtimeOffset

LAG_EVERY_S = 0.05
SAMPLE_EVERY_NS = 1_000_000_000


class Pulse:
    """A timer that notes how late it is itself, and samples the clocks each second."""

    def __init__(self, offset: RealtimeOffset) -> None:
        self._loop = asyncio.get_running_loop()
        self._offset = offset
        self._lag_ns = array("q")
        self._due_ns = 0
        self._sampled_ns = 0
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin; lag noted before is forgotten."""
        self._lag_ns = array("q")
        self._sampled_ns = time.monotonic_ns()
        self._arm()

    def _arm(self) -> None:
        self._due_ns = time.monotonic_ns() + round(LAG_EVERY_S * 1e9)
        self._handle = self._loop.call_later(LAG_EVERY_S, self._beat)

    def _beat(self) -> None:
        now = time.monotonic_ns()
        self._lag_ns.append(max(0, now - self._due_ns))
        if now - self._sampled_ns >= SAMPLE_EVERY_NS:
            self._offset.sample()
            self._sampled_ns = now
        self._arm()

    def stop(self) -> None:
        """End, with a last sample of the clocks."""
        if self._handle is not None:
            self._handle.cancel()
        self._offset.sample()

    def lag_p99_ms(self) -> float | None:
        """How late the loop ran its timers."""
        return quantile_ms(self._lag_ns, 0.99)


def quantile_ms(values_ns: array[int], q: float) -> float | None:
    """Nearest-rank quantile in ms; None of nothing."""
    if not values_ns:
        return None
    ordered = sorted(values_ns)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] / 1e6


def cpu_s() -> float:
    """CPU time of this process and of its ended children."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def peak_rss_mb() -> float:
    """Peak resident memory of this process in MB."""
    with contextlib.suppress(OSError):  # Linux: getrusage would begin with the peak of the process that started this one
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def raise_open_files(needed: int) -> int | None:
    """Raise the soft limit on open files to what is needed, or as far as it goes: that limit if it is too low, else None."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return None
    is_too_low = hard != resource.RLIM_INFINITY and hard < needed
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if is_too_low else needed, hard))
    return hard if is_too_low else None


def give_memory_back() -> None:
    """Return freed memory to the system (glibc keeps it else): what follows a run needs memory of its own."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
