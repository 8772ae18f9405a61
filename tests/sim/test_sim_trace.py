"""What a tracer notes of steps whose contents are known."""

from __future__ import annotations

import pytest
from checked_engine import sglang, vllm

from longbench_sched.sim.engine import Engine
from longbench_sched.sim.trace import StepTracer
from longbench_sched.steps import STEP_COLUMNS, StepFacts, StepTable

FACTS = StepFacts("run", "vllm", "H200", "Qwen", 1)


def trace(engine: Engine, *arrivals: tuple[int, int]) -> tuple[StepTable, list[float]]:
    """Requests (isl, osl) that are all there at 0, run to the end; the trace and the price of each step."""
    tracer, prices = StepTracer(), []
    tracer.attach(engine, 0)
    for isl, osl in arrivals:
        engine.submit(isl, osl, 0.0)
    now_ns = 0
    while (seconds := engine.begin(now_ns / 1e9)) is not None:
        end_ns = now_ns + round(seconds * 1e9)
        prices.append(seconds)
        engine.end(end_ns / 1e9)
        now_ns = end_ns
    return tracer.table(FACTS), prices


def test_a_step_is_noted_with_its_tokens_by_kind_its_batch_and_its_memory() -> None:
    """vLLM, budget 100: A's 150 tokens in steps of 100 and 50, B's 80 as 50 and 30; then both decode."""
    steps, prices = trace(vllm(max_num_batched_tokens=100), (150, 2), (80, 2))
    ints = steps.ints
    assert list(steps.texts["phase"]) == ["prefill", "prefill", "mixed", "decode"]
    assert list(ints["prefill_tokens"]) == [100, 100, 30, 0]
    assert list(ints["n_prefill"]) == [1, 2, 1, 0]
    assert list(ints["decode_tokens"]) == list(ints["n_decode"]) == [0, 0, 1, 1]
    assert list(ints["decode_context"]) == [0, 0, 151, 81]
    assert list(ints["n_admitted"]) == [1, 1, 0, 0]
    assert list(ints["n_running"]) == [1, 2, 2, 1]
    assert list(ints["n_waiting"]) == [1, 0, 0, 0]
    # Blocks of 16: 7 for 100 tokens; 10 for 150 and 4 for 50; 10 (151) and 5 (80); B alone: 6 (81).
    assert list(ints["kv_used_tokens"]) == [16 * n for n in (7, 14, 15, 6)]
    assert [round((b - a) / 1e9, 9) for a, b in zip(ints["begin_ns"], ints["end_ns"], strict=True)] == [
        round(price, 9) for price in prices
    ]


def test_the_bill_says_what_a_step_waits_for() -> None:
    """A long prompt is bound by compute, one decode by memory; a utilisation is a share."""
    steps, _ = trace(sglang(), (8000, 2))
    assert list(steps.texts["phase"]) == ["prefill", "decode"]
    assert list(steps.texts["bound"]) == ["compute", "memory"]
    prefill, decode = (row for row in range(2))
    assert steps.floats["arithmetic_intensity"][prefill] > 1000
    assert steps.floats["arithmetic_intensity"][decode] < 10
    assert 0.3 < steps.floats["compute_utilisation"][prefill] < 1
    assert 0.3 < steps.floats["bandwidth_utilisation"][decode] < 1
    for row in range(2):
        flop, n_bytes = steps.floats["flop"][row], steps.floats["n_bytes"][row]
        assert steps.floats["arithmetic_intensity"][row] == pytest.approx(flop / n_bytes)
    # The matrix products of the prompt alone are 2 FLOP a weight and token.
    assert steps.floats["flop"][prefill] > 2 * 6.5e9 * 8000


def test_every_column_is_filled_and_described() -> None:
    steps, _ = trace(vllm(), (100, 1))
    named = {*steps.ints, *steps.floats, *steps.texts}
    assert named == {column.name for column in STEP_COLUMNS}
    assert all(column.meaning for column in STEP_COLUMNS)
    assert {len(column) for group in (steps.ints, steps.floats, steps.texts) for column in group.values()} == {steps.n}


def test_a_step_is_explained_as_it_was_charged_though_the_next_plan_preempts_who_is_in_it() -> None:
    """8 blocks of 16, the next step planned meanwhile: A and B fill 4 each, then A's fifth takes B's place."""
    steps, prices = trace(vllm(128, async_scheduling=True), (60, 20), (60, 20))
    billed = [max(one) for one in zip(steps.floats["gpu_s"], steps.floats["host_s"], strict=True)]
    assert billed == pytest.approx(prices, rel=1e-12)
    contexts = [n for n, alike in zip(steps.ints["decode_context"], steps.ints["n_decode"], strict=True) if alike == 2]
    assert contexts == [122, 124, 126, 128]
    # B leaves with the plan that preempts it, and not with the step that ran when this was decided.
    assert list(steps.ints["n_preempted"][:7]) == [0, 0, 0, 0, 0, 1, 0]
    assert list(steps.ints["n_running"][:7]) == [2, 2, 2, 2, 2, 1, 1]
