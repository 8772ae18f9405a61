"""The laws that hold for every scheduler (G1 to G8, checked by `drive`) and those of each, over random workloads and knobs."""

from __future__ import annotations

import pytest
from checked_engine import Arrival, drive, paged, sglang, trtllm, vllm
from hypothesis import given, settings
from hypothesis import strategies as st

from longbench_sched.sim.engine import Engine
from longbench_sched.sim.policy.orca import Orca, OrcaOptions
from longbench_sched.sim.policy.sarathi import Sarathi, SarathiOptions
from longbench_sched.sim.policy.sglang import Sglang042Options, SglangNote
from longbench_sched.sim.policy.static import Static, StaticOptions
from longbench_sched.sim.policy.vllm_v0 import VllmV0, VllmV0Options

arrivals = st.lists(
    st.builds(
        Arrival,
        at_s=st.floats(0, 0.2),
        isl=st.integers(1, 200),
        osl=st.integers(1, 24),
        stop_at=st.none() | st.integers(1, 30),
        to_length=st.booleans(),
        priority=st.integers(0, 2),
        group=st.none() | st.integers(0, 1),
        prefix=st.integers(1, 200),
    ),
    min_size=1,
    max_size=12,
)
kv_tokens = st.integers(240, 900)  # one request always fits, a few do not
quick = settings(max_examples=120, deadline=None)


def with_acceptance(engine: Engine) -> Engine:
    """As many drafts hold as a rule without meaning says, from none to all."""
    engine.accepted = lambda sequence, k: (7 * sequence.id + 3 * sequence.generated) % (k + 1)
    return engine


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


@settings(max_examples=150, deadline=None)
@given(arrivals, kv_tokens, st.integers(8, 96), vllm_knobs)
def test_vllm_keeps_the_laws(work, kv, budget, knobs) -> None:
    knobs["max_num_seqs"] = min(knobs["max_num_seqs"], budget)
    engine = with_acceptance(vllm(kv, max_num_batched_tokens=budget, max_model_len=512, **knobs))
    options = engine.options
    threshold = knobs["long_prefill_token_threshold"]
    # The exceptions that were seen on the real scheduler.
    every_decode_advances = (
        threshold == 0
        and not knobs["num_speculative_tokens"]
        and not knobs["async_scheduling"]
        and knobs["scheduling_policy"] == "fcfs"
        and knobs["prefill_schedule_interval"] == 1
    )

    def step(plan, state) -> None:
        if plan.preempted:
            assert not plan.admitted, "V1-6: no admission in a step that preempted"
        for sequence in plan.admitted:
            assert plan.hits.get(sequence, 0) % options.block_size == 0, "V1-7: whole blocks"
        if every_decode_advances:
            middle = [chunk.sequence for chunk in plan.chunks if not chunk.is_last]
            assert len(middle) <= 1, "V1-2: at most one in mid-prompt"
            assert not middle or middle[0] is state.running[-1], "V1-2: and it is the last that runs"
            decoding = {request.id for request in state.running if request.generated and request.left_to_compute == 1}
            assert decoding <= {entry.sequence.id for entry in plan.entries()}, "V1-2: every decode advances in every step"
        if threshold and len(state.running) + len(state.waiting) > 1 and not state.is_ahead:
            cap = max(threshold, budget // 2) if knobs["long_prefill_token_threshold_adaptive"] else threshold
            assert all(chunk.n_tokens <= cap for chunk in plan.chunks), "V1-4: no chunk above the threshold"

    story = drive(engine, work, step)
    if knobs["scheduling_policy"] == "fcfs" and not knobs["async_scheduling"]:
        first_admissions = list(dict.fromkeys(story.admitted))
        assert first_admissions == sorted(first_admissions), "V1-5: first come, first served"


@settings(max_examples=150, deadline=None)
@given(
    arrivals,
    kv_tokens,
    st.integers(8, 96),
    st.integers(1, 8),
    st.booleans(),
    st.sampled_from([1, 4]),
    st.sampled_from(["fcfs", "lpm", "lof"]),
    st.booleans(),
    st.sampled_from([0, 2]),
)
def test_sglang_keeps_the_laws(work, kv, chunk, places, mixed, page, order, uses_tree, steps) -> None:
    chunk -= chunk % page
    drafting = {"speculative_algorithm": "EAGLE3", "speculative_num_steps": steps, "speculative_num_draft_tokens": 4}
    engine = with_acceptance(
        sglang(
            kv,
            chunked_prefill_size=chunk,
            max_running_requests=places,
            enable_mixed_chunk=mixed,
            page_size=page,
            schedule_policy=order,
            disable_radix_cache=not uses_tree,
            **(drafting if steps else {}),
        )
    )
    policy = engine.policy

    def step(plan, state) -> None:
        assert len([one for one in plan.chunks if not one.is_last]) <= 1, "SG-2: at most one in mid-prompt"
        if not mixed:
            assert not (plan.chunks and (plan.decodes or plan.verifies)), "SG-1: a step is pure"
        if plan.preempted:
            assert plan.decodes or plan.verifies, "SG-8: after a retraction the others go on"
        note = state.note
        assert isinstance(note, SglangNote)
        assert note.ratio <= 1.0, "SG-9"
        # Seen on the real scheduler: the ratio after a retraction may be below the floor, until the next decode.
        assert plan.preempted or plan.chunks or note.ratio >= policy.min_ratio, "SG-9"

    if mixed and steps:
        return  # verifications do not ride in a prefill batch that is counted in single tokens
    drive(engine, work, step)


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


@settings(max_examples=200, deadline=None)
@given(
    arrivals,
    kv_tokens,
    st.integers(32, 96),
    st.integers(1, 8),
    st.sampled_from(["GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH"]),
    st.sampled_from(["FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS"]),
    st.booleans(),
    st.sampled_from([0, 2]),
)
def test_trtllm_with_chunks_keeps_the_laws(work, kv, budget, batch, capacity, chunking, reuse, drafts) -> None:
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
        for chunk in plan.chunks:
            assert chunk.is_last or chunk.n_tokens % 32 == 0, "T-5: a piece that is not the last is whole blocks"
        if capacity == "MAX_UTILIZATION":
            assert not plan.preempted or plan.n_tokens, "T-4: whoever is first runs"
            return
        generating = {request.id for request in state.running if request.generated}
        if len(generating) * (1 + drafts) <= budget:
            assert generating <= {entry.sequence.id for entry in plan.entries()}, "T-3: every generating request advances"
        if capacity == "STATIC_BATCH" and plan.admitted:
            fresh = {entry.sequence for entry in plan.entries() if entry.start == plan.hits.get(entry.sequence, 0)}
            assert all(not request.generated or request in fresh for request in state.running)

    story = drive(engine, work, step)
    if capacity != "MAX_UTILIZATION":
        assert not story.preempted, "T-2: nobody is ever paused"


@quick
@given(arrivals, kv_tokens, st.integers(200, 400), st.sampled_from(["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"]), st.booleans())
def test_trtllm_without_chunks_keeps_the_laws(work, kv, budget, capacity, reuse) -> None:
    engine = trtllm(kv, max_num_tokens=budget, capacity_scheduler_policy=capacity, enable_block_reuse=reuse)
    story = drive(engine, work, lambda plan, state: [pytest.fail("cut") for chunk in plan.chunks if not chunk.is_last])
    assert capacity == "MAX_UTILIZATION" or not story.preempted


@quick
@given(arrivals, kv_tokens, st.integers(1, 8), st.sampled_from([0, 2]))
def test_vllm_v0_keeps_the_laws(work, kv, places, drafts) -> None:
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
    options = VllmV0Options(budget, min(places, budget // (1 + drafts)), 512, True, num_speculative_tokens=drafts)
    engine = with_acceptance(paged("vllm-v0", VllmV0, options, kv, drafts))

    def step(plan, state) -> None:
        decoding = {request.id for request in state.running if request.generated and request.left_to_compute == 1}
        assert decoding <= {entry.sequence.id for entry in plan.entries()}, "V0-3: every running decode advances"

    drive(engine, work, step)


@quick
@given(arrivals, kv_tokens, st.integers(1, 8), st.floats(0, 0.1))
def test_static_batching_keeps_the_laws(work, kv, size, timeout_s) -> None:
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
    engine = paged("orca", Orca, OrcaOptions(places), kv)

    def step(plan, state) -> None:
        reserved = sum(state.kv.blocks_for(request.max_length) for request in state.running)
        assert reserved == state.kv.held, "O2: the maximum of everyone is reserved"
        assert {entry.sequence for entry in plan.entries()} == set(state.running), "O3: everyone runs in every iteration"

    story = drive(engine, work, step)
    assert not story.preempted, "O2: so nobody is preempted"
    assert story.admitted == sorted(story.admitted), "O1: first come, first served"


@quick
@given(arrivals, kv_tokens, st.integers(8, 96), st.integers(1, 8), st.sampled_from(["stall-free", "decode-maximal"]))
def test_sarathi_keeps_the_laws(work, kv, budget, places, batching) -> None:
    engine = paged("sarathi", Sarathi, SarathiOptions(budget, places, batching), kv)

    def step(plan, state) -> None:
        decoding = {request for request in state.running if request.generated and request.left_to_compute == 1}
        assert decoding <= {entry.sequence for entry in plan.entries()}, "SS-1: every running decode is in every step"
        if batching == "decode-maximal":
            assert len(plan.chunks) <= 1

    story = drive(engine, work, step)
    first_admissions = list(dict.fromkeys(story.admitted))
    assert first_admissions == sorted(first_admissions), "SS-4: first come, first served"


ALL = {
    "vllm": lambda kv: vllm(kv, max_num_batched_tokens=64),
    "vllm by priority": lambda kv: vllm(kv, max_num_batched_tokens=64, scheduling_policy="priority"),
    "vllm with drafts": lambda kv: with_acceptance(vllm(kv, max_num_batched_tokens=64, num_speculative_tokens=3)),
    "sglang": lambda kv: sglang(kv, chunked_prefill_size=64),
    "sglang lpm": lambda kv: sglang(kv, chunked_prefill_size=64, schedule_policy="lpm"),
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
@settings(max_examples=40, deadline=None)
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
@settings(max_examples=25, deadline=None)
@given(work=arrivals, kv=kv_tokens)
def test_the_same_work_gives_the_same_steps(name, work, kv) -> None:
    """G7: determinism."""
    assert drive(ALL[name](kv), work).plans == drive(ALL[name](kv), work).plans
