"""Prices of steps, worked out by hand from the figures of an H200 and of each model's config."""

from __future__ import annotations

import pytest
from checked_engine import H200, QWEN
from hypothesis import given
from hypothesis import strategies as st

from longbench_sched.errors import UsageError
from longbench_sched.sim.cost import Calibration, StepCost
from longbench_sched.sim.hardware import GPUS, find_gpu
from longbench_sched.sim.models import MODELS, Experts, find_model
from longbench_sched.sim.state import Chunk, Sequence, StepPlan

COST = StepCost(H200, QWEN)


def decoding(n: int, context: int) -> StepPlan:
    return StepPlan(decodes=[Sequence(i, context, 500, 0.0, computed=context, generated=1) for i in range(n)])


def prefilling(isl: int, start: int = 0, n: int | None = None) -> StepPlan:
    return StepPlan(chunks=[Chunk(Sequence(0, isl, 500, 0.0, computed=start), n or isl - start, start)])


@pytest.mark.parametrize(
    ("name", "linear_e9", "total_e9", "kv_bytes", "flop_per_n2"),
    [
        ("Qwen2.5-Coder-7B", 6.525, 7.615, 57_344, 2.007e5),
        ("Llama-3.1-8B", 6.979, 8.030, 131_072, 2.621e5),
        ("Llama-3.1-70B", 68.45, 70.55, 327_680, 1.311e6),
        ("Qwen3-8B", 6.946, 8.190, 147_456, 2.949e5),
        ("Qwen3-235B-A22B", 20.95, 235.1, 192_512, 1.540e6),
        ("DeepSeek-V3.1", 35.7, 671.0, 70_272, 2.499e6),
    ],
)
def test_shapes_give_the_published_sizes(name, linear_e9, total_e9, kv_bytes, flop_per_n2) -> None:
    model = MODELS[name]
    assert model.linear_weights() / 1e9 == pytest.approx(linear_e9, rel=1e-3)
    assert model.total_weights() / 1e9 == pytest.approx(total_e9, rel=1e-3)
    assert model.kv_bytes_per_token() == kv_bytes
    assert model.layers * model.attention.flop_per_pair() / 2 == pytest.approx(flop_per_n2, rel=1e-3)


@pytest.mark.parametrize(
    ("experts", "loaded"),
    [(Experts(128, 8, 1536), {1: 8, 4: 29, 16: 82, 64: 126}), (Experts(256, 8, 2048), {1: 8, 4: 31, 16: 102, 64: 222})],
)
def test_more_tokens_load_more_experts(experts: Experts, loaded: dict[int, int]) -> None:
    assert {tokens: round(experts.n_loaded(tokens)) for tokens in loaded} == loaded


def test_a_matrix_product_of_many_tokens_is_bound_by_compute() -> None:
    """2 x 8192 x 3584 x 37888 FLOP at 0.775 x 989e12 = 2.903 ms; its 951 MB take 0.233 ms, which p = 4 hides; + 4 us."""
    assert COST.gemm_s(8192, 3584, 37_888) == pytest.approx(2.907e-3, rel=1e-3)


def test_a_matrix_product_of_one_token_is_bound_by_its_weights() -> None:
    """3584 x 37888 x 2 B = 271.6 MB at 0.85 x 4.8 TB/s = 66.6 us; + 4 us."""
    assert COST.gemm_s(1, 3584, 37_888) == pytest.approx(70.6e-6, rel=2e-3)


def test_attention_of_a_whole_long_prompt() -> None:
    """28 x 4 x 28 x 128 x 30000^2 / 2 = 1.806e14 FLOP at 989e12 x 0.47 x 30000 / 31600."""
    assert COST.prefill_attention_s(30_000, 0) == pytest.approx(0.4093, rel=1e-3)


@given(st.integers(1, 60_000), st.lists(st.integers(1, 9000), min_size=1, max_size=8))
def test_cutting_a_prompt_leaves_its_attention_work_as_it_is(start: int, chunks: list[int]) -> None:
    """At constant efficiency the pieces add up to the whole, unless one is so short that reading the prefix decides."""
    cost = StepCost(H200, QWEN, Calibration(attention_half_tokens=0.0))
    flop_only = [cost.prefill_attention_s(n, start + sum(chunks[:i])) for i, n in enumerate(chunks)]
    whole = cost.prefill_attention_s(sum(chunks), start)
    if min(chunks) > 1000:
        assert sum(flop_only) == pytest.approx(whole)
    else:
        assert sum(flop_only) >= whole * (1 - 1e-9)


def test_a_30k_prompt_alone_takes_about_what_was_published() -> None:
    """0.92 s a prompt, fitted on SGLang's published row with chunks of 32K (one number fits its TTFT and its throughput)."""
    assert COST(prefilling(30_000)) == pytest.approx(0.92, rel=0.03)


def test_a_decode_of_a_full_house_is_bound_by_its_kv_reads() -> None:
    """64 x 30001 x 57344 B at 0.88 x 4.8 TB/s = 26.07 ms, + 28 x 12 us, + weights 15.2 GB without the embedding's half."""
    plan = decoding(64, 30_000)
    weights_s = (6.525e9 + 152_064 * 3584) * 2 / (0.85 * 4.8e12)
    assert COST(plan) == pytest.approx(26.07e-3 + 28 * 12e-6 + weights_s, rel=0.03)


def test_decodes_in_a_prefill_step_read_no_weights_of_their_own() -> None:
    mixed = prefilling(8192)
    mixed.decodes = decoding(32, 1000).decodes
    assert COST(mixed) - COST(prefilling(8192)) < 0.5 * COST(decoding(32, 1000))


def test_an_idle_host_is_hidden_behind_the_gpu_and_a_slow_one_is_not() -> None:
    plan = decoding(1, 100)
    hidden = StepCost(H200, QWEN, Calibration(host_step_s=0.0, host_per_layer_s=0.0, host_per_request_s=0.0))(plan)
    assert COST(plan) == hidden
    slow = Calibration(host_step_s=1.0, host_per_layer_s=0.0, host_per_request_s=0.0)
    assert StepCost(H200, QWEN, slow)(plan) == 1.0
    one_after_the_other = Calibration(host_step_s=1.0, host_per_layer_s=0.0, host_per_request_s=0.0, is_host_overlapped=False)
    assert StepCost(H200, QWEN, one_after_the_other)(plan) == pytest.approx(1.0 + hidden)


def test_an_empty_step_costs_nothing() -> None:
    assert COST(StepPlan()) == 0.0


def test_a_chunk_with_a_prefix_pays_the_penalty_it_was_given() -> None:
    dear = StepCost(H200, QWEN, Calibration(chunk_penalty_s=0.04))
    assert dear(prefilling(30_000, 8192, 8192)) - COST(prefilling(30_000, 8192, 8192)) == pytest.approx(0.04)
    assert dear(prefilling(8192)) == COST(prefilling(8192))


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("model", MODELS)
def test_every_pair_of_gpu_and_model_has_a_price(gpu: str, model: str) -> None:
    cost = StepCost(GPUS[gpu], MODELS[model])
    assert 0 < cost(decoding(1, 1000)) < cost(decoding(256, 1000)) < 100
    assert 0 < cost(prefilling(1000)) < cost(prefilling(8000)) < 100


@pytest.mark.parametrize("text", ["qwen2.5-coder-7b", "Qwen/Qwen2.5-Coder-7B-Instruct", "QWEN2.5-CODER-7B"])
def test_a_model_is_found_in_any_case_and_with_its_organisation(text: str) -> None:
    assert find_model(text).name == "Qwen2.5-Coder-7B"


def test_an_unknown_name_is_answered_with_the_nearest_and_all() -> None:
    with pytest.raises(UsageError, match=r"(?s)no GPU named 'h20o'.*H200.*Did you mean") as caught:
        find_gpu("h20o")
    assert "MI300X" in str(caught.value)
    with pytest.raises(UsageError, match=r"Did you mean Llama-3\.1-8B"):
        find_model("meta-llama/Llama-3-8B-Instruct")
