"""Chunked prefills beside decodes: SARATHI (2023), Sarathi-Serve (OSDI 2024), and DeepSpeed-FastGen as a preset.

`stall-free` (Sarathi-Serve): every running decode is in every step; what is left of the token budget goes to prompts in
progress, then to new ones, in order of arrival. No gap between tokens is longer than a step of `token_budget` tokens.

`decode-maximal` (SARATHI): exactly one piece of one prompt a step, sized so that piece and decodes together make
`token_budget` tokens, a multiple of what the GEMM kernels work in: a budget of 256 with three decodes is a piece of 253.

FastGen's Dynamic SplitFuse composes steps of a fixed size from decodes and pieces of prompts: `stall-free` with a budget of
its own. A prompt is admitted when all its blocks are free and 1 % beyond them; when a decode finds none, the latest is
preempted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from longbench_sched.errors import UsageError
from longbench_sched.sim.hardware import Gpu
from longbench_sched.sim.ledger import Ledger
from longbench_sched.sim.models import KvCacheDtype, Quantization
from longbench_sched.sim.policy.lacks import lacking
from longbench_sched.sim.policy.recompute import decode_all, fill_with_prompts
from longbench_sched.sim.state import SchedulerState
from longbench_sched.sim.step import StepPlan


@dataclass(frozen=True, slots=True)
class SarathiOptions:
    """Knobs of Sarathi-Serve. The paper's budgets: 512 for a strict latency target, 2048 for a relaxed one."""

    lacks: ClassVar[Mapping[str, str]] = lacking(
        chunks="cutting prompts into chunks is what this scheduler does, always. --token-budget is the size of a step.",
        cache="this scheduler keeps nothing of a request that has ended. Give --engine vllm, sglang or trtllm.",
        drafts="this scheduler decodes token by token. Give --engine vllm, sglang or trtllm.",
    )

    token_budget: int = 512
    max_num_seqs: int = 128
    batching: Literal["stall-free", "decode-maximal"] = "stall-free"
    max_model_len: int | None = None
    gpu_memory_utilization: float = 0.90
    block_size: int = 16
    quantization: Quantization = ""  # of weights that are bf16
    kv_cache_dtype: KvCacheDtype = "auto"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1

    def resolved(self, gpu: Gpu, model_context: int) -> SarathiOptions:
        """The same with every default decided. Raises UsageError if not all places can get a token."""
        if self.batching not in ("stall-free", "decode-maximal"):
            raise UsageError(f"--batching {self.batching!r} is not known. Known: stall-free, decode-maximal.")
        if self.token_budget < self.max_num_seqs:
            raise UsageError(
                f"--token-budget {self.token_budget} is below --max-num-seqs {self.max_num_seqs}, but every decode is in every "
                "step. Raise the one or lower the other."
            )
        return replace(self, max_model_len=self.max_model_len or model_context)

    @property
    def step_tokens(self) -> int:
        """Tokens of the largest step, for which memory is kept."""
        return self.token_budget


@dataclass(frozen=True, slots=True)
class FastgenOptions(SarathiOptions):
    """DeepSpeed-FastGen: its ragged batch holds 768 tokens and 512 sequences by default (from memory, not checked again)."""

    token_budget: int = 768
    max_num_seqs: int = 512


@dataclass(slots=True)
class Sarathi:
    """The scheduler. `options` are resolved."""

    options: SarathiOptions

    def refusal(self, isl: int, max_new: int) -> str | None:
        """Nothing is refused beyond the context length, which the server checks."""
        return None

    def schedule(self, state: SchedulerState, now_s: float) -> StepPlan:
        """One step: all decodes, then prompts with what they leave."""
        plan = StepPlan()
        ledger = Ledger(state.kv, plan)
        try:
            self._fill(state, plan, ledger)
        finally:
            ledger.close()
        plan.is_steady = not (plan.chunks or plan.preempted) and len(plan.decodes) == len(state.running)
        return plan

    def _fill(self, state: SchedulerState, plan: StepPlan, ledger: Ledger) -> None:
        decoding = [sequence for sequence in state.running if not (sequence.is_partial or sequence.n_piped)]
        out = decode_all(plan, ledger, state.running, decoding)
        budget = self.options.token_budget - len(plan.decodes)
        max_chunks = 1 if self.options.batching == "decode-maximal" else None
        fill_with_prompts(state, plan, ledger, out, budget, self.options.max_num_seqs, max_chunks)
