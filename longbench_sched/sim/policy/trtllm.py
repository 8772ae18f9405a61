"""TensorRT-LLM: first who may run (capacity), then how many tokens (micro-batch).

Capacity, by `capacity_scheduler_policy`:

GUARANTEED_NO_EVICT  a request is admitted only if the blocks that it and everyone before it need *to completion* fit; the queue
                     stops at the first that does not. Nothing is ever evicted.
MAX_UTILIZATION      a request runs if its blocks for *this* step fit; else the last of those started is paused, to be computed
                     again, and paused requests are the first to come back.
STATIC_BATCH         as the first, but the queue is looked at only when nothing runs.

The micro-batch scheduler then walks the fitting requests in order: a generating one costs one token and its drafts, a prompt
itself. Without chunked context, the default, a prompt that does not fit into what is left of `max_num_tokens` ends the walk,
and one longer than `max_num_tokens` can never run. With it, prompts share what generation left, each a multiple of the block
unless it is the last piece: first come first served, or one block after another in turn (EQUAL_PROGRESS).

With block reuse a prompt whose next block is just being computed by another waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
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
        """Everyone who runs, and of the queue those whose blocks to completion fit."""
        kv, options = state.kv, self.options
        left = kv.free
        generating: list[Sequence] = []
        contexts: list[_Fit] = []
        for sequence in state.running:
            left -= kv.blocks_for(sequence.max_length + self._k) - sequence.blocks
            if not sequence.left_to_compute:
                continue  # its token is on its way through pipeline stages
            if _is_generating(sequence):
                generating.append(sequence)
            else:
                contexts.append(_Fit(sequence, sequence.computed))
        n = len(state.running)
        places = options.max_batch_size * options.pp_size  # a batch for every micro-batch that is on its way
        may_join = options.capacity_scheduler_policy != "STATIC_BATCH" or not state.running
        if state.waiting and may_join and n < places:
            contexts += self._fitting(state, ledger, left, places - n, contexts)
        self._micro_batch(state, plan, ledger, generating, contexts)

    def _fitting(self, state: SchedulerState, ledger: Ledger, left: int, places: int, before: list[_Fit]) -> Iterator[_Fit]:
        kv = state.kv
        being_computed = {self._next_block(fit.sequence, fit.start) for fit in before}
        for sequence in state.waiting:
            if places <= 0:
                return
            found = ledger.find(sequence)
            hit = found[-1][2] if found else 0
            block = self._next_block(sequence, hit * kv.block_tokens)
            if block is not None and block in being_computed:
                continue  # it will find this block in the next iteration
            needed = kv.blocks_for(sequence.max_length + self._k) - hit + ledger.n_idle(found)
            if needed > left:
                return
            left -= needed
            places -= 1
            being_computed.add(block)
            yield _Fit(sequence, hit * kv.block_tokens, found)

    def _next_block(self, sequence: Sequence, start: int) -> Content | None:
        """The first block of a prompt that is yet to be computed, with all before it; None if that is of no use to others."""
        end = start + self.options.tokens_per_block
        if not self.options.enable_block_reuse or sequence.content is None or end > sequence.isl:
            return None
        return first(sequence.content, end)

    def _by_step(self, state: SchedulerState, plan: StepPlan, ledger: Ledger) -> None:
        """Everyone whose blocks for this step fit; whoever came last of those started makes room for those before."""
        # One list in order of arrival: a short prompt may have been started before one that came earlier.
        active = (*(sequence for sequence in state.running if sequence.left_to_compute), *state.waiting)
        order = sorted(active, key=attrgetter("id"))
        generating: list[Sequence] = []
        contexts: list[_Fit] = []
        reserved = i = 0
        end = len(order)
        while i < end and len(generating) + len(contexts) < self.options.max_batch_size:
            sequence = order[i]
            fit = _Fit(sequence, sequence.computed)
            if not sequence.is_running:
                fit.found = ledger.find(sequence)
                fit.start = (fit.found[-1][2] if fit.found else 0) * state.kv.block_tokens
            needed = self._blocks_of_step(state, fit) + ledger.n_idle(fit.found)
            if needed <= ledger.free - reserved:
                reserved += needed
                i += 1
                if _is_generating(sequence):
                    generating.append(sequence)
                else:
                    contexts.append(fit)
                continue
            started = [j for j in range(i, end) if order[j].is_running and not order[j].n_piped]
            if not started:
                break
            end = started[-1]
            ledger.release(order[end])
            plan.preempted.append(order[end])
        self._micro_batch(state, plan, ledger, generating, contexts)

    def _blocks_of_step(self, state: SchedulerState, fit: _Fit) -> int:
        """Blocks that a request may take in this step."""
        sequence, kv = fit.sequence, state.kv
        held = sequence.blocks if sequence.is_running else fit.start // kv.block_tokens
        if _is_generating(sequence):
            return max(kv.blocks_for(sequence.computed + 1 + self._k) - held, 0)
        n = sequence.length - fit.start
        if self.options.enable_chunked_prefill:
            n = min(n, self.options.max_num_tokens)
        return max(kv.blocks_for(fit.start + n) - held, 0)

    # -- micro-batch

    @property
    def _k(self) -> int:
        return self.options.num_speculative_tokens

    def _micro_batch(
        self, state: SchedulerState, plan: StepPlan, ledger: Ledger, generating: list[Sequence], contexts: list[_Fit]
    ) -> None:
        """Tokens for those that fit: generation first, then prompts."""
        budget = self.options.max_num_tokens
        running = generating[: min(budget // (1 + self._k), self.options.max_batch_size)]
        contexts = contexts[: self.options.max_batch_size - len(running)]
        budget -= len(running) * (1 + self._k)
        if not self.options.enable_chunked_prefill:
            self._whole(contexts, budget)
        elif sum(fit.left for fit in contexts) <= budget:
            for fit in contexts:
                fit.n = fit.left
        elif self.options.context_chunking_policy == "EQUAL_PROGRESS":
            self._in_turn(contexts, budget)
        else:
            self._first_come(contexts, budget)
        chosen = [fit for fit in contexts if fit.n]
        # What is found is taken first: blocks taken after it cannot push it out.
        for fit in chosen:
            plan.chunks.append(Chunk(fit.sequence, fit.n, fit.start))
            if not fit.sequence.is_running:
                ledger.admit(fit.sequence, fit.start, 0)
        for fit in chosen:
            held = fit.sequence.blocks if fit.sequence.is_running else fit.start // state.kv.block_tokens
            self._grow(state, ledger, fit.sequence, fit.start + fit.n, held)
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

    def _whole(self, contexts: list[_Fit], budget: int) -> None:
        """Whole prompts, in order, stopping at the first that does not fit."""
        for i, fit in enumerate(contexts):
            n = fit.left
            # A paused request may have outgrown the step with what it had generated: it then runs alone.
            is_outgrown = i == 0 and n > self.options.max_num_tokens and fit.sequence.generated > 0
            if n > budget and not is_outgrown:
                return
            fit.n = n
            budget -= n

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


def _is_generating(sequence: Sequence) -> bool:
    """Whether a token is all that is missing of a running sequence."""
    return sequence.is_running and sequence.generated > 0 and sequence.left_to_compute == 1 and not sequence.is_partial
