"""Backlog: streams that have ended and wait to be decoded, in slices that never hold up a read.

The end of a stream is a busy moment: the next one is sent, often many at once. So a stream rests for 2 s before it is
decoded, unless much has piled up or the run is over. A slice lasts at most 1 ms and begins only when no open stream has bytes
waiting. The garbage collector is off while a run is measured; between streams, when a record is finished, it may run here,
and its pauses are counted.
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
LOOK_EVERY_S = 0.1
REST_NS = 2_000_000_000  # with the journal's own 2 s, a record is safe within 5 s
MAX_RESTING_BYTES = 48 << 20


class Backlog:
    """Decodes ended streams in the order in which they ended and hands each record on."""

    def __init__(self, on_record: Callable[[StreamRecord], None], is_read_waiting: Callable[[], bool]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_record = on_record
        self._is_read_waiting = is_read_waiting
        # With the instant from which each may be decoded, and the bytes it held then.
        self._pending: deque[tuple[int, int, Ended]] = deque()
        self._resting_bytes = 0
        self._is_run_over = False
        self._handle: asyncio.Handle | None = None
        self._empty: asyncio.Future[None] | None = None
        self._failure: Exception | None = None
        self._collected_ns = time.monotonic_ns()
        self.gc_pauses = 0
        self.gc_pause_max_ns = 0

    def add(self, ended: Ended) -> None:
        """Take an ended stream. Raises what `on_record` raised for one before."""
        if self._failure is not None:
            raise self._failure
        held = ended.n_undecoded_bytes
        self._pending.append((time.monotonic_ns() + REST_NS, held, ended))
        self._resting_bytes += held
        if self._handle is None:
            self._plan()

    async def drained(self) -> None:
        """Return when every record has been handed on; nothing rests any longer. Raises what `on_record` raised."""
        if self._failure is not None:
            raise self._failure
        self._is_run_over = True
        if self._pending:
            self._empty = self._loop.create_future()
            if self._handle is not None:
                self._handle.cancel()
            self._plan()
            await self._empty
        self._is_run_over = False

    def _plan(self) -> None:
        """Have the next slice run when it may."""
        if self._may_work(time.monotonic_ns()):
            self._handle = self._loop.call_soon(self._slice)
        else:
            self._handle = self._loop.call_later(LOOK_EVERY_S, self._plan)

    def _may_work(self, now_ns: int) -> bool:
        return bool(self._pending) and (
            self._is_run_over or self._pending[0][0] <= now_ns or self._resting_bytes > MAX_RESTING_BYTES
        )

    def _slice(self) -> None:
        self._handle = None
        try:
            if not self._is_read_waiting():
                self._work(time.monotonic_ns() + SLICE_NS)
        except Exception as error:  # of whoever takes the records: raised where the run adds and waits, which would hang
            self._failure = error
            if self._empty is not None and not self._empty.done():
                self._empty.set_exception(error)
            return
        if self._pending:
            self._plan()
        elif self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def _work(self, until_ns: int) -> None:
        while self._pending:
            _, held, ended = self._pending[0]
            if not ended.step(until_ns):
                return
            self._pending.popleft()
            self._resting_bytes -= held
            self._on_record(ended.record())
            now = time.monotonic_ns()
            if now - self._collected_ns > COLLECT_EVERY_NS:
                self._collect(now)
                return
            if now >= until_ns or not self._may_work(now):
                return

    def _collect(self, now_ns: int) -> None:
        gc.collect(1)  # the young generations: what is old was frozen before the run
        self._collected_ns = time.monotonic_ns()
        self.gc_pauses += 1
        self.gc_pause_max_ns = max(self.gc_pause_max_ns, self._collected_ns - now_ns)
