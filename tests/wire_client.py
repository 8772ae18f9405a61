"""A WireTransport on a loop of its own, for tests that talk to a scripted server."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import uvloop

from longbench_sched.engine import make_dialect
from longbench_sched.load.messages import Messages
from longbench_sched.load.stamps import SO_TIMESTAMPNS, RealtimeOffset, kernel_stamps_work
from longbench_sched.load.timeouts import Timeouts
from longbench_sched.load.wire import WireOptions, WireTransport
from longbench_sched.plan import Request
from longbench_sched.record import StreamRecord
from longbench_sched.target import Api, Endpoint, Target

T = TypeVar("T")

PATIENT = Timeouts(connect_s=20.0, first_token_s=20.0, idle_s=20.0)  # a test that hangs fails in the end


def make_requests(n: int, *, prompt: str = "x", osl: int = 3) -> list[Request]:
    """Requests 0, 1, ..."""
    return [Request(i, "measured", 0, prompt, 4, osl) for i in range(n)]


@asynccontextmanager
async def wire(
    url: str,
    requests: Sequence[Request],
    *,
    api: Api = "completions",
    make: Callable[..., WireTransport] = WireTransport,
    timeouts: Timeouts = PATIENT,
    **options: Any,
) -> AsyncIterator[WireTransport]:
    """An open transport that can send these requests."""
    target = Target("vllm", Endpoint.parse(url), "m", api)
    dialect = make_dialect("vllm", api)
    messages = Messages(requests, dialect, target, "m", "run")
    settings = WireOptions(**{"stamps": "kernel", **options}, timeouts=timeouts)
    transport = make(target.endpoint, dialect, messages, lambda _: "main", RealtimeOffset(), settings)
    try:
        yield transport
    finally:
        await transport.aclose()
        messages.close()


async def send(transport: WireTransport, request: Request) -> StreamRecord:
    """Send a request and wait for its record."""
    return (await transport.stream(request, 1, 2)).record()


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until the condition holds (`run` bounds the wait)."""
    while not condition():
        await asyncio.sleep(0.001)


def run(scenario: Awaitable[T]) -> T:
    """Run a coroutine on the loop that a run uses."""

    async def main() -> T:
        return await asyncio.wait_for(scenario, 60)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def send_all(url: str, requests: Sequence[Request], *, side_by_side: bool = False, **options: Any) -> list[StreamRecord]:
    """Send requests, one after the other or all at once; their records."""

    async def scenario() -> list[StreamRecord]:
        async with wire(url, requests, **options) as transport:
            if side_by_side:
                return list(await asyncio.gather(*(send(transport, r) for r in requests)))
            return [await send(transport, r) for r in requests]

    return run(scenario())


@contextmanager
def stamping_kernel() -> Iterator[None]:
    """Linux stamps from the first byte on: it switches stamping on in the background, and off with the last socket."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
        if sys.platform.startswith("linux"):
            holder.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            assert kernel_stamps_work()
        yield
