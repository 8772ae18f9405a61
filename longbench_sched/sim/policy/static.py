"""Static (request-level) batching: a batch is formed, run to its end, and only then is the next one formed.

`batch_size` requests are awaited, or as many as have come when the oldest has waited `batch_timeout_s`. Prompts are padded to
the longest, and every slot computes until the longest output has ended: of the decode slots 1 - mean(osl) / max(osl) are
wasted. Tokens are streamed as they come; what is late is the place in the batch. Each request holds blocks for all it may
generate, so nothing is ever preempted.
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
from longbench_sched.sim.state import SchedulerState
from longbench_sched.sim.step import Chunk, Sequence, StepPlan


@dataclass(frozen=True, slots=True)
class StaticOptions:
    """Knobs of static batching."""

    lacks: ClassVar[Mapping[str, str]] = lacking(
        chunks="static batching computes all prompts of a batch in one step. Give --engine sarathi, for example.",
        cache="static batching keeps nothing of a request that has ended. Give --engine vllm, sglang or trtllm.",
        drafts="static batching decodes token by token. Give --engine vllm, sglang or trtllm.",
        stages="static batching is played with one stage. Give --engine orca, for example.",
    )

    batch_size: int = 0  # must be given
    batch_timeout_s: float = 1.0
    max_model_len: int | None = None
    gpu_memory_utilization: float = 0.90
    block_size: int = 16
    quantization: Quantization = ""  # of weights that are bf16
    kv_cache_dtype: KvCacheDtype = "auto"
    tensor_parallel_size: int = 1

    def resolved(self, gpu: Gpu, model_context: int) -> StaticOptions:
        """The same with every default decided. Raises UsageError without a batch size: there is no usual one."""
        if self.batch_size < 1:
            raise UsageError("static batching needs to know how many requests make a batch. Give --batch-size 8, for example.")
        return replace(self, max_model_len=self.max_model_len or model_context)

    @property
    def max_num_seqs(self) -> int:
        """Places."""
        return self.batch_size

    @property
    def step_tokens(self) -> int:
        """Tokens of the largest step, for which memory is kept."""
        return self.batch_size * (self.max_model_len or 0)


@dataclass(frozen=True, slots=True)
class StaticNote:
    """What the scheduler remembers: slots of the batch that runs."""

    n_slots: int = 0


@dataclass(slots=True)
class Static:
    """The scheduler. `options` are resolved."""

    options: StaticOptions

    def refusal(self, isl: int, max_new: int) -> str | None:
        """Nothing is refused beyond the context length, which the server checks."""
        return None

    def schedule(self, state: SchedulerState, now_s: float) -> StepPlan:
        """Decode the batch that runs, or form the next one."""
        if state.running:
            note = state.note
            assert isinstance(note, StaticNote)
            padding = note.n_slots - len(state.running)
            return StepPlan(decodes=list(state.running), padding=padding, note=note, is_steady=True)
        plan = StepPlan(note=StaticNote())
        if not state.waiting:
            return plan
        if len(state.waiting) < self.options.batch_size:
            left_s = self.options.batch_timeout_s - (now_s - state.waiting[0].arrived_s)
            if left_s > 1e-9:
                plan.wait_s = left_s
                return plan
        self._form(state, plan)
        return plan

    def _form(self, state: SchedulerState, plan: StepPlan) -> None:
        ledger = Ledger(state.kv, plan)
        for sequence in state.waiting:
            blocks = state.kv.blocks_for(sequence.max_length)
            if len(plan.chunks) == self.options.batch_size or blocks > ledger.free:
                break
            plan.chunks.append(Chunk(sequence, sequence.length, 0))
            ledger.admit(sequence, 0, blocks)
        plan.padding = padded_tokens([chunk.sequence for chunk in plan.chunks])
        plan.note = StaticNote(len(plan.chunks))


def padded_tokens(batch: list[Sequence]) -> int:
    """Tokens that padding to the longest prompt adds."""
    lengths = [sequence.length for sequence in batch]
    return len(lengths) * max(lengths, default=0) - sum(lengths)
