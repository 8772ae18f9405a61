"""A run in virtual time, from workload to metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from longbench_sched.compare.point import point_of
from longbench_sched.errors import TargetError, UsageError
from longbench_sched.experiment.virtual_run import Origin, Setting, Simulated, make_engine, plan_virtual, simulate, step_facts
from longbench_sched.metrics.summary import summarize
from longbench_sched.report import headline
from longbench_sched.run import Run
from longbench_sched.sim.calibration import Calibration
from longbench_sched.sim.cost import StepCost
from longbench_sched.sim.engine import PLAYED
from longbench_sched.sim.flags import read_flags
from longbench_sched.sim.hardware import find_gpu
from longbench_sched.sim.models import find_model
from longbench_sched.sim.pipeline import balanced_makespan_s, chunk_price
from longbench_sched.sim.pools import Pools
from longbench_sched.sim.step import Chunk, Sequence, StepPlan
from longbench_sched.sim.trace import StepTracer
from longbench_sched.store.parquet import read_run, write_run
from longbench_sched.workload.spec import read_workload

ORIGIN = Origin("id", datetime(2026, 11, 30, tzinfo=UTC), {"longbench-sched": "1"})
MODEL = "Qwen2.5-Coder-7B"


def setting(engine: str, *flags: str, gpu: str = "H200") -> Setting:
    return Setting(engine, gpu, MODEL, read_flags(engine, flags))


def run(text: str, chosen: Setting, seed: int = 0) -> Simulated:
    workload = read_workload(text, "mine", "mine.toml", Path())
    return simulate(plan_virtual(workload, seed), chosen, ORIGIN)


def columns(of: Run) -> Mapping[str, object]:
    table = of.table
    return {**{k: list(v) for k, v in {**table.ints, **table.texts, **table.lists}.items()}, "offsets": list(table.offsets)}


LOAD = "isl = {min = 100, max = 9000}\nosl = {min = 2, max = 60}\nrate = 8\nrequests = 40\n"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_same_workload_seed_and_setting_give_the_same_records(engine: str) -> None:
    first, again, other = (columns(run(LOAD, setting(engine), seed).run) for seed in (0, 0, 1))
    assert first == again
    assert first["chunk_at_ns"] != other["chunk_at_ns"]


def test_an_unloaded_ttft_is_the_cost_of_the_prompt() -> None:
    """One request in one chunk: TTFT is one step, of 4000 tokens of which one is sampled; each TPOT a decode step."""
    done = run("isl = 4000\nosl = 2\nconcurrency = 1\nrequests = 3\nwarmups = 0\n", setting("vllm"))
    cost = StepCost(find_gpu("H200"), find_model(MODEL), Calibration())
    sequence = Sequence(0, 4000, 2, 0.0)
    prefill_s = cost(StepPlan(chunks=[Chunk(sequence, 4000, 0)]))
    sequence.computed, sequence.generated = 4000, 1
    decode_s = cost(StepPlan(decodes=[sequence]))
    stats = summarize(done.run).whole.stats
    assert stats["ttft"].min == stats["ttft"].max == pytest.approx(prefill_s, abs=1e-9)
    assert stats["tpot"].p50 == pytest.approx(decode_s, abs=1e-9)
    assert done.n_steps == 6


def test_a_run_says_that_it_is_simulated_and_names_no_machine() -> None:
    meta = run(LOAD, setting("sglang", "--chunked-prefill-size", "2048")).run.meta
    assert (meta.simulated, meta.clock, meta.client.clock, meta.host) == (True, "virtual", "virtual", {})
    assert meta.target["engine"] == "sglang"
    facts = meta.engine_facts
    assert (facts["engine"], facts["token_budget"], facts["gpu"], facts["simulated"]) == ("sglang", 2048, "H200", True)
    assert facts["calibration"]
    assert meta.plan["extra"]["prompt_form"] == "lengths"
    assert meta.digest == meta.plan["extra"]["schedule_digest"]


def test_a_simulated_tensorrt_tells_the_settings_that_the_real_one_would_not() -> None:
    said = run(LOAD, setting("trtllm")).run.meta.engine_facts
    assert (said["token_budget"], said["max_num_seqs"], said["block_size"], said["chunked_prefill"]) == (8192, 2048, 32, False)


def test_the_engine_says_of_itself_what_it_would_say_over_http() -> None:
    from longbench_sched.launch.process import EmbeddedOptions, EmbeddedServer
    from longbench_sched.load.probe import probe
    from longbench_sched.target import Endpoint, Target

    with EmbeddedServer(EmbeddedOptions(engine="vllm", model=MODEL)) as server:
        asked = probe(Target("vllm", Endpoint.parse(server.base_url), None))
    said = run(LOAD, setting("vllm")).run.meta.engine_facts
    told = {**asked.facts, **asked.announcement}
    assert {key: said[key] for key in told if key not in ("time_scale",)} == {
        k: v for k, v in told.items() if k != "time_scale"
    }


def test_a_stored_run_is_read_back(tmp_path: Path) -> None:
    made = run(LOAD, setting("vllm")).run
    write_run(made, tmp_path / "run.parquet")
    back = read_run(tmp_path / "run.parquet")
    assert columns(back) == columns(made)
    assert back.meta.engine_facts["gpu"] == "H200"


def test_no_warning_is_about_the_client_or_the_stamps() -> None:
    summary = summarize(run(LOAD, setting("vllm")).run)
    assert {advice.id for advice in summary.advice} <= {
        "FEW-REQUESTS",
        "NO-STEADY-WINDOW",
        "ITL-PREFILL",
        "QUEUEING",
        "BIMODAL",
    }
    assert summary.outcomes.ok == 40


def test_a_workload_that_does_not_fit_is_refused_before_anything_is_simulated() -> None:
    with pytest.raises(TargetError, match=r"accepts 32768 tokens .* needs 40010 \(40000 \+ 10\)"):
        run("isl = 40000\nosl = 10\nconcurrency = 1\nrequests = 1\n", setting("vllm"))


def test_a_gpu_that_nobody_knows_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="H201"):
        run(LOAD, setting("vllm", gpu="H201"))


def test_an_interference_workload_keeps_its_lanes() -> None:
    text = (
        '[[lane]]\nname = "short"\nisl = 200\nosl = 20\nconcurrency = 2\nduration = 2\n'
        '[[lane]]\nname = "long"\nisl = 9000\nosl = 2\nrate = 2\nduration = 2\n'
    )
    summary = summarize(run(text, setting("sglang")).run)
    assert set(summary.lanes) == {"short", "long"}
    assert summary.lanes["long"].stats["ttft"].n == 4


def test_a_shared_prefix_is_found_in_the_cache_without_a_token_list() -> None:
    """1,000 of 1,600 tokens are common: 62 blocks of 16, 992 tokens, for all but the first; none where caching is off."""
    text = "isl = 1600\nosl = 2\nconcurrency = 1\nrequests = 3\nwarmups = 0\nshared_prefix = 1000\n"
    cached, uncached = run(text, setting("vllm")).run, run(text, setting("vllm", "--no-enable-prefix-caching")).run
    assert list(cached.table.ints["cached_tokens"]) == [0, 992, 992]
    assert set(uncached.table.texts["cached_token_source"]) == {None}
    first, second = (
        [table.ints["first_byte_ns"][row] - table.ints["sent_ns"][row] for row in (0, 1)]
        for table in (cached.table, uncached.table)
    )
    assert first[1] < first[0] == second[0] == second[1]


def test_requests_without_a_common_prefix_share_nothing() -> None:
    done = run("isl = 1600\nosl = 2\nconcurrency = 1\nrequests = 3\n", setting("vllm")).run
    assert set(done.table.ints["cached_tokens"]) == {0}


NEEDS = {"static": ("--batch-size", "2")}


@pytest.mark.parametrize("engine", PLAYED)
def test_every_scheduler_can_be_simulated_and_says_what_it_is(engine: str) -> None:
    text = "isl = {min = 100, max = 900}\nosl = {min = 2, max = 20}\nrate = 8\nrequests = 12\n"
    done = run(text, setting(engine, *NEEDS.get(engine, ()))).run
    assert set(done.table.texts["status"]) == {"ok"}
    said = done.meta.engine_facts
    assert (said["engine"], said["simulated"]) == (engine, True)
    version = PLAYED[engine].title.rpartition(" ")[2]
    assert said["version"] == (f"{version}+simulated" if version[0].isdigit() else said["version"])


def test_a_scheduler_that_waits_for_company_takes_no_step_meanwhile() -> None:
    """One request, batches of two: it waits for a second, one second, and then runs alone."""
    workload = read_workload("isl = 100\nosl = 3\nconcurrency = 1\nrequests = 1\nwarmups = 0\n", "mine", "mine.toml", Path())
    tracer = StepTracer()
    done = simulate(plan_virtual(workload, 0), setting("static", "--batch-size", "2"), ORIGIN, observer=tracer)
    first_ns = done.run.table.ints["first_byte_ns"][0] - done.run.table.ints["sent_ns"][0]
    assert 1_000_000_000 < first_ns < 1_100_000_000
    assert tracer.table(step_facts(done.run.meta)).texts["phase"] == ["prefill", "decode", "decode"]


@pytest.mark.parametrize("n_engines", [1, 2])
def test_a_batch_begins_at_the_instant_at_which_it_is_full(n_engines: int) -> None:
    """Batches of two. Engines side by side take requests in turn, so theirs are full when the third and the fourth come."""
    text = f"isl = 100\nosl = 400\nrate = 7\nrequests = {2 * n_engines}\nwarmups = 0\n"
    workload = read_workload(text, "mine", "mine.toml", Path())
    pools = Pools("none", 1, 1) if n_engines == 2 else None
    static = replace(setting("static", "--batch-size", "2", "--batch-timeout-s", "9"), pools=pools)
    tracer = StepTracer()
    done = simulate(plan_virtual(workload, 0), static, ORIGIN, observer=tracer)
    table = tracer.table(step_facts(done.run.meta))
    rows = zip(table.texts["phase"], table.ints["begin_ns"], strict=True)
    begins_ns = [begin_ns for phase, begin_ns in rows if phase == "prefill"]
    assert begins_ns == pytest.approx(sorted(done.run.table.ints["sent_ns"])[n_engines:], abs=1)


# -- several GPUs


def apart(engine: str, pools: Pools, *flags: str) -> Setting:
    return replace(setting(engine, *flags), pools=pools)


PARALLEL = {
    "TP 2": (setting("vllm", "-tp", "2"), 2),
    "PP 4": (setting("sglang", "--pp-size", "4"), 4),
    "TP 2, PP 2": (setting("trtllm", "--tp_size=2", "--pp_size=2", "--enable_chunked_prefill"), 4),
    "mooncake-like": (apart("sglang", Pools("mooncake-like", 2, 1)), 3),
    "dynamo-like, TP 2": (apart("vllm", Pools("dynamo-like", 1, 3), "-tp=2"), 8),
}


@pytest.mark.parametrize("name", PARALLEL)
def test_engines_over_several_gpus_serve_a_whole_plan_and_are_stored(name: str, tmp_path: Path) -> None:
    chosen, n_gpus = PARALLEL[name]
    first, again = (run(LOAD, chosen).run for _ in range(2))
    assert columns(first) == columns(again)
    assert first.table.texts["phase"].count("measured") == 40
    assert set(first.table.texts["status"]) == {"ok"}
    assert list(first.table.ints["output_tokens"]) == list(first.table.ints["osl"])
    write_run(first, tmp_path / "run.parquet")
    back = read_run(tmp_path / "run.parquet")
    assert columns(back) == columns(first)
    assert back.meta.engine_facts["gpus"] == n_gpus
    assert point_of(summarize(back)).gpus == n_gpus
    page = " ".join(" ".join(line.text for line in headline.head(summarize(back))).split())
    assert f"{n_gpus} GPUs" in page
    if chosen.pools is not None:
        assert back.meta.engine_facts["disaggregation"] == str(chosen.pools)
        assert f"role {chosen.pools}" in page
        assert back.meta.engine_facts["prefix_caching"] is False


def test_pp4_a_prompt_alone_through_stages_takes_the_closed_form() -> None:
    """(sum t_i + (S - 1) max t_i) / S + (S - 1) t_p2p + t_head, to the ns."""
    text = "isl = 16384\nosl = 1\nconcurrency = 1\nrequests = 3\nwarmups = 0\n"
    done = run(text, setting("vllm", "--max-num-batched-tokens=2048", "--pipeline-parallel-size=4"))
    cost = StepCost(find_gpu("H200"), find_model(MODEL), Calibration())
    price = chunk_price(cost)
    whole_s = [price(2048, start) for start in range(0, 16_384, 2048)]
    p2p_s = 4.5e-6 + 2048 * 3584 * 2 / 225e9
    stat = summarize(done.run).whole.stats["ttft"]
    expected_s = balanced_makespan_s(whole_s, 4, p2p_s=p2p_s) + cost.head_s(1)
    assert (stat.min, stat.max) == pytest.approx((expected_s, expected_s), abs=2e-9)


def test_between_pools_ttft_is_prefill_and_transfer() -> None:
    """4000 tokens of 57,344 bytes over 0.7 of 50 GB/s after 1 ms of setup; each further token is a decode step."""
    text = "isl = 4000\nosl = 3\nconcurrency = 1\nrequests = 3\nwarmups = 0\n"
    stats = summarize(run(text, apart("vllm", Pools("dynamo-like"))).run).whole.stats
    alone = summarize(run(text, setting("vllm")).run).whole.stats
    assert stats["ttft"].p50 == pytest.approx(alone["ttft"].p50 + 1e-3 + 4000 * 57_344 / 35e9, abs=3e-9)
    assert stats["tpot"].p50 == pytest.approx(alone["tpot"].p50, abs=3e-9)


@pytest.mark.parametrize("name", PARALLEL)
def test_a_trace_changes_nothing_and_its_last_stage_ends_where_tokens_have_their_stamps(name: str) -> None:
    chosen, _ = PARALLEL[name]
    plan = plan_virtual(read_workload(LOAD, "mine", "mine.toml", Path()), 0)
    tracer = StepTracer()
    run = simulate(plan, chosen, ORIGIN, observer=tracer).run
    assert columns(run) == columns(simulate(plan, chosen, ORIGIN).run)
    steps = tracer.table(step_facts(run.meta))
    last = max(steps.ints["stage"])
    is_last = [stage == last for stage in steps.ints["stage"]]
    ends = {end for end, here in zip(steps.ints["end_ns"], is_last, strict=True) if here}
    stamps = set(run.table.lists["chunk_at_ns"])
    assert stamps <= ends
    # Everything that ends gives somebody a token, but for chunks that are not the last of their prompt and for transfers.
    ends_of_decodes = {
        end for end, here, n in zip(steps.ints["end_ns"], is_last, steps.ints["n_decode"], strict=True) if here and n
    }
    assert ends_of_decodes <= stamps


def test_a_run_that_is_cancelled_leaves_pools_and_stages_empty() -> None:
    for chosen in (setting("sglang", "-pp=2"), apart("vllm", Pools("mooncake-like", 1, 1))):
        engine = make_engine(chosen)
        sequences = [engine.submit(20_000, 50, 0.0) for _ in range(4)]
        step_s = engine.begin(0.0)
        assert step_s is not None
        engine.end(step_s)
        for sequence in sequences:
            engine.abort(sequence)
        now_s = step_s
        while (step_s := engine.begin(now_s)) is not None:
            now_s += step_s
            assert engine.end(now_s) == []
        assert (engine.n_waiting, engine.n_running) == (0, 0)


PRIORITIES = """
[[lane]]
name = "batch"
isl = 4000
osl = 50
burst_size = 24
every = "10s"
arrivals = "burst"
requests = 24
priority = {batch}

[[lane]]
name = "chat"
isl = 500
osl = 5
rate = 8
requests = 4
priority = {chat}
"""


@pytest.mark.parametrize(
    ("engine", "flags", "chat"),
    [
        ("vllm", ["--scheduling-policy", "priority", "--max-num-seqs", "4"], -1),
        ("sglang", ["--enable-priority-scheduling", "--max-running-requests", "4"], 1),
    ],
)
def test_an_urgent_lane_overtakes_the_queue_where_the_engine_schedules_by_priority(
    engine: str, flags: list[str], chat: int
) -> None:
    def slowest_chat_ttft_s(batch: int, chat: int) -> float:
        lanes = summarize(run(PRIORITIES.format(batch=batch, chat=chat), setting(engine, *flags)).run).lanes
        worst = lanes["chat"].stats["ttft"].max
        assert worst is not None
        return worst

    assert slowest_chat_ttft_s(0, chat) < 0.5 * slowest_chat_ttft_s(0, 0)
    assert slowest_chat_ttft_s(0, -chat) >= slowest_chat_ttft_s(0, 0)


def test_a_priority_is_refused_as_the_engine_would_refuse_it() -> None:
    text = PRIORITIES.format(batch=0, chat=5)
    for engine in ("vllm", "trtllm", "orca"):
        with pytest.raises(TargetError, match=f"the simulated {engine} refuses requests with a priority"):
            run(text, setting(engine))
    plain, ignored = (columns(run(PRIORITIES.format(batch=0, chat=chat), setting("sglang")).run) for chat in (0, 5))
    assert plain["chunk_at_ns"] == ignored["chunk_at_ns"], "SGLang does not heed it unless asked to"
