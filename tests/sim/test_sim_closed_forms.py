"""What can be written down in closed form, asserted exactly: wasted slots, acceptance, TTFT without load."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import accumulate

import pytest
from checked_engine import Arrival, drive, paged, sglang, trtllm, vllm
from hypothesis import given, settings
from hypothesis import strategies as st

from longbench_sched.sim.acceptance import Chain, ConstantRate, StatedDepths, distribution, expected_tokens, speedup
from longbench_sched.sim.engine import Engine
from longbench_sched.sim.policy.orca import Orca, OrcaOptions
from longbench_sched.sim.policy.sarathi import FastgenOptions, Sarathi, SarathiOptions
from longbench_sched.sim.policy.static import Static, StaticOptions
from longbench_sched.sim.policy.vllm_v0 import VllmV0, VllmV0Options
from longbench_sched.sim.step import Chunk, Sequence, StepPlan


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=10))
def test_s2_the_slots_that_a_static_batch_wastes(batch: list[tuple[int, int]]) -> None:
    """Prompts: N max(isl) - sum(isl). Output slots: 1 - mean(osl) / max(osl) of N max(osl), which is N max(osl) - sum(osl)."""
    prompts, outputs = zip(*batch, strict=True)
    n, paddings = len(batch), []
    engine = paged("static", Static, StaticOptions(n))
    drive(engine, [Arrival(0, isl, osl) for isl, osl in batch], lambda plan, state: paddings.append(plan.padding))
    assert paddings[0] == n * max(prompts) - sum(prompts)
    wasted = sum(paddings[1:])
    assert wasted == n * max(outputs) - sum(outputs)
    assert Fraction(wasted, n * max(outputs)) == 1 - Fraction(sum(outputs), n) / max(outputs)


@given(st.integers(0, 100), st.integers(0, 12))
def test_tokens_a_verification_of_a_chain(percent: int, k: int) -> None:
    """E = 1 + a + a^2 + ... + a^k = (1 - a^(k+1)) / (1 - a); P(j tokens) = a^(j-1) (1 - a), the last a^k."""
    alpha = Fraction(percent, 100)
    exact = sum(alpha**j for j in range(k + 1))
    assert expected_tokens(percent / 100, k) == pytest.approx(float(exact), rel=1e-12)
    assert Chain(ConstantRate(percent / 100)).expected(1000, k) == pytest.approx(float(exact), rel=1e-12)
    chances = [alpha**j * (1 - alpha) for j in range(k)] + [alpha**k]
    assert distribution(percent / 100, k) == pytest.approx([float(p) for p in chances], rel=1e-12, abs=1e-15)


@given(st.lists(st.floats(0, 1), max_size=6), st.floats(0, 1), st.integers(1, 8), st.floats(1, 3))
def test_a_stated_table_and_the_walltime_factor(reached: list[float], cost: float, k: int, verify: float) -> None:
    """E = 1 + sum of p_d; S = E / (k c + v)."""
    table = StatedDepths(tuple(reached))
    tokens = table.expected(1000, len(reached))
    assert tokens == 1 + math.fsum(reached)
    assert speedup(tokens, k, cost, verify) == pytest.approx(tokens / (k * cost + verify), rel=1e-12)


def pieces(isl: int, size: int) -> list[int]:
    """Chunks of a size, and the rest."""
    return [size] * (isl // size) + [isl % size] * (isl % size > 0)


ALONE: dict[str, tuple[Callable[[], Engine], int | None]] = {  # and the size of its chunks
    "vllm": (lambda: vllm(max_num_batched_tokens=512), 512),
    "vllm, planned ahead": (lambda: vllm(max_num_batched_tokens=512, async_scheduling=True), 512),
    "vllm with a draft model": (
        lambda: vllm(max_num_batched_tokens=512, speculative_method="draft_model", num_speculative_tokens=3),
        511,
    ),
    "vllm, a threshold spares the only request": (
        lambda: vllm(max_num_batched_tokens=512, long_prefill_token_threshold=100),
        512,
    ),
    "vllm whole": (lambda: vllm(enable_chunked_prefill=False), None),
    "vllm-v0": (lambda: paged("vllm-v0", VllmV0, VllmV0Options()), None),
    "vllm-v0 chunked": (lambda: paged("vllm-v0", VllmV0, VllmV0Options(512, enable_chunked_prefill=True)), 512),
    "sglang": (lambda: sglang(chunked_prefill_size=512), 512),
    "sglang mixed": (lambda: sglang(chunked_prefill_size=512, enable_mixed_chunk=True), 512),
    "sglang whole": (lambda: sglang(chunked_prefill_size=-1), None),
    "trtllm": (trtllm, None),
    "trtllm chunked": (lambda: trtllm(max_num_tokens=530, enable_chunked_prefill=True), 512),
    "static": (lambda: paged("static", Static, StaticOptions(1)), None),
    "orca": (lambda: paged("orca", Orca, OrcaOptions()), None),
    "sarathi": (lambda: paged("sarathi", Sarathi, SarathiOptions(512)), 512),
    "fastgen": (lambda: paged("fastgen", Sarathi, FastgenOptions()), 768),
}


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("isl", [1, 512, 5000])
def test_ttft_without_load_is_the_price_of_the_prompts_chunks(name: str, isl: int) -> None:
    """Nothing waits and nothing shares its steps: TTFT = sum of t(chunk after prefix), to the last bit."""
    make, size = ALONE[name]
    engine = make()
    sizes = pieces(isl, size or isl)
    prompt = Sequence(0, isl, 3, 0.0)
    prices = [
        engine.cost(StepPlan(chunks=[Chunk(prompt, n, start)]))
        for n, start in zip(sizes, accumulate([0, *sizes[:-1]]), strict=True)
    ]
    story = drive(engine, [Arrival(0, isl, 3)])
    assert story.tokens_at[0][0] == list(accumulate(prices))[-1]
