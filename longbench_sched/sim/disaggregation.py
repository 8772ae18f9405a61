"""Prefill and decode on engines of their own: two pools and the KV cache that goes from one to the other.

A request: [wait for memory] -> prefill queue -> prefill -> transfer -> decode. Engines of both pools are like any other: a
prefill engine is asked for one token, a decode engine takes sequences in whose prompt is computed. The first token is made by
the prefill and goes out when the last byte has arrived, so TTFT is prefill and transfer; the second waits for a decode step.
Blocks of a prompt are given back by the prefill engine when its last byte has arrived.

Two ways are told apart. Allocated first (Dynamo-like): a decode engine sets memory aside before the prefill may begin, so a
full decode pool holds prefills back; the cache then goes straight there. Through a store (Mooncake-like): chunks are streamed
to host memory as they are computed, which frees the prefill engine at once; the decode engine loads them when it has room.

Memory on the decode side is reserved to completion, so nothing is ever evicted there. Prefix caches are left out.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from longbench_sched.sim.content import Content
from longbench_sched.sim.engine import Counters, Engine, Glide
from longbench_sched.sim.kv_blocks import KvBlocks
from longbench_sched.sim.models import Model
from longbench_sched.sim.policy.sglang import SglangOptions
from longbench_sched.sim.policy.trtllm import TrtllmOptions
from longbench_sched.sim.pools import RESLICE, Disaggregation, Link, Pools
from longbench_sched.sim.queue_limit import Full
from longbench_sched.sim.step import Sequence, StepPlan
from longbench_sched.sim.watch import Watch

_INSTANT_S = 0.6e-9  # what lies closer together is one instant: callers count whole ns


@dataclass(slots=True, eq=False)
class Passage:
    """A request on its way through both pools. Instants are -1 until they come."""

    sequence: Sequence  # in the decode engine; what the caller knows
    inner: Sequence | None = None  # in the prefill engine
    prefiller: int = -1
    decoder: int = -1
    prefill_began_s: float = -1.0
    prefill_ended_s: float = -1.0
    arrived_s: float = -1.0  # its last byte, at the decode engine
    freed_s: float = -1.0  # its blocks, at the prefill engine
    decode_began_s: float = -1.0
    sent_tokens: int = 0  # by the prefill engine
    sent_bytes: int = 0
    n_left: int = 0  # chunks still under way from the prefill engine
    reserved_blocks: int = 0  # in the decode engine
    held_blocks: int = 0  # in the prefill engine, beyond the end of its request

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.sequence.finish is not None


@dataclass(slots=True)
class _Prefiller:
    engine: Engine
    passages: dict[Sequence, Passage] = field(default_factory=dict)
    link_free_s: float = 0.0
    queued_tokens: int = 0  # prompts whose prefill has not ended


@dataclass(slots=True)
class _Decoder:
    engine: Engine
    places: int
    reserved: int = 0  # blocks
    passages: dict[Sequence, Passage] = field(default_factory=dict)
    ready: deque[Passage] = field(default_factory=deque)  # all there, waiting for a place
    link_free_s: float = 0.0

    @property
    def room(self) -> int:
        return self.engine.state.kv.total - self.reserved

    def need(self, passage: Passage) -> int:
        return self.engine.state.kv.blocks_for(passage.sequence.max_length)


@dataclass(slots=True)
class DisaggregatedEngine:
    """Both pools, as an engine: `begin` may be called at any time and starts what can be started."""

    plan: Disaggregation
    prefillers: list[Engine]
    decoders: list[Engine]
    pools: Pools = field(default_factory=Pools)
    on_land: Callable[[Passage], None] | None = None  # looks at every passage when it has arrived
    watch: Watch | None = None  # is told of transfers
    counters: Counters = field(default_factory=Counters)
    _pool: list[_Prefiller] = field(default_factory=list)
    _decoders: list[_Decoder] = field(default_factory=list)
    _passages: dict[Sequence, Passage] = field(default_factory=dict)
    _events: list[tuple[float, int, Callable[[float], None]]] = field(default_factory=list)
    _serial: int = 0
    _held_back: deque[Passage] = field(default_factory=deque)  # wait for decode memory before their prefill
    _stored: deque[Passage] = field(default_factory=deque)  # wait in the store for decode memory
    _yielded: list[Sequence] = field(default_factory=list)

    def __post_init__(self) -> None:
        for engine in (*self.prefillers, *self.decoders):
            # A pool of blocks that nobody finds again: they are held beyond the end of their request.
            engine.state.kv = KvBlocks(engine.state.kv.total, engine.state.kv.block_tokens)
        self._pool = [_Prefiller(engine) for engine in self.prefillers]
        self._decoders = [_Decoder(engine, _places(engine)) for engine in self.decoders]

    # -- as an engine

    @property
    def name(self) -> str:
        """Of `PLAYED`."""
        return self.first.name

    @property
    def first(self) -> Engine:
        """The engine that stands for all: they are alike."""
        return self.prefillers[0]

    @property
    def model(self) -> Model:
        """What it serves."""
        return self.first.model

    @property
    def where(self) -> str:
        """What it runs on."""
        return f"{self.first.where}, {self.pools}"

    @property
    def n_gpus(self) -> int:
        """GPUs of all engines."""
        return sum(engine.n_gpus for engine in (*self.prefillers, *self.decoders))

    @property
    def kv_tokens(self) -> int:
        """Tokens that fit into the decode engines."""
        return sum(engine.kv_tokens for engine in self.decoders)

    @property
    def is_caching(self) -> bool:
        """Whether prefixes are found again."""
        return False

    @property
    def is_concurrent(self) -> bool:
        """Whether something can begin while something else goes on."""
        return True

    @property
    def context(self) -> int:
        """Longest prompt + output."""
        return min(engine.context for engine in (*self.prefillers, *self.decoders))

    @property
    def n_waiting(self) -> int:
        """Requests that no decode engine has yet."""
        return sum(one.decode_began_s < 0 for one in self._passages.values())

    @property
    def n_running(self) -> int:
        """Requests that decode."""
        return len(self._passages) - self.n_waiting

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
        """Put a request before the pools. What its prompt shares with others is of no use here: nothing is cached."""
        number = self.counters.n_arrived
        sequence = Sequence(number, isl, max_new, now_s, stop_at=stop_at, runs_to_length=to_length, priority=priority)
        self.counters.n_arrived += 1
        passage = self._passages[sequence] = Passage(sequence)
        if self.plan.through_store:
            self._queue_prefill(passage, now_s)
        else:
            self._held_back.append(passage)
            self._let_through(now_s)
        return sequence

    def refusal(self, isl: int, max_new: int) -> str | None:
        """Why a request can never run here; None if it can."""
        return self.first.refusal(isl, max_new)

    def full_queue(self, isl: int) -> Full | None:
        """The queue has no end here (`deployment`)."""
        return None

    def abort(self, sequence: Sequence) -> None:
        """Drop a request that nobody waits for any more. Bytes that are on their way arrive all the same."""
        passage = self._passages.get(sequence)
        if passage is None:
            return
        self.counters.finished["abort"] += 1
        if passage.decode_began_s >= 0:
            self._decoders[passage.decoder].engine.abort(sequence)
        elif passage.inner is not None and passage.prefill_ended_s < 0:
            prefiller = self._pool[passage.prefiller]
            prefiller.queued_tokens -= passage.inner.isl
            prefiller.engine.abort(passage.inner)
            del prefiller.passages[passage.inner]
        sequence.finish = "abort"
        for queue in (self._held_back, self._stored):
            if passage in queue:
                queue.remove(passage)
        self._leave(passage)

    def begin(self, now_s: float) -> float | None:
        """Start what can be started; seconds until something happens. None: nothing will by itself."""
        if not self._passages and not self._events:
            return None
        self._let_through(now_s)
        self._load(now_s)
        for prefiller in self._pool:
            self._begin_prefill(prefiller, now_s)
        for decoder in self._decoders:
            self._begin_decode(decoder, now_s)
        return max(self._events[0][0] - now_s, 0.0) if self._events else None

    def end(self, end_s: float) -> list[Sequence]:
        """Let happen what is due; the sequences that got tokens."""
        while self._events and self._events[0][0] <= end_s + _INSTANT_S:
            _, _, happen = heapq.heappop(self._events)
            happen(end_s)
        yielded, self._yielded = self._yielded, []
        return yielded

    def glide(self, end_ns: int, until_ns: int | None) -> Glide | None:
        """Engines act side by side: there is nothing to take at once."""
        return None

    def _at(self, at_s: float, happen: Callable[[float], None]) -> None:
        self._serial += 1
        heapq.heappush(self._events, (at_s, self._serial, happen))

    # -- prefill

    def _let_through(self, now_s: float) -> None:
        """Those whose decode memory can be set aside now, in order of arrival."""
        while self._held_back and self._reserve(self._held_back[0]):
            self._queue_prefill(self._held_back.popleft(), now_s)

    def _queue_prefill(self, passage: Passage, now_s: float) -> None:
        index = min(range(len(self._pool)), key=lambda i: self._pool[i].queued_tokens)
        prefiller = self._pool[index]
        passage.prefiller = index
        sequence = passage.sequence
        passage.inner = prefiller.engine.submit(sequence.isl, 1, now_s, priority=sequence.priority)
        prefiller.passages[passage.inner] = passage
        prefiller.queued_tokens += sequence.isl

    def _begin_prefill(self, prefiller: _Prefiller, now_s: float) -> None:
        engine = prefiller.engine
        if engine.step is not None:
            return
        step_s = engine.begin(now_s)
        plan = _step(engine)
        if step_s is None or plan is None:
            return
        for chunk in plan.chunks:
            passage = prefiller.passages.get(chunk.sequence)
            if passage is not None and passage.prefill_began_s < 0:
                passage.prefill_began_s = now_s
        self.counters.n_steps += 1
        self._at(now_s + step_s, lambda end_s: self._end_prefill(prefiller, end_s))

    def _end_prefill(self, prefiller: _Prefiller, now_s: float) -> None:
        engine = prefiller.engine
        plan = engine.step
        assert plan is not None
        assert not plan.decodes, "PD-1: no decode on a prefill engine"
        ended = set(engine.end(now_s))
        for chunk in plan.chunks:
            passage = prefiller.passages.get(chunk.sequence)
            if passage is None or passage.is_over:
                continue
            # What was computed again after a preemption has been sent before.
            n = max(chunk.start + chunk.n_tokens - passage.sent_tokens, 0) if self.plan.is_streamed else 0
            if chunk.sequence in ended:
                # The engine has let go of the blocks; they stay taken until the last byte has arrived.
                passage.held_blocks = engine.state.kv.blocks_for(chunk.sequence.isl)
                engine.state.kv.take(passage.held_blocks)
                passage.prefill_ended_s = now_s
                prefiller.queued_tokens -= chunk.sequence.isl
                n = chunk.sequence.isl - passage.sent_tokens
            if n:
                self._send(prefiller, passage, n, now_s)

    def _send(self, prefiller: _Prefiller, passage: Passage, tokens: int, now_s: float) -> None:
        """Over the engine's link, one transfer after the other."""
        passage.sent_tokens += tokens
        passage.sent_bytes += tokens * prefiller.engine.model.kv_bytes_per_token()
        passage.n_left += 1
        begin_s = max(now_s, prefiller.link_free_s)
        prefiller.link_free_s = self._transfer(
            prefiller.engine, begin_s, tokens, lambda at_s: self._sent(prefiller, passage, at_s)
        )

    def _transfer(self, engine: Engine, begin_s: float, tokens: int, arrive: Callable[[float], None]) -> float:
        """KV over the engine's link from then on; until when."""
        n_bytes = tokens * engine.model.kv_bytes_per_token()

        def happen(end_s: float) -> None:
            if self.watch is not None:
                self.watch.transferred(engine, begin_s, end_s, tokens, n_bytes)
            arrive(end_s)

        end_s = begin_s + self._link(engine).seconds(n_bytes)
        self._at(end_s, happen)
        return end_s

    def _link(self, engine: Engine) -> Link:
        """Every GPU has a link of its own, over which copies take as long as one; of unequal engines the fewer parts count."""
        link = self.plan.link
        other = engine if self.plan.through_store else self.decoders[0]
        return replace(
            link,
            n_links=link.n_links * min(one.layout.kv_parts(one.model) for one in (engine, other)),
            reslice=link.reslice if self.is_alike else RESLICE,
        )

    @property
    def is_alike(self) -> bool:
        """Whether both pools are spread over GPUs in the same way."""
        return self.prefillers[0].layout == self.decoders[0].layout

    def _sent(self, prefiller: _Prefiller, passage: Passage, now_s: float) -> None:
        passage.n_left -= 1
        if passage.n_left or passage.prefill_ended_s < 0:
            return
        prefiller.engine.state.kv.give(passage.held_blocks)
        passage.held_blocks = 0
        passage.freed_s = now_s
        if passage.inner is not None:
            prefiller.passages.pop(passage.inner, None)
        if passage.is_over:
            return
        if self.plan.through_store:
            self._stored.append(passage)
            self._load(now_s)
        else:
            self._land(passage, now_s)

    # -- decode

    def _reserve(self, passage: Passage) -> bool:
        """Set the memory of all that it may become aside in the roomiest decode engine, if it is there."""
        index = max(range(len(self._decoders)), key=lambda i: self._decoders[i].room)
        decoder = self._decoders[index]
        need = decoder.need(passage)
        if need > decoder.room:
            return False
        passage.decoder, passage.reserved_blocks = index, need
        decoder.reserved += need
        return True

    def _load(self, now_s: float) -> None:
        """From the store to a decode engine that has room, in order."""
        while self._stored and self._reserve(self._stored[0]):
            passage = self._stored.popleft()
            decoder = self._decoders[passage.decoder]
            begin_s = max(now_s, decoder.link_free_s)
            decoder.link_free_s = self._transfer(decoder.engine, begin_s, passage.sequence.isl, partial(self._land, passage))

    def _land(self, passage: Passage, now_s: float) -> None:
        """All of it is there: the first token, made by the prefill, goes out and decoding may begin."""
        sequence = passage.sequence
        if passage.is_over:
            return
        passage.arrived_s = now_s
        sequence.generated, sequence.first_token_s, sequence.computed = 1, now_s, sequence.isl
        self.counters.prompt_tokens += sequence.isl
        self.counters.generated_tokens += 1
        self._yielded.append(sequence)
        if self.on_land is not None:
            self.on_land(passage)
        if 1 in (sequence.max_new, sequence.stop_at):
            sequence.finish = "stop" if sequence.stop_at == 1 else "length"
            self.counters.finished[sequence.finish] += 1
            self._leave(passage)
            return
        self._decoders[passage.decoder].ready.append(passage)

    def _begin_decode(self, decoder: _Decoder, now_s: float) -> None:
        engine = decoder.engine
        while decoder.ready and len(engine.state.running) < decoder.places:
            passage = decoder.ready.popleft()
            if passage.is_over:
                continue
            passage.decode_began_s = now_s
            engine.take_in(passage.sequence)
        if engine.step is not None:
            return
        step_s = engine.begin(now_s)
        if step_s is None:
            return
        self.counters.n_steps += 1
        self._at(now_s + step_s, lambda end_s: self._end_decode(decoder, end_s))

    def _end_decode(self, decoder: _Decoder, now_s: float) -> None:
        engine = decoder.engine
        plan = engine.step
        assert plan is not None
        assert not plan.chunks, "PD-1: no prefill on a decode engine"
        for sequence in engine.end(now_s):
            self.counters.generated_tokens += sequence.yielded_now
            self._yielded.append(sequence)
            if sequence.finish is not None:
                self.counters.finished[sequence.finish] += 1
                self._leave(self._passages[sequence])

    def _leave(self, passage: Passage) -> None:
        """Give back what was set aside for it."""
        del self._passages[passage.sequence]
        if passage.decoder >= 0:
            self._decoders[passage.decoder].reserved -= passage.reserved_blocks
            passage.reserved_blocks = 0


def _step(engine: Engine) -> StepPlan | None:
    """The step in progress, asked anew."""
    return engine.step


def _places(engine: Engine) -> int:
    """Requests that a decode engine runs at once."""
    kv = engine.state.kv
    match engine.options:
        case SglangOptions():
            return engine.options.max_running(kv.total * kv.block_tokens)
        case TrtllmOptions():
            return engine.options.max_batch_size
        case options:
            return options.max_num_seqs or 1
