"""A pipeline under load: micro-batches that follow each other through the stages (SGLang from 0.5.7).

`pp_size + async_depth` slots are visited in turn. Each has a running batch of its own; all share the queue and the one prompt
in progress. Stage 0 picks a batch, works on it, passes it on without waiting and visits the next slot, so the next chunk of a
prompt enters stage 0 while the one before is in stage 1. A slot is visited again when its last batch has left the last stage:
its tokens are needed. A batch is prompts or decodes, prompts first.

Memory is simple here: a request is let in, in order of arrival, if its whole length fits, and gives all back at its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from longbench_sched.sim.cost import StepCost, StepLoad
from longbench_sched.sim.pipeline import Pipeline

NextChunk = Callable[[int], int]  # tokens of a prompt that are done -> tokens of its next chunk


@dataclass(slots=True, eq=False)
class PipedRequest:
    """One request on its way."""

    id: int
    arrived_s: float
    isl: int
    osl: int
    computed: int = 0
    token_at_s: list[float] = field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        """From its arrival to its first token."""
        return self.token_at_s[0] - self.arrived_s


@dataclass(slots=True)
class MicroBatch:
    """One pass through all stages."""

    slot: int
    chunks: list[tuple[PipedRequest, int, int]]  # request, tokens, tokens before them
    decodes: list[PipedRequest]
    entered_s: list[float] = field(default_factory=list)  # by stage
    left_s: list[float] = field(default_factory=list)

    @property
    def n_tokens(self) -> int:
        """Tokens computed."""
        return len(self.decodes) + sum(n for _, n, _ in self.chunks)


@dataclass(slots=True)
class _Slot:
    running: list[PipedRequest] = field(default_factory=list)
    batch: MicroBatch | None = None  # in the pipeline


@dataclass(slots=True)
class PipelinedEngine:
    """Stages that serve requests. Times are seconds since the start."""

    cost: StepCost
    pipeline: Pipeline
    next_chunk: NextChunk
    kv_tokens: int
    async_depth: int = 0
    max_running: int = 2048
    max_prefill_tokens: int = 16384
    _free_at_s: list[float] = field(default_factory=list)
    _queue: deque[PipedRequest] = field(default_factory=deque)
    _partial: PipedRequest | None = None
    _held_tokens: int = 0

    def run(self, requests: Sequence[PipedRequest]) -> list[MicroBatch]:
        """Serve them all; the micro-batches in the order in which they entered. Each must fit into memory alone."""
        assert all(request.isl + request.osl <= self.kv_tokens for request in requests), "a request that never fits"
        pending = deque(sorted(requests, key=lambda request: (request.arrived_s, request.id)))
        slots = [_Slot() for _ in range(self.pipeline.n_stages + self.async_depth)]
        self._free_at_s = [0.0] * self.pipeline.n_stages
        done: list[MicroBatch] = []
        now_s, visit, n_idle = 0.0, 0, 0
        while True:
            index = visit % len(slots)
            slot = slots[index]
            visit += 1
            if slot.batch is not None:
                now_s = max(now_s, slot.batch.left_s[-1])
                self._collect(slot)
            while pending and pending[0].arrived_s <= now_s:
                self._queue.append(pending.popleft())
            batch = self._pick(slot, index, len(slots))
            if batch is not None:
                n_idle = 0
                self._send(batch, now_s)
                slot.batch = batch
                done.append(batch)
                now_s = batch.left_s[0]
                continue
            n_idle += 1
            if n_idle < len(slots):
                continue
            # All slots are empty and found nothing to do, so only an arrival can help.
            if not pending:
                assert not self._queue, "nothing runs, so the queue's head fits"
                return done
            now_s, n_idle = max(now_s, pending[0].arrived_s), 0

    def _pick(self, slot: _Slot, index: int, n_slots: int) -> MicroBatch | None:
        batch = MicroBatch(index, [], [])
        places = max(1, self.max_running // self.pipeline.n_stages) - len(slot.running)
        left = self.max_prefill_tokens
        while places > 0:
            request = self._partial or self._admissible()
            if request is None:
                break
            size = min(self.next_chunk(request.computed), request.isl - request.computed)
            if batch.chunks and size > left:
                break
            if request is not self._partial:
                self._queue.popleft()
                self._held_tokens += request.isl + request.osl
            batch.chunks.append((request, size, request.computed))
            request.computed += size
            left -= size
            places -= 1
            self._partial = request if request.computed < request.isl else None
            if self._partial is not None:
                break
        if not batch.chunks:
            batch.decodes = list(slot.running)
        return batch if batch.n_tokens else None

    def _admissible(self) -> PipedRequest | None:
        if not self._queue:
            return None
        head = self._queue[0]
        return head if self._held_tokens + head.isl + head.osl <= self.kv_tokens else None

    def _send(self, batch: MicroBatch, now_s: float) -> None:
        """Through all stages: into a stage when it is free and the one above has passed the batch on."""
        whole_s = self.cost.price(_load(batch))
        ready_s = now_s
        for stage in range(self.pipeline.n_stages):
            entered_s = max(ready_s, self._free_at_s[stage])
            left_s = entered_s + self.pipeline.stage_s(whole_s, stage)
            batch.entered_s.append(entered_s)
            batch.left_s.append(left_s)
            self._free_at_s[stage] = left_s
            ready_s = left_s + self.pipeline.p2p_s(batch.n_tokens)

    def _collect(self, slot: _Slot) -> None:
        """Take what a batch brought: tokens, requests that now decode, requests that are done."""
        batch = slot.batch
        assert batch is not None
        slot.batch = None
        at_s = batch.left_s[-1]
        for request, n, start in batch.chunks:
            if start + n == request.isl:
                request.token_at_s.append(at_s)
                slot.running.append(request)
        for request in batch.decodes:
            request.computed += 1
            request.token_at_s.append(at_s)
        ended = [request for request in slot.running if len(request.token_at_s) >= request.osl]
        if ended:
            slot.running = [request for request in slot.running if len(request.token_at_s) < request.osl]
            self._held_tokens -= sum(request.isl + request.osl for request in ended)


def _load(batch: MicroBatch) -> StepLoad:
    return StepLoad(
        chunks=tuple((n, start, start + n == request.isl) for request, n, start in batch.chunks),
        n_decodes=len(batch.decodes),
        decode_tokens=len(batch.decodes),
        decode_context=sum(request.computed + 1 for request in batch.decodes),
    )
