"""Preemption by recompute: who needs a block and finds none takes them from the last in line.

Shared by the schedulers that admit a prompt when all its blocks are free and let decodes grow block by block.
"""

from __future__ import annotations

from collections.abc import Iterable

from longbench_sched.sim.ledger import Ledger
from longbench_sched.sim.step import Sequence, StepPlan, Verify

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


def _withdraw(plan: StepPlan, victim: Sequence) -> None:
    """A victim that stands before the one in need has its token already."""
    if victim in plan.decodes:
        plan.decodes.remove(victim)
        plan.withdrawn[victim] = 1
    plan.verifies = [verify for verify in plan.verifies if verify.sequence is not victim]
