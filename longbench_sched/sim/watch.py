"""Watch: what engines tell of what they do, for a trace. Instants are seconds on their clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from longbench_sched.sim.engine import Engine
    from longbench_sched.sim.micro_batches import MicroBatch, PipedEngine


class Watch(Protocol):
    """Is told; changes nothing."""

    def began(self, engine: Engine, begin_s: float) -> None:
        """The engine's step in progress has begun; the one after it is not planned yet."""
        ...

    def ended(self, engine: Engine, end_s: float) -> None:
        """It has ended, and its tokens go out now."""
        ...

    def transferred(self, engine: Engine, begin_s: float, end_s: float, tokens: int, n_bytes: int) -> None:
        """KV has gone over the link of the engine."""
        ...

    def sent(self, engine: PipedEngine, batch: MicroBatch) -> None:
        """A micro-batch has entered stage 0, and it is known when it will enter and leave the others."""
        ...

    def left(self, engine: PipedEngine, end_s: float) -> None:
        """The first of those on their way has left the last stage."""
        ...
