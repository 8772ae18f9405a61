"""Traces of engines in which several things go on at once: nothing is lost, counted twice, or in two places at once."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest

from longbench_sched.experiment.virtual_run import Origin, Setting, plan_virtual, simulate, step_facts
from longbench_sched.run import Run
from longbench_sched.sim.engine import build_engine
from longbench_sched.sim.flags import read_flags
from longbench_sched.sim.hardware import find_gpu
from longbench_sched.sim.micro_batches import PipedEngine
from longbench_sched.sim.models import find_model
from longbench_sched.sim.pools import Pools
from longbench_sched.sim.step import Chunk, Sequence, StepPlan
from longbench_sched.sim.trace import StepTracer
from longbench_sched.steps import PoolFacts, StepTable
from longbench_sched.workload.spec import read_workload

MODEL = "Qwen2.5-Coder-7B-Instruct"
KV = 57_344  # bytes a token
LOAD = "isl = {min = 100, max = 9000}\nosl = {min = 1, max = 30}\nrate = 8\nrequests = 24\n"


def trace(engine: str, *flags: str, pools: Pools | None = None, load: str = LOAD) -> tuple[StepTable, Run]:
    plan = plan_virtual(read_workload(load, "mine", "mine.toml", Path()), 0)
    setting = Setting(engine, "H200", MODEL, read_flags(engine, flags), pools=pools)
    tracer = StepTracer()
    run = simulate(plan, setting, Origin("run", datetime(2026, 11, 30, tzinfo=UTC), {}), observer=tracer).run
    return tracer.table(step_facts(run.meta)), run


def lanes(steps: StepTable) -> dict[tuple[str, int, int, bool], list[int]]:
    """Rows by (pool, instance, stage, whether it is a transfer)."""
    found: dict[tuple[str, int, int, bool], list[int]] = defaultdict(list)
    for row in range(steps.n):
        place = steps.texts["pool"][row], steps.ints["instance"][row], steps.ints["stage"][row]
        found[(*place, steps.texts["phase"][row] == "transfer")].append(row)
    return dict(found)


def total(steps: StepTable, name: str, rows: list[int]) -> int:
    return sum(steps.ints[name][row] for row in rows)


def check_one_at_a_time(steps: StepTable) -> None:
    """Rows are in the order in which they began; in one place each begins when the one before it has ended."""
    begins, ends = steps.ints["begin_ns"], steps.ints["end_ns"]
    assert list(begins) == sorted(begins)
    for rows in lanes(steps).values():
        assert all(begins[row] < ends[row] for row in rows)
        assert all(ends[one] <= begins[other] for one, other in pairwise(rows))


def check_stamps(steps: StepTable, run: Run, stage: int, *, is_first_by_transfer: bool = False) -> None:
    """Each token has the stamp of the end of a step of the last stage; each such step has as many as it decodes."""
    offsets, stamps = run.table.offsets, run.table.lists["chunk_at_ns"]
    firsts = Counter(stamps[offsets[row]] for row in range(run.table.n))
    tokens = Counter(stamps)
    decoded: Counter[int] = Counter()
    ends_of_prompts = set()
    for row in range(steps.n):
        if steps.ints["stage"][row] == stage and steps.texts["phase"][row] != "transfer":
            decoded[steps.ints["end_ns"][row]] += steps.ints["n_decode"][row]
        is_source = steps.texts["phase"][row] == "transfer" if is_first_by_transfer else steps.ints["n_prefill"][row]
        if is_source and (is_first_by_transfer or steps.ints["stage"][row] == stage):
            ends_of_prompts.add(steps.ints["end_ns"][row])
    assert tokens - firsts == +decoded
    assert set(firsts) <= ends_of_prompts


STAGED = {
    "vllm": ("vllm", ("-pp=4", "--max-num-batched-tokens=1024")),
    "vllm, 8 stages that are not alike": ("vllm", ("-pp=8",)),
    "sglang": ("sglang", ("--pp-size=2", "--chunked-prefill-size=1024")),
    "sglang, deeper": ("sglang", ("--pp-size=4", "--pp-async-batch-depth=1", "--enable-dynamic-chunking")),
    "trtllm, TP 2": ("trtllm", ("--tp_size=2", "--pp_size=2", "--enable_chunked_prefill")),
    "orca": ("orca", ("--pipeline-parallel-size=3",)),
    "sarathi": ("sarathi", ("--pipeline-parallel-size=2",)),
}


@pytest.mark.parametrize("name", STAGED)
def test_every_stage_does_all_the_work_once_and_one_micro_batch_after_the_other(name: str) -> None:
    engine, flags = STAGED[name]
    steps, run = trace(engine, *flags)
    found = lanes(steps)
    n_stages = steps.facts.engines[0].n_stages
    assert list(found) == [("", 0, stage, False) for stage in range(n_stages)]
    check_one_at_a_time(steps)
    check_stamps(steps, run, n_stages - 1)
    computed = sum(run.table.ints["isl"]) - sum(max(cached, 0) for cached in run.table.ints["cached_tokens"])
    for rows in found.values():
        assert total(steps, "prefill_tokens", rows) == computed
        assert total(steps, "decode_tokens", rows) == sum(run.table.ints["output_tokens"]) - run.table.n
        assert total(steps, "n_admitted", rows) == run.table.n
        assert sorted(steps.ints["micro_batch"][row] for row in rows) == list(range(len(rows)))


def test_what_is_computed_again_after_a_preemption_is_in_every_stage_too() -> None:
    """KV for three of the longest: some lose their place and come back."""
    load = "isl = {min = 100, max = 3000}\nosl = {min = 100, max = 900}\nrate = 200\nrequests = 24\n"
    flags = ("--pp_size=2", "--capacity_scheduler_policy=MAX_UTILIZATION", "--kv_cache_free_gpu_memory_fraction=0.001")
    steps, run = trace("trtllm", *flags, load=load)
    check_one_at_a_time(steps)
    for rows in lanes(steps).values():
        n_preempted = total(steps, "n_preempted", rows)
        assert n_preempted > 0
        assert total(steps, "n_admitted", rows) == run.table.n + n_preempted
        assert total(steps, "prefill_tokens", rows) > sum(run.table.ints["isl"])
        assert max(steps.ints["kv_used_tokens"][row] for row in rows) <= steps.facts.kv_tokens < 10_000
    first, last = lanes(steps).values()
    for name in ("prefill_tokens", "decode_tokens", "n_preempted"):
        assert total(steps, name, first) == total(steps, name, last)
    ends = {steps.ints["end_ns"][row] for row in last}
    assert set(run.table.lists["chunk_at_ns"]) <= ends


@pytest.mark.parametrize("name", STAGED)
def test_a_micro_batch_enters_a_stage_after_the_one_above_and_the_hand_off(name: str) -> None:
    engine, flags = STAGED[name]
    steps, _ = trace(engine, *flags)
    by_batch: dict[int, list[int]] = defaultdict(list)
    for row in range(steps.n):
        by_batch[steps.ints["micro_batch"][row]].append(row)
    for rows in by_batch.values():
        assert [steps.ints["stage"][row] for row in rows] == list(range(steps.facts.engines[0].n_stages))
        for column in ("prefill_tokens", "decode_tokens", "decode_context", "n_running", "kv_used_tokens"):
            assert len({steps.ints[column][row] for row in rows}) == 1, "the same micro-batch"
        n_tokens = steps.ints["prefill_tokens"][rows[0]] + steps.ints["decode_tokens"][rows[0]]
        hand_off_ns = 4500 + n_tokens * 3584 * 2 / 225
        for above, below in pairwise(rows):
            waited_ns = steps.ints["begin_ns"][below] - steps.ints["end_ns"][above]
            assert waited_ns >= hand_off_ns - 2, "not before its activations are there"


def test_the_first_of_all_enters_each_stage_as_soon_as_it_can() -> None:
    """One prompt alone: nothing but the hand-off lies between stages, and a decode waits for nobody."""
    steps, _ = trace("vllm", "-pp=4", load="isl = 1000\nosl = 2\nconcurrency = 1\nrequests = 1\nwarmups = 0\n")
    assert list(steps.texts["phase"]) == ["prefill"] * 4 + ["decode"] * 4
    begins, ends = steps.ints["begin_ns"], steps.ints["end_ns"]
    gaps = [begins[row + 1] - ends[row] for row in range(3)]
    assert gaps == pytest.approx([4500 + 1000 * 3584 * 2 / 225] * 3, abs=1)
    assert begins[4] == ends[3]


def test_what_a_stage_costs_is_of_one_gpu_of_it_and_all_stages_are_the_engine() -> None:
    """FLOP and bytes of the stages together are those of the engine without stages; the time of each is what it was given."""
    model, gpu = find_model(MODEL), find_gpu("H200")
    whole = build_engine("vllm", gpu, model, read_flags("vllm", ()))
    engine = build_engine("vllm", gpu, model, read_flags("vllm", ("-pp=8",)))
    assert isinstance(engine, PipedEngine)
    one, other = Sequence(0, 9000, 5, 0.0), Sequence(1, 500, 5, 0.0, computed=500, generated=1)
    plan = StepPlan([Chunk(one, 4096, 4904)], [other])
    bills = engine.stage_cost.explain(plan)
    assert [bill.seconds for bill in bills] == engine.stage_cost(plan)
    bill = whole.cost.explain(plan)
    assert sum(stage.flop for stage in bills) == pytest.approx(bill.flop)
    assert sum(stage.n_bytes for stage in bills) == pytest.approx(bill.n_bytes)
    assert sum(stage.peak_s for stage in bills) == pytest.approx(bill.peak_s)
    # 28 layers over 8: 3 and 4; the head is the last one's.
    assert bills[4].flop / bills[0].flop == pytest.approx(4 / 3)
    head = 2 * 2 * model.hidden * model.vocab
    assert bills[7].flop - bills[6].flop == pytest.approx(head)
    assert [stage.parts[-1].name == "head" for stage in bills] == [False] * 7 + [True]
    for stage in bills:
        assert 0 < stage.compute_utilisation < 1
        assert 0 < stage.bandwidth_utilisation < 1


def test_a_micro_batch_is_explained_before_what_it_computes_counts_as_computed() -> None:
    """A token after 1000 sees 1001 keys, in every stage; a row costs what it took."""
    steps, _ = trace("vllm", "-pp=4", load="isl = 1000\nosl = 3\nconcurrency = 1\nrequests = 1\nwarmups = 0\n")
    assert list(steps.ints["decode_context"]) == [0] * 4 + [1001] * 4 + [1002] * 4
    begins, ends = steps.ints["begin_ns"], steps.ints["end_ns"]
    for row in range(steps.n):
        charged_s = max(steps.floats["gpu_s"][row], steps.floats["host_s"][row])
        assert (ends[row] - begins[row]) / 1e9 == pytest.approx(charged_s, abs=2e-9)


APART = {
    "dynamo-like": ("vllm", (), Pools("dynamo-like", 1, 2)),
    "mooncake-like": ("sglang", ("--chunked-prefill-size=2048",), Pools("mooncake-like", 2, 1)),
    "mooncake-like, TP 2": ("vllm", ("-tp=2",), Pools("mooncake-like", 1, 1)),
    "trtllm": ("trtllm", ("--enable_chunked_prefill",), Pools("dynamo-like", 2, 2)),
}


@pytest.mark.parametrize("name", APART)
def test_pools_do_all_the_work_once_and_every_byte_of_kv_is_seen_on_its_way(name: str) -> None:
    engine, flags, pools = APART[name]
    steps, run = trace(engine, *flags, pools=pools)
    check_one_at_a_time(steps)
    check_stamps(steps, run, 0, is_first_by_transfer=True)
    found = lanes(steps)
    assert {pool for pool, *_ in found} == {"prefill", "decode"}
    rows = {
        (pool, kind): [row for place, lane in found.items() if place[0] == pool and place[3] == kind for row in lane]
        for pool in ("prefill", "decode")
        for kind in (False, True)
    }
    isl = sum(run.table.ints["isl"])
    assert total(steps, "prefill_tokens", rows["prefill", False]) == isl
    assert total(steps, "decode_tokens", rows["prefill", False]) == total(steps, "prefill_tokens", rows["decode", False]) == 0
    assert total(steps, "decode_tokens", rows["decode", False]) == sum(run.table.ints["output_tokens"]) - run.table.n
    ways = [rows["prefill", True], *([rows["decode", True]] if pools.way == "mooncake-like" else [])]
    for way in ways:
        assert total(steps, "transfer_tokens", way) == isl
        assert total(steps, "transfer_bytes", way) == isl * KV
    assert pools.way == "mooncake-like" or not rows["decode", True]
    for row in range(steps.n):
        is_transfer = steps.texts["phase"][row] == "transfer"
        assert is_transfer == (steps.ints["transfer_bytes"][row] > 0)
        assert not is_transfer or (steps.texts["bound"][row], steps.floats["flop"][row]) == ("comm", 0.0)
    assert steps.facts.pools == (
        PoolFacts("prefill", pools.n_prefill, 1, steps.facts.pools[0].kv_tokens),
        PoolFacts("decode", pools.n_decode, 1, steps.facts.pools[1].kv_tokens),
    )
    assert steps.facts.kv_tokens == pools.n_decode * steps.facts.pools[1].kv_tokens


def test_a_transfer_begins_when_its_chunk_is_computed_and_takes_what_the_link_takes() -> None:
    """A prompt in chunks of 1000 and 500, streamed: 1 ms and its bytes over 0.7 of 25 GB/s each, then once from the store."""
    steps, _ = trace(
        "vllm",
        "--max-num-batched-tokens=1000",
        pools=Pools("mooncake-like"),
        load="isl = 1500\nosl = 2\nconcurrency = 1\nrequests = 1\nwarmups = 0\n",
    )
    found = lanes(steps)
    begins, ends = steps.ints["begin_ns"], steps.ints["end_ns"]
    one, other = found["prefill", 0, 0, False]
    first, second = found["prefill", 0, 0, True]
    (loading,) = found["decode", 0, 0, True]
    (decode,) = found["decode", 0, 0, False]
    assert begins[first] == ends[one] == begins[other]
    assert begins[second] == max(ends[other], ends[first])
    assert [begins[loading], begins[decode]] == [ends[second], ends[loading]]
    for row, tokens in ((first, 1000), (second, 500), (loading, 1500)):
        assert steps.ints["transfer_tokens"][row] == tokens
        assert ends[row] - begins[row] == pytest.approx(1e6 + tokens * KV / 17.5, abs=2)


@pytest.mark.parametrize("flags", [(), ("-pp=2",)], ids=["plain", "stages"])
def test_engines_side_by_side_are_told_apart(flags: tuple[str, ...]) -> None:
    steps, run = trace("vllm", *flags, pools=Pools("none", 2, 1))
    check_one_at_a_time(steps)
    check_stamps(steps, run, len(flags))
    found = lanes(steps)
    assert set(found) == {("", instance, stage, False) for instance in range(3) for stage in range(1 + len(flags))}
    for stage in range(1 + len(flags)):
        rows = [row for place, lane in found.items() if place[2] == stage for row in lane]
        assert total(steps, "decode_tokens", rows) == sum(run.table.ints["output_tokens"]) - run.table.n
    assert steps.facts.pools == (replace(steps.facts.pools[0], n_engines=3, n_stages=1 + len(flags)),)
    assert steps.facts.kv_tokens == 3 * steps.facts.pools[0].kv_tokens


def test_one_engine_is_a_pool_of_one() -> None:
    steps, run = trace("sglang")
    assert list(lanes(steps)) == [("", 0, 0, False)]
    assert list(steps.ints["micro_batch"]) == list(range(steps.n))
    assert steps.facts.engines == (PoolFacts("", 1, 1, steps.facts.kv_tokens),)
    check_one_at_a_time(steps)
    check_stamps(steps, run, 0)
