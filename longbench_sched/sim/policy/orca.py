"""Orca (Yu et al., OSDI 2022): iteration-level scheduling with selective batching.

The batch is put together anew for every iteration: who has ended leaves, who is next in the queue joins, if there is a place
and its maximum (prompt and all it may generate) can be reserved. A new request computes its whole prompt in the iteration that
admits it, beside the others' one token each; so nothing is preempted and every decode advances in every iteration, but an
iteration can last as long as a prompt. All token-wise operations see one flattened batch; attention runs per request, which is
how a step is priced anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from longbench_sched.sim.hardware import Gpu
from longbench_sched.sim.ledger import Ledger
from longbench_sched.sim.models import KvCacheDtype, Quantization
from longbench_sched.sim.policy.lacks import lacking
from longbench_sched.sim.state import SchedulerState
from longbench_sched.sim.step import Chunk, StepPlan


@dataclass(frozen=True, slots=True)
class OrcaOptions:
    """Knobs of Orca."""

    lacks: ClassVar[Mapping[str, str]] = lacking(
        chunks="Orca computes a whole prompt in the iteration that admits it. Give --engine sarathi, for example.",
        cache="Orca keeps nothing of a request that has ended. Give --engine vllm, sglang or trtllm.",
        drafts="Orca decodes token by token. Give --engine vllm, sglang or trtllm.",
    )

    max_batch_size: int = 32  # the paper varies it up to 32
    max_model_len: int | None = None
    gpu_memory_utilization: float = 0.90
    block_size: int = 16
    quantization: Quantization = ""  # of weights that are bf16
    kv_cache_dtype: KvCacheDtype = "auto"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1

    def resolved(self, gpu: Gpu, model_context: int) -> OrcaOptions:
        """The same with every default decided."""
        return replace(self, max_model_len=self.max_model_len or model_context)

    @property
    def max_num_seqs(self) -> int:
        """Places."""
        return self.max_batch_size

    @property
    def step_tokens(self) -> int:
        """Tokens of the largest step for which memory is kept: one whole prompt."""
        return self.max_model_len or 0


@dataclass(slots=True)
class Orca:
    """The scheduler. `options` are resolved."""

    options: OrcaOptions

    def refusal(self, isl: int, max_new: int) -> str | None:
        """Nothing is refused beyond the context length, which the server checks."""
        return None

    def schedule(self, state: SchedulerState, now_s: float) -> StepPlan:
        """One iteration: everyone who runs, and whoever can join, in order of arrival."""
        most = self.options.max_batch_size
        plan = StepPlan(decodes=[sequence for sequence in state.running if not sequence.n_piped][:most])
        ledger = Ledger(state.kv, plan)
        for sequence in state.waiting:
            blocks = state.kv.blocks_for(sequence.max_length)
            if len(plan.decodes) + len(plan.admitted) >= most or blocks > ledger.free:
                break
            plan.chunks.append(Chunk(sequence, sequence.length, 0))
            ledger.admit(sequence, 0, blocks)
        plan.is_steady = not plan.chunks
        return plan
