"""Backlog: streams that have ended and wait to be decoded, in slices that never hold up a read.

A slice lasts at most 1 ms and begins only when no open stream has bytes waiting. The garbage collector is off while a run is
measured; between streams, when a record is finished, it may run here, and its pauses are counted.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import deque
from collections.abc import Callable

from longbench_sched.record import StreamRecord
from longbench_sched.transport import Ended

SLICE_NS = 1_000_000
COLLECT_EVERY_NS = 2_000_000_000


class Backlog:
    """Decodes ended streams in the order in which they ended and hands each record on."""

    def __init__(self, on_record: Callable[[StreamRecord], None], is_read_waiting: Callable[[], bool]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_record = on_record
        self._is_read_waiting = is_read_waiting
        self._pending: deque[Ended] = deque()
        self._scheduled = False
        self._empty: asyncio.Future[None] | None = None
        self._collected_ns = time.monotonic_ns()
        self.gc_pauses = 0
        self.gc_pause_max_ns = 0

    def add(self, ended: Ended) -> None:
        """Take an ended stream."""
        self._pending.append(ended)
        self._schedule()

    async def drained(self) -> None:
        """Return when every record has been handed on."""
        if self._pending:
            self._empty = self._loop.create_future()
            await self._empty

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._slice)

    def _slice(self) -> None:
        self._scheduled = False
        if not self._is_read_waiting():
            self._work(time.monotonic_ns() + SLICE_NS)
        if self._pending:
            self._schedule()
        elif self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def _work(self, until_ns: int) -> None:
        while self._pending:
            ended = self._pending[0]
            if not ended.step(until_ns):
                return
            self._pending.popleft()
            self._on_record(ended.record())
            now = time.monotonic_ns()
            if now - self._collected_ns > COLLECT_EVERY_NS:
                self._collect(now)
                return
            if now >= until_ns:
                return

    def _collect(self, now_ns: int) -> None:
        gc.collect(1)  # the young generations: what is old was frozen before the run
        self._collected_ns = time.monotonic_ns()
        self.gc_pauses += 1
        self.gc_pause_max_ns = max(self.gc_pause_max_ns, self._collected_ns - now_ns)
