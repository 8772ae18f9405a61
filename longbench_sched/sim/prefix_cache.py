"""Paged KV with a prefix cache, as vLLM keeps it: full blocks, found by the chain of everything before them.

A block is known by its content: which tokens it holds and all those before. Blocks next to each other in one content that have
the same holders are one `Run`, so that a prompt of 30,000 tokens is an object or two and not 1,875. The content up to a point
where a stream begins is a `Node`; the runs of a node are kept oldest first, for equal content that was computed twice lies in
two blocks and a hit takes the older one.

A free block may still be found (`idle`) until it is needed: blocks that hold nothing are taken first, then the idle ones, those
released longest ago first and of one sequence the deepest first. The last block of a sequence is seldom full and never found.

Whoever computes a prefix holds runs that are still growing: how far they can be found follows from the progress of their owner,
what the step being planned will compute included. So decodes cost nothing here but their count of blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from longbench_sched.sim.kv_blocks import KvBlocks

if TYPE_CHECKING:
    from longbench_sched.sim.step import Sequence, StepPlan

_NO_END = 1 << 60

Key = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Node:
    """A stream at one place in a content."""

    key: Key
    runs: tuple[Run, ...] = ()  # oldest first


@dataclass(slots=True, eq=False)
class Run:
    """Blocks [lo, hi) of a content that are held by the same sequences, or idle together."""

    node: Node | None
    lo: int
    hi: int  # of a growing run: where its stream ends
    owner: Sequence | None = None  # who is still computing it
    holders: tuple[Sequence, ...] = ()
    older: Run | None = None  # neighbours in the order of release, while it is idle
    newer: Run | None = None


@dataclass(slots=True, eq=False)
class PrefixCache(KvBlocks):
    """A block pool that finds full blocks again."""

    is_filled_told: bool = False  # speculation or steps in flight: `Sequence.filled` says what can be found, not `computed`
    n_idle: int = 0
    _nodes: dict[Key, Node] = field(default_factory=dict, repr=False)
    _ring: Run = field(default_factory=lambda: Run(None, 0, 0), repr=False)  # its newer neighbour was released longest ago
    _plan: StepPlan | None = field(default=None, repr=False)
    _planned: dict[Sequence, int] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.free < 0:
            self.free = self.total
        self._ring.older = self._ring.newer = self._ring

    @property
    def idle(self) -> int:
        """Free blocks that can still be found."""
        return self.n_idle

    @property
    def is_caching(self) -> bool:
        """Prefixes are found again."""
        return True

    # -- taking and releasing

    def take(self, n: int) -> None:
        """Take `n` blocks, those that hold nothing first."""
        assert 0 <= n <= self.free, f"{n} blocks taken, {self.free} free"
        if self._undo is not None:
            self._put(self, "free", self.free)
        self.free -= n
        if self.free < self.n_idle:
            self._evict(self.n_idle - self.free)

    def match(self, sequence: Sequence, limit_tokens: int) -> list[tuple[Run, int, int]]:
        """The longest chain of blocks that hold the beginning of a sequence, within its first `limit_tokens` tokens."""
        size = self.block_tokens
        limit = limit_tokens // size
        found: list[tuple[Run, int, int]] = []
        position = block = 0
        key: Key = ()
        for stream, start, n in sequence.content_so_far():
            key = (*key, stream, start)
            end = min((position + n) // size, limit)
            if block < end:
                node = self._nodes.get(key)
                if node is None:
                    return found
                reached = self._cover(node, block, end, found)
                if reached < end:
                    return found
                block = reached
            if block >= limit:
                return found
            position += n
            key = (*key, n)
        return found

    def found_tokens(self, sequence: Sequence) -> int:
        """Tokens found, in whole blocks; the last token is always computed."""
        found = self.match(sequence, sequence.length - 1)
        return found[-1][2] * self.block_tokens if found else 0

    def idle_blocks(self, found: list[tuple[Run, int, int]]) -> int:
        """How many of the blocks found would leave the free ones."""
        return sum(hi - lo for run, lo, hi in found if not run.holders)

    def adopt(self, sequence: Sequence, cached_tokens: int) -> None:
        """Begin a sequence with so many tokens that were found, and prepare for what it will compute."""
        n_cached = cached_tokens // self.block_tokens
        table: list[Run] = []
        if n_cached:
            for run, lo, hi in self.match(sequence, cached_tokens):
                part = self._carve(run, lo, hi)
                if not part.holders:
                    self._unlink(part)
                    self._put(self, "free", self.free - (hi - lo))
                    self._put(self, "n_idle", self.n_idle - (hi - lo))
                self._put(part, "holders", (*part.holders, sequence))
                table.append(part)
            assert sum(run.hi - run.lo for run in table) == n_cached, "found when planned, not found when begun"
        table += self._growing(sequence, n_cached)
        self._put(sequence, "table", tuple(table))
        self._put(sequence, "blocks", n_cached)

    def release(self, sequence: Sequence) -> None:
        """Take all blocks of a sequence back: what can be found becomes idle, the deepest first."""
        filled = self._filled(sequence) // self.block_tokens
        n_known = n_freed = 0
        for run in reversed(sequence.table):
            if run.owner is sequence:
                end = min(max(filled, run.lo), run.hi)
                if end == run.lo:
                    self._forget(run)
                    continue
                self._put(run, "hi", end)
                self._put(run, "owner", None)
            n = run.hi - run.lo
            n_known += n
            self._put(run, "holders", tuple(holder for holder in run.holders if holder is not sequence))
            if not run.holders:
                self._link(run, self._ring)
                n_freed += n
        self._put(self, "n_idle", self.n_idle + n_freed)
        self._put(self, "free", self.free + n_freed + sequence.blocks - n_known)
        self._put(sequence, "table", ())
        self._put(sequence, "blocks", 0)
        self._put(sequence, "is_contested", False)

    def contest(self, sequence: Sequence, start: int) -> None:
        """What a sequence computes from `start` on is younger than all that was computed before it, by whomever."""
        block = start // self.block_tokens
        for run in sequence.table:
            if run.owner is sequence:
                if run.lo < block < run.hi:
                    self._split(run, block)
                node = run.node
                assert node is not None
                if run.lo >= block:
                    self._put(node, "runs", (*(other for other in node.runs if other is not run), run))

    def forget_idle(self) -> None:
        """Find nothing any more that nobody holds (`/reset_prefix_cache`)."""
        self._evict(self.n_idle)

    def n_held_runs(self) -> int:
        """Blocks that are held and can be found, each counted once (for checks)."""
        size = self.block_tokens
        total = 0
        for node in self._nodes.values():
            for run in node.runs:
                if run.holders:
                    end = run.hi if run.owner is None else min(max(self._filled(run.owner) // size, run.lo), run.hi)
                    total += end - run.lo
        return total

    # -- what a step will have computed

    def follow(self, plan: StepPlan | None) -> None:
        """What is computed by the end of this step can be found now."""
        self._plan, self._planned = plan, None

    def rehearse(self, plan: StepPlan) -> None:
        """Write down what is changed from here on, by whoever plans this step."""
        KvBlocks.rehearse(self, plan)
        self.follow(plan)

    def undo(self) -> None:
        """Take back what was changed since `rehearse`."""
        KvBlocks.undo(self)  # a slotted dataclass is a class anew: super() does not know it
        self.follow(None)

    def _filled(self, sequence: Sequence) -> int:
        """Tokens of a sequence whose blocks can be found if they are full."""
        if self._plan is not None:
            if self._planned is None:
                self._planned = self._plan.filled_after()
            planned = self._planned.get(sequence)
            if planned is not None:
                return planned
        return sequence.filled if self.is_filled_told else sequence.computed

    # -- runs

    def _cover(self, node: Node, block: int, end: int, found: list[tuple[Run, int, int]]) -> int:
        """Find blocks [block, end) of a node, each in its oldest run; how far that goes."""
        runs = node.runs
        while block < end:
            nearest = end  # where an older run begins to hold the block as well
            for run in runs:
                if run.lo > block:
                    nearest = min(nearest, run.lo)
                    continue
                hi = run.hi
                if run.owner is not None:
                    hi = min(hi, self._filled(run.owner) // self.block_tokens)
                if block < hi:
                    reached = min(hi, nearest)
                    found.append((run, block, reached))
                    block = reached
                    break
            else:
                return block
        return block

    def _growing(self, sequence: Sequence, block: int) -> list[Run]:
        """Runs for all that the sequence will compute from this block on, and those after it."""
        size = self.block_tokens
        runs: list[Run] = []
        position = 0
        key: Key = ()
        content = sequence.content_so_far()
        last = len(content) - 1
        for i, (stream, start, n) in enumerate(content):
            key = (*key, stream, start)
            position += n
            is_output = i == last and sequence.generated > 0
            end = _NO_END if is_output else position // size
            if block < end:
                runs.append(self._new_run(key, block, end, sequence))
                block = end
            key = (*key, n)
        if not sequence.generated and sequence.max_length > sequence.isl + 1:
            key = (*key, sequence.output_stream, 0)
            runs.append(self._new_run(key, block, _NO_END, sequence))
        return runs

    def _new_run(self, key: Key, lo: int, hi: int, owner: Sequence) -> Run:
        node = self._nodes.get(key)
        if node is None:
            node = Node(key)
            self._keep(key, node)
        run = Run(node, lo, hi, owner, (owner,))
        for other in node.runs:
            if other.owner is not None:
                self._put(other.owner, "is_contested", True)
                self._put(owner, "is_contested", True)
        self._put(node, "runs", (*node.runs, run))
        return run

    def _carve(self, run: Run, lo: int, hi: int) -> Run:
        """Blocks [lo, hi) of a run as a run of their own; what is left of it stays where it was."""
        if lo > run.lo:
            self._split(run, lo)  # the lower part is a new run, `run` goes on from `lo`
        if hi < run.hi:
            return self._split(run, hi)
        self._put(run, "owner", None)
        return run

    def _split(self, run: Run, at: int) -> Run:
        """Cut off blocks [lo, at), which are full: a new run, equally old, with the same holders."""
        node = run.node
        assert node is not None
        lower = Run(node, run.lo, at, None, run.holders)
        self._put(run, "lo", at)
        i = node.runs.index(run)
        self._put(node, "runs", (*node.runs[:i], lower, *node.runs[i:]))
        for holder in run.holders:
            i = holder.table.index(run)
            self._put(holder, "table", (*holder.table[:i], lower, *holder.table[i:]))
        if not run.holders:
            assert run.newer is not None
            self._link(lower, run.newer)  # deeper blocks are taken first
        return lower

    def _evict(self, n: int) -> None:
        self._put(self, "n_idle", self.n_idle - n)
        while n:
            run = self._ring.newer
            assert run is not None
            k = min(n, run.hi - run.lo)
            n -= k
            self._put(run, "hi", run.hi - k)
            if run.hi == run.lo:
                self._unlink(run)
                self._forget(run)

    def _forget(self, run: Run) -> None:
        node = run.node
        assert node is not None
        self._put(node, "runs", tuple(other for other in node.runs if other is not run))
        if not node.runs:
            self._keep(node.key, None)

    def _keep(self, key: Key, node: Node | None) -> None:
        """Put a node into the table, or take it out."""
        nodes = self._nodes
        if self._undo is not None:
            self._undo.append(partial(_restore, nodes, key, nodes.get(key)))
        if node is not None:
            nodes[key] = node
        else:
            del nodes[key]

    def _link(self, run: Run, before: Run) -> None:
        """Make a run idle: into the order of release, older than `before`."""
        older = before.older
        assert older is not None
        self._put(run, "older", older)
        self._put(run, "newer", before)
        self._put(older, "newer", run)
        self._put(before, "older", run)

    def _unlink(self, run: Run) -> None:
        older, newer = run.older, run.newer
        assert older is not None
        assert newer is not None
        self._put(older, "newer", newer)
        self._put(newer, "older", older)
        self._put(run, "older", None)
        self._put(run, "newer", None)


def _restore(nodes: dict[Key, Node], key: Key, node: Node | None) -> None:
    if node is None:
        nodes.pop(key, None)
    else:
        nodes[key] = node
