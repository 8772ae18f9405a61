"""Engines whose layers lie in stages: the laws of micro-batches, one stage against none, and closed forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from checked_engine import H200, QWEN, Arrival, Story, _check_blocks, drive, paged, sglang, trtllm, vllm
from hypothesis import given, settings
from hypothesis import strategies as st

from longbench_sched.errors import UsageError
from longbench_sched.sim.cost import StepCost
from longbench_sched.sim.engine import Engine, build_engine
from longbench_sched.sim.flags import read_flags
from longbench_sched.sim.micro_batches import MicroBatch, PipedEngine, in_stages
from longbench_sched.sim.pipeline import DynamicChunking, balanced_makespan_s, chunk_price, fit_quadratic, fixed_chunks
from longbench_sched.sim.policy.orca import Orca, OrcaOptions
from longbench_sched.sim.policy.sarathi import FastgenOptions, Sarathi, SarathiOptions
from longbench_sched.sim.replay import Arrival as Job
from longbench_sched.sim.replay import replay
from longbench_sched.sim.step import Sequence as Request


@dataclass
class Log:
    """What was seen of a run."""

    sent: list[MicroBatch] = field(default_factory=list)
    tokens_at: dict[int, list[float]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    n_preempted: int = 0


def serve(
    engine: PipedEngine, arrivals: Sequence[Arrival], look: Callable[[PipedEngine, Log], None] = lambda e, log: None
) -> Log:
    """Run to the end; `look` sees the engine whenever a micro-batch has been sent."""
    log, state = Log(), engine.state
    pending = sorted(arrivals, key=lambda arrival: arrival.at_s)
    now_s = 0.0
    while True:
        while pending and pending[0].at_s <= now_s:
            arrival = pending.pop(0)
            content = arrival.content(engine.counters.n_arrived)
            log.requests.append(engine.submit(arrival.isl, arrival.osl, now_s, to_length=arrival.to_length, content=content))
        step_s = engine.begin(now_s)
        if engine.flight and (not log.sent or engine.flight[-1] is not log.sent[-1]):
            log.sent.append(engine.flight[-1])
            look(engine, log)
        if step_s is None:
            assert not state.running, "G8: requests hold places and nothing is computed"
            assert not state.waiting, "G8: the queue waits before an idle engine"
            if not pending:
                return log
            now_s = pending[0].at_s
            continue
        if pending and pending[0].at_s < now_s + step_s:
            now_s = pending[0].at_s
            continue
        now_s += step_s
        for request in engine.end(now_s):
            log.tokens_at.setdefault(request.id, []).append(now_s)
        _check_blocks(state, Story(requests=log.requests))


class Laws:
    """What holds whenever a micro-batch has been sent."""

    def __init__(self, n_stages: int, places: int, places_of_batch: int) -> None:
        self.free_at_s = [0.0] * n_stages
        self.places = places
        self.places_of_batch = places_of_batch
        self.progress: dict[int, int] = {}

    def __call__(self, engine: PipedEngine, log: Log) -> None:
        batch = log.sent[-1]
        plan = batch.plan
        assert len(engine.flight) <= engine.n_slots
        assert len(engine.state.running) <= self.places
        assert len(plan.decodes) + len(plan.chunks) <= self.places_of_batch
        for stage, (entered_s, left_s) in enumerate(zip(batch.entered_s, batch.left_s, strict=True)):
            assert entered_s >= self.free_at_s[stage], "PP-2: a stage works on one micro-batch at a time"
            if stage:
                assert entered_s > batch.left_s[stage - 1], "after the stage above, and a hand-off"
            self.free_at_s[stage] = left_s
        before = list(engine.flight)[:-1]
        decoding = {one for other in before for one in other.plan.decodes}
        ending = {chunk.sequence for other in before for chunk in other.plan.chunks if chunk.is_last}
        computed = [*plan.decodes, *(chunk.sequence for chunk in plan.chunks)]
        assert len(set(computed)) == len(computed), "one line a request"
        assert not decoding & set(computed), "who waits for a token is in no other micro-batch"
        assert not ending & set(computed)
        for request in plan.preempted:
            log.n_preempted += 1
            assert request.n_piped == 0, "nobody loses memory that is being written"
        for request in plan.admitted:
            self.progress[request.id] = plan.hits.get(request, 0)
        for chunk in plan.chunks:
            assert chunk.start == self.progress[chunk.sequence.id], "PP-1: chunks in order, each after the one before"
            self.progress[chunk.sequence.id] += chunk.n_tokens
        for request in plan.decodes:
            self.progress[request.id] += 1
            assert self.progress[request.id] == request.computed == request.length
        assert all(one.n_piped == sum(one in _in(other) for other in engine.flight) for one in engine.state.running)


def _in(batch: MicroBatch) -> set[Request]:
    return {*batch.plan.decodes, *(chunk.sequence for chunk in batch.plan.chunks)}


def check_end(engine: PipedEngine, log: Log, arrivals: Sequence[Arrival]) -> None:
    assert engine.state.kv.free == engine.state.kv.total, "G3: everything is given back"
    assert len(log.requests) == len(arrivals)
    for request in log.requests:
        times = log.tokens_at[request.id]
        assert len(times) == request.generated == request.max_new, "every token exactly once"
        assert times == sorted(set(times))
        assert request.n_piped == 0
    assert engine.counters.generated_tokens == sum(arrival.osl for arrival in arrivals)


load = st.lists(
    st.builds(
        Arrival,
        at_s=st.floats(0, 2),
        isl=st.integers(1, 3000),
        osl=st.integers(1, 40) | st.integers(200, 300),
        to_length=st.booleans(),
        group=st.sampled_from([None, 0, 1]),
        prefix=st.just(500),
    ),
    min_size=1,
    max_size=9,
)
stages = st.integers(2, 4)
tight = st.sampled_from([4000, 6000, 1 << 20])


@settings(max_examples=60)
@given(load, stages, tight, st.sampled_from([128, 512, 4096]), st.integers(1, 9), st.sampled_from(["fcfs", "priority"]))
def test_the_laws_of_micro_batches_in_vllm(
    arrivals: list[Arrival], pp: int, kv_tokens: int, budget: int, places: int, policy: str
) -> None:
    """PP-1, PP-2: see `Laws`."""
    engine = in_stages(
        vllm(kv_tokens, pipeline_parallel_size=pp, max_num_batched_tokens=budget, max_num_seqs=places, scheduling_policy=policy)
    )
    log = serve(engine, arrivals, Laws(pp, places, places))
    check_end(engine, log, arrivals)


@settings(max_examples=60)
@given(load, stages, tight, st.sampled_from([128, 512, 4096]), st.integers(1, 16), st.booleans(), st.integers(0, 2))
def test_the_laws_of_micro_batches_in_sglang(
    arrivals: list[Arrival], pp: int, kv_tokens: int, chunk: int, places: int, dynamic: bool, depth: int
) -> None:
    """PP-1, PP-2: see `Laws`."""
    engine = in_stages(
        sglang(
            kv_tokens, pp_size=pp, chunked_prefill_size=chunk, max_running_requests=places,
            enable_dynamic_chunking=dynamic, pp_async_batch_depth=depth,
        )
    )  # fmt: skip
    assert engine.n_slots == pp + depth
    log = serve(engine, arrivals, Laws(pp, places, places))
    check_end(engine, log, arrivals)
    assert not any(batch.plan.decodes and batch.plan.chunks for batch in log.sent), "SG-1"
    assert all(batch.plan.n_tokens <= max(chunk, places) for batch in log.sent), "SG-3"


@settings(max_examples=60)
@given(load, stages, tight, st.booleans(), st.integers(1, 9), st.sampled_from(["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"]))
def test_the_laws_of_micro_batches_in_trtllm(
    arrivals: list[Arrival], pp: int, kv_tokens: int, is_chunked: bool, batch_size: int, policy: str
) -> None:
    """PP-1, PP-2: see `Laws`."""
    engine = in_stages(
        trtllm(
            kv_tokens, pp_size=pp, max_num_tokens=512 if is_chunked else 4096, max_batch_size=batch_size,
            enable_chunked_prefill=is_chunked, capacity_scheduler_policy=policy,
        )
    )  # fmt: skip
    log = serve(engine, arrivals, Laws(pp, batch_size * (pp + (policy == "MAX_UTILIZATION")), batch_size))
    check_end(engine, log, arrivals)
    assert policy == "MAX_UTILIZATION" or log.n_preempted == 0


@settings(max_examples=40)
@given(load, stages, tight, st.integers(1, 9))
def test_the_laws_of_micro_batches_in_orca_and_sarathi(arrivals: list[Arrival], pp: int, kv_tokens: int, places: int) -> None:
    """PP-1, PP-2: see `Laws`."""
    plain = [Arrival(one.at_s, one.isl, one.osl) for one in arrivals]
    orca = in_stages(paged("orca", Orca, OrcaOptions(max_batch_size=places, pipeline_parallel_size=pp), kv_tokens))
    check_end(orca, serve(orca, plain, Laws(pp, places * (pp + 1), places)), plain)
    sarathi = in_stages(paged("sarathi", Sarathi, SarathiOptions(max_num_seqs=places, pipeline_parallel_size=pp), kv_tokens))
    check_end(sarathi, serve(sarathi, plain, Laws(pp, places, places)), plain)


# -- one stage is none


MAKERS: dict[str, Callable[..., Engine]] = {
    "vllm": lambda kv: vllm(kv, max_num_batched_tokens=512, max_num_seqs=6),
    "sglang": lambda kv: sglang(kv, chunked_prefill_size=512, max_running_requests=6),
    "trtllm": lambda kv: trtllm(kv, max_num_tokens=512, enable_chunked_prefill=True, max_batch_size=6),
    "orca": lambda kv: paged("orca", Orca, OrcaOptions(max_batch_size=6), kv),
    "sarathi": lambda kv: paged("sarathi", Sarathi, SarathiOptions(max_num_seqs=6), kv),
}


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=30)
@given(arrivals=load, kv_tokens=tight)
def test_one_stage_schedules_and_takes_as_long_as_none(name: str, arrivals: list[Arrival], kv_tokens: int) -> None:
    if name in ("orca", "sarathi"):
        arrivals = [Arrival(one.at_s, one.isl, one.osl) for one in arrivals]
    story = drive(MAKERS[name](kv_tokens), arrivals)
    plans: list[list[tuple[int, int, str]]] = []

    def look(engine: PipedEngine, log: Log) -> None:
        plan = log.sent[-1].plan
        plans.append([(entry.sequence.id, entry.n_tokens, entry.kind) for entry in plan.entries()])

    log = serve(in_stages(MAKERS[name](kv_tokens)), arrivals, look)
    assert plans == [[(number, n, kind) for number, n, _, kind in plan] for plan in story.plans]
    for number, times in story.tokens_at.items():
        assert log.tokens_at[number] == pytest.approx(times)


def test_flags_with_one_stage_give_an_engine_without() -> None:
    engine = build_engine("vllm", H200, QWEN, read_flags("vllm", ("-pp", "1")))
    assert type(engine) is Engine


# -- closed forms


def alone(engine: Engine, isl: int) -> float:
    (one,) = replay(engine, [Job(0.0, isl, 1)])
    return one.ttft_s


@pytest.mark.parametrize("pp", [2, 4, 7, 14])
def test_pp4_one_prompt_alone_takes_the_closed_form(pp: int) -> None:
    """(sum t_i + (S - 1) max t_i) / S + (S - 1) t_p2p + t_head; in t_i the host, where it does not work ahead."""
    for name, flags in (("vllm", "--max-num-batched-tokens=2048"), ("sglang", "--chunked-prefill-size=2048")):
        engine = build_engine(name, H200, QWEN, read_flags(name, (flags, f"-pp={pp}")))
        assert isinstance(engine, PipedEngine)
        price, calibration = chunk_price(engine.cost), engine.cost.calibration
        whole_s = [price(2048, start) for start in range(0, 16_384, 2048)]
        host_s = calibration.host_step_s + calibration.host_per_request_s + calibration.host_per_layer_s * 28 / pp
        overhead_s = 0.0 if name == "vllm" else host_s
        p2p_s = 4.5e-6 + 2048 * 3584 * 2 / 225e9
        expected_s = balanced_makespan_s(whole_s, pp, overhead_s, p2p_s) + engine.cost.head_s(1)
        assert alone(engine, 16_384) == pytest.approx(expected_s, rel=1e-9)


def test_pp3_dynamic_chunks_are_those_of_the_engine_and_shorten_the_wait() -> None:
    flags = ("--chunked-prefill-size=8192", "-pp=4", "--context-length=131072", "--dynamic-chunking-smooth-factor=1")
    fixed = build_engine("sglang", H200, QWEN, read_flags("sglang", flags))
    dynamic = build_engine("sglang", H200, QWEN, read_flags("sglang", (*flags, "--enable-dynamic-chunking")))
    assert isinstance(dynamic, PipedEngine)
    log = serve(dynamic, [Arrival(0.0, 120_000, 1)])
    fit = fit_quadratic(chunk_price(dynamic.cost), 8192)
    assert fit is not None
    sizes = DynamicChunking(8192, fit, 1.0, context=dynamic.context).chunks(120_000)
    assert [batch.plan.n_tokens for batch in log.sent] == sizes != fixed_chunks(120_000, 8192)
    assert log.tokens_at[0][0] < alone(fixed, 120_000)


def test_the_stages_of_28_layers_over_8_are_not_alike() -> None:
    """3, 3, 3, 3, 4, 4, 4, 4: each stage takes its share of a chunk."""
    engine = build_engine("vllm", H200, QWEN, read_flags("vllm", ("-pp=8", "--max-num-batched-tokens=2048")))
    assert isinstance(engine, PipedEngine)
    assert engine.stage_cost.pipeline.layers == (3, 3, 3, 3, 4, 4, 4, 4)
    log = serve(engine, [Arrival(0.0, 8192, 1)])
    price = chunk_price(engine.cost)
    for batch, start in zip(log.sent, range(0, 8192, 2048), strict=True):
        spent_s = [left - entered for entered, left in zip(batch.entered_s, batch.left_s, strict=True)]
        assert spent_s[0] == pytest.approx(price(2048, start) * 3 / 28)
        assert spent_s[5] == pytest.approx(price(2048, start) * 4 / 28)


def test_the_head_is_the_last_stages_and_a_token_passes_all() -> None:
    engine = build_engine("vllm", H200, QWEN, read_flags("vllm", ("-pp=4",)))
    (one,) = replay(engine, [Job(0.0, 1000, 3)])
    cost = engine.cost
    gpu_s = cost.bill(_decode_load(1, 1001)).gpu_s
    assert one.token_at_s[1] - one.token_at_s[0] == pytest.approx(gpu_s + 3 * (4.5e-6 + 3584 * 2 / 225e9))


def _decode_load(n: int, context: int):
    from longbench_sched.sim.bill import StepLoad

    return StepLoad(n_decodes=n, decode_tokens=n, decode_context=context)


@pytest.mark.parametrize("name", ["vllm", "trtllm", "orca"])
def test_a_request_that_comes_while_stage_0_is_idle_begins_at_once(name: str) -> None:
    """One scheduler over all: that there was nothing to send before, while a batch is on its way, holds nobody back."""
    engine = build_engine(name, H200, QWEN, read_flags(name, ("-pp=2",)))
    assert isinstance(engine, PipedEngine)
    engine.submit(5000, 3, 0.0)
    free_s = engine.begin(0.0)
    assert free_s is not None
    engine.begin(free_s)  # nothing: the token of the first is on its way
    assert len(engine.flight) == 1
    engine.submit(500, 3, free_s + 1e-3)
    engine.begin(free_s + 1e-3)
    assert [batch.entered_s[0] for batch in engine.flight] == [0.0, free_s + 1e-3]


def test_in_vllm_who_is_on_its_way_goes_on_behind_one_that_is_preempted() -> None:
    """7 blocks of 16. Four reach their 17th token while 4 is in mid-prompt: 3 gives its block to 2, 4 goes on."""
    flags = {"max_num_batched_tokens": 64, "long_prefill_token_threshold": 12, "enable_prefix_caching": False}
    four = [Arrival(0, 15, 9)] * 4
    third_s = serve(in_stages(vllm(112, pipeline_parallel_size=2, **flags)), four).sent[2].entered_s[0]
    log = serve(in_stages(vllm(112, pipeline_parallel_size=2, **flags)), [*four, Arrival(third_s + 1e-5, 14, 2)])
    assert [(chunk.sequence.id, chunk.n_tokens, chunk.start) for chunk in log.sent[3].plan.chunks] == [(4, 12, 0)]
    plan = log.sent[4].plan
    assert [one.id for one in plan.preempted] == [3]
    assert [one.id for one in plan.decodes] == [0, 1, 2]
    assert [(chunk.sequence.id, chunk.n_tokens, chunk.start) for chunk in plan.chunks] == [(4, 2, 12)]


def test_stages_serve_more_prompts_a_second_than_one() -> None:
    jobs = [Job(0.0, 8192, 1) for _ in range(16)]

    def last_s(*flags: str) -> float:
        engine = build_engine("sglang", H200, QWEN, read_flags("sglang", ("--chunked-prefill-size=2048", *flags)))
        return max(one.ttft_s for one in replay(engine, jobs))

    assert 2.5 < last_s() / last_s("-pp=4") < 4


def test_sglang_decodes_of_several_slots_are_on_their_way_at_once() -> None:
    """Four slots, two running requests each: in the steady state four batches of two follow each other."""
    engine = in_stages(sglang(pp_size=4, max_running_requests=8))
    log = serve(engine, [Arrival(0.0, 100, 30) for _ in range(8)])
    steady = log.sent[len(log.sent) // 2 :][:8]
    assert [batch.slot for batch in steady[:4]] == [batch.slot for batch in steady[4:]]
    assert sorted(batch.slot for batch in steady[:4]) == [0, 1, 2, 3]
    assert all(len(batch.plan.decodes) == 2 for batch in steady)


def test_one_that_nobody_waits_for_leaves_the_pipeline() -> None:
    engine = in_stages(vllm(pipeline_parallel_size=2))
    gone, stays = engine.submit(100, 50, 0.0), engine.submit(100, 2, 0.0)
    now_s = engine.begin(0.0) or 0.0
    engine.abort(gone)
    tokens = list(engine.end(now_s))
    while (step_s := engine.begin(now_s)) is not None:
        now_s += step_s
        tokens += engine.end(now_s)
    assert tokens == [stays, stays]
    assert engine.state.kv.free == engine.state.kv.total


@pytest.mark.parametrize(
    ("name", "flags", "said"),
    [
        (
            "vllm",
            ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}'),
            "speculation and pipeline stages",
        ),
        ("trtllm", ("--num-speculative-tokens=2",), "speculation and pipeline stages"),
        ("fastgen", (), "FastGen has no pipeline stages"),
        ("sglang", ("--enable-mixed-chunk",), "pipeline stages and --enable-mixed-chunk"),
    ],
)
def test_what_is_not_played_with_stages_is_refused(name: str, flags: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        build_engine(name, H200, QWEN, read_flags(name, (*flags, "-pp=2")))


def test_fastgen_options_are_those_of_fastgen() -> None:
    assert isinstance(read_flags("fastgen", ("-tp=2",)), FastgenOptions)


def test_a_stage_takes_the_host_that_does_not_work_ahead() -> None:
    """SGLang turns overlap off under pipeline stages."""
    engine = build_engine("sglang", H200, QWEN, read_flags("sglang", ("-pp=2",)))
    assert not engine.cost.calibration.is_host_overlapped
    assert StepCost(H200, QWEN).calibration.is_host_overlapped


@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm"])
def test_who_loses_memory_in_stages_begins_again_and_gets_every_token_once(name: str) -> None:
    """Room for two and a half of eight: they are admitted on less than they will need, and are preempted."""
    arrivals = [Arrival(0.01 * i, 400, 900, to_length=False) for i in range(8)]
    engines = {
        "vllm": lambda: vllm(3200, pipeline_parallel_size=3),
        "sglang": lambda: sglang(3200, pp_size=3),
        "trtllm": lambda: trtllm(3200, pp_size=3, capacity_scheduler_policy="MAX_UTILIZATION"),
    }
    engine = in_stages(engines[name]())
    log = serve(engine, arrivals, Laws(3, 1 << 20, 1 << 20))
    assert log.n_preempted > 0
    check_end(engine, log, arrivals)
