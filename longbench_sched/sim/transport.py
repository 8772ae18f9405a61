"""Transport over the step loop, in virtual time: what `load/wire.py` is for a real engine.

The loop asks the transport to act before it lets time jump (`advance`). The engine then runs step after step, up to the next
timer or until a request has ended; only then does a task wake. So the driver wakes once a request, not once a token, and an
instant at which something is due comes before the step that would begin at it: a step sees all that arrived until then.

Where several things go on at once (pipeline stages, pools of engines) the engine is asked anew at every instant what happens
next, for what has come may begin at once.

Time is whole nanoseconds. A step of d seconds that begins at t ends at t + d rounded to the ns, and the next begins there.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from longbench_sched.errors import TargetError
from longbench_sched.plan import Request
from longbench_sched.record import Decoded, Reason, Status, StreamRecord, TokenSource
from longbench_sched.sim.clock import VirtualLoop
from longbench_sched.sim.content import Content, prompt_content
from longbench_sched.sim.deployment import AnyEngine
from longbench_sched.sim.step import Sequence

PREEMPTED = "preempted"  # a mark: the request lost its KV at least once


class StepObserver(Protocol):
    """Looks at every step."""

    def attach(self, engine: AnyEngine, origin_ns: int) -> None:
        """Told once what will run. The engine then tells of its steps, in seconds from the origin (`watch.Watch`)."""
        ...


@dataclass(slots=True, eq=False)
class _Exchange:
    """A request in the engine."""

    record: StreamRecord
    over: asyncio.Future[None]
    sequence: Sequence | None = None
    n_tokens: int = 0
    cached: int = 0  # tokens of the prompt that were found in a cache
    at_ns: array[int] = field(default_factory=lambda: array("q"))
    tokens: array[int] = field(default_factory=lambda: array("i"))


class SimEnded:
    """`transport.Ended` with nothing left to do."""

    __slots__ = ("_record",)

    n_undecoded_bytes = 0

    def __init__(self, record: StreamRecord) -> None:
        self._record = record

    @property
    def ended_ns(self) -> int:
        """When the last token came, or the request was given up."""
        assert self._record.end_ns is not None
        return self._record.end_ns

    def step(self, until_ns: int) -> bool:
        """Nothing to decode."""
        return True

    def record(self) -> StreamRecord:
        """The finished record."""
        return self._record


class SimTransport:
    """`transport.Transport` over an engine made of arithmetic. It becomes the source of the loop."""

    def __init__(
        self, engine: AnyEngine, loop: VirtualLoop, lane_name: Callable[[Request], str], observer: StepObserver | None = None
    ) -> None:
        self._engine = engine
        self._loop = loop
        self._lane_name = lane_name
        self._observer = observer
        self._origin_ns = loop.now_ns
        self._end_ns: int | None = None  # of the step in progress
        self._open: dict[Sequence, _Exchange] = {}
        loop.source = self
        if observer is not None:
            observer.attach(engine, self._origin_ns)

    # transport.Transport

    async def stream(self, request: Request, due_ns: int, slot_ns: int) -> SimEnded:
        """Put a request into the engine's queue now; returns when its last token has come."""
        now_ns = self._loop.now_ns
        record = StreamRecord(
            request_id=request.id,
            index=request.index,
            phase=request.phase,
            lane=self._lane_name(request),
            due_ns=due_ns,
            slot_ns=slot_ns,
            isl=request.isl,
            osl=request.osl,
            sent_ns=now_ns,
            body_sent_ns=now_ns,
            decoded=Decoded(),
            clock="virtual",
        )
        refusal = self._engine.refusal(request.isl, request.osl)
        if refusal is not None:
            return _refused(record, 400, refusal)
        if (full := self._engine.full_queue(request.isl)) is not None:
            # SGLang tells a stream in its first event, vLLM by its status.
            return _refused(record, 200 if full.limit == "max_queued_requests" else 503, full.words)
        exchange = _Exchange(record, self._loop.create_future())
        sequence = self._engine.submit(
            request.isl,
            request.osl,
            (now_ns - self._origin_ns) / 1e9,
            to_length=request.sampling.ignore_eos,
            content=self._content(request),
            priority=request.priority,
        )
        exchange.sequence = sequence
        self._open[sequence] = exchange
        await exchange.over
        return SimEnded(record)

    def _content(self, request: Request) -> Content | None:
        """What the prompt shares with others of its lane, by name: prompts are never token lists."""
        if not request.shared_prefix:
            return None
        number = self._engine.counters.n_arrived  # of the sequence that is about to be made
        return prompt_content(number, request.isl, group=request.lane, prefix_tokens=request.shared_prefix)

    async def warm(self, n_connections: int) -> None:
        """There are no connections."""

    def is_read_waiting(self) -> bool:
        """Nothing is read."""
        return False

    def cancel_all(self) -> None:
        """End every request that is in the engine."""
        for sequence, exchange in list(self._open.items()):
            self._engine.abort(sequence)
            self._finish(sequence, exchange, self._loop.now_ns)

    async def aclose(self) -> None:
        """Leave the loop alone."""
        self._loop.source = None

    # clock.Source

    def advance(self, until_ns: int | None) -> int | None:
        """Run steps until then, or until a request has ended. Raises TargetError if the engine can never go on."""
        at_ns = self._loop.now_ns
        while True:
            # What can begin while something else goes on is asked at every instant at which something may have come.
            is_open = self._end_ns is None or self._engine.is_concurrent
            if is_open and not self._begin(at_ns):
                if until_ns is None and self._open:
                    raise TargetError(self._stuck())
                return until_ns
            end_ns = self._end_ns
            assert end_ns is not None
            if until_ns is not None and end_ns > until_ns:
                return until_ns
            if self._observer is None and (last_ns := self._glide(end_ns, until_ns)) is not None:
                at_ns = last_ns
                if at_ns == until_ns:
                    return at_ns
                continue
            if self._end(end_ns) or end_ns == until_ns:
                return end_ns
            at_ns = end_ns

    def _begin(self, at_ns: int) -> bool:
        duration_s = self._engine.begin((at_ns - self._origin_ns) / 1e9)
        if duration_s is None:
            self._end_ns = None
            return False
        self._end_ns = at_ns + max(1, round(duration_s * 1e9))
        return True

    def _glide(self, end_ns: int, until_ns: int | None) -> int | None:
        """End a run of decode steps at once, in which nobody ends; when the last of them ended."""
        glide = self._engine.glide(end_ns, until_ns)
        if glide is None:
            return None
        self._end_ns = None
        at_ns, ones = array("q", glide.ends_ns), array("i", [1]) * len(glide.ends_ns)
        for sequence in glide.sequences:
            exchange = self._open[sequence]
            exchange.at_ns.extend(at_ns)
            exchange.tokens.extend(ones)
            exchange.n_tokens += len(at_ns)
        return glide.ends_ns[-1]

    def _end(self, end_ns: int) -> bool:
        """End the step; whether a request ended with it."""
        self._end_ns = None
        has_ended = False
        exchanges = self._open
        for sequence in self._engine.end((end_ns - self._origin_ns) / 1e9):
            exchange = exchanges[sequence]
            n = sequence.generated
            if not exchange.n_tokens:
                exchange.cached = sequence.cached  # later it may be that of a second admission
            exchange.at_ns.append(end_ns)
            exchange.tokens.append(n - exchange.n_tokens)
            exchange.n_tokens = n
            if sequence.finish is not None:
                has_ended = True
                self._finish(sequence, exchange, end_ns)
        return has_ended

    def _finish(self, sequence: Sequence, exchange: _Exchange, end_ns: int) -> None:
        del self._open[sequence]
        record, decoded = exchange.record, exchange.record.decoded
        record.end_ns = end_ns
        decoded.chunk_at_ns, decoded.chunk_tokens = exchange.at_ns, exchange.tokens
        decoded.chunk_lateness_ns = array("q", bytes(8 * len(exchange.at_ns)))
        decoded.prompt_tokens, decoded.prompt_token_source = sequence.isl, TokenSource.USAGE
        decoded.output_tokens, decoded.output_token_source = sequence.generated, TokenSource.USAGE
        if exchange.at_ns and self._engine.is_caching:
            decoded.cached_tokens, decoded.cached_token_source = exchange.cached, TokenSource.USAGE
        if exchange.at_ns:
            decoded.chunk_token_source = TokenSource.USAGE
            decoded.first_byte_ns = decoded.answer_at_ns = exchange.at_ns[0]
        if sequence.finish == "abort":
            decoded.status, decoded.reason = Status.CANCELLED, Reason.INTERRUPTED
        else:
            decoded.finish_reason, decoded.finish_ns = sequence.finish, end_ns
        if sequence.n_preemptions:
            decoded.marks.append(PREEMPTED)
        if not exchange.over.done():
            exchange.over.set_result(None)

    def _stuck(self) -> str:
        engine = self._engine
        longest = max(sequence.max_length for sequence in self._open)
        return (
            f"the simulated {engine.name} can never go on: {engine.n_waiting} requests wait, {engine.n_running} are "
            f"in progress, the longest has {longest} tokens, and KV memory holds {engine.kv_tokens}.\n"
            "Give it more KV memory (a larger GPU or memory share), more tokens a step, or shorter requests."
        )


def _refused(record: StreamRecord, status: int, words: str) -> SimEnded:
    """An answer with an error at once."""
    decoded = record.decoded
    record.end_ns = record.sent_ns
    record.http_status = status
    reason = Reason.IN_BAND_ERROR if status == 200 else Reason.HTTP_STATUS
    decoded.status, decoded.reason, decoded.detail = Status.FAILED, reason, words
    return SimEnded(record)
