"""A prefill batch of SGLang in the making: its budgets of tokens and of memory."""

from __future__ import annotations

from dataclasses import dataclass

from longbench_sched.sim.state import SchedulerState
from longbench_sched.sim.step import Chunk, Sequence, StepPlan


class Full(Exception):
    """Nobody more is admitted, and nobody will be until somebody leaves."""


@dataclass(slots=True)
class Batch:
    """A prefill batch in the making, and what is left of its budgets. Memory is in tokens."""

    plan: StepPlan
    state: SchedulerState
    input_left: int
    chunk_left: int | None  # None: prompts are not chunked
    total_offset: float
    current_offset: int
    ratio: float
    spare: int  # tokens of memory that every prompt leaves unused
    chunked: Sequence | None = None
    states: list[tuple[float, int]] | None = None  # (tokens left, tokens held) of those that may run to their limit

    @property
    def page(self) -> int:
        """Tokens of a page."""
        return self.state.kv.block_tokens

    @property
    def total_left(self) -> float:
        """Tokens of memory that nothing is kept for."""
        return self.state.kv.free * self.page - self.total_offset

    @property
    def current_left(self) -> int:
        """Tokens of memory that this step does not take."""
        return self.state.kv.free * self.page - self.current_offset

    def paged(self, tokens: int) -> int:
        """Rounded up to whole pages."""
        return -(-tokens // self.page) * self.page

    def add(self, sequence: Sequence, start: int, n: int, new_tokens: int) -> None:
        """Take `n` tokens of a sequence, and reserve what it will generate."""
        self.plan.chunks.append(Chunk(sequence, n, start))
        paged = self.paged(n)
        self.total_offset += paged + self.spare + new_tokens
        self.current_offset += paged + self.spare
        self.input_left -= paged
        if self.chunk_left is not None:
            self.chunk_left -= paged
        if start + n < sequence.length:
            self.chunked = sequence

    @property
    def is_spent(self) -> bool:
        """Whether a token budget is used up."""
        return self.input_left <= 0 or (self.chunk_left is not None and self.chunk_left <= 0)

    @property
    def is_out_of_memory(self) -> bool:
        """Whether no memory is left for anybody more."""
        return self.total_left <= 0 or self.current_left <= 0
