"""Blocks as a policy hands them out while it makes a plan: what is still free, and what would be found by now.

Counting is enough as long as nothing is looked up in a cache and nobody who shares blocks is preempted. From then on the blocks
are handed out in earnest, so that what is found, evicted and freed is exactly what it will be when the plan is carried out;
`close` takes it all back.
"""

from __future__ import annotations

from longbench_sched.sim.kv_blocks import KvBlocks
from longbench_sched.sim.prefix_cache import PrefixCache, Run
from longbench_sched.sim.step import RELEASE, Sequence, StepPlan

Found = list[tuple[Run, int, int]]


class Ledger:
    """The block pool from the point of view of a plan in the making."""

    __slots__ = ("_cache", "_is_open", "free", "kv", "plan")

    def __init__(self, kv: KvBlocks, plan: StepPlan) -> None:
        self.kv = kv
        self.plan = plan
        self.free = kv.free
        self._cache = kv if isinstance(kv, PrefixCache) else None
        self._is_open = False

    def grow(self, sequence: Sequence, n: int) -> None:
        """Give `n` more blocks to a running sequence."""
        self.plan.blocks.append((sequence, n))
        if self._is_open:
            self.kv.grow(sequence, n)
        self.free -= n

    def release(self, sequence: Sequence) -> None:
        """Take all blocks of a running sequence, those given in this plan too."""
        if self._cache is not None:
            self._open()
            self.kv.release(sequence)
            self.free = self.kv.free
        else:
            self.free += sequence.blocks + sum(n for other, n in self.plan.blocks if other is sequence)
        self.plan.blocks.append((sequence, RELEASE))

    def find(self, sequence: Sequence) -> Found:
        """The blocks of a waiting sequence that are in the cache, the block of its last token never among them."""
        if self._cache is None:
            return []
        self._open()
        return self._cache.match(sequence, sequence.length - 1)

    def n_idle(self, found: Found) -> int:
        """How many of the blocks found leave the free ones when they are adopted."""
        return self._cache.idle_blocks(found) if self._cache is not None and found else 0

    def admit(self, sequence: Sequence, hit_tokens: int, n: int) -> None:
        """Admit a waiting sequence with the tokens found and `n` blocks. Its work is in the plan already."""
        plan = self.plan
        plan.admitted.append(sequence)
        plan.blocks.append((sequence, n))
        if hit_tokens:
            plan.hits[sequence] = hit_tokens
        if self._cache is not None:
            self._open(all_but=sequence)
            self._cache.follow(plan)
            self._cache.adopt(sequence, hit_tokens)
            self._cache.grow(sequence, n)
            self.free = self._cache.free
        else:
            self.free -= n

    def close(self) -> None:
        """Leave the pool as it was."""
        if self._is_open:
            self._is_open = False
            self.kv.undo()

    def _open(self, all_but: Sequence | None = None) -> None:
        if self._is_open:
            return
        self._is_open = True
        self.kv.rehearse(self.plan)
        for sequence, n in self.plan.blocks:
            if sequence is not all_but:
                self.kv.grow(sequence, n)
