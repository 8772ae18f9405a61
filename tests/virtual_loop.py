"""An asyncio loop whose time jumps, and an engine made of arithmetic: the driver's schedule, exact and without waiting.

The loop waits for nothing: when no callback is ready, its clock moves to the next timer. A test that would take minutes takes a
moment, and an instant that the driver chose is an integer that can be worked out by hand.

    async def scenario(loop: VirtualLoop) -> None:
        engine = VirtualEngine(VirtualClock(loop), SerialServer(service_ns=500 * MS))
        ...
    run_virtually(scenario)
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from longbench_sched.plan import ClosedLoop, ConcurrencyStep, Lane, LengthFacts, OpenLoop, Plan, Request
from longbench_sched.record import Decoded, Status, StreamRecord

MS = 1_000_000
S = 1_000_000_000

T = TypeVar("T")


class Deadlock(AssertionError):
    """Everything waits and nothing is due: in real time this test would hang."""


class _JumpingSelector(selectors.SelectSelector):
    """Never waits; where it should have, the loop's clock jumps."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise Deadlock("everything waits and nothing is due")
        self.loop.jump()
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time, which is a whole number of ns and begins at `from_ns`."""

    def __init__(self, from_ns: int = S) -> None:
        selector = _JumpingSelector()
        selector.loop = self
        self.now_ns = from_ns
        super().__init__(selector)
        self._clock_resolution = 0.5e-9  # a timer may not fire one ns early

    def time(self) -> float:
        return self.now_ns / 1e9

    def jump(self) -> None:
        """Move the clock to the next timer."""
        handle = min((h for h in self._scheduled if not h.cancelled()), key=lambda h: h.when())  # type: ignore[attr-defined]
        self.now_ns = max(self.now_ns, round(handle.when() * 1e9))


class VirtualClock:
    """load.clock.Clock on a virtual loop."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now_ns(self) -> int:
        return self._loop.now_ns

    async def sleep_until(self, at_ns: int) -> None:
        if at_ns > self._loop.now_ns:
            future: asyncio.Future[None] = self._loop.create_future()
            handle = self._loop.call_at(at_ns / 1e9, future.set_result, None)
            try:
                await future
            finally:
                handle.cancel()


def run_virtually(scenario: Callable[[VirtualLoop], Awaitable[T]]) -> T:
    """Run a scenario on a fresh virtual loop."""
    loop = VirtualLoop()

    async def main() -> T:
        return await scenario(loop)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main())


# The engine.


@dataclass
class SerialServer:
    """One request after the other, each for the same time."""

    service_ns: int
    _free_ns: int = 0

    def ends_ns(self, request: Request, sent_ns: int) -> int:
        self._free_ns = max(self._free_ns, sent_ns) + self.service_ns
        return self._free_ns


@dataclass
class ParallelServer:
    """All requests at once; each takes `takes_ns(request)`."""

    takes_ns: Callable[[Request], int]

    def ends_ns(self, request: Request, sent_ns: int) -> int:
        return sent_ns + self.takes_ns(request)


@dataclass
class VirtualEnded:
    """transport.Ended with nothing left to do."""

    made: StreamRecord

    @property
    def ended_ns(self) -> int:
        assert self.made.end_ns is not None
        return self.made.end_ns

    @property
    def n_undecoded_bytes(self) -> int:
        return 0

    def step(self, until_ns: int) -> bool:
        return True

    def record(self) -> StreamRecord:
        return self.made


@dataclass
class VirtualEngine:
    """transport.Transport that knows when each answer ends. `records` holds what was sent, in that order."""

    clock: VirtualClock
    server: SerialServer | ParallelServer
    records: list[StreamRecord] = field(default_factory=list)
    in_flight: int = 0
    peak_in_flight: int = 0
    in_flight_at: list[tuple[int, int]] = field(default_factory=list)  # (instant, requests in flight after it)
    _open: set[asyncio.Future[None]] = field(default_factory=set)

    async def stream(self, request: Request, due_ns: int, slot_ns: int) -> VirtualEnded:
        sent_ns = self.clock.now_ns()
        record = StreamRecord(
            request_id=request.id,
            index=request.index,
            phase=request.phase,
            lane=str(request.lane),
            due_ns=due_ns,
            slot_ns=slot_ns,
            isl=request.isl,
            osl=request.osl,
            sent_ns=sent_ns,
            end_ns=self.server.ends_ns(request, sent_ns),
            decoded=Decoded(),
            clock="virtual",
        )
        self.records.append(record)
        self._note(1)
        assert record.end_ns is not None
        cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open.add(cancelled)
        sleeper = asyncio.ensure_future(self.clock.sleep_until(record.end_ns))
        await asyncio.wait((sleeper, cancelled), return_when=asyncio.FIRST_COMPLETED)
        if cancelled.done():
            sleeper.cancel()
            record.end_ns = self.clock.now_ns()
            record.decoded.status = Status.CANCELLED
        self._open.discard(cancelled)
        self._note(-1)
        return VirtualEnded(record)

    def _note(self, change: int) -> None:
        self.in_flight += change
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        self.in_flight_at.append((self.clock.now_ns(), self.in_flight))

    async def warm(self, n_connections: int) -> None:
        pass

    def is_read_waiting(self) -> bool:
        return False

    def cancel_all(self) -> None:
        for cancelled in self._open:
            if not cancelled.done():
                cancelled.set_result(None)

    async def aclose(self) -> None:
        pass


# Plans.


def make_requests(n: int, due_s: Callable[[int], float] | None = None, *, lane: int = 0, first: int = 0) -> list[Request]:
    """Requests with indices from `first` on; `due_s` gives the due time of the i-th one."""
    return [Request(first + i, "measured", lane, "x", 1, 1, None if due_s is None else due_s(i)) for i in range(n)]


def closed_lane(requests: list[Request], *steps: tuple[float, int], duration_s: float | None = None) -> Lane:
    """A closed loop of (from second, requests in flight) steps."""
    return Lane("closed", ClosedLoop(tuple(ConcurrencyStep(at, n) for at, n in steps)), requests, duration_s)


def open_lane(requests: list[Request], *, max_in_flight: int | None = None, duration_s: float | None = None) -> Lane:
    """An open loop over requests with due times."""
    return Lane("open", OpenLoop("constant", None, max_in_flight), requests, duration_s)


def make_plan(*lanes: Lane, warmups: tuple[Request, ...] = (), warmup_concurrency: int = 1) -> Plan:
    """A plan with these lanes."""
    facts = LengthFacts(1, 1, 1, 1)
    return Plan("test", 0, lanes, warmups, "digest", facts, facts, warmup_concurrency=warmup_concurrency)
