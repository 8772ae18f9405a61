"""The laws of SGLang's scheduler over random workloads and knobs, worked out from outside of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from checked_engine import drive, sglang
from hypothesis import given, settings
from hypothesis import strategies as st
from law_parts import arrivals, full_step_s, gaps_in_steps, kv_tokens, quick, with_acceptance

from longbench_sched.sim.engine import Engine
from longbench_sched.sim.policy.sglang import CLIP_MAX_NEW_TOKENS, Sglang042Options, SglangNote
from longbench_sched.sim.policy.sglang_options import SGLANG_0_5_23
from longbench_sched.sim.step import Sequence as Request

knobs = st.fixed_dictionaries(
    {
        "max_running_requests": st.integers(1, 8),
        "enable_mixed_chunk": st.booleans(),
        "page_size": st.sampled_from([1, 4]),
        "schedule_policy": st.sampled_from(SGLANG_0_5_23.orders),
        "disable_radix_cache": st.booleans(),
        "speculative_num_steps": st.sampled_from([0, 0, 2]),
        "prefill_decode_interval": st.sampled_from([0, 0, 0, 2]),
        "num_continuous_decode_steps": st.sampled_from([1, 1, 1, 3]),
        "schedule_conservativeness": st.sampled_from([1.0, 0.3]),
        "enable_priority_scheduling": st.booleans(),
        "schedule_low_priority_values_first": st.booleans(),
        "priority_scheduling_preemption_threshold": st.sampled_from([1, 10]),
    }
)


def allowed(knobs: dict) -> dict:
    """Without what the engine refuses to have together."""
    knobs = dict(knobs)
    if knobs["speculative_num_steps"]:
        knobs |= {"speculative_algorithm": "EAGLE3", "speculative_num_draft_tokens": 4, "enable_mixed_chunk": False}
    if knobs["schedule_policy"] == "shortest-prefill-first":
        knobs["disable_radix_cache"] = False
    if knobs["schedule_policy"] not in ("fcfs", "lof"):
        knobs["enable_priority_scheduling"] = False
    return knobs


@dataclass
class Watch:
    """What is known of an SGLang from outside: ratio and flag before a step, and who was passed over by mixed batches."""

    engine: Engine
    ratio: float = 0.0
    was_full: bool = False
    passed_over: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.ratio = self.engine.policy.init_ratio

    def step(self, plan, state) -> None:
        options, note = self.engine.options, state.note
        assert isinstance(note, SglangNote)
        if state.n_planned == 1:  # it was idle
            self.ratio, self.was_full = self.engine.policy.init_ratio, False
        assert len([one for one in plan.chunks if not one.is_last]) <= 1, "SG-2: at most one in mid-prompt"
        if options.chunked_prefill_size > 0:
            assert sum(one.n_tokens for one in plan.chunks) <= options.chunked_prefill_size, "SG-3: within the chunk"
        if not options.enable_mixed_chunk:
            assert not (plan.chunks and (plan.decodes or plan.verifies)), "SG-1: a step is pure"
        if plan.preempted and not plan.chunks:
            assert plan.decodes or plan.verifies, "SG-8: after a retraction the others go on"
        assert note.ratio <= 1.0, "SG-9"
        # Seen on the real scheduler: the ratio after a retraction may be below the floor, until the next decode.
        assert plan.preempted or plan.chunks or note.ratio >= self.engine.policy.min_ratio, "SG-9"
        if plan.chunks and not plan.preempted:
            self.admissions(plan, state)
        elif state.waiting and not plan.preempted:
            self.nobody_admitted(plan, state)
        self.ratio, self.was_full = note.ratio, note.is_full and not note.is_loose

    def admissions(self, plan, state) -> None:
        """What everyone of a batch needs was there, with what is kept for those that run and those before him."""
        options, page = self.engine.options, state.kv.block_tokens
        in_batch = {chunk.sequence for chunk in plan.chunks}
        running = [one for one in state.running if one not in in_batch]
        taken = sum(n for one, n in plan.blocks) * page
        left = state.kv.free * page + taken - self.kept(running)
        if options.enable_mixed_chunk and not plan.decodes:
            growth = sum(one.computed + 1 > one.blocks * page for one in running)
            assert growth > state.kv.free or not running, "SG-5: decodes ride along where there is memory for all of them"
            self.passed_over |= {one.id for one in running}
        for i, chunk in enumerate(plan.chunks):
            one = chunk.sequence
            hit = plan.hits.get(one, 0)
            if one in plan.admitted and (options.disable_radix_cache is False or not one.runs_to_length):
                # Not yet locked when this one was looked at.
                found_by_later = sum(plan.hits.get(later.sequence, 0) for later in plan.chunks[i + 1 :])
                need = one.length - hit + min(max(one.max_new - one.generated, 0), CLIP_MAX_NEW_TOKENS) + page
                assert need < left + found_by_later, "SG-7: admitted only with room for what it needs"
            left -= -(-chunk.n_tokens // page) * page + page
            if chunk.is_last:
                left -= min(one.max_new, CLIP_MAX_NEW_TOKENS)

    def nobody_admitted(self, plan, state) -> None:
        """A step that decodes while somebody waits: the head of the queue could not be admitted, or none may be."""
        options, note, page = self.engine.options, state.note, state.kv.block_tokens
        if options.prefill_decode_interval or options.num_continuous_decode_steps > 1:
            return
        if options.enable_mixed_chunk and len(state.running) + page > options.chunked_prefill_size:
            return  # the decodes are the chunk
        assert note.is_full, "SG-4: if somebody can be admitted the step is a prefill"
        head: Request = state.waiting[0]
        if self.was_full or not options.disable_radix_cache or head.runs_to_length:
            return
        taken = sum(n for _, n in plan.blocks) * page
        need = head.length + min(max(head.max_new - head.generated, 0), CLIP_MAX_NEW_TOKENS) + page
        is_house_full = len(state.running) >= options.max_running_requests
        assert is_house_full or need >= state.kv.free * page + taken - self.kept(state.running), "SG-4, SG-7"

    def kept(self, running: list[Request]) -> float:
        """Tokens kept for what the running may still generate, and for their next token where it rides along."""
        reserved = sum(
            min(one.max_new - one.generated, CLIP_MAX_NEW_TOKENS) * (1.0 if one.runs_to_length else self.ratio)
            for one in running
        )
        return reserved + (len(running) if self.engine.options.enable_mixed_chunk else 0)


@settings(max_examples=300)
@given(arrivals, kv_tokens, st.integers(8, 96), knobs)
def test_sglang_keeps_the_laws(work, kv, chunk, knobs) -> None:
    """SG-1, SG-2, SG-3, SG-4, SG-7, SG-8, SG-9; SG-6 in `drive`."""
    knobs = allowed(knobs)
    chunk -= chunk % knobs["page_size"]
    engine = with_acceptance(sglang(kv, chunked_prefill_size=chunk, **knobs))
    drive(engine, work, Watch(engine).step)


@quick
@given(arrivals, st.one_of(kv_tokens, st.just(1 << 20)), st.integers(16, 96), st.integers(1, 8), st.booleans())
def test_sg5_with_mixed_chunk_no_gap_is_longer_than_a_step_of_one_chunk(work, kv, chunk, places, uses_tree) -> None:
    engine = sglang(
        kv,
        chunked_prefill_size=chunk,
        max_running_requests=places,
        enable_mixed_chunk=True,
        disable_radix_cache=not uses_tree,
    )
    watch = Watch(engine)

    def step(plan, state) -> None:
        watch.step(plan, state)
        assert plan.n_tokens <= chunk
        assert engine.cost(plan) <= full_step_s(engine, plan, chunk)

    for request, gaps in gaps_in_steps(drive(engine, work, step)).items():
        assert request in watch.passed_over or set(gaps) <= {1}, "SG-5: every running decode advances in every step"


@quick
@given(arrivals, kv_tokens, st.integers(1, 8), st.booleans())
def test_sglang_0_4_keeps_the_laws(work, kv, places, drafts) -> None:
    """EAGLE turns chunks, tree and overlap off: one whole prompt a batch."""
    flags = {"speculative_algorithm": "EAGLE", "speculative_num_steps": 3, "speculative_num_draft_tokens": 8}
    engine = with_acceptance(sglang(kv, Sglang042Options, max_running_requests=places, **(flags if drafts else {})))

    def step(plan, state) -> None:
        if drafts:
            assert len(plan.chunks) <= 1
            assert all(chunk.is_last for chunk in plan.chunks)

    drive(engine, work, step)
