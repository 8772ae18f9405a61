"""vLLM V1 (as of 0.33.0): no prefill and no decode phase, only tokens to catch up with.

A step hands out `max_num_batched_tokens`. Running sequences come first, in order of admission: a decode takes one token, a
prompt in progress what is left to it. Then the queue is served in order of arrival. With the default settings at most one
sequence is in mid-prompt and it is the last of the running list, so every decode advances in every step and no gap between
tokens is longer than one full step. When blocks run out, the sequence admitted last gives up its own and starts again at the
head of the queue.

Not modelled here: priorities, prefix caching, speculation, asynchronous planning (its overlap is part of the cost).
"""

from __future__ import annotations

from dataclasses import dataclass

from longbench_sched.sim.hardware import Gpu
from longbench_sched.sim.state import Chunk, SchedulerState, Sequence, StepPlan


@dataclass(frozen=True, slots=True)
class VllmV1Options:
    """Flags of `vllm serve`, by their own names; None is resolved by GPU memory as the API server of 0.33.0 does."""

    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    gpu_memory_utilization: float = 0.92
    block_size: int = 16

    def resolved(self, gpu: Gpu, model_context: int) -> VllmV1Options:
        """The same with every default decided: 16384 tokens from 160 GiB, 8192 from 70 GiB but for the A100, else 2048."""
        big = gpu.memory_gib >= 70 and gpu.name != "A100"
        budget = 16384 if gpu.memory_gib >= 160 else 8192 if big else 2048
        seqs = self.max_num_seqs or (1024 if big else 256)
        context = self.max_model_len or model_context
        if not self.enable_chunked_prefill:
            budget = max(budget, context)
        budget = self.max_num_batched_tokens or min(budget, seqs * context)
        return VllmV1Options(
            max_num_batched_tokens=budget,
            max_num_seqs=min(seqs, budget),
            max_model_len=context,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            enable_chunked_prefill=self.enable_chunked_prefill,
            scheduler_reserve_full_isl=self.scheduler_reserve_full_isl,
            watermark=self.watermark,
            gpu_memory_utilization=self.gpu_memory_utilization,
            block_size=self.block_size,
        )


@dataclass(slots=True)
class VllmV1:
    """The scheduler. `options` are resolved."""

    options: VllmV1Options

    def refusal(self, isl: int, max_new: int) -> str | None:
        """Nothing is refused beyond the context length, which the server checks."""
        return None

    def schedule(self, state: SchedulerState, now_s: float) -> StepPlan:
        """One step: the running list, then, if nobody was preempted, the queue."""
        plan = StepPlan()
        budget = self.options.max_num_batched_tokens or 0
        # Not applied to a lone request.
        cap = self.options.long_prefill_token_threshold if len(state.running) + len(state.waiting) > 1 else 0
        free, budget = self._serve_running(state, plan, budget, cap)
        if state.waiting and not plan.preempted and budget > 0:
            self._admit(state, plan, budget, cap, free)
        return plan

    def _serve_running(self, state: SchedulerState, plan: StepPlan, budget: int, cap: int) -> tuple[int, int]:
        block_tokens = state.kv.block_tokens
        free = state.kv.free
        running = state.running
        decodes, chunks, blocks = plan.decodes, plan.chunks, plan.blocks
        n_running = len(running)  # those at the end may be preempted
        i = 0
        while i < n_running and budget > 0:
            sequence = running[i]
            i += 1
            n = sequence.isl + sequence.generated - sequence.computed
            if 0 < cap < n:
                n = cap
            n = min(n, budget)
            needed = sequence.computed + n - sequence.blocks * block_tokens
            if needed > 0:
                n_blocks = -(-needed // block_tokens)
                while n_blocks > free and n_running > i:
                    n_running -= 1
                    free += _preempt(running[n_running], plan)
                if n_blocks > free:  # it is itself the last
                    free += _preempt(sequence, plan)
                    break
                free -= n_blocks
                blocks.append((sequence, n_blocks))
            budget -= n
            if n == 1 and sequence.generated:
                decodes.append(sequence)
            else:
                chunks.append(Chunk(sequence, n, sequence.computed))
        return free, budget

    def _admit(self, state: SchedulerState, plan: StepPlan, budget: int, cap: int, free: int) -> None:
        options = self.options
        kv = state.kv
        places = (options.max_num_seqs or 0) - len(state.running)
        watermark = int(options.watermark * kv.total)
        for sequence in state.waiting:
            if budget <= 0 or places <= 0:
                return
            n = sequence.length
            if 0 < cap < n:
                n = cap
            if n > budget and not options.enable_chunked_prefill:
                return
            n = min(n, budget)
            taken = kv.blocks_for(n)
            required = kv.blocks_for(sequence.length) if options.scheduler_reserve_full_isl else taken
            others_run = bool(state.running or plan.admitted)
            if required + (watermark if others_run else 0) > free:
                return  # the head of the queue is never passed over
            free -= taken
            budget -= n
            places -= 1
            plan.admitted.append(sequence)
            plan.blocks.append((sequence, taken))
            plan.chunks.append(Chunk(sequence, n, 0))


def _preempt(victim: Sequence, plan: StepPlan) -> int:
    """Take the victim out of the step; the blocks that become free."""
    plan.preempted.append(victim)
    return victim.blocks
