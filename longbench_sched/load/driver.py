"""The driver: a plan, sent when it is due.

Open loop: each request has an absolute due time; nothing accumulates, and a server that is slow does not slow the sending.
Closed loop: a place in flight that becomes free is filled at once. In both, `due` is decided before the send, and what delays
the send later (a cap
on requests in flight, the tool itself) stands in the record as `slot - due` and `sent - slot`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from longbench_sched.load.clock import Clock
from longbench_sched.plan import ClosedLoop, ConcurrencyStep, Lane, OpenLoop, Plan, Request
from longbench_sched.transport import Ended, Transport


class Driver:
    """Sends the requests of a plan through a transport. `on_ended` takes each stream that is over."""

    def __init__(self, transport: Transport, clock: Clock, on_ended: Callable[[Ended], None]) -> None:
        self._transport = transport
        self._clock = clock
        self._on_ended = on_ended
        self._tasks: set[asyncio.Task[None]] = set()
        self._schedulers: set[asyncio.Task[None]] = set()
        self.is_stopped = False
        self.n_sent = 0  # measured requests
        self.n_in_flight = 0

    def stop(self) -> None:
        """Send nothing more; what is in flight goes on."""
        self.is_stopped = True
        for scheduler in self._schedulers:
            scheduler.cancel()

    async def warm_up(self, requests: Sequence[Request], concurrency: int) -> None:
        """Send the warm-ups, a fixed number in flight."""
        loop = ClosedLoop((ConcurrencyStep(0.0, concurrency),))
        await self._run_lane(Lane("warmup", loop, requests), self._clock.now_ns())

    async def run(self, plan: Plan, start_ns: int) -> None:
        """Send the measured requests; returns when the last one has ended. Due times count from `start_ns`."""
        if self.is_stopped:  # during the warm-ups
            return
        await asyncio.gather(*(self._run_lane(lane, start_ns) for lane in plan.lanes))

    async def _run_lane(self, lane: Lane, start_ns: int) -> None:
        stop_ns = None if lane.duration_s is None else start_ns + round(lane.duration_s * 1e9)
        match lane.loop:
            case ClosedLoop() as loop:
                await self._run_closed(lane.requests, loop, start_ns, stop_ns)
            case OpenLoop() as loop:
                await self._run_open(lane.requests, loop, start_ns, stop_ns)

    # Closed loop.

    async def _run_closed(self, requests: Sequence[Request], loop: ClosedLoop, start_ns: int, stop_ns: int | None) -> None:
        """One worker a place in flight; they share the requests."""
        left = iter(requests)
        n_places = min(loop.concurrency, len(requests))
        await asyncio.gather(*(self._fill_place(place, left, loop, start_ns, stop_ns) for place in range(n_places)))

    async def _fill_place(
        self, place: int, left: Iterator[Request], loop: ClosedLoop, start_ns: int, stop_ns: int | None
    ) -> None:
        due_ns = start_ns
        await self._sleep_until(start_ns)
        while not self.is_stopped:
            opens_ns = _open_from(place, loop, start_ns, due_ns)
            if opens_ns is None or (stop_ns is not None and max(due_ns, opens_ns) >= stop_ns):
                return
            if opens_ns > due_ns:
                await self._sleep_until(opens_ns)
                due_ns = opens_ns
                continue
            request = next(left, None)
            if request is None:
                return
            due_ns = await self._send(request, due_ns, due_ns)

    # Open loop.

    async def _run_open(self, requests: Sequence[Request], loop: OpenLoop, start_ns: int, stop_ns: int | None) -> None:
        places = None if loop.max_in_flight is None else _Places(min(loop.max_in_flight, len(requests)))
        scheduler = asyncio.ensure_future(self._schedule(requests, places, start_ns, stop_ns))
        self._schedulers.add(scheduler)
        try:
            await asyncio.wait((scheduler,))
            if not scheduler.cancelled():
                scheduler.result()
        finally:
            self._schedulers.discard(scheduler)
        if places is not None and self.is_stopped:
            places.give_up()
        while self._tasks:
            done, _ = await asyncio.wait(set(self._tasks))
            for task in done:
                task.result()

    async def _schedule(self, requests: Sequence[Request], places: _Places | None, start_ns: int, stop_ns: int | None) -> None:
        for request in requests:
            assert request.due_s is not None
            due_ns = start_ns + round(request.due_s * 1e9)
            if stop_ns is not None and due_ns >= stop_ns:
                return
            await self._clock.sleep_until(due_ns)
            if self.is_stopped:
                return
            task = asyncio.ensure_future(self._send_open(request, due_ns, places))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send_open(self, request: Request, due_ns: int, places: _Places | None) -> None:
        if places is None:
            await self._send(request, due_ns, due_ns)
            return
        slot_ns = await places.take(due_ns)
        if slot_ns is None:
            return
        freed_ns = slot_ns
        try:
            if not self.is_stopped:
                freed_ns = await self._send(request, due_ns, slot_ns)
        finally:
            places.give(freed_ns)

    # Both.

    async def _send(self, request: Request, due_ns: int, slot_ns: int) -> int:
        """Send one request; the instant from which its place was free again."""
        self.n_sent += request.phase == "measured"
        self.n_in_flight += 1
        try:
            ended = await self._transport.stream(request, due_ns, slot_ns)
        finally:
            self.n_in_flight -= 1
        self._on_ended(ended)
        return ended.ended_ns

    async def _sleep_until(self, at_ns: int) -> None:
        """Sleep, but not past a stop."""
        sleeper = asyncio.ensure_future(self._clock.sleep_until(at_ns))
        self._schedulers.add(sleeper)
        try:
            await asyncio.wait((sleeper,))
        finally:
            self._schedulers.discard(sleeper)


def _open_from(place: int, loop: ClosedLoop, start_ns: int, now_ns: int) -> int | None:
    """The first instant from `now_ns` on at which this place in flight exists; None if there is none."""
    steps = loop.steps
    for i, step in enumerate(steps):
        begins = start_ns + round(step.from_s * 1e9)
        ends = start_ns + round(steps[i + 1].from_s * 1e9) if i + 1 < len(steps) else None
        if place < step.concurrency and (ends is None or ends > now_ns):
            return max(begins, now_ns)
    return None


class _Places:
    """The places in flight of a capped open loop, given out in order of arrival, each with the instant at which it was free."""

    def __init__(self, n: int) -> None:
        self._free_from = deque([0] * n)  # one entry a free place: the instant from which it was free
        self._waiting: list[asyncio.Future[int | None]] = []

    async def take(self, due_ns: int) -> int | None:
        """A place: the instant from which it was free, or the due time if that is later. None: there will be none."""
        if self._free_from:
            return max(self._free_from.popleft(), due_ns)
        future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        freed_ns = await future
        return None if freed_ns is None else max(freed_ns, due_ns)

    def give(self, freed_ns: int) -> None:
        """Give a place back."""
        while self._waiting:
            future = self._waiting.pop(0)
            if not future.done():
                future.set_result(freed_ns)
                return
        self._free_from.append(freed_ns)

    def give_up(self) -> None:
        """Send whoever waits away."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()
