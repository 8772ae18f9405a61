"""vLLM V1 (as of 0.33.0): no prefill and no decode phase, only tokens to catch up with.

A step hands out `max_num_batched_tokens`. Running sequences come first, in order of admission: a decode takes one token (a
verification 1 + k), a prompt in progress what is left to it. Then the queue is served in order of arrival, or by priority. With
the default settings at most one sequence is in mid-prompt and it is the last of the running list, so every decode advances in
every step and no gap between tokens is longer than one full step. When blocks run out, the sequence admitted last gives up its
own and starts again at the head of the queue; what it had computed may still be found in the prefix cache.

With asynchronous scheduling a step is planned while the one before it runs. Each sequence in flight is then taken to yield all
it can; the rest is rolled back when the result is read.

Equal, step for step, to the scheduler class of 0.32.0 (tests/sim/traces). Not modelled: LoRA, grammars, remote KV, several KV
groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from longbench_sched.errors import UsageError
from longbench_sched.sim.hardware import Gpu
from longbench_sched.sim.ledger import Found, Ledger
from longbench_sched.sim.models import KvCacheDtype, Quantization
from longbench_sched.sim.state import SchedulerState
from longbench_sched.sim.step import Chunk, Sequence, StepPlan, Verify

SpeculativeMethod = Literal["ngram", "medusa", "eagle", "eagle3", "mtp", "draft_model"]

_WITH_HIDDEN_STATES = ("eagle", "eagle3", "mtp")
_SPECULATIVE = ("ngram", "medusa", *_WITH_HIDDEN_STATES, "draft_model")


@dataclass(frozen=True, slots=True)
class VllmProfile:
    """What differs between releases."""

    # `prefill_schedule_interval`: steps are counted from the last prefill; else from the start of a wave, and it is only asked
    # for by a data-parallel engine core.
    counts_from_prefill: bool
    has_partial_prefills: bool = False  # `max_num_partial_prefills`, and the 4 % rule that came with it
    is_ahead_by_default: bool = True
    drafts_ahead: tuple[str, ...] = (*_WITH_HIDDEN_STATES, "draft_model")  # speculation beside which a step is planned ahead


PROFILES: Mapping[str, VllmProfile] = {
    "0.33.0": VllmProfile(counts_from_prefill=True),
    "0.32.0": VllmProfile(counts_from_prefill=False),
    # Partial prefills: 0.8 to 0.2x. Until 0.14.0 planning ahead is asked for; not beside speculation (from memory).
    "0.10.0": VllmProfile(counts_from_prefill=False, has_partial_prefills=True, is_ahead_by_default=False, drafts_ahead=()),
}
PARTIAL_PREFILL_SHARE = 0.04  # of the context: the threshold where prompts may be prefilled side by side


@dataclass(frozen=True, slots=True)
class VllmV1Options:
    """Flags of `vllm serve`, by their own names; None is resolved as the API server of 0.33.0 does, mostly by GPU memory."""

    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    gpu_memory_utilization: float = 0.92
    block_size: int = 16
    enable_prefix_caching: bool = True
    async_scheduling: bool | None = None  # None: wherever the engine can
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    long_prefill_token_threshold_adaptive: bool = False
    max_num_active_seqs: int | None = None
    max_num_scheduled_tokens: int | None = None
    prefill_schedule_interval: int = 1
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    performance_mode: Literal["balanced", "interactivity", "throughput"] = "balanced"
    speculative_method: str = "ngram"
    num_speculative_tokens: int = 0  # 0: no speculation
    is_offline: bool = False  # the class LLM instead of the API server: a larger budget
    release: str = "0.33.0"
    max_num_partial_prefills: int = 1  # in releases that have it
    quantization: Quantization = ""  # of weights that are bf16
    kv_cache_dtype: KvCacheDtype = "auto"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1

    def resolved(self, gpu: Gpu, model_context: int) -> VllmV1Options:
        """The same with every default decided.

        Tokens a step, API server / offline class: 16384 / 16384 from 160 GiB, 8192 / 16384 from 70 GiB but for the A100, else
        2048 / 8192; doubled in throughput mode; at most what all places could use. Raises UsageError.
        """
        if self.speculative_method not in _SPECULATIVE:
            raise UsageError(
                f"speculative method {self.speculative_method!r} is not known here. Known: {', '.join(_SPECULATIVE)}."
            )
        threshold = self._threshold(self.max_model_len or model_context)
        is_big = gpu.memory_gib >= 70 and not gpu.name.startswith("A100")
        if gpu.memory_gib >= 160:
            budget = 16384
        elif is_big:
            budget = 16384 if self.is_offline else 8192
        else:
            budget = 8192 if self.is_offline else 2048
        places = 1024 if is_big else 256
        if self.performance_mode == "throughput":
            budget, places = 2 * budget, 2 * places
        places = self.max_num_seqs or places
        context = self.max_model_len or model_context
        if not self.enable_chunked_prefill:
            budget = max(budget, context)
        budget = self.max_num_batched_tokens or min(budget, places * context)
        if not self.enable_chunked_prefill and budget < context:
            raise UsageError(
                f"max_num_batched_tokens ({budget}) is below max_model_len ({context}) and chunked prefill is off: such a "
                "prompt could never run. Raise --max-num-batched-tokens, or leave --enable-chunked-prefill on."
            )
        if (self.max_num_scheduled_tokens or 0) > budget:
            raise UsageError(
                f"max_num_scheduled_tokens ({self.max_num_scheduled_tokens}) is above max_num_batched_tokens ({budget}), which "
                "a step has room for. Raise the one or lower the other."
            )
        return replace(
            self,
            max_num_batched_tokens=budget,
            max_num_seqs=min(places, budget),
            max_model_len=context,
            max_num_scheduled_tokens=self.max_num_scheduled_tokens or budget,
            long_prefill_token_threshold=threshold,
            async_scheduling=self._plans_ahead(),
        )

    @property
    def profile(self) -> VllmProfile:
        """The release."""
        return PROFILES[self.release]

    def _threshold(self, context: int) -> int:
        """4 % of the context where prompts may be prefilled side by side and no threshold is given; else what is given.

        With one partial prefill at a time, the default, the rule never held (claim C10), and in 0.33.0 it is gone.
        """
        if self.release not in PROFILES:
            raise UsageError(f"--release {self.release!r} of vLLM is not known here. Known: {', '.join(PROFILES)}.")
        if self.max_num_partial_prefills > 1:
            if not self.profile.has_partial_prefills:
                raise UsageError(
                    f"--max-num-partial-prefills does not exist in vLLM {self.release}: it has been removed.\n"
                    "  Leave it out, or give --release 0.10.0."
                )
            return self.long_prefill_token_threshold or int(PARTIAL_PREFILL_SHARE * context)
        return self.long_prefill_token_threshold

    def _plans_ahead(self) -> bool:
        """On where it is not said and speculation allows it; asked for beside other speculation the engine does not start.

        As `VllmConfig` of 0.32.0 decides: n-grams are looked up on the CPU, in tokens that a step in flight has yet to yield.
        """
        named = self.speculative_method
        if not self.num_speculative_tokens or named in self.profile.drafts_ahead:
            return self.profile.is_ahead_by_default if self.async_scheduling is None else self.async_scheduling
        if self.async_scheduling:
            known = ", ".join(self.profile.drafts_ahead) or "none"
            raise UsageError(
                f"vLLM {self.release} does not start with --async-scheduling and {named} speculation together.\n  Leave "
                f"--async-scheduling out: it is then off. Speculation that goes with it: {known}."
            )
        return False

    @property
    def is_ahead(self) -> bool:
        """A step is planned while the one before it runs."""
        return bool(self.async_scheduling)

    @property
    def lookahead_tokens(self) -> int:
        """Slots past the computed tokens that the drafter writes to."""
        drafts_with_kv = self.speculative_method in (*_WITH_HIDDEN_STATES, "draft_model")
        return self.num_speculative_tokens if drafts_with_kv else 0

    @property
    def draft_slots(self) -> int:
        """Tokens of the drafter's own input that a sequence takes beyond its own."""
        return 1 if self.num_speculative_tokens and self.speculative_method == "draft_model" else 0

    @property
    def drops_last_hit(self) -> bool:
        """The drafter needs the hidden states of the last block found: it is computed again."""
        return self.num_speculative_tokens > 0 and self.speculative_method in _WITH_HIDDEN_STATES


@dataclass(frozen=True, slots=True)
class VllmNote:
    """What the scheduler remembers between steps."""

    could_not_drain: bool = False  # requests were left waiting when prefill was last let through
    passed_over: frozenset[Sequence] = frozenset()  # waiting, but not counted as left
    n_since_prefill: int = 0  # steps since and with the last one that prefilled; 0: none has


@dataclass(slots=True)
class _Budget:
    """Tokens that are left in a step."""

    tokens: int
    inputs: int  # of the drafter
    slots: int

    def spend(self, n: int) -> None:
        """Schedule `n` tokens of a sequence."""
        self.tokens -= n
        self.inputs -= n + self.slots

    @property
    def is_spent(self) -> bool:
        """Whether nothing more fits."""
        return self.tokens <= 0 or self.inputs <= self.slots


@dataclass(slots=True)
class VllmV1:
    """The scheduler. `options` are resolved."""

    options: VllmV1Options

    @property
    def is_ahead(self) -> bool:
        """A step is planned while the one before it runs."""
        return self.options.is_ahead

    def refusal(self, isl: int, max_new: int) -> str | None:
        """Nothing is refused beyond the context length, which the server checks."""
        return None

    def schedule(self, state: SchedulerState, now_s: float) -> StepPlan:
        """One step: the running list, then, if nobody was preempted, the queue."""
        options = self.options
        note = state.note if isinstance(state.note, VllmNote) else VllmNote()
        plan = StepPlan(note=note)
        tokens = options.max_num_batched_tokens or 0
        budget = _Budget(options.max_num_scheduled_tokens or tokens, tokens, options.draft_slots)
        n_requests = len(state.running) + len(state.waiting)
        # Not applied to a lone request.
        cap = options.long_prefill_token_threshold if n_requests > 1 else 0
        if cap and options.long_prefill_token_threshold_adaptive:
            cap = max(cap, tokens // n_requests)
        is_deferring = (
            options.prefill_schedule_interval > 1
            and self._is_held_back(state, note)
            and not note.could_not_drain
            and any(not sequence.is_partial for sequence in state.running)
        )
        ledger = Ledger(state.kv, plan)
        try:
            self._serve_running(state, plan, ledger, budget, cap, is_deferring)
            if not plan.preempted:
                self._admit(state, plan, ledger, budget, cap, is_deferring)
        finally:
            ledger.close()
        if options.prefill_schedule_interval > 1:
            assert isinstance(plan.note, VllmNote)
            since = 1 if plan.chunks else note.n_since_prefill + (note.n_since_prefill > 0)
            plan.note = replace(plan.note, n_since_prefill=since)
        plan.is_steady = (
            not (plan.chunks or plan.verifies or plan.preempted)
            and len(plan.decodes) == len(state.running)
            and options.num_speculative_tokens == 0
            and options.prefill_schedule_interval == 1
            and not (state.waiting and (note.passed_over or plan.admitted))
        )
        return plan

    def _is_held_back(self, state: SchedulerState, note: VllmNote) -> bool:
        """Whether this step is not one in which prompts may be computed."""
        interval = self.options.prefill_schedule_interval
        if self.options.profile.counts_from_prefill:
            return 0 < note.n_since_prefill < interval
        return state.n_planned % interval != 0

    def _serve_running(
        self, state: SchedulerState, plan: StepPlan, ledger: Ledger, budget: _Budget, cap: int, is_deferring: bool
    ) -> None:
        options = self.options
        size = state.kv.block_tokens
        context = options.max_model_len or 0
        lookahead = options.lookahead_tokens
        running = state.running
        out: set[Sequence] = set()  # preempted
        for sequence in running:
            if budget.tokens <= 0 or budget.inputs <= budget.slots:
                return
            if out and sequence in out:
                continue
            start = sequence.computed + sequence.in_flight
            if sequence.expected and start + 2 - sequence.expected >= sequence.isl + sequence.max_new:
                continue  # sure to have reached its end by then
            if is_deferring and sequence.is_partial:
                continue
            n = sequence.isl + sequence.generated + sequence.drafts + sequence.expected - start
            if 0 < cap < n:
                n = cap
            n = min(n, budget.tokens, budget.inputs - budget.slots, context - start - 1)
            if n <= 0:
                continue
            end = start + n + lookahead
            needed = (end if end < context else context) - sequence.blocks * size
            if needed > 0:
                n_blocks = -(-needed // size)
                while n_blocks > ledger.free:
                    victim = self._victim(running, out)
                    if victim is None:
                        return  # all are in pipeline stages, and so is a part of this one
                    out.add(victim)
                    self._withdraw(plan, ledger, budget, victim)
                    if victim is sequence:
                        return  # and nobody behind it runs in this step
                ledger.grow(sequence, n_blocks)
            budget.spend(n)
            n_drafts = n + start - sequence.isl - sequence.generated - sequence.expected if sequence.drafts else 0
            if n_drafts > 0:
                plan.verifies.append(Verify(sequence, n_drafts, n))
            elif n == 1 and sequence.generated + sequence.expected and not sequence.is_partial:
                plan.decodes.append(sequence)
            else:
                plan.chunks.append(Chunk(sequence, n, start))

    def _victim(self, running: list[Sequence], out: set[Sequence]) -> Sequence | None:
        """Who gives up its blocks: the last admitted, or the least urgent; nobody who is in a pipeline stage."""
        if self.options.scheduling_policy == "priority":
            return max((one for one in running if one not in out and not one.n_piped), default=None)
        return next((one for one in reversed(running) if one not in out and not one.n_piped), None)

    @staticmethod
    def _withdraw(plan: StepPlan, ledger: Ledger, budget: _Budget, victim: Sequence) -> None:
        """Preempt; what the victim has in this plan goes back into the budget."""
        n = sum(chunk.n_tokens for chunk in plan.chunks if chunk.sequence is victim)
        n += sum(verify.n_tokens for verify in plan.verifies if verify.sequence is victim)
        n += sum(1 for sequence in plan.decodes if sequence is victim)
        if n:
            plan.chunks = [chunk for chunk in plan.chunks if chunk.sequence is not victim]
            plan.verifies = [verify for verify in plan.verifies if verify.sequence is not victim]
            plan.decodes = [sequence for sequence in plan.decodes if sequence is not victim]
            plan.withdrawn[victim] = n
            budget.tokens += n
            budget.inputs += n + budget.slots
        ledger.release(victim)
        plan.preempted.append(victim)

    def _admit(
        self, state: SchedulerState, plan: StepPlan, ledger: Ledger, budget: _Budget, cap: int, is_deferring: bool
    ) -> None:
        options = self.options
        places = min(options.max_num_seqs or 0, options.max_num_active_seqs or 1 << 60) - len(state.running)
        n_running_planned = len(plan.chunks) + len(plan.decodes) + len(plan.verifies)
        is_in_prefill = any(chunk.sequence.is_partial for chunk in plan.chunks)
        passed: set[Sequence] = set()
        for sequence in state.waiting:
            if budget.is_spent or places <= 0:
                break
            if sequence.stale:  # tokens planned before its preemption are still to come
                passed.add(sequence)
                continue
            found = ledger.find(sequence)
            hit = found[-1][2] if found else 0
            if hit and options.drops_last_hit:
                hit -= 1
            n = self._tokens_of(sequence, hit * state.kv.block_tokens, budget, cap)
            if n is None or (is_deferring and hit * state.kv.block_tokens < sequence.length - 1):
                break
            pads = options.num_speculative_tokens and sequence.length - hit * state.kv.block_tokens == 1
            if pads and not is_in_prefill and (n_running_planned or hit):
                padded = 1 + options.num_speculative_tokens
                if hit * state.kv.block_tokens + padded + 1 <= (options.max_model_len or 0):
                    if padded > min(budget.tokens, budget.inputs - budget.slots):
                        break
                    n = padded if not 0 < cap < padded else cap
            if not self._take_place(state, plan, ledger, sequence, found, hit, n):
                break
            budget.spend(n)
            places -= 1
        self._remember(state, plan, passed, is_deferring)

    def _tokens_of(self, sequence: Sequence, computed: int, budget: _Budget, cap: int) -> int | None:
        """Tokens of a waiting sequence that this step would compute; None if it must wait for a step that holds it whole."""
        n = sequence.length - computed
        if 0 < cap < n:
            n = cap
        left = min(budget.tokens, budget.inputs - budget.slots)
        if n > left and not self.options.enable_chunked_prefill:
            return None
        return min(n, left)

    def _take_place(
        self, state: SchedulerState, plan: StepPlan, ledger: Ledger, sequence: Sequence, found: Found, hit: int, n: int
    ) -> bool:
        """Admit the sequence if its blocks are there: for all of it, or only for this chunk."""
        options, kv = self.options, state.kv
        context = options.max_model_len or 0
        found = _cut(found, hit)
        start = hit * kv.block_tokens
        taken = max(kv.blocks_for(min(start + n + options.lookahead_tokens, context)) - hit, 0)
        others_run = bool(state.running or plan.admitted)
        # Of all blocks, the placeholder among them.
        watermark = int(options.watermark * (kv.total + 1)) if others_run else 0
        required = taken
        if options.scheduler_reserve_full_isl:
            required = max(required, kv.blocks_for(min(sequence.length, context)) - hit)
        if required + ledger.n_idle(found) + watermark > ledger.free:
            return False  # the head of the queue is never passed over
        left = sequence.length - start
        if n > left:
            plan.verifies.append(Verify(sequence, n - left, n))
        else:
            plan.chunks.append(Chunk(sequence, n, start))
        ledger.admit(sequence, start, taken)
        return True

    @staticmethod
    def _remember(state: SchedulerState, plan: StepPlan, passed: set[Sequence], is_deferring: bool) -> None:
        """Whether the queue could be drained, asked only when prefill was let through."""
        note = plan.note
        assert isinstance(note, VllmNote)
        over = (note.passed_over | passed).difference(plan.admitted) if note.passed_over or passed else note.passed_over
        if is_deferring:
            plan.note = note if over is note.passed_over else replace(note, passed_over=over)
            return
        left = len(state.waiting) - len(plan.admitted)
        could_not = left > len(over)
        if could_not != note.could_not_drain or over is not note.passed_over:
            plan.note = replace(note, could_not_drain=could_not, passed_over=over)


def _cut(found: Found, n_blocks: int) -> Found:
    """The first `n_blocks` of the blocks found."""
    return [(run, lo, min(hi, n_blocks)) for run, lo, hi in found if lo < n_blocks]
