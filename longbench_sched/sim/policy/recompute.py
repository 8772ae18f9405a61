"""Preemption by recompute: who needs a block and finds none takes them from the last in line.

Shared by the schedulers that admit a prompt when all its blocks are free and let decodes grow block by block: vLLM V0, Sarathi.
"""

from __future__ import annotations

from collections.abc import Iterable

from longbench_sched.sim.ledger import Ledger
from longbench_sched.sim.state import SchedulerState
from longbench_sched.sim.step import Chunk, Sequence, StepPlan, Verify

WATERMARK = 0.01  # of all blocks, kept free at admission


def decode_all(
    plan: StepPlan, ledger: Ledger, running: list[Sequence], batch: Iterable[Sequence], n_drafts: int = 0
) -> set[Sequence]:
    """Put the decodes of `batch` into the plan, each with its slots; returns who was preempted for want of blocks.

    The victim is the last of `running` that still runs and is in no pipeline stage, at the end whoever asks.
    """
    out: set[Sequence] = set()
    size = ledger.kv.block_tokens
    for sequence in batch:
        if sequence in out:
            continue
        needed = sequence.computed + 1 + n_drafts - sequence.blocks * size
        n_blocks = -(-needed // size) if needed > 0 else 0
        while n_blocks > ledger.free:
            victim = next(one for one in reversed(running) if one not in out and not one.n_piped)
            out.add(victim)
            _withdraw(plan, victim)
            ledger.release(victim)
            plan.preempted.append(victim)
            if victim is sequence:
                break
        if sequence in out:
            continue
        if n_blocks:
            ledger.grow(sequence, n_blocks)
        if n_drafts:
            plan.verifies.append(Verify(sequence, n_drafts, 1 + n_drafts))
        else:
            plan.decodes.append(sequence)
    return out


def fill_with_prompts(
    state: SchedulerState,
    plan: StepPlan,
    ledger: Ledger,
    out: set[Sequence],
    budget: int,
    max_num_seqs: int,
    max_chunks: int | None = None,
) -> None:
    """Give tokens to prompts in progress, then, if nobody was preempted, to new ones in order of arrival.

    `out` are those whom `decode_all` preempted; `max_chunks` is how many prompts a step may hold, by default any number.
    """
    most = max_num_seqs if max_chunks is None else max_chunks
    for sequence in state.running:
        if sequence.is_partial and sequence not in out and budget > 0 and len(plan.chunks) < most:
            n = min(sequence.left_to_compute, budget)
            plan.chunks.append(Chunk(sequence, n, sequence.computed))
            budget -= n
    if plan.preempted:
        return
    for sequence in state.waiting:
        n = min(sequence.length, budget)
        if n <= 0 or len(plan.chunks) >= most or not admit(state, plan, ledger, sequence, n, max_num_seqs):
            return
        budget -= n


def admit(state: SchedulerState, plan: StepPlan, ledger: Ledger, sequence: Sequence, n_tokens: int, max_num_seqs: int) -> bool:
    """Take a waiting sequence with a chunk of so many tokens, if there are a place, all its blocks, and 1 % beyond them."""
    blocks = state.kv.blocks_for(sequence.length)
    watermark = int(WATERMARK * state.kv.total)
    if len(state.running) + len(plan.admitted) >= max_num_seqs or ledger.free - blocks < watermark:
        return False
    plan.chunks.append(Chunk(sequence, n_tokens, 0))
    ledger.admit(sequence, 0, blocks)
    return True


def _withdraw(plan: StepPlan, victim: Sequence) -> None:
    """A victim that stands before the one in need has its token already."""
    if victim in plan.decodes:
        plan.decodes.remove(victim)
        plan.withdrawn[victim] = 1
    plan.verifies = [verify for verify in plan.verifies if verify.sequence is not victim]
