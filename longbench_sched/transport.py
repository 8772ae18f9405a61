"""Transport: the one seam between a plan and an engine.

The driver knows nothing else of an engine: a real one over HTTP (`load/wire.py`, `load/http.py`) and a simulated one in virtual
time (`sim/transport.py`) look the same to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from longbench_sched.plan import Request
from longbench_sched.record import StreamRecord

MakeRecord = Callable[[], StreamRecord]


class Transport(Protocol):
    """Sends requests and says what came back."""

    async def stream(self, request: Request, due_ns: int, slot_ns: int) -> MakeRecord:
        """Send a request now and return when its answer has ended, well or badly; never raises for a failed request.

        The call that is returned makes the record. It may be costly (it decodes what was only stamped so far), so the driver
        calls it when no stream waits to be read.
        """
        ...

    async def aclose(self) -> None:
        """Close what is open."""
        ...
