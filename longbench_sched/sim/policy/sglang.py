"""SGLang (as of 0.5.23): prefill first.

In every iteration the scheduler tries to build a batch of prompts and runs it alone; only when there is none do the running
sequences decode. So while prompts that can be admitted keep arriving, nobody's tokens advance: the gap between two tokens is as
long as the backlog, not as one chunk. At most one prompt is in progress (`chunked`); it takes the first `chunked_prefill_size`
tokens of the next batch.

Admission keeps room for part of what running sequences may still generate, `new_token_ratio` of it. The ratio falls with every
decode step and rises when memory ran out: then the sequences that generated least are retracted to the end of the queue.

With `enable_mixed_chunk` the running decodes ride in the prefill batch. Not modelled: the radix cache, priorities, other
policies than first come first served, pipeline stages.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace

from longbench_sched.sim.hardware import Gpu
from longbench_sched.sim.state import RELEASE, Chunk, SchedulerState, Sequence, StepPlan

CLIP_MAX_NEW_TOKENS = 4096  # how far into the future of a sequence admission looks
INIT_NEW_TOKEN_RATIO = 0.7
MIN_RATIO_FACTOR = 0.14
DECAY_STEPS = 600
RETRACT_DECODE_STEPS = 20


@dataclass(frozen=True, slots=True)
class SglangOptions:
    """Flags of `sglang.launch_server`, by their own names; None is resolved by GPU memory."""

    chunked_prefill_size: int | None = None  # -1: no chunking
    max_prefill_tokens: int = 16384
    max_running_requests: int | None = None
    context_length: int | None = None
    enable_mixed_chunk: bool = False
    schedule_conservativeness: float = 1.0
    mem_fraction_static: float | None = None
    page_size: int = 1
    enable_metrics: bool = False

    def resolved(self, gpu: Gpu, model_context: int) -> SglangOptions:
        """The same with every default decided; `max_running_requests` when the KV capacity is known, by `max_running`."""
        gib = gpu.memory_gib
        chunk = self.chunked_prefill_size or (2048 if gib < 20 else 4096 if gib < 60 else 8192 if gib < 160 else 16384)
        reserved_gib = max(0.5 + 1.5 * max(chunk, 2048) / 1024, 10.0 if gib >= 60 else 0.0)
        return replace(
            self,
            chunked_prefill_size=chunk,
            context_length=self.context_length or model_context,
            mem_fraction_static=self.mem_fraction_static or round((gib - reserved_gib) / gib, 3),
        )

    def max_running(self, kv_tokens: int) -> int:
        """Places: min(tokens / 2, tokens / context x 512 within 2048..4096) unless set."""
        per_context = kv_tokens / (self.context_length or 1) * 512
        return self.max_running_requests or max(1, int(min(kv_tokens / 2, max(2048.0, min(per_context, 4096.0)))))


@dataclass(frozen=True, slots=True)
class SglangNote:
    """What the scheduler remembers between iterations."""

    ratio: float
    chunked: Sequence | None = None
    is_full: bool = False
    n_departures: int = 0  # when it was found full: a departure since then makes room


@dataclass(slots=True)
class Sglang:
    """The scheduler. `options` are resolved."""

    options: SglangOptions

    @property
    def init_ratio(self) -> float:
        """The ratio at rest."""
        return min(INIT_NEW_TOKEN_RATIO * self.options.schedule_conservativeness, 1.0)

    @property
    def min_ratio(self) -> float:
        """Where the decay ends."""
        return self.init_ratio * MIN_RATIO_FACTOR

    def refusal(self, isl: int, max_new: int) -> str | None:
        """Nothing is refused beyond the context length, which the server checks."""
        return None

    def schedule(self, state: SchedulerState, now_s: float) -> StepPlan:
        """A prefill batch if there can be one, else one decode of everybody, else nothing."""
        note = state.note
        if not isinstance(note, SglangNote):
            note = SglangNote(self.init_ratio)
        if not state.running and not state.waiting:
            return StepPlan(note=SglangNote(self.init_ratio))
        chunked = note.chunked if note.chunked and note.chunked.finish is None and note.chunked.left_to_compute else None
        is_full = note.is_full and state.n_departures == note.n_departures and chunked is None and bool(state.running)
        note = replace(note, chunked=chunked, is_full=is_full)
        plan = self._prefill(state, note)
        return plan if plan.chunks else self._decode(state, plan)

    def _prefill(self, state: SchedulerState, note: SglangNote) -> StepPlan:
        options, kv = self.options, state.kv
        decoding = [sequence for sequence in state.running if sequence is not note.chunked]
        plan = StepPlan(note=note)
        places = options.max_running(kv.total * kv.block_tokens) - len(state.running)
        if note.chunked is None and (note.is_full or not state.waiting or places <= 0):
            return plan
        chunk_left = options.chunked_prefill_size or -1
        has_chunks = chunk_left > 0
        input_left = options.max_prefill_tokens
        if options.enable_mixed_chunk:
            input_left -= len(decoding)
            chunk_left -= len(decoding)
        # A sequence holds what it will compute in this step; what it may generate is only reckoned with.
        room = kv.free * kv.block_tokens - sum(self._reserve(sequence, note.ratio) for sequence in decoding)
        chunked = note.chunked
        if chunked is not None:
            n = min(chunked.left_to_compute, chunk_left) if has_chunks else chunked.left_to_compute
            if n <= 0:
                return plan
            n = _take(plan, state, chunked, n)
            if n <= 0:  # no memory: the others decode first, and end or are retracted
                return plan
            room -= n
            if n == chunked.left_to_compute:
                room -= min(chunked.max_new - chunked.generated, CLIP_MAX_NEW_TOKENS)
                chunked = None
            chunk_left -= n
            input_left -= n
        is_full = False
        for sequence in state.waiting:
            if places <= 0 or input_left <= 0 or (has_chunks and chunk_left <= 0) or chunked is not None:
                break
            extend = sequence.length
            need = extend + min(sequence.max_new - sequence.generated, CLIP_MAX_NEW_TOKENS) + options.page_size
            # Alone, a request runs whatever it may still generate: waiting would not make more room.
            is_alone = not state.running and not plan.chunks and extend < kv.free * kv.block_tokens
            if need >= room and not is_alone:
                is_full = True
                break
            if not has_chunks and plan.chunks and extend > input_left:
                break
            n = min(extend, chunk_left) if has_chunks else extend
            if n < extend:
                n -= n % options.page_size
                if n <= 0:
                    break
                chunked = sequence
            plan.admitted.append(sequence)
            _take(plan, state, sequence, n)
            places -= 1
            chunk_left -= n
            input_left -= n
            room -= n if n < extend else need
        # The mark sits on the running batch: set while nothing runs, it is lost when this prefill takes that batch's place.
        plan.note = SglangNote(note.ratio, chunked, is_full and bool(decoding), state.n_departures)
        if options.enable_mixed_chunk and plan.chunks and decoding:
            self._mix_in(state, plan, decoding)
        return plan

    def _reserve(self, sequence: Sequence, ratio: float) -> float:
        left = min(sequence.max_new - sequence.generated, CLIP_MAX_NEW_TOKENS)
        return left * (1.0 if sequence.runs_to_length else ratio)

    def _mix_in(self, state: SchedulerState, plan: StepPlan, decoding: SequenceOf[Sequence]) -> None:
        """Let the running decodes ride along if there is memory for all of them; else they sit this step out."""
        free = state.kv.free - sum(n for _, n in plan.blocks)
        growth = _growth(state, decoding)
        if sum(n for _, n in growth) <= free:
            plan.blocks += growth
            plan.decodes += decoding

    def _decode(self, state: SchedulerState, plan: StepPlan) -> StepPlan:
        note = plan.note
        assert isinstance(note, SglangNote)
        batch = [sequence for sequence in state.running if sequence is not note.chunked]
        if not batch:
            return plan
        growth = _growth(state, batch)
        free = state.kv.free
        if sum(n for _, n in growth) <= free:
            decay = (self.init_ratio - self.min_ratio) / DECAY_STEPS
            note = replace(note, ratio=max(note.ratio - decay, self.min_ratio))
            return StepPlan(decodes=batch, blocks=growth, note=note)
        # Front: most generated, then shortest prompt. Dropped from the back until the next step fits; one always stays.
        batch.sort(key=lambda sequence: (-sequence.generated, sequence.isl))
        retracted: list[Sequence] = []
        while len(batch) > 1 and (not retracted or sum(n for _, n in _growth(state, batch)) > free):
            victim = batch.pop()
            free += victim.blocks
            retracted.append(victim)
        generated = sum(sequence.generated for sequence in batch)
        max_new = sum(sequence.max_new for sequence in batch)
        ratio = min(1.0, (generated + RETRACT_DECODE_STEPS * len(batch)) / max(max_new, 1))
        staying = set(map(id, batch))
        decodes = [sequence for sequence in state.running if id(sequence) in staying]
        note = replace(note, ratio=max(ratio, self.min_ratio), is_full=False)
        blocks = [(victim, RELEASE) for victim in retracted] + _growth(state, decodes)
        return StepPlan(decodes=decodes, blocks=blocks, preempted=retracted, preempted_to_tail=True, note=note)


def _take(plan: StepPlan, state: SchedulerState, sequence: Sequence, n: int) -> int:
    """Put a chunk of `n` tokens into the plan, or as many as there is memory for."""
    kv = state.kv
    free = kv.free - sum(n for _, n in plan.blocks)
    n = min(n, (free + sequence.blocks) * kv.block_tokens - sequence.computed)
    if n <= 0:
        return 0
    blocks = kv.blocks_for(sequence.computed + n) - sequence.blocks
    if blocks > 0:
        plan.blocks.append((sequence, blocks))
    plan.chunks.append(Chunk(sequence, n, sequence.computed))
    return n


def _growth(state: SchedulerState, batch: SequenceOf[Sequence]) -> list[tuple[Sequence, int]]:
    """Blocks that one more token each takes."""
    size = state.kv.block_tokens
    return [(sequence, 1) for sequence in batch if sequence.computed + 1 > sequence.blocks * size]
