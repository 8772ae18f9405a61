"""vLLM V0 as of 0.7.2: prompts before decodes, or, chunked, decodes before prompts.

Without chunking, the default up to a context of 32,768, a step is prefill only or decode only. As long as the head of the queue
can be admitted, its whole prompt runs and no decode advances. Only then does every running sequence get a token; when a block
is missing, the last of them starts again at the head of the queue.

With chunking, the default beyond 32,768 (but not under speculation), running sequences come first: a decode takes a token, a
prompt in progress what is left of the budget of 2,048. All blocks of a prompt are taken at its admission either way, and 1 % of
all blocks must be free after it. The engine loop works in step with the GPU: price it with a host that does not overlap.

Not modelled: swapping, the delay factor, prefix caching (off by default), several scheduler steps at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from longbench_sched.errors import UsageError
from longbench_sched.sim.hardware import Gpu
from longbench_sched.sim.ledger import Ledger
from longbench_sched.sim.models import KvCacheDtype, Quantization
from longbench_sched.sim.policy.lacks import lacking
from longbench_sched.sim.policy.recompute import admit, decode_all, fill_with_prompts
from longbench_sched.sim.state import SchedulerState
from longbench_sched.sim.step import StepPlan

CHUNKED_BEYOND = 32_768  # tokens of context, strictly
CHUNKED_BUDGET = 2048


@dataclass(frozen=True, slots=True)
class VllmV0Options:
    """Flags of `vllm serve` 0.7.2, by their own names."""

    lacks: ClassVar[Mapping[str, str]] = lacking(
        cache="prefix caching of vLLM 0.7.2 is off by default and not played here. Give --engine vllm.",
        stages="pipeline stages of vLLM 0.7.2 are not played here. Give --engine vllm.",
    )

    max_num_batched_tokens: int | None = None
    max_num_seqs: int = 256
    max_model_len: int | None = None
    enable_chunked_prefill: bool | None = None
    gpu_memory_utilization: float = 0.90
    block_size: int = 16
    num_speculative_tokens: int = 0
    quantization: Quantization = ""  # of weights that are bf16
    kv_cache_dtype: KvCacheDtype = "auto"
    tensor_parallel_size: int = 1

    def resolved(self, gpu: Gpu, model_context: int) -> VllmV0Options:
        """The same with every default decided.

        Chunked if the context is above 32,768 and nothing is drafted; then 2,048 tokens a step, else as many as the context.
        Raises UsageError for a budget that cannot hold a prompt which may not be cut.
        """
        context = self.max_model_len or model_context
        is_chunked = self.enable_chunked_prefill
        if is_chunked is None:
            is_chunked = context > CHUNKED_BEYOND and not self.num_speculative_tokens
        budget = self.max_num_batched_tokens or (CHUNKED_BUDGET if is_chunked else max(context, 2048))
        if budget < context and not is_chunked:
            raise UsageError(
                f"max_num_batched_tokens ({budget}) is smaller than max_model_len ({context}) and prompts are not chunked.\n"
                "  Raise --max-num-batched-tokens, lower --max-model-len, or give --enable-chunked-prefill."
            )
        if budget < self.max_num_seqs:
            raise UsageError(
                f"max_num_batched_tokens ({budget}) is smaller than max_num_seqs ({self.max_num_seqs}): raise the one or lower "
                "the other."
            )
        return replace(self, max_num_batched_tokens=budget, max_model_len=context, enable_chunked_prefill=is_chunked)

    @property
    def step_tokens(self) -> int:
        """Tokens of the largest step, for which memory is kept."""
        return self.max_num_batched_tokens or 0


@dataclass(slots=True)
class VllmV0:
    """The scheduler. `options` are resolved."""

    options: VllmV0Options

    def refusal(self, isl: int, max_new: int) -> str | None:
        """Nothing is refused beyond the context length, which the server checks."""
        return None

    def schedule(self, state: SchedulerState, now_s: float) -> StepPlan:
        """One step of the loop that is switched on."""
        plan = StepPlan()
        ledger = Ledger(state.kv, plan)
        try:
            if self.options.enable_chunked_prefill:
                self._chunked(state, plan, ledger)
            else:
                self._prefill_first(state, plan, ledger)
        finally:
            ledger.close()
        plan.is_steady = not (plan.chunks or plan.verifies or plan.preempted) and len(plan.decodes) == len(state.running)
        return plan

    def _prefill_first(self, state: SchedulerState, plan: StepPlan, ledger: Ledger) -> None:
        budget = self.options.max_num_batched_tokens or 0
        for sequence in state.waiting:
            if sequence.length > budget or not admit(state, plan, ledger, sequence, sequence.length, self.options.max_num_seqs):
                break
            budget -= sequence.length
        if not plan.chunks:
            decode_all(plan, ledger, state.running, state.running, self.options.num_speculative_tokens)

    def _chunked(self, state: SchedulerState, plan: StepPlan, ledger: Ledger) -> None:
        budget = self.options.max_num_batched_tokens or 0
        decoding = [sequence for sequence in state.running if not sequence.is_partial]
        k = self.options.num_speculative_tokens
        out = decode_all(plan, ledger, state.running, decoding[: budget // (1 + k)], k)
        fill_with_prompts(state, plan, ledger, out, budget - plan.n_tokens, self.options.max_num_seqs)
