"""KV memory: how many blocks there are, and who holds how many.

Blocks are counts. A sequence holds `blocks_for(tokens)` of them and a free block is like any other; what must always hold is
that free + held = total, and that a finished sequence holds none. Caches that find prefixes again are built on this one
(`prefix_cache.py`, `radix_cache.py`).

A scheduler may try things out: between `rehearse` and `undo` every change is written down, and taken back at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longbench_sched.sim.step import Sequence, StepPlan


@dataclass(slots=True)
class KvBlocks:
    """The block pool of an engine that caches nothing."""

    total: int
    block_tokens: int
    free: int = -1
    _undo: list[Callable[[], None]] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.free < 0:
            self.free = self.total

    @property
    def held(self) -> int:
        """Blocks in use."""
        return self.total - self.free

    @property
    def idle(self) -> int:
        """Free blocks that still hold a prefix that can be found."""
        return 0

    @property
    def is_caching(self) -> bool:
        """Whether prefixes are found again."""
        return False

    def blocks_for(self, tokens: int) -> int:
        """Blocks that so many tokens of one sequence take."""
        return -(-tokens // self.block_tokens)

    def take(self, n: int) -> None:
        """Take `n` blocks; the scheduler has made sure that they are there."""
        assert 0 <= n <= self.free, f"{n} blocks taken, {self.free} free"
        self.free -= n

    def give(self, n: int) -> None:
        """Give `n` blocks back."""
        assert 0 <= n <= self.held, f"{n} blocks given back, {self.held} held"
        self.free += n

    def grow(self, sequence: Sequence, n: int) -> None:
        """Give a sequence `n` more blocks."""
        if self._undo is not None:
            self._put(self, "free", self.free)
            self._put(sequence, "blocks", sequence.blocks)
        self.take(n)
        sequence.blocks += n

    def make_room(self, n: int) -> None:
        """Evict until `n` blocks hold nothing, where that makes a difference."""

    def look_up(self, sequence: Sequence, limit: int) -> int:
        """Find a prefix within so many tokens in a cache that remembers when it was looked at; how long it is."""
        return 0

    def adopt(self, sequence: Sequence, cached_tokens: int) -> None:
        """Begin a sequence with so many tokens of a prefix that was found."""
        assert cached_tokens == 0, "nothing is cached here"

    def found_tokens(self, sequence: Sequence) -> int:
        """Tokens of the sequence whose KV is found, the last token never among them."""
        return 0

    def progress(self, sequence: Sequence) -> None:
        """Note that more of a sequence is computed."""

    def contest(self, sequence: Sequence, start: int) -> None:
        """Note that a sequence goes on from `start` with what somebody else computes as well."""

    def release(self, sequence: Sequence) -> None:
        """Take all blocks of a sequence back."""
        if self._undo is not None:
            self._put(self, "free", self.free)
            self._put(sequence, "blocks", sequence.blocks)
        self.give(sequence.blocks)
        sequence.blocks = 0

    def forget_idle(self) -> None:
        """Find nothing any more that nobody holds (`/reset_prefix_cache`, `/flush_cache`)."""

    # -- trying out

    def follow(self, plan: StepPlan | None) -> None:
        """What is computed by the end of this step counts as computed: its blocks can be found already."""

    def rehearse(self, plan: StepPlan) -> None:
        """Write down what is changed from here on."""
        self._undo = []

    def undo(self) -> None:
        """Take back what was changed since `rehearse`."""
        changes = self._undo
        assert changes is not None
        self._undo = None
        while changes:
            changes.pop()()

    def _put(self, owner: object, name: str, value: Any) -> None:
        """Set an attribute; in a rehearsal its present value comes back."""
        if self._undo is not None:
            self._undo.append(partial(setattr, owner, name, getattr(owner, name)))
        setattr(owner, name, value)
