"""Transport: the one seam between a plan and an engine.

The driver knows nothing else of an engine: a real one over HTTP (`load/wire.py`, `load/http.py`) and a simulated one in virtual
time (`sim/transport.py`) look the same to it.
"""

from __future__ import annotations

from typing import Protocol

from longbench_sched.plan import Request
from longbench_sched.record import StreamRecord


class Ended(Protocol):
    """A stream that is over on the wire but perhaps not decoded yet: its record can be had in steps.

    Decoding is work, and work while other streams are open must come in short slices: `step` until it says True, then `record`.
    """

    @property
    def ended_ns(self) -> int:
        """When the answer ended: the place in flight was free from then on."""
        ...

    @property
    def n_undecoded_bytes(self) -> int:
        """Memory held by what is not decoded yet."""
        ...

    def step(self, until_ns: int) -> bool:
        """Work until that instant (CLOCK_MONOTONIC) at most; True when `record` costs nothing more."""
        ...

    def record(self) -> StreamRecord:
        """The finished record; does what is left of the work."""
        ...


class Transport(Protocol):
    """Sends requests and says what came back."""

    async def stream(self, request: Request, due_ns: int, slot_ns: int) -> Ended:
        """Send a request now and return when its answer has ended, well or badly; never raises for a failed request."""
        ...

    async def warm(self, n_connections: int) -> None:
        """Have so many connections open before they are due; never raises for a server that refuses."""
        ...

    def is_read_waiting(self) -> bool:
        """Whether bytes wait to be read right now; decoding stands back then."""
        ...

    def cancel_all(self) -> None:
        """End every open stream now as cancelled; `stream` returns for each."""
        ...

    async def aclose(self) -> None:
        """Close what is open."""
        ...
