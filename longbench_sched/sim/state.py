"""What a scheduler sees and what it decides: sequences, the state of an engine, the plan of one step.

A policy is a pure function `schedule(state, now) -> StepPlan`. Carrying a plan out is the same for every policy and lives here:
`reserve` does what happens when a step starts (admissions, preemptions, blocks), `advance` what happens when it ends (progress,
tokens, departures). A policy that must remember something puts it into `StepPlan.note`, which becomes `SchedulerState.note`.

A sequence of p prompt tokens that has generated g has `length` p + g. `computed` of these have their KV. A step that brings
`computed` up to `length` yields one more token; prefill, decode and recomputation after a preemption are one and the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from longbench_sched.sim.kv_blocks import KvBlocks

Kind = Literal["prefill", "decode"]


@dataclass(slots=True, eq=False)
class Sequence:
    """One request inside the engine."""

    id: int  # order of arrival
    isl: int
    max_new: int  # output tokens after which it ends by length
    arrived_s: float
    stop_at: int | None = None  # output tokens after which it ends by itself (EOS); None: never
    runs_to_length: bool = False  # asked to ignore EOS, as far as the engine is told
    computed: int = 0
    generated: int = 0
    blocks: int = 0
    n_preemptions: int = 0
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    finish: Literal["length", "stop", "abort"] | None = None

    @property
    def length(self) -> int:
        """Prompt and generated tokens."""
        return self.isl + self.generated

    @property
    def left_to_compute(self) -> int:
        """Tokens without KV: 1 for a sequence that decodes."""
        return self.isl + self.generated - self.computed

    @property
    def max_length(self) -> int:
        """The longest it can become."""
        return self.isl + self.max_new


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a prompt (or of a recomputation) computed in one step."""

    sequence: Sequence
    n_tokens: int
    start: int  # tokens before it whose KV exists

    @property
    def is_last(self) -> bool:
        """Whether it brings the sequence to its next token."""
        return self.start + self.n_tokens == self.sequence.length


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a plan, for checks and traces."""

    sequence: Sequence
    n_tokens: int
    start: int
    kind: Kind


@dataclass(slots=True)
class StepPlan:
    """What one forward pass does. Decodes are kept apart from chunks because there are many of them and all are alike."""

    chunks: list[Chunk] = field(default_factory=list)
    decodes: list[Sequence] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)  # leave the queue, in this order
    preempted: list[Sequence] = field(default_factory=list)  # lose their KV and go back to the queue, in this order
    preempted_to_tail: bool = False  # to the end of the queue instead of its head
    blocks: list[tuple[Sequence, int]] = field(default_factory=list)  # further blocks taken at the start of the step
    note: object | None = None

    @property
    def n_tokens(self) -> int:
        """Tokens computed."""
        return len(self.decodes) + sum(chunk.n_tokens for chunk in self.chunks)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute."""
        return not self.decodes and not self.chunks

    def entries(self) -> Iterator[Entry]:
        """Line by line."""
        for chunk in self.chunks:
            yield Entry(chunk.sequence, chunk.n_tokens, chunk.start, "prefill")
        for sequence in self.decodes:
            yield Entry(sequence, 1, sequence.computed, "decode")


@dataclass(slots=True)
class SchedulerState:
    """Everything a policy may look at."""

    kv: KvBlocks
    waiting: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)  # in order of admission
    note: object | None = None  # what the policy left for itself
    n_departures: int = 0  # sequences that ever left the running list
    n_preemptions: int = 0

    def reserve(self, plan: StepPlan, now_s: float) -> None:
        """Start a step: move sequences between queue and running list and hand out blocks."""
        for sequence in plan.preempted:
            self.running.remove(sequence)
            self._release(sequence)
            sequence.computed = 0
            sequence.n_preemptions += 1
            self.n_preemptions += 1
            self.n_departures += 1
            if plan.preempted_to_tail:
                self.waiting.append(sequence)
            else:
                self.waiting.appendleft(sequence)
        for sequence in plan.admitted:
            if self.waiting and self.waiting[0] is sequence:
                self.waiting.popleft()
            else:
                self.waiting.remove(sequence)
            if sequence.first_scheduled_s is None:
                sequence.first_scheduled_s = now_s
            self.running.append(sequence)
        for sequence, n in plan.blocks:
            self.kv.take(n)
            sequence.blocks += n
        self.note = plan.note

    def advance(self, plan: StepPlan, end_s: float) -> list[Sequence]:
        """End a step: note what was computed. Returns the sequences that got a token, in the order of the plan.

        A sequence that has ended carries its `finish` and has left the running list and its blocks. One aborted while the step
        ran is passed over.
        """
        yielded: list[Sequence] = []
        n_ended = 0
        for chunk in plan.chunks:
            sequence = chunk.sequence
            if sequence.finish is None:
                sequence.computed += chunk.n_tokens
                if sequence.computed == sequence.isl + sequence.generated:
                    yielded.append(sequence)
        for sequence in plan.decodes:
            if sequence.finish is None:
                sequence.computed += 1
                yielded.append(sequence)
        for sequence in yielded:
            sequence.generated = n = sequence.generated + 1
            if n == 1:
                sequence.first_token_s = end_s
            if n == sequence.stop_at:
                sequence.finish = "stop"
                n_ended += 1
            elif n >= sequence.max_new:
                sequence.finish = "length"
                n_ended += 1
        if n_ended:
            self._remove_ended()
        return yielded

    def abort(self, sequence: Sequence) -> None:
        """Drop a sequence at once, wherever it is."""
        if sequence.finish is not None:
            return
        sequence.finish = "abort"
        if sequence in self.running:
            self._remove_ended()
        else:
            self.waiting.remove(sequence)

    def sequences(self) -> Iterable[Sequence]:
        """All that have not ended."""
        yield from self.running
        yield from self.waiting

    def _remove_ended(self) -> None:
        kept = []
        for sequence in self.running:
            if sequence.finish is None:
                kept.append(sequence)
            else:
                self._release(sequence)
                self.n_departures += 1
        self.running = kept

    def _release(self, sequence: Sequence) -> None:
        self.kv.give(sequence.blocks)
        sequence.blocks = 0


class Policy(Protocol):
    """A scheduler: decides one step, changes nothing."""

    def schedule(self, state: SchedulerState, now_s: float) -> StepPlan:
        """The next step; empty if nothing can run."""
        ...

    def refusal(self, isl: int, max_new: int) -> str | None:
        """Why a request can never run here, in the scheduler's terms; None if it can."""
        ...
