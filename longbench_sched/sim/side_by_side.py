"""Engines side by side: alike, each with its own GPUs, doing prefill and decode. A request goes to the one with the fewest."""

from __future__ import annotations

from dataclasses import dataclass, field

from longbench_sched.sim.content import Content
from longbench_sched.sim.engine import Counters, Engine, Glide
from longbench_sched.sim.models import Model
from longbench_sched.sim.queue_limit import Full
from longbench_sched.sim.step import Sequence

_INSTANT_S = 0.6e-9  # what lies closer together is one instant: callers count whole ns


@dataclass(slots=True)
class SideBySide:
    """Several engines, as an engine: `begin` may be called at any time and starts what can be started."""

    engines: list[Engine]
    _ends_s: list[float | None] = field(default_factory=list)  # when something happens in each
    _owner: dict[Sequence, Engine] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ends_s = [None] * len(self.engines)

    @property
    def name(self) -> str:
        """Of `PLAYED`."""
        return self.first.name

    @property
    def first(self) -> Engine:
        """The engine that stands for all: they are alike."""
        return self.engines[0]

    @property
    def model(self) -> Model:
        """What they serve."""
        return self.first.model

    @property
    def where(self) -> str:
        """What they run on."""
        return f"{self.first.where}, {len(self.engines)} times"

    @property
    def context(self) -> int:
        """Longest prompt + output."""
        return self.first.context

    @property
    def n_gpus(self) -> int:
        """GPUs of all engines."""
        return sum(engine.n_gpus for engine in self.engines)

    @property
    def kv_tokens(self) -> int:
        """Tokens that fit into all of them."""
        return sum(engine.kv_tokens for engine in self.engines)

    @property
    def n_waiting(self) -> int:
        """Requests in the queues."""
        return sum(engine.n_waiting for engine in self.engines)

    @property
    def n_running(self) -> int:
        """Requests that hold a place."""
        return sum(engine.n_running for engine in self.engines)

    @property
    def is_caching(self) -> bool:
        """Whether prefixes are found again, by the engine that has seen them."""
        return self.first.is_caching

    @property
    def is_concurrent(self) -> bool:
        """Whether something can begin while something else goes on."""
        return True

    @property
    def counters(self) -> Counters:
        """What has happened in all of them: arrivals and steps."""
        return Counters(
            n_arrived=sum(engine.counters.n_arrived for engine in self.engines),
            n_steps=sum(engine.counters.n_steps for engine in self.engines),
        )

    def refusal(self, isl: int, max_new: int) -> str | None:
        """Why a request can never run here; None if it can."""
        return self.first.refusal(isl, max_new)

    def full_queue(self, isl: int) -> Full | None:
        """Why a prompt of that length finds no place in the queue of the engine that would get it; None if it does."""
        return self._next().full_queue(isl)

    def _next(self) -> Engine:
        return min(self.engines, key=lambda one: one.n_waiting + one.n_running)

    def submit(
        self,
        isl: int,
        max_new: int,
        now_s: float,
        *,
        stop_at: int | None = None,
        to_length: bool = True,
        content: Content | None = None,
        priority: int = 0,
    ) -> Sequence:
        """Put a request into the queue of the engine with the fewest, the first of them."""
        engine = self._next()
        sequence = engine.submit(isl, max_new, now_s, stop_at=stop_at, to_length=to_length, content=content, priority=priority)
        self._owner[sequence] = engine
        return sequence

    def abort(self, sequence: Sequence) -> None:
        """Drop a request that nobody waits for any more."""
        if (engine := self._owner.pop(sequence, None)) is not None:
            engine.abort(sequence)

    def begin(self, now_s: float) -> float | None:
        """Start what can be started; seconds until something happens. None: nothing will by itself."""
        for i, engine in enumerate(self.engines):
            if self._ends_s[i] is None or engine.is_concurrent:
                step_s = engine.begin(now_s)
                self._ends_s[i] = None if step_s is None else now_s + step_s
        ends_s = [end_s for end_s in self._ends_s if end_s is not None]
        return max(min(ends_s) - now_s, 0.0) if ends_s else None

    def end(self, end_s: float) -> list[Sequence]:
        """Let happen what is due; the sequences that got tokens."""
        yielded: list[Sequence] = []
        for i, engine in enumerate(self.engines):
            due_s = self._ends_s[i]
            if due_s is not None and due_s <= end_s + _INSTANT_S:
                self._ends_s[i] = None
                yielded += engine.end(end_s)
        for sequence in yielded:
            if sequence.finish is not None:
                self._owner.pop(sequence, None)
        return yielded

    def glide(self, end_ns: int, until_ns: int | None) -> Glide | None:
        """Engines act side by side: there is nothing to take at once."""
        return None
