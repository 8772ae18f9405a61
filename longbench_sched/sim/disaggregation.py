"""Prefill and decode on GPUs of their own: two pools and the KV cache that goes from one to the other.

A request: [wait for memory] -> prefill queue -> prefill -> transfer -> decode. Prefill engines are engines like any other that
are asked for one token; a decode engine never sees a prompt. Blocks of a prompt are given back when its last byte has arrived.

Two ways are told apart. Allocated first (Dynamo-like): a decode engine sets memory aside before the prefill may begin, so a
full decode pool holds prefills back; the cache then goes straight there. Through a store (Mooncake-like): chunks are streamed
to host memory as they are computed, which frees the prefill engine at once; the decode engine loads them when it has room.

Memory on the decode side is reserved to completion, so nothing is ever evicted there. Prefix caches are left out.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from longbench_sched.sim.cost import StepCost
from longbench_sched.sim.engine import Engine
from longbench_sched.sim.kv_blocks import KvBlocks
from longbench_sched.sim.replay import Arrival, Served, replay
from longbench_sched.sim.state import Sequence as Inside
from longbench_sched.sim.state import StepPlan


@dataclass(frozen=True, slots=True)
class Link:
    """What carries KV between two engines."""

    bandwidth: float = 50e9  # bytes/s of one link; 50e9 is 400 Gb/s
    n_links: int = 1
    eff: float = 0.7  # of the bandwidth; 0.6-0.8 is usual
    setup_s: float = 1e-3  # a transfer
    reslice: float = 1.0  # 1.1 where both sides are split over GPUs differently

    def seconds(self, n_bytes: float) -> float:
        """Setup and bytes."""
        return self.setup_s + self.reslice * n_bytes / (self.n_links * self.eff * self.bandwidth)


@dataclass(frozen=True, slots=True)
class Disaggregation:
    """How requests go from one pool to the other."""

    link: Link = Link()
    is_streamed: bool = True  # each chunk is sent when it is computed; else all at the end of the prefill
    through_store: bool = False  # to host memory first, and from there when a decode engine has room
    source: str = ""


PRESETS = {
    "mooncake-like": Disaggregation(
        Link(bandwidth=25e9), is_streamed=True, through_store=True,
        source="Mooncake 2024: streamed to a store of host memory; 200 Gb/s and eff assumed",
    ),
    "dynamo-like": Disaggregation(
        Link(bandwidth=50e9), is_streamed=False, through_store=False,
        source="Dynamo's documents: decode memory first, then a direct transfer; 400 Gb/s and eff assumed",
    ),
}  # fmt: skip


def exposed_transfer_s(link: Link, n_bytes: float, last_chunk_bytes: float, prefill_s: float) -> float:
    """What of a streamed transfer is left after the prefill: max(last chunk, total - prefill)."""
    return max(link.seconds(last_chunk_bytes), link.seconds(n_bytes) - prefill_s)


@dataclass(slots=True, eq=False)
class Passage:
    """A request on its way through both pools."""

    served: Served
    prefiller: int = -1
    decoder: int = -1
    prefill_began_s: float = -1.0
    prefill_ended_s: float = -1.0
    arrived_s: float = -1.0  # its last byte, at the decode engine
    freed_s: float = -1.0  # its blocks, at the prefill engine
    decode_began_s: float = -1.0
    sent_bytes: int = 0  # by the prefill engine
    n_left: int = 0  # chunks still under way from the prefill engine
    generated: int = 0

    @property
    def isl(self) -> int:
        """Prompt tokens."""
        return self.served.arrival.isl

    @property
    def held_tokens(self) -> int:
        """Tokens reserved on the decode side."""
        return self.isl + self.served.arrival.osl


@dataclass(slots=True)
class _Prefiller:
    engine: Engine
    passages: dict[Inside, Passage] = field(default_factory=dict)
    link_free_s: float = 0.0
    queued_tokens: int = 0


@dataclass(slots=True)
class _Decoder:
    cost: StepCost
    kv_tokens: int
    max_running: int
    held: int = 0
    ready: deque[Passage] = field(default_factory=deque)
    running: list[Passage] = field(default_factory=list)
    link_free_s: float = 0.0
    is_busy: bool = False

    def has_room(self, passage: Passage) -> bool:
        return self.held + passage.held_tokens <= self.kv_tokens


@dataclass(slots=True)
class DisaggregatedEngine:
    """Both pools in virtual time."""

    plan: Disaggregation
    prefillers: Sequence[Engine]
    decode_cost: StepCost
    n_decoders: int
    decode_kv_tokens: int  # of one decode engine
    max_running: int = 256
    on_decode: Callable[[int, Sequence[Passage], float], None] | None = None
    _pool: list[_Prefiller] = field(default_factory=list)
    _decoders: list[_Decoder] = field(default_factory=list)
    _events: list[tuple[float, int, Callable[[float], None]]] = field(default_factory=list)
    _serial: int = 0
    _held_back: deque[Passage] = field(default_factory=deque)  # wait for decode memory before their prefill
    _stored: deque[Passage] = field(default_factory=deque)  # wait in the store for decode memory

    def run(self, arrivals: Sequence[Arrival]) -> list[Passage]:
        """Serve them all; each must fit into one decode engine alone."""
        assert all(one.isl + one.osl <= self.decode_kv_tokens for one in arrivals), "a request that never fits"
        self._pool = [_Prefiller(_without_cache(engine)) for engine in self.prefillers]
        self._decoders = [_Decoder(self.decode_cost, self.decode_kv_tokens, self.max_running) for _ in range(self.n_decoders)]
        passages = [Passage(Served(arrival)) for arrival in arrivals]
        for passage in passages:
            self._at(passage.served.arrival.at_s, lambda now_s, passage=passage: self._arrive(passage, now_s))  # type: ignore[misc]  # bound now
        while self._events:
            now_s, _, happen = heapq.heappop(self._events)
            happen(now_s)
        return passages

    def _at(self, at_s: float, happen: Callable[[float], None]) -> None:
        self._serial += 1
        heapq.heappush(self._events, (at_s, self._serial, happen))

    # -- prefill

    def _arrive(self, passage: Passage, now_s: float) -> None:
        if self.plan.through_store:
            self._queue_prefill(passage, now_s)
            return
        self._held_back.append(passage)
        self._let_through(now_s)

    def _let_through(self, now_s: float) -> None:
        """Those whose decode memory can be set aside now, in order of arrival."""
        while self._held_back:
            decoder = self._roomiest()
            if not self._decoders[decoder].has_room(self._held_back[0]):
                return
            passage = self._held_back.popleft()
            self._reserve(passage, decoder)
            self._queue_prefill(passage, now_s)

    def _queue_prefill(self, passage: Passage, now_s: float) -> None:
        index = min(range(len(self._pool)), key=lambda i: self._pool[i].queued_tokens)
        prefiller = self._pool[index]
        passage.prefiller = index
        prefiller.passages[prefiller.engine.submit(passage.isl, 1, now_s)] = passage
        prefiller.queued_tokens += passage.isl
        self._begin_prefill(prefiller, now_s)

    def _begin_prefill(self, prefiller: _Prefiller, now_s: float) -> None:
        if _step(prefiller.engine) is not None:
            return
        step_s = prefiller.engine.begin(now_s)
        plan = _step(prefiller.engine)
        if step_s is None or plan is None:
            return
        for chunk in plan.chunks:
            passage = prefiller.passages[chunk.sequence]
            if passage.prefill_began_s < 0:
                passage.prefill_began_s = now_s
        self._at(now_s + step_s, lambda end_s: self._end_prefill(prefiller, end_s))

    def _end_prefill(self, prefiller: _Prefiller, now_s: float) -> None:
        engine = prefiller.engine
        plan = engine.step
        assert plan is not None
        assert not plan.decodes, "PD-1: no decode on a prefill engine"
        ended = set(engine.end(now_s))
        for chunk in plan.chunks:
            passage = prefiller.passages[chunk.sequence]
            prefiller.queued_tokens -= chunk.n_tokens
            is_last = chunk.sequence in ended
            if is_last:
                # The engine has let go of the blocks; they stay taken until the last byte has arrived.
                engine.state.kv.take(engine.state.kv.blocks_for(passage.isl))
                passage.prefill_ended_s = now_s
            if self.plan.is_streamed:
                self._send(prefiller, passage, chunk.n_tokens, now_s)
            elif is_last:
                self._send(prefiller, passage, passage.isl, now_s)
        self._begin_prefill(prefiller, now_s)

    def _send(self, prefiller: _Prefiller, passage: Passage, tokens: int, now_s: float) -> None:
        """Over the engine's link, one transfer after the other."""
        n_bytes = tokens * self.decode_cost.model.kv_bytes_per_token()
        prefiller.link_free_s = max(now_s, prefiller.link_free_s) + self.plan.link.seconds(n_bytes)
        passage.sent_bytes += n_bytes
        passage.n_left += 1
        self._at(prefiller.link_free_s, lambda at_s: self._sent(prefiller, passage, at_s))

    def _sent(self, prefiller: _Prefiller, passage: Passage, now_s: float) -> None:
        passage.n_left -= 1
        if passage.n_left or passage.prefill_ended_s < 0:
            return
        kv = prefiller.engine.state.kv
        kv.give(kv.blocks_for(passage.isl))
        passage.freed_s = now_s
        self._begin_prefill(prefiller, now_s)
        if self.plan.through_store:
            self._stored.append(passage)
            self._load(now_s)
        else:
            self._land(passage, now_s)

    # -- decode

    def _roomiest(self) -> int:
        return max(range(self.n_decoders), key=lambda i: self._decoders[i].kv_tokens - self._decoders[i].held)

    def _reserve(self, passage: Passage, decoder: int) -> None:
        passage.decoder = decoder
        self._decoders[decoder].held += passage.held_tokens

    def _load(self, now_s: float) -> None:
        """From the store to a decode engine that has room, in order."""
        while self._stored:
            index = self._roomiest()
            decoder = self._decoders[index]
            if not decoder.has_room(self._stored[0]):
                return
            passage = self._stored.popleft()
            self._reserve(passage, index)
            n_bytes = passage.isl * self.decode_cost.model.kv_bytes_per_token()
            decoder.link_free_s = max(now_s, decoder.link_free_s) + self.plan.link.seconds(n_bytes)
            self._at(decoder.link_free_s, lambda at_s, passage=passage: self._land(passage, at_s))  # type: ignore[misc]  # bound now

    def _land(self, passage: Passage, now_s: float) -> None:
        """All of it is there: the first token, made by the prefill, goes out and decoding may begin."""
        passage.arrived_s = now_s
        passage.generated = 1
        passage.served.token_at_s.append(now_s)
        decoder = self._decoders[passage.decoder]
        if passage.served.arrival.osl == 1:
            self._leave(decoder, passage, now_s)
            return
        decoder.ready.append(passage)
        self._begin_decode(passage.decoder, now_s)

    def _begin_decode(self, index: int, now_s: float) -> None:
        decoder = self._decoders[index]
        if decoder.is_busy:
            return
        while decoder.ready and len(decoder.running) < decoder.max_running:
            passage = decoder.ready.popleft()
            passage.decode_began_s = now_s
            decoder.running.append(passage)
        if not decoder.running:
            return
        decoder.is_busy = True
        n = len(decoder.running)
        step_s = decoder.cost.decode_s(n, sum(passage.isl + passage.generated for passage in decoder.running))
        if self.on_decode is not None:
            self.on_decode(index, decoder.running, now_s)
        self._at(now_s + step_s, lambda end_s: self._end_decode(index, end_s))

    def _end_decode(self, index: int, now_s: float) -> None:
        decoder = self._decoders[index]
        decoder.is_busy = False
        going_on: list[Passage] = []
        for passage in decoder.running:
            passage.generated += 1
            passage.served.token_at_s.append(now_s)
            if passage.generated == passage.served.arrival.osl:
                self._leave(decoder, passage, now_s)
            else:
                going_on.append(passage)
        decoder.running = going_on
        self._begin_decode(index, now_s)

    def _leave(self, decoder: _Decoder, passage: Passage, now_s: float) -> None:
        decoder.held -= passage.held_tokens
        self._load(now_s)
        self._let_through(now_s)


def _step(engine: Engine) -> StepPlan | None:
    return engine.step


def _without_cache(engine: Engine) -> Engine:
    """The engine with a pool of blocks that nobody finds again: they are held beyond the end of their request."""
    engine.state.kv = KvBlocks(engine.state.kv.total, engine.state.kv.block_tokens)
    return engine


# -- goodput


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request must keep to count."""

    ttft_s: float
    tpot_s: float

    def share_met(self, served: Sequence[Served]) -> float:
        """Requests that keep both."""
        return sum(one.ttft_s <= self.ttft_s and one.tpot_s <= self.tpot_s for one in served) / len(served)


def poisson_arrivals(rate_per_s: float, n: int, isl: int, osl: int, seed: int) -> list[Arrival]:
    """The same gaps for every rate, stretched: two rates differ in nothing else."""
    rng = Random(seed)
    at_s, arrivals = 0.0, []
    for _ in range(n):
        arrivals.append(Arrival(at_s / rate_per_s, isl, osl))
        at_s += rng.expovariate(1.0)
    return arrivals


def serve_side_by_side(engines: Sequence[Engine], arrivals: Sequence[Arrival]) -> list[Served]:
    """Co-located engines, requests dealt out in turn."""
    served: list[Served] = []
    for i, engine in enumerate(engines):
        served += replay(engine, arrivals[i :: len(engines)])
    return served


def goodput_per_s(
    serve: Callable[[float], Sequence[Served]], limits: Limits, highest_per_s: float, share: float = 0.9, steps: int = 9
) -> float:
    """The highest rate at which at least `share` of the requests keep the limits, by bisection; 0 if there is none."""
    low, high = 0.0, highest_per_s
    for _ in range(steps):
        rate = (low + high) / 2
        low, high = (rate, high) if limits.share_met(serve(rate)) >= share else (low, rate)
    return low
