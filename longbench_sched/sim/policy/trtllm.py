"""TensorRT-LLM: first who may run, then how many tokens.

The capacity scheduler GUARANTEED_NO_EVICT admits a request only if the blocks that it and everyone before it need *to
completion* fit: nothing is ever evicted, and the queue stops at the first that does not fit. The micro-batch scheduler then
walks the fitting requests in order of arrival: a generating one costs one token, a prompt costs itself. Without chunked
context, the default, a prompt that does not fit into what is left of `max_num_tokens` ends the walk, and one longer than
`max_num_tokens` can never run. With it, prompts share what generation left, each a multiple of the block size unless it is
the last piece.

Not modelled: MAX_UTILIZATION, STATIC_BATCH, EQUAL_PROGRESS, block reuse, drafts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from longbench_sched.sim.hardware import Gpu
from longbench_sched.sim.state import Chunk, SchedulerState, Sequence, StepPlan


@dataclass(frozen=True, slots=True)
class TrtllmOptions:
    """Options of `trtllm-serve` and its YAML, by their own names."""

    max_num_tokens: int = 8192
    max_batch_size: int = 2048
    max_seq_len: int | None = None
    enable_chunked_prefill: bool = False
    kv_cache_free_gpu_memory_fraction: float = 0.9
    tokens_per_block: int = 32
    enable_iter_perf_stats: bool = False

    def resolved(self, gpu: Gpu, model_context: int) -> TrtllmOptions:
        """The same with every default decided."""
        return replace(self, max_seq_len=self.max_seq_len or model_context)


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
        return None

    def schedule(self, state: SchedulerState, now_s: float) -> StepPlan:
        """One iteration: capacity, then micro-batch."""
        plan = StepPlan()
        contexts = self._fitting_contexts(state)
        budget = self.options.max_num_tokens
        if not self.options.enable_chunked_prefill:
            self._walk(state, plan, contexts, budget)
            return plan
        for sequence in state.running:
            if sequence.generated and budget > 0:
                self._add_decode(state, plan, sequence)
                budget -= 1
        self._share(state, plan, contexts, budget)
        return plan

    def _fitting_contexts(self, state: SchedulerState) -> list[Sequence]:
        """Prompts in progress and waiting ones, in order of arrival, whose blocks to completion fit."""
        kv, options = state.kv, self.options
        left = kv.free
        contexts: list[Sequence] = []
        n = 0
        for sequence in state.running:
            left -= kv.blocks_for(sequence.max_length) - sequence.blocks
            n += 1
            if not sequence.generated:
                contexts.append(sequence)
        for sequence in state.waiting:
            needed = kv.blocks_for(sequence.max_length)
            if needed > left or n >= options.max_batch_size:
                break
            left -= needed
            n += 1
            contexts.append(sequence)
        return contexts

    def _walk(self, state: SchedulerState, plan: StepPlan, contexts: list[Sequence], budget: int) -> None:
        """Whole prompts: in order of arrival, stopping at the first that does not fit into the budget."""
        for sequence in state.running:  # all of them generate: a prompt runs whole in the step that admits it
            if budget <= 0:
                return
            self._add_decode(state, plan, sequence)
            budget -= 1
        for sequence in contexts:
            if sequence.length > budget:
                return
            self._add_chunk(state, plan, sequence, sequence.length)
            budget -= sequence.length

    def _share(self, state: SchedulerState, plan: StepPlan, contexts: list[Sequence], budget: int) -> None:
        """First come, first served: what is left of the budget, in multiples of a block unless it is the last piece."""
        unit = state.kv.block_tokens
        for sequence in contexts:
            n = min(sequence.left_to_compute, budget)
            if n < sequence.left_to_compute:
                n -= n % unit
            if n <= 0:
                return
            self._add_chunk(state, plan, sequence, n)
            budget -= n

    @staticmethod
    def _add_decode(state: SchedulerState, plan: StepPlan, sequence: Sequence) -> None:
        if sequence.computed + 1 > sequence.blocks * state.kv.block_tokens:
            plan.blocks.append((sequence, 1))
        plan.decodes.append(sequence)

    @staticmethod
    def _add_chunk(state: SchedulerState, plan: StepPlan, sequence: Sequence, n: int) -> None:
        if sequence.first_scheduled_s is None:
            plan.admitted.append(sequence)
        blocks = state.kv.blocks_for(sequence.computed + n) - sequence.blocks
        if blocks > 0:
            plan.blocks.append((sequence, blocks))
        plan.chunks.append(Chunk(sequence, n, sequence.computed))
