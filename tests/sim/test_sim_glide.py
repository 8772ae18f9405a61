"""Decode steps in bulk give the same tokens at the same instants as one by one, on every scheduler."""

from __future__ import annotations

import pytest
from checked_engine import Arrival, paged, sglang, trtllm, vllm
from hypothesis import given, settings
from hypothesis import strategies as st

from longbench_sched.sim.engine import Engine
from longbench_sched.sim.policy.orca import Orca, OrcaOptions
from longbench_sched.sim.policy.sarathi import Sarathi, SarathiOptions
from longbench_sched.sim.policy.sglang import SglangNote
from longbench_sched.sim.policy.vllm_v0 import VllmV0, VllmV0Options

ENGINES = {
    "vllm": lambda kv: vllm(kv, max_num_batched_tokens=64, max_num_seqs=6),
    "vllm ahead": lambda kv: vllm(kv, max_num_batched_tokens=64, max_num_seqs=6, async_scheduling=True),
    "vllm by priority": lambda kv: vllm(kv, max_num_batched_tokens=64, scheduling_policy="priority"),
    "sglang": lambda kv: sglang(kv, chunked_prefill_size=64, max_running_requests=6),
    "sglang without cache": lambda kv: sglang(kv, chunked_prefill_size=64, disable_radix_cache=True),
    "sglang by lot": lambda kv: sglang(kv, chunked_prefill_size=64, max_running_requests=4, schedule_policy="random"),
    "sglang by priority": lambda kv: sglang(
        kv,
        chunked_prefill_size=64,
        max_running_requests=4,
        enable_priority_scheduling=True,
        priority_scheduling_preemption_threshold=1,
    ),
    "trtllm": lambda kv: trtllm(kv, max_num_tokens=64, enable_chunked_prefill=True),
    "trtllm by use": lambda kv: trtllm(
        kv, max_num_tokens=64, enable_chunked_prefill=True, capacity_scheduler_policy="MAX_UTILIZATION"
    ),
    "vllm-v0": lambda kv: paged("vllm-v0", VllmV0, VllmV0Options(enable_chunked_prefill=False), kv),
    "orca": lambda kv: paged("orca", Orca, OrcaOptions(6), kv),
    "sarathi": lambda kv: paged("sarathi", Sarathi, SarathiOptions(64, 16), kv),
}
arrivals = st.lists(
    st.builds(
        Arrival,
        at_s=st.floats(0, 0.5),
        isl=st.integers(1, 120),
        osl=st.integers(1, 60),
        stop_at=st.none() | st.integers(1, 60),
        priority=st.integers(0, 2),
    ),
    min_size=1,
    max_size=8,
)


def tokens_of(engine: Engine, work: list[Arrival], glides: bool) -> tuple[dict[int, list[int]], dict[str, float], int]:
    """When each token came, in ns; the state at the end; how many steps were glided over."""
    pending = sorted((round(one.at_s * 1e9), i) for i, one in enumerate(work))
    at_ns: dict[int, list[int]] = {}
    now_ns = n_glided = 0

    def submit_until(until_ns: int) -> None:
        while pending and pending[0][0] <= until_ns:
            come_ns, i = pending.pop(0)
            one = work[i]
            engine.submit(one.isl, one.osl, come_ns / 1e9, stop_at=one.stop_at, priority=one.priority)

    while True:
        submit_until(now_ns)
        duration_s = engine.begin(now_ns / 1e9)
        if duration_s is None:
            if not pending:
                return at_ns, state_of(engine), n_glided
            now_ns = pending[0][0]
            continue
        end_ns = now_ns + max(1, round(duration_s * 1e9))
        submit_until(end_ns - 1)  # while the step runs
        glide = engine.glide(end_ns, pending[0][0] if pending else None) if glides else None
        if glide is not None:
            n_glided += len(glide.ends_ns)
            for sequence in glide.sequences:
                at_ns.setdefault(sequence.id, []).extend(glide.ends_ns)
            now_ns = glide.ends_ns[-1]
            continue
        now_ns = end_ns
        for sequence in engine.end(now_ns / 1e9):
            at_ns.setdefault(sequence.id, []).append(now_ns)


def state_of(engine: Engine) -> dict[str, float]:
    counters, state = engine.counters, engine.state
    told = {"steps": counters.n_steps, "tokens": counters.generated_tokens, "busy": counters.busy_s}
    told |= {"preemptions": state.n_preemptions, "free": state.kv.free, "idle": state.kv.idle}
    return told | ({"ratio": state.note.ratio} if isinstance(state.note, SglangNote) else {})


@pytest.mark.parametrize("name", ENGINES)
@settings(max_examples=60)
@given(work=arrivals, kv=st.integers(256, 900))
def test_gliding_changes_nothing(name: str, work: list[Arrival], kv: int) -> None:
    one_by_one = tokens_of(ENGINES[name](kv), work, glides=False)
    in_bulk = tokens_of(ENGINES[name](kv), work, glides=True)
    assert in_bulk[0] == one_by_one[0]
    assert in_bulk[1] == pytest.approx(one_by_one[1])


@pytest.mark.parametrize("name", ENGINES)
def test_most_of_a_quiet_run_is_glided_over(name: str) -> None:
    """Four requests of 100 tokens each: all decode steps but the first and the last few are alike."""
    work = [Arrival(0, 20, 100)] * 4
    _, counters, n_glided = tokens_of(ENGINES[name](1000), work, glides=True)
    assert n_glided >= 90
    assert counters["tokens"] == 400
