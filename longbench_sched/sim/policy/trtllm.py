"""TensorRT-LLM: first who may run (capacity), then how many tokens (micro-batch).

Capacity, by `capacity_scheduler_policy`:

GUARANTEED_NO_EVICT  a request is admitted only if the blocks that it and everyone before it need *to completion* fit; the queue
                     stops at the first that does not. Nothing is ever evicted.
MAX_UTILIZATION      a request runs if its blocks for *this* step fit; else the last of those started is paused, to be computed
                     again, and paused requests are the first to come back.
STATIC_BATCH         as the first, but prompts are looked at only when nobody generates.

The micro-batch scheduler then walks the fitting requests: to completion, those who generate and then the prompts, in progress
or new, as they came; by utilization, all of them as they came. A generating one costs one token and its drafts, a prompt
itself. Without chunked context, the default, a prompt that does not fit into what is left of `max_num_tokens` ends the walk,
and one longer than `max_num_tokens` can never run. With it, prompts share what generation left, each a multiple of the block
unless it is the last piece: first come first served, or one block after another in turn (EQUAL_PROGRESS).

All blocks of a prompt are taken when it is started. With block reuse a prompt whose next block is just being computed by
another waits for it.

Read in the repository's C++ (`capacityScheduler.cpp`, `microBatchScheduler.cpp`, `allocateKvCache.cpp` of 2025 and 2026).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import ClassVar, Literal

from longbench_sched.errors import UsageError
from longbench_sched.sim.content import Content, first
from longbench_sched.sim.hardware import Gpu
from longbench_sched.sim.ledger import Found, Ledger
from longbench_sched.sim.models import KvCacheDtype
from longbench_sched.sim.state import SchedulerState
from longbench_sched.sim.step import Chunk, Sequence, StepPlan, Verify

_CAPACITY = ("GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH")
_CHUNKING = ("FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS")


@dataclass(frozen=True, slots=True)
class TrtllmOptions:
    """Options of `trtllm-serve` and its YAML, by their own names."""

    lacks: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"quantization": "TensorRT-LLM takes what the checkpoint is. Give --model NAME-FP8, or a config.json that says so."}
    )

    max_num_tokens: int = 8192
    max_batch_size: int = 2048
    max_seq_len: int | None = None
    enable_chunked_prefill: bool = False
    kv_cache_free_gpu_memory_fraction: float = 0.9
    tokens_per_block: int = 32
    enable_iter_perf_stats: bool = False
    capacity_scheduler_policy: Literal["GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH"] = "GUARANTEED_NO_EVICT"
    context_chunking_policy: Literal["FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS"] = "FIRST_COME_FIRST_SERVED"
    enable_block_reuse: bool = True
    num_speculative_tokens: int = 0  # `max_draft_len` of the speculative config
    kv_cache_dtype: KvCacheDtype = "auto"
    tp_size: int = 1
    pp_size: int = 1

    def resolved(self, gpu: Gpu, model_context: int) -> TrtllmOptions:
        """The same with every default decided. Raises UsageError for a policy that it does not have, and no room for drafts."""
        for flag, value, known in (
            ("capacity_scheduler_policy", self.capacity_scheduler_policy, _CAPACITY),
            ("context_chunking_policy", self.context_chunking_policy, _CHUNKING),
        ):
            if value not in known:
                raise UsageError(f"--{flag} {value!r} is not known. Known: {', '.join(known)}.")
        if self.num_speculative_tokens >= self.max_num_tokens:
            raise UsageError(
                f"max_num_tokens ({self.max_num_tokens}) holds no verification of num_speculative_tokens "
                f"({self.num_speculative_tokens}) and a token more. Raise the one or lower the other."
            )
        return replace(self, max_seq_len=self.max_seq_len or model_context)


@dataclass(slots=True)
class _Fit:
    """A prompt that capacity lets run: what of it is found, and how much is to be computed."""

    sequence: Sequence
    start: int
    found: Found = field(default_factory=list)
    n: int = 0

    @property
    def left(self) -> int:
        return self.sequence.length - self.start - self.n


@dataclass(slots=True)
class Trtllm:
    """The scheduler. `options` are resolved."""

    options: TrtllmOptions

    def refusal(self, isl: int, max_new: int) -> str | None:
        """A prompt longer than a step, unless prompts are chunked (T-6: refused, not truncated)."""
        if isl > self.options.max_num_tokens and not self.options.enable_chunked_prefill:
            return (
                f"The sum of prompt length ({isl}) and query length should not exceed max_num_tokens "
                f"({self.options.max_num_tokens}): set enable_chunked_prefill, or raise max_num_tokens."
            )
        if isl > self.options.max_num_tokens < self.options.tokens_per_block:
            return (
                f"A prompt of {isl} tokens is computed in whole blocks of {self.options.tokens_per_block}, but a step has "
                f"max_num_tokens ({self.options.max_num_tokens}): raise it to a block at least."
            )
        return None

    def schedule(self, state: SchedulerState, now_s: float) -> StepPlan:
        """One iteration: capacity, then micro-batch."""
        plan = StepPlan()
        ledger = Ledger(state.kv, plan)
        try:
            if self.options.capacity_scheduler_policy == "MAX_UTILIZATION":
                self._by_step(state, plan, ledger)
            else:
                self._to_completion(state, plan, ledger)
        finally:
            ledger.close()
        plan.is_steady = not (plan.chunks or plan.verifies or plan.preempted) and len(plan.decodes) == len(state.running)
        return plan

    # -- capacity

    def _to_completion(self, state: SchedulerState, plan: StepPlan, ledger: Ledger) -> None:
        """Everyone who runs, and of the queue those whose end fits: who generates, then prompts as they came."""
        kv, options = state.kv, self.options
        is_static = options.capacity_scheduler_policy == "STATIC_BATCH"
        left = kv.free
        generating: list[_Fit] = []
        contexts: list[_Fit] = []
        is_any_generating = False
        for sequence in sorted(state.running, key=_arrival):
            left -= kv.blocks_for(sequence.max_length + self._k) - sequence.blocks
            if not sequence.left_to_compute:
                is_any_generating = True
                continue  # its token is on its way through pipeline stages
            if _is_generating(sequence):
                is_any_generating = True
                generating.append(_Fit(sequence, sequence.computed))
            else:
                contexts.append(_Fit(sequence, sequence.computed))
        places = self._places - len(state.running)
        if is_static and is_any_generating:
            contexts = []  # prompts in progress wait as well
        elif state.waiting and places > 0:
            contributed = None if is_static else self._contributed(fit.sequence for fit in contexts)
            contexts += self._fitting(state, ledger, left, places, contributed)
            contexts.sort(key=_arrival_of)
        self._micro_batch(state, plan, ledger, generating + contexts)

    def _fitting(
        self, state: SchedulerState, ledger: Ledger, left: int, places: int, contributed: set[Content] | None
    ) -> Iterator[_Fit]:
        """Of the queue. `contributed`: the blocks that are worth waiting for; None: nobody waits for any."""
        kv = state.kv
        for sequence in state.waiting:
            if places <= 0:
                return
            fit = self._new_fit(state, ledger, sequence)
            if contributed is not None and self._waits_for_block(fit, contributed):
                continue
            needed = kv.blocks_for(sequence.max_length + self._k) - fit.start // kv.block_tokens + ledger.n_idle(fit.found)
            if needed > left:
                return
            left -= needed
            places -= 1
            yield fit

    @property
    def _places(self) -> int:
        """Requests that are started at once: a batch for every micro-batch that is on its way."""
        return self.options.max_batch_size * self.options.pp_size

    @staticmethod
    def _new_fit(state: SchedulerState, ledger: Ledger, sequence: Sequence) -> _Fit:
        found = ledger.find(sequence)
        return _Fit(sequence, (found[-1][2] if found else 0) * state.kv.block_tokens, found)

    def _contributed(self, started: Iterable[Sequence]) -> set[Content]:
        """The blocks that prompts in progress compute next."""
        blocks = (self._next_block(sequence, sequence.computed) for sequence in started if not _is_generating(sequence))
        return {block for block in blocks if block is not None}

    def _waits_for_block(self, fit: _Fit, contributed: set[Content]) -> bool:
        """Whether a new prompt's next block is just being computed by another: it finds it in the next iteration."""
        block = self._next_block(fit.sequence, fit.start)
        if block is None:
            return False
        if block in contributed:
            return True
        contributed.add(block)
        return False

    def _next_block(self, sequence: Sequence, start: int) -> Content | None:
        """The first block of a prompt that is yet to be computed, with all before it; None if that is of no use to others."""
        end = start + self.options.tokens_per_block
        if not self.options.enable_block_reuse or sequence.content is None or end > sequence.isl:
            return None
        return first(sequence.content, end)

    def _by_step(self, state: SchedulerState, plan: StepPlan, ledger: Ledger) -> None:
        """Everyone whose blocks for this step fit; whoever came last of those started makes room for those before."""
        # One list in order of arrival: a short prompt may have been started before one that came earlier.
        active = [sequence for sequence in state.running if sequence.left_to_compute]
        places = self._places - (len(state.running) - len(active))
        contributed = self._contributed(active)
        order = sorted((*active, *state.waiting), key=_arrival)
        fits: list[_Fit] = []
        reserved = i = 0
        asked = -1  # whether it waits is asked once, not again when another was paused for it
        end = len(order)
        while i < end:
            sequence = order[i]
            fit = _Fit(sequence, sequence.computed) if sequence.is_running else self._new_fit(state, ledger, sequence)
            if not sequence.is_running and i != asked and self._waits_for_block(fit, contributed):
                i += 1
                continue
            asked = i
            needed = self._blocks_of_step(state, fit) + ledger.n_idle(fit.found)
            if len(fits) < places and needed <= ledger.free - reserved:
                reserved += needed
                i += 1
                fits.append(fit)
                continue
            started = [j for j in range(i, end) if order[j].is_running and not order[j].n_piped]
            if not started:
                break
            end = started[-1]
            ledger.release(order[end])
            plan.preempted.append(order[end])
        self._micro_batch(state, plan, ledger, fits)

    def _blocks_of_step(self, state: SchedulerState, fit: _Fit) -> int:
        """Blocks that a request may take in this step: those of its whole prompt when it is started."""
        sequence, kv = fit.sequence, state.kv
        held = sequence.blocks if sequence.is_running else fit.start // kv.block_tokens
        end = sequence.computed + 1 + self._k if _is_generating(sequence) else sequence.length
        return max(kv.blocks_for(end) - held, 0)

    # -- micro-batch

    @property
    def _k(self) -> int:
        return self.options.num_speculative_tokens

    def _micro_batch(self, state: SchedulerState, plan: StepPlan, ledger: Ledger, fits: list[_Fit]) -> None:
        """Tokens for those that fit, in their order; prompts that may be cut share what generation leaves."""
        budget, cost = self.options.max_num_tokens, 1 + self._k
        running: list[Sequence] = []
        contexts: list[_Fit] = []
        for fit in fits[: self.options.max_batch_size]:
            if _is_generating(fit.sequence):
                if cost > budget:
                    break
                running.append(fit.sequence)
                budget -= cost
                continue
            if not self.options.enable_chunked_prefill:
                # A paused request may have outgrown the step with what it had generated: it then runs alone.
                is_outgrown = not contexts and fit.left > self.options.max_num_tokens and fit.sequence.generated > 0
                if fit.left > budget and not is_outgrown:
                    break
                fit.n = fit.left
                budget -= fit.n
            contexts.append(fit)
        if self.options.enable_chunked_prefill:
            self._cut(contexts, budget)
        chosen = [fit for fit in contexts if fit.n]
        # What is found is taken first: blocks taken after it cannot push it out.
        for fit in chosen:
            plan.chunks.append(Chunk(fit.sequence, fit.n, fit.start))
            if not fit.sequence.is_running:
                ledger.admit(fit.sequence, fit.start, 0)
        for fit in chosen:
            if not fit.sequence.is_running:
                self._grow(state, ledger, fit.sequence, fit.sequence.length, fit.start // state.kv.block_tokens)
        for sequence in running:
            self._grow(state, ledger, sequence, sequence.computed + 1 + self._k, sequence.blocks)
        if self._k:
            plan.verifies = [Verify(sequence, self._k, 1 + self._k) for sequence in running]
        else:
            plan.decodes = running

    @staticmethod
    def _grow(state: SchedulerState, ledger: Ledger, sequence: Sequence, tokens: int, held: int) -> None:
        n = state.kv.blocks_for(tokens) - held
        if n > 0:
            ledger.grow(sequence, n)

    def _cut(self, contexts: list[_Fit], budget: int) -> None:
        """Pieces of prompts that do not all fit."""
        if sum(fit.left for fit in contexts) <= budget:
            for fit in contexts:
                fit.n = fit.left
        elif self.options.context_chunking_policy == "EQUAL_PROGRESS":
            self._in_turn(contexts, budget)
        else:
            self._first_come(contexts, budget)

    def _first_come(self, contexts: list[_Fit], budget: int) -> None:
        """In order; whole blocks unless it is the last piece. What is less than a block is left for a short one behind."""
        unit = self.options.tokens_per_block
        for fit in contexts:
            n = min(fit.left, budget)
            if n < fit.left:
                n -= n % unit
            fit.n = n
            budget -= n

    def _in_turn(self, contexts: list[_Fit], budget: int) -> None:
        """One block each, again and again."""
        unit = self.options.tokens_per_block
        is_moving = True
        while is_moving:
            is_moving = False
            for fit in contexts:
                n = min(fit.left, unit)
                if 0 < n <= budget:
                    fit.n += n
                    budget -= n
                    is_moving = True


def _arrival(sequence: Sequence) -> int:
    return sequence.id


def _arrival_of(fit: _Fit) -> int:
    return fit.sequence.id


def _is_generating(sequence: Sequence) -> bool:
    """Whether a token is all that is missing of a running sequence."""
    return sequence.is_running and sequence.generated > 0 and sequence.left_to_compute == 1 and not sequence.is_partial
