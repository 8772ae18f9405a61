"""The laws that hold for every scheduler (G1 to G8, checked by `drive`) and those of each, over random small workloads."""

from __future__ import annotations

import pytest
from checked_engine import Arrival, drive, sglang, trtllm, vllm
from hypothesis import given, settings
from hypothesis import strategies as st

from longbench_sched.sim.policy.sglang import SglangNote

arrivals = st.lists(
    st.builds(
        Arrival,
        at_s=st.floats(0, 0.2),
        isl=st.integers(1, 200),
        osl=st.integers(1, 24),
        stop_at=st.none() | st.integers(1, 30),
        to_length=st.booleans(),
    ),
    min_size=1,
    max_size=12,
)
kv_tokens = st.integers(240, 900)  # one request always fits, a few do not
quick = settings(max_examples=120, deadline=None)


@quick
@given(arrivals, kv_tokens, st.integers(4, 96), st.integers(1, 8), st.sampled_from([0, 16, 40]), st.booleans())
def test_vllm_keeps_the_laws(work, kv, budget, seqs, threshold, reserve) -> None:
    seqs = min(seqs, budget)
    engine = vllm(
        kv,
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
        long_prefill_token_threshold=threshold,
        scheduler_reserve_full_isl=reserve,
        max_model_len=512,
    )

    def step(plan, state) -> None:
        if plan.preempted:
            assert not plan.admitted, "V1-6: no admission in a step that preempted"
        middle = [chunk.sequence for chunk in plan.chunks if not chunk.is_last]
        if threshold == 0:
            assert len(middle) <= 1, "V1-2: at most one in mid-prompt"
            assert not middle or middle[0] is state.running[-1], "V1-2: and it is the last that runs"
            decoding = {request.id for request in state.running if request.generated and request.left_to_compute == 1}
            assert decoding <= {entry.sequence.id for entry in plan.entries()}, "V1-2: every decode advances in every step"

    story = drive(engine, work, step)
    first_admissions = list(dict.fromkeys(story.admitted))
    assert first_admissions == sorted(first_admissions), "V1-5: first come, first served"


@quick
@given(arrivals, kv_tokens, st.integers(8, 96), st.integers(1, 8), st.booleans(), st.sampled_from([1, 4]))
def test_sglang_keeps_the_laws(work, kv, chunk, places, mixed, page) -> None:
    chunk -= chunk % page
    engine = sglang(kv, chunked_prefill_size=chunk, max_running_requests=places, enable_mixed_chunk=mixed, page_size=page)
    policy = engine.policy

    def step(plan, state) -> None:
        assert len([one for one in plan.chunks if not one.is_last]) <= 1, "SG-2: at most one in mid-prompt"
        if not mixed:
            assert not (plan.chunks and plan.decodes), "SG-1: a step is pure"
        note = state.note
        assert isinstance(note, SglangNote)
        assert policy.min_ratio <= note.ratio <= 1.0, "SG-9"

    drive(engine, work, step)


@quick
@given(arrivals, kv_tokens, st.integers(32, 96), st.integers(1, 8))
def test_trtllm_with_chunks_keeps_the_laws(work, kv, budget, batch) -> None:
    engine = trtllm(kv, max_num_tokens=budget, max_batch_size=batch, enable_chunked_prefill=True)

    def step(plan, state) -> None:
        for chunk in plan.chunks:
            assert chunk.is_last or chunk.n_tokens % 32 == 0, "T-5: a piece that is not the last is whole blocks"
        reserved = sum(state.kv.blocks_for(request.max_length) for request in state.running)
        assert reserved <= state.kv.total, "T-2: all that run fit to their end"
        generating = {request.id for request in state.running if request.generated}
        assert generating <= {entry.sequence.id for entry in plan.entries()}, "T-3: every generating request advances"

    story = drive(engine, work, step)
    assert not story.preempted, "T-2: nobody is ever paused"


@quick
@given(arrivals, kv_tokens, st.integers(200, 400))
def test_trtllm_without_chunks_keeps_the_laws(work, kv, budget) -> None:
    engine = trtllm(kv, max_num_tokens=budget)
    story = drive(engine, work, lambda plan, state: [pytest.fail("cut") for chunk in plan.chunks if not chunk.is_last])
    assert not story.preempted


@quick
@given(arrivals, kv_tokens)
def test_planning_changes_nothing_and_is_the_same_twice(work, kv) -> None:
    """A scheduler is a pure function of the state."""
    for make in (vllm, sglang, trtllm):
        engine = make(kv)
        for arrival in work:
            engine.submit(arrival.isl, arrival.osl, 0.0)
        for _ in range(3):
            before = _picture(engine)
            plans = [engine.policy.schedule(engine.state, 0.0) for _ in range(2)]
            assert _picture(engine) == before
            assert list(plans[0].entries()) == list(plans[1].entries())
            if engine.begin(0.0) is None:
                break
            engine.end(1.0)


def _picture(engine) -> tuple:
    state = engine.state
    rows = [(one.id, one.computed, one.generated, one.blocks) for one in state.sequences()]
    return rows, state.kv.free, state.note, [one.id for one in state.running], [one.id for one in state.waiting]
