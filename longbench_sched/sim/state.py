"""What a scheduler sees, and what becomes of a plan: the state of an engine.

A policy is a pure function `schedule(state, now) -> StepPlan` (`step.py`). Carrying a plan out is the same for every policy and
lives here: `reserve` does what happens when a step starts (admissions, preemptions, blocks), `advance` what happens when it
ends (progress, tokens, departures). A policy that must remember something puts it into `StepPlan.note`, which becomes
`SchedulerState.note`.

With pipeline stages (`SchedulerState.is_piped`) several plans are on their way at once. What one of them computes counts as
`computed` when it is sent (`board`), so that the next chunk of a prompt can follow it; who waits for a token has nothing
`left_to_compute` until it comes.

An engine may plan a step before the one in progress has ended (`SchedulerState.is_ahead`). What is planned and not yet computed
is then `in_flight`, and the tokens it will yield, drafts taken as accepted, are `expected`.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from longbench_sched.sim.kv_blocks import KvBlocks
from longbench_sched.sim.step import RELEASE, Sequence, StepPlan

Accepted = Callable[[Sequence, int], int]  # how many of so many drafts the target accepts


@dataclass(slots=True)
class SchedulerState:
    """Everything a policy may look at."""

    kv: KvBlocks
    waiting: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)  # in order of admission
    note: object | None = None  # what the policy left for itself
    is_by_priority: bool = False  # the queue is kept by urgency instead of arrival
    n_drafts: int = 0  # drafts that every sequence gets after it yielded
    is_ahead: bool = False  # a step is planned while the one before it runs
    is_piped: bool = False  # plans are sent through stages and end later, several at once
    n_planned: int = 0  # steps planned since the engine was idle
    n_departures: int = 0  # sequences that ever left the running list
    n_ended: int = 0  # of these, in the last step that ended
    n_preemptions: int = 0
    prefilled_tokens: int = 0  # computed in chunks
    unsettled: list[Sequence] = field(default_factory=list)  # in mid-prompt: their last chunk is not yet in a tree
    cache_queries: int = 0  # tokens of those admitted, and how many of them were found
    cache_hits: int = 0

    def enqueue(self, sequence: Sequence) -> None:
        """A request has come, or comes back."""
        sequence.queued_after = self.prefilled_tokens
        if self.is_by_priority:
            insort(self.waiting, sequence)
        else:
            self.waiting.append(sequence)

    def take_in(self, sequence: Sequence) -> None:
        """A sequence whose prompt was computed elsewhere, and whose KV is here, goes on by itself. There is room for it."""
        n = self.kv.blocks_for(sequence.computed)
        self.kv.take(n)
        sequence.blocks = n
        sequence.filled = sequence.computed
        sequence.is_running = True
        self.running.append(sequence)

    # -- the start of a step

    def reserve(self, plan: StepPlan, now_s: float) -> None:
        """Start a step: move sequences between queue and running list and hand out blocks."""
        kv = self.kv
        if self.unsettled:
            self.settle()
            self.unsettled = []
        if plan.queue is not None:
            self.waiting = deque(plan.queue)
        is_shared = kv.is_caching and bool(plan.admitted or plan.preempted)
        if is_shared:
            kv.follow(plan)
        for sequence, limit in plan.lookups:
            kv.look_up(sequence, limit)
        for sequence, n in plan.blocks:
            if n == RELEASE:
                self._preempt(sequence, plan)
                continue
            if not sequence.is_running:
                self._admit(sequence, plan, now_s)
            kv.take(n)
            sequence.blocks += n
        if is_shared:
            kv.follow(None)
        if plan.order is not None:
            self.running = plan.order
        for chunk in plan.chunks:
            sequence = chunk.sequence
            end = chunk.start + chunk.n_tokens
            if sequence.is_contested:
                kv.contest(sequence, chunk.start)
            sequence.filled = end
            self.prefilled_tokens += chunk.n_tokens
            sequence.is_partial = end < sequence.length + sequence.expected
        if self.n_drafts or self.is_ahead:
            self._foresee(plan)
        self.note = plan.note
        self.n_planned += 1

    def board(self, plan: StepPlan) -> None:
        """Send a plan that was reserved into the first of several stages."""
        for chunk in plan.chunks:
            chunk.sequence.computed += chunk.n_tokens
            chunk.sequence.n_piped += 1
        for sequence in plan.decodes:
            sequence.computed += 1
            sequence.n_piped += 1

    def settle(self) -> None:
        """Let the cache know of the chunks that did not end a prompt: it hears of them when the next step is planned."""
        for sequence in self.unsettled:
            if sequence.is_running and sequence.finish is None:
                self.kv.progress(sequence)

    def _admit(self, sequence: Sequence, plan: StepPlan, now_s: float) -> None:
        if self.waiting and self.waiting[0] is sequence:
            self.waiting.popleft()
        else:
            self.waiting.remove(sequence)
        if sequence.first_scheduled_s is None:
            sequence.first_scheduled_s = now_s
        hit = plan.hits.get(sequence, 0)
        self.kv.adopt(sequence, hit)
        sequence.computed = sequence.cached = sequence.filled = hit
        if self.kv.is_caching:
            self.cache_queries += sequence.length
            self.cache_hits += hit
        sequence.is_running = True
        self.running.append(sequence)

    def _preempt(self, sequence: Sequence, plan: StepPlan) -> None:
        self.running.remove(sequence)
        before, after = plan.room.get(sequence, (0, 0))
        self.kv.make_room(before)
        self.kv.release(sequence)
        self.kv.make_room(after)
        sequence.is_running = sequence.is_partial = False
        sequence.computed = sequence.drafts = sequence.expected = 0
        sequence.stale = sequence.in_flight
        sequence.queued_after = self.prefilled_tokens
        sequence.n_preemptions += 1
        self.n_preemptions += 1
        self.n_departures += 1
        if self.is_by_priority:
            insort(self.waiting, sequence)
        elif plan.preempted_to_tail:
            self.waiting.append(sequence)
        else:
            self.waiting.appendleft(sequence)

    def _foresee(self, plan: StepPlan) -> None:
        """Note what is in flight, and what may be found when the step is computed."""
        for sequence in plan.decodes:
            sequence.filled = min(sequence.computed + sequence.in_flight + 1, sequence.length)
            sequence.drafts = 0
            sequence.is_partial = False
        for verify in plan.verifies:
            sequence = verify.sequence
            sequence.filled = min(sequence.computed + sequence.in_flight + 1 + verify.n_drafts, sequence.length)
            sequence.drafts = 0
            sequence.is_partial = False
        if not self.is_ahead:
            return
        for chunk in plan.chunks:
            chunk.sequence.in_flight += chunk.n_tokens
            if not chunk.sequence.is_partial:
                chunk.sequence.expected += 1
                chunk.sequence.drafts = self.n_drafts
        for sequence in plan.decodes:
            sequence.in_flight += 1
            sequence.expected += 1
            sequence.drafts = self.n_drafts
        for verify in plan.verifies:
            verify.sequence.in_flight += 1 + verify.n_drafts
            verify.sequence.expected += 1 + verify.n_drafts
            verify.sequence.drafts = self.n_drafts

    # -- the end of a step

    def advance(self, plan: StepPlan, end_s: float, accepted: Accepted | None = None) -> list[Sequence]:
        """End a step: note what was computed. Returns the sequences that got tokens (`yielded_now`), chunks first.

        A sequence that has ended carries its `finish` and has left the running list and its blocks. One aborted while the step
        ran is passed over. `accepted` says how many drafts of a verification hold; without it none do.
        """
        yielded: list[Sequence] = []
        n_ended = 0
        is_plain = not (self.n_drafts or self.is_ahead or self.is_piped)
        for chunk in plan.chunks:
            sequence = chunk.sequence
            is_last = chunk.is_last
            if sequence.finish is not None:
                continue
            if self.is_ahead:
                sequence.in_flight -= chunk.n_tokens
            if self.is_piped:
                sequence.n_piped -= 1
            elif sequence.stale:
                sequence.stale -= chunk.n_tokens
            else:
                sequence.computed += chunk.n_tokens
                if is_last and self.is_ahead:
                    sequence.expected -= 1
            if not is_last:
                if self.kv.is_caching:
                    self.unsettled.append(sequence)
                continue
            n_ended += self._yield(sequence, 1, end_s)
            yielded.append(sequence)
            if sequence.is_running and sequence.finish is None:
                self.kv.progress(sequence)
        if is_plain:
            for sequence in plan.decodes:
                if sequence.finish is None:
                    sequence.computed += 1
                    sequence.generated = n = sequence.generated + 1
                    yielded.append(sequence)
                    if n >= sequence.max_new or n == sequence.stop_at:
                        sequence.finish = "stop" if n == sequence.stop_at else "length"
                        n_ended += 1
        else:
            n_ended += self._advance_singly(plan, end_s, accepted, yielded)
        self.n_ended = n_ended
        if n_ended:
            self._remove_ended()
        return yielded

    def glide(self, plan: StepPlan, n: int) -> None:
        """End a steady step and n - 1 more like it, of which the caller knows that there is room for them and nobody ends.

        Where steps are planned ahead, the n-th ends with one more of them in flight.
        """
        size = self.kv.block_tokens
        n_ahead = 1 if self.is_ahead else 0
        taken = 0
        for sequence in plan.decodes:
            sequence.generated += n
            sequence.computed = computed = sequence.computed + n
            missing = computed + n_ahead - sequence.blocks * size
            if missing > 0:
                blocks = -(-missing // size)
                sequence.blocks += blocks
                taken += blocks
        if n_ahead:
            for sequence in plan.decodes:
                sequence.in_flight = sequence.expected = 1
                sequence.filled = sequence.computed
        self.kv.take(taken)
        if plan.note_after is not None:
            self.note = plan.note_after(n - 1)
        self.n_planned += n - 1
        self.n_ended = 0

    def glide_limit(self, plan: StepPlan) -> int:
        """How many steady steps, the one in progress among them, can end before somebody ends or memory does."""
        n = (
            min((one.max_new if one.stop_at is None else min(one.stop_at, one.max_new)) - one.generated for one in plan.decodes)
            - 1
        )
        while n > 1 and self._growth(plan, n) > self.kv.free:
            n //= 2
        return n

    def _growth(self, plan: StepPlan, n: int) -> int:
        size = self.kv.block_tokens
        n_ahead = 1 if self.is_ahead else 0
        growth = [one.computed + n + n_ahead - one.blocks * size for one in plan.decodes]
        return sum(-(-missing // size) for missing in growth if missing > 0)

    def _advance_singly(self, plan: StepPlan, end_s: float, accepted: Accepted | None, yielded: list[Sequence]) -> int:
        """Decodes and verifications where drafts are made or steps are planned ahead; how many sequences have ended."""
        n_ended = 0
        for sequence in plan.decodes:
            if sequence.finish is None:
                self._land(sequence, 1, 1)
                n_ended += self._yield(sequence, 1, end_s)
                yielded.append(sequence)
        for verify in plan.verifies:
            sequence = verify.sequence
            if sequence.finish is None:
                k = verify.n_drafts
                n = 1 + (min(accepted(sequence, k), k) if accepted is not None else 0)
                self._land(sequence, 1 + k, n)
                n_ended += self._yield(sequence, n, end_s)
                yielded.append(sequence)
        return n_ended

    def _land(self, sequence: Sequence, n_planned: int, n_kept: int) -> None:
        if self.is_piped:
            sequence.n_piped -= 1
            return
        if self.is_ahead:
            sequence.in_flight -= n_planned
        if sequence.stale:
            sequence.stale -= n_planned
            return
        sequence.computed += n_kept
        if self.is_ahead:
            sequence.expected -= n_planned

    def _yield(self, sequence: Sequence, n: int, end_s: float) -> int:
        """Give a sequence its tokens, cut at its end; 1 if it ended."""
        before = sequence.generated
        stop_at = sequence.stop_at if sequence.stop_at is not None and sequence.stop_at <= sequence.max_new else None
        last = sequence.max_new if stop_at is None else stop_at
        n = min(n, last - before)
        sequence.generated = before + n
        sequence.yielded_now = n
        if not before:
            sequence.first_token_s = end_s
        if self.is_ahead and sequence.is_running:
            # Drafts beyond the end of the output are not among the tokens that can be found.
            sequence.filled = max(sequence.filled, min(sequence.computed, sequence.length - 1))
        if before + n < last:
            if self.n_drafts and not self.is_ahead and sequence.is_running:
                sequence.drafts = self.n_drafts
            return 0
        sequence.finish = "length" if stop_at is None else "stop"
        return 1

    def abort(self, sequence: Sequence) -> None:
        """Drop a sequence at once, wherever it is."""
        if sequence.finish is not None:
            return
        sequence.finish = "abort"
        if sequence.is_running:
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
                self.kv.release(sequence)
                sequence.is_running = False
                self.n_departures += 1
        self.running = kept
        if self.is_ahead and any(sequence.finish is not None for sequence in self.waiting):
            # Preempted while its last tokens were in flight.
            self.waiting = deque(sequence for sequence in self.waiting if sequence.finish is None)


class Policy(Protocol):
    """A scheduler: decides one step, changes nothing."""

    def schedule(self, state: SchedulerState, now_s: float) -> StepPlan:
        """The next step; empty if nothing can run."""
        ...

    def refusal(self, isl: int, max_new: int) -> str | None:
        """Why a request can never run here, in the scheduler's terms; None if it can."""
        ...
