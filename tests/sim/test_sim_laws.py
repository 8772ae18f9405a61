"""The laws that hold for every scheduler (G1 to G8, checked by `drive`) and those of each, over random workloads and knobs.

Which law is asserted where: docs/policies/laws.md. SGLang's own: test_sim_laws_sglang.py.
"""

from __future__ import annotations

from functools import partial

import pytest
from checked_engine import drive, paged, sglang, trtllm, vllm
from hypothesis import given, settings
from hypothesis import strategies as st
from law_parts import arrivals, decoding, full_step_s, gaps_in_steps, kv_tokens, planned, quick, with_acceptance

from longbench_sched.sim.policy.orca import Orca, OrcaOptions
from longbench_sched.sim.policy.sarathi import FastgenOptions, Sarathi, SarathiOptions
from longbench_sched.sim.policy.sglang_options import SGLANG_0_5_23
from longbench_sched.sim.policy.static import Static, StaticOptions
from longbench_sched.sim.policy.vllm_v0 import VllmV0, VllmV0Options

vllm_knobs = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 8),
        "long_prefill_token_threshold": st.sampled_from([0, 16, 40]),
        "long_prefill_token_threshold_adaptive": st.booleans(),
        "scheduler_reserve_full_isl": st.booleans(),
        "watermark": st.sampled_from([0.0, 0.05]),
        "enable_prefix_caching": st.booleans(),
        "scheduling_policy": st.sampled_from(["fcfs", "fcfs", "priority"]),
        "prefill_schedule_interval": st.sampled_from([1, 1, 3]),
        "async_scheduling": st.booleans(),
        "num_speculative_tokens": st.sampled_from([0, 0, 1, 3]),
        "speculative_method": st.sampled_from(["ngram", "eagle", "draft_model"]),
    }
)


@settings(max_examples=150)
@given(arrivals, kv_tokens, st.integers(8, 96), vllm_knobs)
def test_vllm_keeps_the_laws(work, kv, budget, knobs) -> None:
    """V1-1, V1-2, V1-4, V1-5, V1-6, V1-7, V1-8, with the exceptions that were seen on the real scheduler."""
    knobs["max_num_seqs"] = min(knobs["max_num_seqs"], budget)
    if knobs["num_speculative_tokens"] and knobs["speculative_method"] == "ngram":
        knobs["async_scheduling"] = False  # the engine refuses the two together
    engine = with_acceptance(vllm(kv, max_num_batched_tokens=budget, max_model_len=512, **knobs))
    options = engine.options
    threshold = knobs["long_prefill_token_threshold"]
    is_in_order = knobs["scheduling_policy"] == "fcfs" and not knobs["async_scheduling"]
    every_decode_advances = (
        threshold == 0
        and not knobs["num_speculative_tokens"]
        and not knobs["async_scheduling"]
        and knobs["scheduling_policy"] == "fcfs"
        and knobs["prefill_schedule_interval"] == 1
    )

    def step(plan, state) -> None:
        assert plan.n_tokens <= budget, "V1-1: within the budget"
        if plan.preempted:
            assert not plan.admitted, "V1-6: no admission in a step that preempted"
        for sequence in plan.admitted:
            assert plan.hits.get(sequence, 0) % options.block_size == 0, "V1-7: whole blocks"
        if every_decode_advances:
            middle = [chunk.sequence for chunk in plan.chunks if not chunk.is_last]
            assert len(middle) <= 1, "V1-2: at most one in mid-prompt"
            assert not middle or middle[0] is state.running[-1], "V1-2: and it is the last that runs"
            assert decoding(state) <= planned(plan), "V1-2: every decode advances in every step"
        if is_in_order:
            came = [request.id for request in state.waiting]
            assert came == sorted(came), "V1-8: whoever was preempted stands before all that came after him"
            assert not (plan.admitted and came) or plan.admitted[-1].id < came[0], "V1-5, V1-8: and is admitted before them"
        if threshold and len(state.running) + len(state.waiting) > 1 and not state.is_ahead:
            cap = max(threshold, budget // 2) if knobs["long_prefill_token_threshold_adaptive"] else threshold
            assert all(chunk.n_tokens <= cap for chunk in plan.chunks), "V1-4: no chunk above the threshold"

    story = drive(engine, work, step)
    if is_in_order:
        first_admissions = list(dict.fromkeys(story.admitted))
        assert first_admissions == sorted(first_admissions), "V1-5: first come, first served"


@settings(max_examples=200)
@given(
    arrivals,
    st.integers(256, 900),  # blocks hold 32
    st.integers(32, 96),
    st.integers(1, 8),
    st.sampled_from(["GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH"]),
    st.sampled_from(["FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS"]),
    st.booleans(),
    st.sampled_from([0, 2]),
)
def test_trtllm_with_chunks_keeps_the_laws(work, kv, budget, batch, capacity, chunking, reuse, drafts) -> None:
    """T-1, T-2, T-3, T-4, T-5."""
    engine = with_acceptance(
        trtllm(
            kv,
            max_num_tokens=budget,
            max_batch_size=batch,
            enable_chunked_prefill=True,
            capacity_scheduler_policy=capacity,
            context_chunking_policy=chunking,
            enable_block_reuse=reuse,
            num_speculative_tokens=drafts,
        )
    )

    def step(plan, state) -> None:
        assert plan.n_tokens <= budget, "T-1: within the budget"
        for chunk in plan.chunks:
            assert chunk.is_last or chunk.n_tokens % 32 == 0, "T-5: a piece that is not the last is whole blocks"
        if capacity == "MAX_UTILIZATION":
            assert not plan.preempted or plan.n_tokens, "T-4: whoever is first runs"
            stay = [request.id for request in state.running if request not in plan.admitted]
            for request in plan.preempted:
                assert not stay or request.id > max(stay), "T-4: of those started, who came last are paused"
            return
        if not reuse:
            to_completion = sum(state.kv.blocks_for(request.max_length + drafts) for request in state.running)
            assert to_completion <= state.kv.total, "T-2: everyone can be run to the end"
        generating = {request.id for request in state.running if request.generated}
        if len(generating) * (1 + drafts) <= budget:
            assert generating <= planned(plan), "T-3: every generating request advances"
        if capacity == "STATIC_BATCH" and plan.admitted:
            fresh = {entry.sequence for entry in plan.entries() if entry.start == plan.hits.get(entry.sequence, 0)}
            assert all(not request.generated or request in fresh for request in state.running)

    story = drive(engine, work, step)
    if capacity != "MAX_UTILIZATION":
        assert not story.preempted, "T-2: nobody is ever paused"


@quick
@given(arrivals, kv_tokens, st.integers(200, 400), st.sampled_from(["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"]), st.booleans())
def test_trtllm_without_chunks_keeps_the_laws(work, kv, budget, capacity, reuse) -> None:
    """T-2, T-6: what is too long for a step is never cut."""
    engine = trtllm(kv, max_num_tokens=budget, capacity_scheduler_policy=capacity, enable_block_reuse=reuse)
    story = drive(engine, work, lambda plan, state: [pytest.fail("cut") for chunk in plan.chunks if not chunk.is_last])
    assert capacity == "MAX_UTILIZATION" or not story.preempted


@quick
@given(arrivals, kv_tokens, st.integers(1, 8), st.sampled_from([0, 2]))
def test_vllm_v0_keeps_the_laws(work, kv, places, drafts) -> None:
    """V0-1, V0-2, V0-4."""
    options = VllmV0Options(None, places, 512, False, block_size=4, num_speculative_tokens=drafts)
    engine = with_acceptance(paged("vllm-v0", VllmV0, options, kv, drafts))

    def step(plan, state) -> None:
        assert not (plan.chunks and (plan.decodes or plan.verifies)), "V0-1: only prefills or only decodes"
        watermark = int(0.01 * state.kv.total)
        if plan.admitted:
            assert state.kv.free >= watermark, "V0-4: 1 % free after an admission"
        elif state.waiting and not plan.preempted and len(state.running) < places:
            free = state.kv.free + sum(n for _, n in plan.blocks)
            assert free - state.kv.blocks_for(state.waiting[0].length) < watermark, "V0-2: the head could have been admitted"

    drive(engine, work, step)


@quick
@given(arrivals, kv_tokens, st.integers(8, 96), st.integers(1, 8), st.sampled_from([0, 2]))
def test_vllm_v0_with_chunks_keeps_the_laws(work, kv, budget, places, drafts) -> None:
    """V0-3."""
    options = VllmV0Options(budget, min(places, budget // (1 + drafts)), 512, True, num_speculative_tokens=drafts)
    engine = with_acceptance(paged("vllm-v0", VllmV0, options, kv, drafts))

    def step(plan, state) -> None:
        assert decoding(state) <= planned(plan), "V0-3: every running decode advances"

    drive(engine, work, step)


@quick
@given(arrivals, kv_tokens, st.integers(1, 8), st.floats(0, 0.1))
def test_static_batching_keeps_the_laws(work, kv, size, timeout_s) -> None:
    """S1, S2."""
    engine = paged("static", Static, StaticOptions(size, timeout_s), kv)
    slots = 0

    def step(plan, state) -> None:
        nonlocal slots
        if plan.admitted:
            assert len(state.running) == len(plan.admitted), "S1: nobody is admitted while a batch runs"
            slots = len(plan.admitted)
        else:
            assert len(plan.decodes) + plan.padding == slots, "S2: all slots are held to the end"

    assert not drive(engine, work, step).preempted


@quick
@given(arrivals, kv_tokens, st.integers(1, 8))
def test_orca_keeps_the_laws(work, kv, places) -> None:
    """O1, O2, O3."""
    engine = paged("orca", Orca, OrcaOptions(places), kv)

    def step(plan, state) -> None:
        reserved = sum(state.kv.blocks_for(request.max_length) for request in state.running)
        assert reserved == state.kv.held, "O2: the maximum of everyone is reserved"
        assert {entry.sequence for entry in plan.entries()} == set(state.running), "O3: everyone runs in every iteration"

    story = drive(engine, work, step)
    assert not story.preempted, "O2: so nobody is preempted"
    assert story.admitted == sorted(story.admitted), "O1: first come, first served"


@pytest.mark.parametrize("kind", [SarathiOptions, FastgenOptions], ids=["sarathi", "fastgen"])
@pytest.mark.parametrize("batching", ["stall-free", "decode-maximal"])
@quick
@given(work=arrivals, kv=kv_tokens, budget=st.integers(8, 96), places=st.integers(1, 8))
def test_sarathi_and_fastgen_keep_the_laws(kind, batching, work, kv, budget, places) -> None:
    """SS-1, SS-2, SS-4."""
    engine = paged("sarathi", Sarathi, kind(budget, places, batching), kv)

    def step(plan, state) -> None:
        assert decoding(state) <= planned(plan), "SS-1: every running decode is in every step"
        assert plan.n_tokens <= budget, "SS-2: a step is within the budget"
        if batching == "decode-maximal":
            assert len(plan.chunks) <= 1

    story = drive(engine, work, step)
    first_admissions = list(dict.fromkeys(story.admitted))
    assert first_admissions == sorted(first_admissions), "SS-4: first come, first served"


BOUNDED = {
    "vllm": lambda kv, budget, places: vllm(kv, max_num_batched_tokens=budget, max_num_seqs=places, max_model_len=512),
    "vllm-v0 chunked": lambda kv, budget, places: paged("vllm-v0", VllmV0, VllmV0Options(budget, places, 512, True), kv),
    "sarathi": lambda kv, budget, places: paged("sarathi", Sarathi, SarathiOptions(budget, places), kv),
    "sarathi, one piece": lambda kv, budget, places: paged(
        "sarathi", Sarathi, SarathiOptions(budget, places, "decode-maximal"), kv
    ),
    "fastgen": lambda kv, budget, places: paged("fastgen", Sarathi, FastgenOptions(budget, places), kv),
}


@pytest.mark.parametrize("name", BOUNDED)
@quick
@given(work=arrivals, kv=kv_tokens, budget=st.integers(8, 96), places=st.integers(1, 8))
def test_no_gap_between_tokens_is_longer_than_a_full_step(name, work, kv, budget, places) -> None:
    """V1-3, SS-3: who is not preempted gets a token in every step, and no step is longer than one of the whole budget."""
    engine = BOUNDED[name](kv, budget, places)

    def step(plan, state) -> None:
        assert plan.n_tokens <= budget
        assert engine.cost(plan) <= full_step_s(engine, plan, budget)

    for request, gaps in gaps_in_steps(drive(engine, work, step)).items():
        assert set(gaps) <= {1}, f"request {request} was passed over"


ALL = {
    "vllm": lambda kv: vllm(kv, max_num_batched_tokens=64),
    "vllm by priority": lambda kv: vllm(kv, max_num_batched_tokens=64, scheduling_policy="priority"),
    "vllm with drafts": lambda kv: with_acceptance(vllm(kv, max_num_batched_tokens=64, num_speculative_tokens=3)),
    **{f"sglang {order}": partial(sglang, chunked_prefill_size=64, schedule_policy=order) for order in SGLANG_0_5_23.orders},
    "sglang by priority": partial(
        sglang,
        chunked_prefill_size=64,
        max_running_requests=3,
        enable_priority_scheduling=True,
        priority_scheduling_preemption_threshold=1,
    ),
    "sglang mixed": lambda kv: sglang(kv, chunked_prefill_size=64, enable_mixed_chunk=True),
    "trtllm": lambda kv: trtllm(kv, max_num_tokens=256),
    "trtllm by use": lambda kv: trtllm(kv, max_num_tokens=256, capacity_scheduler_policy="MAX_UTILIZATION"),
    "vllm-v0": lambda kv: paged("vllm-v0", VllmV0, VllmV0Options(), kv),
    "vllm-v0 chunked": lambda kv: paged("vllm-v0", VllmV0, VllmV0Options(256, enable_chunked_prefill=True), kv),
    "static": lambda kv: paged("static", Static, StaticOptions(3), kv),
    "orca": lambda kv: paged("orca", Orca, OrcaOptions(), kv),
    "sarathi": lambda kv: paged("sarathi", Sarathi, SarathiOptions(64, 16), kv),
}


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=40)
@given(work=arrivals, kv=kv_tokens)
def test_planning_changes_nothing_and_is_the_same_twice(name, work, kv) -> None:
    """A scheduler is a pure function of the state."""
    engine = ALL[name](kv)
    for i, arrival in enumerate(work):
        engine.submit(arrival.isl, arrival.osl, 0.0, content=arrival.content(i), priority=arrival.priority)
    now_s = 10.0
    for _ in range(12):
        before = _picture(engine)
        plans = [engine.policy.schedule(engine.state, now_s) for _ in range(2)]
        assert _picture(engine) == before
        assert list(plans[0].entries()) == list(plans[1].entries())
        assert plans[0].blocks == plans[1].blocks
        if engine.begin(now_s) is None:
            break
        now_s += 1.0
        engine.end(now_s)


def _picture(engine) -> tuple:
    state = engine.state
    rows = [
        (
            one.id,
            one.computed,
            one.generated,
            one.blocks,
            one.kept,
            one.cached,
            one.filled,
            [(id(run), run.lo, run.hi) for run in one.table],
        )
        for one in state.sequences()
    ]
    pool = state.kv.free, state.kv.idle
    return rows, pool, state.note, [one.id for one in state.running], [one.id for one in state.waiting]


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=25)
@given(work=arrivals, kv=kv_tokens)
def test_the_same_work_gives_the_same_steps(name, work, kv) -> None:
    """G1, G2, G3, G4, G5, G6, G7, G8: `drive` checks each step; and the same work gives the same steps (G7)."""
    assert drive(ALL[name](kv), work).plans == drive(ALL[name](kv), work).plans
