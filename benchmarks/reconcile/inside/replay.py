"""What the code of a tool is given in place of a clock and a server: events of a run, each at its own instant.

Runs inside the environment of a tool, which knows nothing of longbench-sched: the standard library alone.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any


class Clock:
    """Stands for the module `time`: says the instant that the replay is at, in seconds after `base_s`."""

    def __init__(self, base_s: float = 0.0) -> None:
        self.base_s = base_s
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.base_s + self.now_s

    time = monotonic = perf_counter

    def perf_counter_ns(self) -> int:
        return round(self.perf_counter() * 1e9)

    time_ns = perf_counter_ns

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


async def pieces(request: Mapping[str, Any], clock: Clock, broken: Callable[[], Exception]) -> AsyncIterator[bytes]:
    """The body of an answer, an event a piece; the clock is at each one's instant when it comes."""
    for at_s, text in request["events"]:
        clock.now_s = at_s
        yield text.encode()
    clock.now_s = request["end_s"]
    if request["is_broken"]:
        raise broken()


class Session:
    """Stands for a client session of aiohttp: any request gets the answer of `request`."""

    def __init__(self, request: Mapping[str, Any], clock: Clock, broken: Callable[[], Exception]) -> None:
        self._request, self._clock, self._broken = request, clock, broken
        self.status = request["status"]
        self.reason = "Service Unavailable" if self.status != 200 else "OK"
        self.content = self

    def post(self, **_: Any) -> Session:
        return self

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def text(self) -> str:
        return "busy"

    def iter_any(self) -> AsyncIterator[bytes]:
        return pieces(self._request, self._clock, self._broken)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Line by line, as a stream of aiohttp gives itself."""
        async for piece in self.iter_any():
            for line in piece.splitlines(keepends=True):
                yield line


def read_case() -> dict[str, Any]:
    """The run that came over standard input."""
    case: dict[str, Any] = json.load(sys.stdin)
    return case


def answer(tool: str, version: str, figures: Mapping[str, Any], failed: list[str]) -> None:
    """Say what the tool made of it: the last line of standard output."""
    print(json.dumps({"tool": tool, "version": version, "figures": figures, "failed": sorted(failed)}))
