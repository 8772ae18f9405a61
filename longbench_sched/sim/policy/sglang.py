"""SGLang (0.5.23, and 0.4.2.post4 as a profile): prefill first.

In every iteration the scheduler tries to build a batch of prompts and runs it alone; only when there is none do the running
sequences decode. So while prompts that can be admitted keep arriving, nobody's tokens advance: the gap between two tokens is as
long as the backlog, not as one chunk. At most one prompt is in progress (`chunked`); it takes the first `chunked_prefill_size`
tokens of the next batch. Who of the queue is first: `sglang_queue.py`.

Admission keeps room for part of what running sequences may still generate, `new_token_ratio` of it. The ratio falls with every
decode step and rises when memory ran out: then the sequences that generated least are retracted to the end of the queue.

Prefixes are found in a radix tree, token by token. With `enable_mixed_chunk` the running decodes ride in the prefill batch. The
flag "full" belongs to the running batch and says that nobody is admitted until somebody leaves; it is lost together with a
batch that it was set on while nothing ran. With priorities a request may take the place of one that is less urgent by more than
a threshold, if all places are taken; it does not for want of memory.

Equal, step for step, to recorded traces of 0.5.23 without overlap (tests/sim/traces). Of overlap there are the cost and the
slots that compute for those who have just ended (docs/policies/sglang.md has the rest). Not modelled: several data-parallel
ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from functools import partial

from longbench_sched.sim.policy.sglang_batch import Batch, Full
from longbench_sched.sim.policy.sglang_options import SGLANG_0_4_2, Sglang042Options, SglangOptions
from longbench_sched.sim.policy.sglang_queue import ordered, room_left_for_shorter, urgency
from longbench_sched.sim.state import SchedulerState
from longbench_sched.sim.step import RELEASE, Sequence, StepPlan, Verify

__all__ = ["Sglang", "Sglang042Options", "SglangNote", "SglangOptions"]

CLIP_MAX_NEW_TOKENS = 4096  # how far into the future of a sequence admission looks
INIT_NEW_TOKEN_RATIO = 0.7
MIN_RATIO_FACTOR = 0.14
DECAY_STEPS = 600
RETRACT_DECODE_STEPS = 20


@dataclass(frozen=True, slots=True)
class SglangNote:
    """What the scheduler remembers between iterations."""

    ratio: float
    chunked: Sequence | None = None
    is_full: bool = False
    is_loose: bool = False  # "full" was set while nothing ran: it goes with the batch that it was set on
    n_departures: int = 0  # when it was found full: a departure since then makes room
    n_decodes_due: int = 0  # decode steps before the queue is looked at again


@dataclass(slots=True)
class Sglang:
    """The scheduler. `options` are resolved."""

    options: SglangOptions
    next_chunk: Callable[[int], int] | None = None  # tokens of a prompt that are done -> of its next chunk; None: all alike
    places: int | None = None  # of the pipeline slot that is visited; None: as the options say
    elsewhere: SequenceOf[Sequence] = ()  # running in other slots, with memory of their own to come

    @property
    def init_ratio(self) -> float:
        """The ratio at rest."""
        return min(INIT_NEW_TOKEN_RATIO * self.options.schedule_conservativeness, 1.0)

    @property
    def min_ratio(self) -> float:
        """Where the decay ends."""
        return self.init_ratio * MIN_RATIO_FACTOR

    @property
    def verify_tokens(self) -> int:
        """Tokens of a sequence in a decode step."""
        return self.options.speculative_num_draft_tokens or 1

    @property
    def _is_shortest_first(self) -> bool:
        return self.options.schedule_policy == "shortest-prefill-first"

    def refusal(self, isl: int, max_new: int) -> str | None:
        """Nothing is refused beyond the context length, which the server checks."""
        return None

    def after(self, note: SglangNote, n_steps: int) -> SglangNote:
        """The note after so many more decode steps of the same batch."""
        return replace(note, ratio=max(note.ratio - n_steps * self._decay, self.min_ratio))

    @property
    def _decay(self) -> float:
        return (self.init_ratio - self.min_ratio) / DECAY_STEPS

    def schedule(self, state: SchedulerState, now_s: float) -> StepPlan:
        """A prefill batch if there can be one, else one decode of everybody, else nothing."""
        note = state.note
        if not isinstance(note, SglangNote) or state.n_planned == 0:
            note = SglangNote(self.init_ratio)
        chunked = note.chunked if note.chunked is not None and note.chunked.is_partial else None
        decoding = [sequence for sequence in state.running if sequence is not chunked] if chunked else state.running
        is_full = note.is_full and not note.is_loose and bool(decoding) and chunked is None
        is_full = is_full and state.n_departures == note.n_departures and not self.options.has_priority_preemption
        note = replace(note, chunked=chunked, is_full=is_full, is_loose=False, n_departures=state.n_departures)
        plan = StepPlan(note=note)
        if note.n_decodes_due and chunked is None and decoding:
            plan.note = replace(note, n_decodes_due=note.n_decodes_due - 1)
            return self._decode(state, plan, decoding, is_due=True)
        if chunked is None and (is_full or not state.waiting):
            return self._decode(state, plan, decoding)
        if chunked is None and len(decoding) >= self._places(state) and not self.options.has_priority_preemption:
            plan.note = replace(note, is_full=True)
            return self._decode(state, plan, decoding)
        state.kv.rehearse(plan)
        try:
            state.settle()
            self._prefill(state, plan, decoding, chunked)
        finally:
            state.kv.undo()
        if plan.chunks or plan.preempted:
            return plan
        return self._decode(state, plan, decoding)

    def _places(self, state: SchedulerState) -> int:
        if self.places is not None:
            return self.places
        return self.options.max_running(state.kv.total * state.kv.block_tokens)

    # -- prefill

    def _prefill(self, state: SchedulerState, plan: StepPlan, decoding: SequenceOf[Sequence], chunked: Sequence | None) -> None:
        """Put a batch of prompts into the plan, if there is room for one."""
        note = plan.note
        assert isinstance(note, SglangNote)
        decoding = list(decoding)
        batch = self._empty_batch(state, plan, decoding, chunked)
        queue = ordered(state, plan, self.options)
        if chunked is not None:
            self._go_on(batch, chunked, queue)
        is_full = False
        try:
            self._admit(batch, queue, decoding)
        except Full:
            is_full = bool(plan.chunks) or bool(decoding)
        self._allocate(state, plan)
        if self.options.enable_mixed_chunk and plan.chunks and decoding:
            self._mix_in(state, plan, decoding)
        is_loose = bool(plan.chunks) and (not decoding or plan.order is not None)
        due = self.options.prefill_decode_interval if plan.chunks else 0
        plan.note = replace(note, chunked=batch.chunked, is_full=is_full, is_loose=is_loose, n_decodes_due=due)

    def _empty_batch(
        self, state: SchedulerState, plan: StepPlan, decoding: SequenceOf[Sequence], chunked: Sequence | None
    ) -> Batch:
        options, note = self.options, plan.note
        assert isinstance(note, SglangNote)
        ratio = note.ratio
        n_mixed = len(decoding) if options.enable_mixed_chunk else 0
        chunk = options.chunked_prefill_size or -1
        if self.next_chunk is not None and chunked is not None:
            chunk = self.next_chunk(chunked.computed)
        return Batch(
            plan,
            state,
            input_left=options.max_prefill_tokens - n_mixed,
            chunk_left=chunk - n_mixed if chunk > 0 else None,
            total_offset=n_mixed + sum(self._reserve(sequence, ratio) for sequence in (*decoding, *self.elsewhere)),
            current_offset=n_mixed,
            ratio=ratio,
            spare=state.kv.block_tokens if options.profile.admits_by_page else 0,
        )

    def _reserve(self, sequence: Sequence, ratio: float) -> float:
        left = min(sequence.max_new - sequence.generated, CLIP_MAX_NEW_TOKENS)
        return left * self._ratio_of(sequence, ratio)

    def _ratio_of(self, sequence: Sequence, ratio: float) -> float:
        return 1.0 if sequence.runs_to_length and self.options.profile.reserves_ignore_eos_in_full else ratio

    def _go_on(self, batch: Batch, chunked: Sequence, queue: list[Sequence]) -> None:
        """The prompt in progress comes first, and always gets on."""
        left = chunked.left_to_compute
        n = left
        is_cut_short = False
        if batch.chunk_left is not None:
            room = min(batch.chunk_left, int(batch.total_left)) if self.options.profile.holds_chunk_to_reserve else 0
            n = min(left, room if room > 0 else batch.chunk_left)
            if self._is_shortest_first:
                most = room_left_for_shorter(chunked, queue, batch.chunk_left, batch.page)
                is_cut_short = most is not None and most < n
                n = min(n, most) if most is not None else n
        if (
            self.elsewhere or not self.options.profile.holds_chunk_to_reserve
        ):  # decodes may have taken what it was admitted with
            n = min(n, batch.state.kv.free * batch.page)
        if n <= 0:  # mixed decodes have spent the chunk, or memory has
            batch.chunked = chunked
            return
        new_tokens = min(chunked.max_new, CLIP_MAX_NEW_TOKENS)
        batch.add(chunked, chunked.computed, n, new_tokens if n == left else 0)
        if is_cut_short:  # those that go along must leave room for the rest of it
            batch.total_offset += batch.paged(left - n) + new_tokens

    def _admit(self, batch: Batch, queue: list[Sequence], decoding: list[Sequence]) -> None:
        """Take from the queue what the budgets hold; `decoding` loses those whose place is taken.

        Raises Full when places or memory have come to an end.
        """
        state, plan = batch.state, batch.plan
        is_full = False
        is_alone = self.options.speculative_algorithm and self.options.profile is SGLANG_0_4_2
        for sequence in queue:
            if batch.is_spent and not batch.is_out_of_memory:
                return
            is_full = is_full or len(plan.chunks) + len(decoding) >= self._places(state)
            if is_full and not (self.options.has_priority_preemption and self._oust(batch, sequence, decoding)):
                raise Full
            if is_alone and plan.chunks:
                return
            if sequence.runs_to_length and not state.kv.is_caching:
                is_taken = self._take_ignoring_eos(batch, sequence, decoding)
            else:
                is_taken = self._take(batch, sequence)
            if not is_taken:
                return
            if batch.is_out_of_memory:
                raise Full
            if batch.is_spent:
                return

    def _oust(self, batch: Batch, sequence: Sequence, decoding: list[Sequence]) -> bool:
        """Take the place, and if need be more, from running sequences that are less urgent by more than the threshold."""
        options, plan = self.options, batch.plan

        def patience(one: Sequence) -> tuple[int, int, int]:
            return -urgency(one, options), -one.queued_after, -one.id

        threshold = options.priority_scheduling_preemption_threshold
        needed = sequence.length + min(sequence.max_new, CLIP_MAX_NEW_TOKENS) - batch.total_left
        victims: list[Sequence] = []
        for one in sorted(decoding, key=patience):
            if urgency(one, options) - urgency(sequence, options) <= threshold:
                break
            victims.append(one)
            needed -= self._reserve(one, batch.ratio)
            if needed <= 0:
                break
        if not victims or needed > 0:
            return False
        for one in victims:
            decoding.remove(one)
            batch.total_offset -= self._reserve(one, batch.ratio)
            batch.state.kv.release(one)
            plan.preempted.append(one)
            plan.blocks.append((one, RELEASE))
        plan.preempted_to_tail = True
        return True

    def _take(self, batch: Batch, sequence: Sequence) -> bool:
        """Admit a sequence, or its first chunk; False if a token budget forbids it. Raises Full if memory does."""
        kv, plan = batch.state.kv, batch.plan
        hit = 0
        if kv.is_caching:
            plan.lookups.append((sequence, sequence.length - 1))
            hit = kv.look_up(sequence, sequence.length - 1)
        extend = sequence.length - hit
        profile, left = self.options.profile, batch.total_left
        kv.adopt(sequence, hit)  # what it found cannot be evicted for it
        new_tokens = sequence.max_new - sequence.generated if profile.admits_by_page else sequence.max_new
        needed = extend + min(max(new_tokens, 0), CLIP_MAX_NEW_TOKENS) + batch.spare
        # 0.4.2 asks for more than is needed before what was found is locked, and for as much after that.
        is_room = needed < batch.total_left if profile.admits_by_page else needed < left and needed <= batch.total_left
        if not is_room:
            kv.release(sequence)
            raise Full
        paged = batch.paged(extend)
        is_capped = batch.chunk_left is None or profile.caps_input_with_chunks
        is_over = paged >= batch.input_left if profile.admits_by_page else paged > batch.input_left
        if is_capped and plan.chunks and is_over:
            kv.release(sequence)
            return False
        n = extend
        if batch.chunk_left is not None and paged > batch.chunk_left:
            if self._is_shortest_first and batch.chunked is not None:
                kv.release(sequence)
                return False  # there is one prompt in progress at most
            n = batch.chunk_left // batch.page * batch.page
            n = (hit + n) // batch.page * batch.page - hit
            if n <= 0:
                kv.release(sequence)
                return False
        self._enlist(plan, sequence, hit)
        batch.add(sequence, hit, n, min(sequence.max_new, CLIP_MAX_NEW_TOKENS) if n == extend else 0)
        return True

    def _take_ignoring_eos(self, batch: Batch, sequence: Sequence, decoding: SequenceOf[Sequence]) -> bool:
        """The same for a request that runs to its limit, without a cache: there must be room at every end to come."""
        extend = sequence.length
        if self.options.profile.looks_to_next_end:
            # What it had generated before it was retracted is not asked for; where it does not fit, the engine fails.
            needed = sequence.isl
            is_room = extend <= batch.current_left
        else:
            needed = batch.paged(extend) + batch.page
            is_room = needed <= min(batch.current_left, batch.total_left)
        if not is_room:
            raise Full
        self._foresee(batch, sequence, decoding)
        left = batch.current_left - needed
        freed = 0
        states = batch.states
        assert states is not None
        for i, (tokens_left, held) in enumerate(states):
            n = len(states) - i
            reserve = n  # one token each
            if self.options.profile.looks_to_next_end:
                tokens_left, reserve = states[min(i + 1, len(states) - 1)][0], 0
            if left + freed - tokens_left * n <= reserve:
                raise Full
            freed += held
        n = extend
        if batch.chunk_left is not None and extend > batch.chunk_left:
            n = batch.chunk_left
            if n <= 0 or batch.chunked is not None:
                return False
        self._enlist(batch.plan, sequence, 0)
        batch.add(sequence, 0, n, min(sequence.max_new, CLIP_MAX_NEW_TOKENS) if n == extend else 0)
        return True

    def _foresee(self, batch: Batch, sequence: Sequence, decoding: SequenceOf[Sequence]) -> None:
        """Keep the list of ends to come, nearest first."""

        def end_of(one: Sequence) -> tuple[float, int]:
            return one.max_new * (1.0 if one.runs_to_length else batch.ratio) - one.generated, one.length

        if batch.states is None:
            others = [*decoding, *(chunk.sequence for chunk in batch.plan.chunks)]
            ends = [end_of(one) for one in (sequence, *others)]
            batch.states = sorted((end for end in ends if end[0] > 0), key=lambda end: end[0])
            return
        end = end_of(sequence)
        if end[0] > 0:
            later = [i for i, state in enumerate(batch.states) if end[0] <= state[0]]
            # As the engine does it: one that ends after all others is put before the last.
            batch.states.insert(later[0] if later else max(len(batch.states) - 1, 0), end)

    @staticmethod
    def _enlist(plan: StepPlan, sequence: Sequence, hit: int) -> None:
        plan.admitted.append(sequence)
        if hit:
            plan.hits[sequence] = hit

    def _allocate(self, state: SchedulerState, plan: StepPlan) -> None:
        """Pages for all prompts of the batch, in its order."""
        kv = state.kv
        for chunk in plan.chunks:
            sequence = chunk.sequence
            held = plan.hits.get(sequence, 0) // kv.block_tokens if not sequence.is_running else sequence.blocks
            n = max(kv.blocks_for(chunk.start + chunk.n_tokens) - held, 0)
            kv.grow(sequence, n)
            plan.blocks.append((sequence, n))

    def _mix_in(self, state: SchedulerState, plan: StepPlan, decoding: SequenceOf[Sequence]) -> None:
        """Let the running decodes ride along if there is memory for all of them; else they sit this step out."""
        growth = self._growth(state, decoding)
        if sum(n for _, n in growth) <= state.kv.free:
            plan.blocks += growth
            self._compute(state, plan, decoding)
            plan.order = [*(chunk.sequence for chunk in plan.chunks), *decoding]

    # -- decode

    def _compute(self, state: SchedulerState, plan: StepPlan, batch: SequenceOf[Sequence]) -> None:
        options = self.options
        if options.is_overlapped:  # who has just ended is still in the batch: that is read when it has been launched
            plan.padding = state.n_ended * self.verify_tokens
        if options.speculative_algorithm:
            steps, tokens = options.speculative_num_steps, self.verify_tokens
            plan.verifies += [Verify(sequence, steps, tokens) for sequence in batch]
        else:
            plan.decodes += batch

    def _growth(self, state: SchedulerState, batch: SequenceOf[Sequence]) -> list[tuple[Sequence, int]]:
        """Pages that one decode step takes."""
        size, n = state.kv.block_tokens, self.verify_tokens
        growth = []
        for sequence in batch:
            needed = sequence.computed + n - sequence.blocks * size
            if needed > 0:
                growth.append((sequence, -(-needed // size)))
        return growth

    def _decode(self, state: SchedulerState, plan: StepPlan, batch: SequenceOf[Sequence], is_due: bool = False) -> StepPlan:
        note = plan.note
        assert isinstance(note, SglangNote)
        if not batch:
            return plan
        growth = self._growth(state, batch)
        if sum(n for _, n in growth) <= state.kv.free:
            due = note.n_decodes_due if is_due else self.options.num_continuous_decode_steps - 1
            plan.note = replace(note, ratio=max(note.ratio - self._decay, self.min_ratio), n_decodes_due=due)
            plan.blocks += growth
            self._compute(state, plan, batch)
            plan.note_after = partial(self.after, plan.note)
            is_looking = state.waiting and (self.options.has_priority_preemption or not note.is_full)
            plan.is_steady = not (plan.verifies or note.chunked or due or is_looking)
            return plan
        return self._retract(state, plan, batch)

    def _retract(self, state: SchedulerState, plan: StepPlan, batch: SequenceOf[Sequence]) -> StepPlan:
        """Take out those that generated least, then those with the longest prompts, until the next step fits."""
        note = plan.note
        assert isinstance(note, SglangNote)
        kv, profile = state.kv, self.options.profile
        staying = sorted(batch, key=lambda sequence: (-sequence.generated, sequence.isl))
        kv.rehearse(plan)
        try:
            state.settle()
            for sequence, limit in plan.lookups:
                kv.look_up(sequence, limit)
            while len(staying) > (0 if self.elsewhere else 1):
                need = sum(n for _, n in self._growth(state, staying))
                wanted = len(staying) * RETRACT_DECODE_STEPS // kv.block_tokens if profile.retracts_ahead else need
                if plan.preempted and wanted <= kv.free:
                    break
                victim = staying.pop()
                room = len(staying) * RETRACT_DECODE_STEPS // kv.block_tokens
                plan.room[victim] = (need, room)
                kv.make_room(need)
                kv.release(victim)
                kv.make_room(room)
                plan.preempted.append(victim)
                plan.blocks.append((victim, RELEASE))
        finally:
            kv.undo()
        going = staying  # from now on in this order
        plan.order = [*going, *(one for one in state.running if one is note.chunked)]
        generated = sum(sequence.generated for sequence in going)
        max_new = sum(sequence.max_new for sequence in going) + profile.ratio_bias
        ratio = note.ratio
        if going:
            ratio = min(1.0, (generated + RETRACT_DECODE_STEPS * len(going)) / max(max_new, 1))
        plan.preempted_to_tail = True
        plan.note = replace(note, ratio=ratio, is_full=False, n_decodes_due=0)
        plan.blocks += self._growth(state, going)
        self._compute(state, plan, going)
        return plan
