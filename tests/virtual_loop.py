"""Engines of a few lines in virtual time (sim/clock.py): the driver's schedule, exact and without waiting.

A test that would take minutes takes a moment, and an instant that the driver chose can be worked out by hand.

    async def scenario(loop: VirtualLoop) -> None:
        engine = VirtualEngine(VirtualClock(loop), SerialServer(service_ns=500 * MS))
        ...
    run_virtually(scenario)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from longbench_sched.plan import ClosedLoop, ConcurrencyStep, Lane, LengthFacts, OpenLoop, Plan, Request
from longbench_sched.record import Decoded, Status, StreamRecord
from longbench_sched.sim.clock import VirtualClock, VirtualLoop, run_virtually

MS = 1_000_000
S = 1_000_000_000

__all__ = [
    "MS",
    "ParallelServer",
    "S",
    "SerialServer",
    "VirtualClock",
    "VirtualEngine",
    "VirtualLoop",
    "closed_lane",
    "make_plan",
    "make_requests",
    "open_lane",
    "run_virtually",
]

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
