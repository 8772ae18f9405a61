"""Prices of steps, worked out by hand from the figures of an H200 and of each model's config."""

from __future__ import annotations

from dataclasses import replace

import pytest
from checked_engine import H200, QWEN
from hypothesis import given
from hypothesis import strategies as st

from longbench_sched.errors import UsageError
from longbench_sched.sim.bill import StepLoad, load_of
from longbench_sched.sim.calibration import CALIBRATIONS, Calibration
from longbench_sched.sim.cost import Parallel, StepCost
from longbench_sched.sim.hardware import GPUS, Gpu, find_gpu
from longbench_sched.sim.models import MODELS, Experts, find_model, quantized
from longbench_sched.sim.speculation import find_speculator
from longbench_sched.sim.step import Chunk, Sequence, StepPlan, Verify

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
    """28 x 4 x 28 x 128 x 30000^2 / 2 = 1.806e14 FLOP at 989e12 x 0.70 x 30000 / 31600."""
    assert COST.prefill_attention_s(30_000, 0) == pytest.approx(0.2748, rel=1e-3)


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
    assert StepCost(H200, QWEN, CALIBRATIONS["sglang-0.4.2"])(prefilling(30_000)) == pytest.approx(0.92, rel=0.03)


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


loads = st.builds(
    StepPlan,
    chunks=st.lists(
        st.builds(
            lambda start, n, more: Chunk(Sequence(0, start + n + more, 9, 0.0), n, start),
            st.sampled_from([0, 16, 8192]),
            st.integers(1, 9000),
            st.integers(0, 1),
        ),
        max_size=3,
    ),
    decodes=st.lists(
        st.builds(lambda context: Sequence(1, context, 9, 0.0, computed=context, generated=1), st.integers(1, 90_000)),
        max_size=70,
    ),
    verifies=st.lists(
        st.builds(
            lambda context, k, tree: Verify(Sequence(2, context, 9, 0.0, computed=context, generated=1), k, max(1 + k, tree)),
            st.integers(1, 90_000), st.integers(1, 5), st.sampled_from([0, 64]),
        ),
        max_size=5,
    ),
    padding=st.sampled_from([0, 7]),
)  # fmt: skip
COSTS = {
    "dense": COST,
    "serial host": StepCost(H200, QWEN, Calibration(is_host_overlapped=False, chunk_penalty_s=0.01, tile_tokens=64)),
    "experts": StepCost(GPUS["H20"], quantized(MODELS["Qwen3-235B-A22B"], weights="fp8"), parallel=Parallel(tp=4, ep=4)),
    "latent": StepCost(GPUS["B200"], quantized(MODELS["DeepSeek-V3.1"], weights="fp8", kv="fp8"), parallel=Parallel(tp=8)),
    "drafts": StepCost(H200, MODELS["Llama-3.1-8B"], speculator=find_speculator("eagle3", MODELS["Llama-3.1-8B"])),
    "lookup": StepCost(H200, MODELS["Llama-3.1-8B"], speculator=find_speculator("ngram", MODELS["Llama-3.1-8B"])),
}


@pytest.mark.parametrize("kind", COSTS)
@given(plan=loads)
def test_the_bill_adds_up_to_the_price(kind: str, plan: StepPlan) -> None:
    cost = COSTS[kind]
    bill = cost.explain(plan)
    assert bill.seconds == pytest.approx(cost(plan))
    assert cost.price(load_of(plan)) == bill.seconds
    assert sum(part.seconds for part in bill.parts) == pytest.approx(bill.gpu_s)
    assert 0 <= bill.compute_utilisation <= 1
    assert 0 <= bill.bandwidth_utilisation <= 1
    assert bill.flop == pytest.approx(bill.arithmetic_intensity * bill.n_bytes)


@pytest.mark.parametrize(
    ("cost", "load", "bound"),
    [
        pytest.param(COST, StepLoad(chunks=((8192, 0, False),)), "compute", id="a chunk computes"),
        pytest.param(COST, StepLoad(n_decodes=64, decode_tokens=64, decode_context=64 * 30_000), "memory", id="decodes read"),
        pytest.param(
            StepCost(H200, QWEN, Calibration(host_step_s=0.02)),
            StepLoad(n_decodes=1, decode_tokens=1, decode_context=100), "host", id="a slow host",
        ),
        pytest.param(
            StepCost(GPUS["H100"], QWEN, parallel=Parallel(tp=8), calibration=Calibration(all_reduce_floor_s=1e-3)),
            StepLoad(n_decodes=1, decode_tokens=1, decode_context=100), "comm", id="slow links",
        ),
    ],
)  # fmt: skip
def test_a_bill_says_what_bound_the_step(cost: StepCost, load: StepLoad, bound: str) -> None:
    assert cost.bill(load).bound == bound


def test_an_intensity_is_counted_by_hand() -> None:
    """One decode of Qwen2.5-7B: 2 FLOP and 2 bytes a weight in linear layers and head: an intensity of about 1."""
    bill = COST.bill(StepLoad(n_decodes=1, decode_tokens=1, decode_context=1))
    assert bill.flop == pytest.approx(2 * (6.525e9 + 152_064 * 3584), rel=1e-3)
    assert bill.arithmetic_intensity == pytest.approx(1.0, rel=2e-3)
    # 14.14 GB take 2.946 ms at the peak; 3.466 ms at 0.85 of it, and 113 launches of 4 us and 28 attention floors of 12 us.
    assert bill.bandwidth_utilisation == pytest.approx(2.946 / (3.466 + 0.452 + 0.336), rel=1e-2)


def test_linear_time_depends_on_all_tokens_and_attention_on_each_request() -> None:
    """C03, selective batching: one flat batch of tokens for linear layers, attention request by request."""
    joint = COST.bill(StepLoad(chunks=((1000, 0, True), (3000, 0, True))))
    alone = [COST.bill(StepLoad(chunks=((n, 0, True),))) for n in (1000, 3000)]
    by_name = [{part.name: part.seconds for part in bill.parts} for bill in (joint, *alone)]
    assert by_name[0]["prefill attention"] == pytest.approx(by_name[1]["prefill attention"] + by_name[2]["prefill attention"])
    whole = COST.bill(StepLoad(chunks=((4000, 0, True),)))
    assert by_name[0]["linear"] == next(part.seconds for part in whole.parts if part.name == "linear")


@pytest.mark.parametrize(
    ("megabytes", "published_s", "tolerance"),
    [pytest.param(16.0, 166e-6, 0.25, id="16 MB"), pytest.param(134.0, 1.05e-3, 0.02, id="134 MB")],
)
def test_an_all_reduce_over_8_gpus_takes_what_was_measured(megabytes: float, published_s: float, tolerance: float) -> None:
    """134 MB: 4.5 us + 2 x 7/8 x 134e6 / (0.5 x 450e9) = 1.047 ms."""
    cost = StepCost(GPUS["H100"], QWEN, parallel=Parallel(tp=8))
    assert cost.all_reduce_s(megabytes * 1e6) == pytest.approx(published_s, rel=tolerance)


def test_tensor_parallelism_splits_work_and_pays_two_all_reduces_a_layer() -> None:
    llama = MODELS["Llama-3.1-70B"]
    load = StepLoad(chunks=((4096, 0, True),))
    one, four = StepCost(H200, llama).bill(load), StepCost(H200, llama, parallel=Parallel(tp=4)).bill(load)
    assert four.flop == pytest.approx(one.flop / 4)
    comm_s = next(part.seconds for part in four.parts if part.name == "communication")
    assert comm_s == pytest.approx(160 * (4.5e-6 + 1.5 * 4096 * 8192 * 2 / 225e9))


def test_kv_heads_are_copied_beyond_their_number_and_the_latent_always() -> None:
    qwen, deepseek = MODELS["Qwen2.5-Coder-7B"], MODELS["DeepSeek-V3.1"]
    assert [qwen.kv_bytes_per_token(tp) for tp in (1, 2, 4, 8)] == [57_344, 28_672, 14_336, 14_336]
    assert deepseek.kv_bytes_per_token(8) == deepseek.kv_bytes_per_token() == 70_272


def test_fp8_halves_the_weights_read_and_fp8_kv_the_cache_read() -> None:
    load = StepLoad(n_decodes=32, decode_tokens=32, decode_context=32 * 8000)
    plain, fp8 = (StepCost(H200, model).bill(load) for model in (QWEN, quantized(QWEN, weights="fp8", kv="fp8")))
    bytes_of = [{part.name: part.n_bytes for part in bill.parts} for bill in (plain, fp8)]
    assert bytes_of[0]["linear"] - bytes_of[1]["linear"] == pytest.approx(6.525e9, rel=1e-3)
    assert bytes_of[0]["decode attention"] == 2 * bytes_of[1]["decode attention"] == 32 * 8000 * 57_344
    assert bytes_of[0]["head"] == bytes_of[1]["head"], "the head stays as it is"


def test_fp8_weights_on_a_gpu_without_fp8_are_computed_in_bf16() -> None:
    big = StepLoad(chunks=((8192, 0, True),))
    a100 = GPUS["A100"]
    linear = [
        next(part for part in StepCost(a100, model).bill(big).parts if part.name == "linear").seconds
        for model in (QWEN, quantized(QWEN, weights="fp8"))
    ]
    assert linear[1] == pytest.approx(linear[0], rel=0.01)


def test_latent_attention_expands_in_prefill_and_is_absorbed_in_decode() -> None:
    """2 x 128 x (192 + 128) FLOP a pair in prefill, 2 x 128 x (2 x 512 + 64) in decode, for 61 layers."""
    cost = StepCost(H200, MODELS["DeepSeek-V3.1"])
    prefill = next(part for part in cost.bill(StepLoad(chunks=((1000, 0, False),))).parts if part.name == "prefill attention")
    assert prefill.flop == 61 * 2 * 128 * 320 * 500_000
    decode = cost.bill(StepLoad(n_decodes=1, decode_tokens=1, decode_context=1000))
    assert next(part for part in decode.parts if part.name == "decode attention").flop == 61 * 2 * 128 * 1088 * 1000


def test_verified_drafts_share_their_keys_but_not_their_products() -> None:
    """C21: four queries of a request read its keys once; FLOP grow fourfold, bytes do not."""
    lines = [
        next(part for part in COST.bill(load).parts if part.name == "decode attention")
        for load in (StepLoad((), 8, 8, 80_000), StepLoad((), 8, 32, 80_000))
    ]
    assert lines[1].n_bytes == lines[0].n_bytes
    assert lines[1].flop == 4 * lines[0].flop


def test_few_tokens_of_a_mixture_read_few_experts() -> None:
    """Qwen3-235B: one token reads 8 of 128 experts, 3 x 4096 x 1536 weights each, in 94 layers."""
    cost = StepCost(H200, MODELS["Qwen3-235B-A22B"])
    one = next(part for part in cost.bill(StepLoad((), 1, 1, 10)).parts if part.name == "experts")
    assert one.n_bytes == pytest.approx(94 * (8 * 3 * 4096 * 1536 + 4096 * 128) * 2, rel=1e-2)
    many = next(part for part in cost.bill(StepLoad((), 64, 64, 640)).parts if part.name == "experts")
    assert many.n_bytes / one.n_bytes == pytest.approx(126 / 8, rel=0.02)


def test_one_expert_for_all_moves_what_a_dense_layer_does() -> None:
    """Weights, h and 2 f for the first product, f and h for the second; a dense layer is two products, an expert one part."""
    dense = MODELS["Llama-3.1-8B"]
    mixture = replace(dense, ffn=0, experts=Experts(1, 1, dense.ffn))
    load = StepLoad(chunks=((1024, 0, False),))
    bills = [StepCost(H200, model).bill(load) for model in (dense, mixture)]
    router_bytes = 32 * 2 * (4096 + 1024 * (4096 + 1))
    assert bills[1].n_bytes - router_bytes == pytest.approx(bills[0].n_bytes, rel=1e-12)


def test_expert_parallelism_pays_dispatch_and_combine_and_its_slowest_rank() -> None:
    model = MODELS["DeepSeek-V3.1"]
    tp, ep = (StepCost(H200, model, parallel=parallel) for parallel in (Parallel(8), Parallel(8, ep=8)))
    assert ep.communication_s(4096) > tp.communication_s(4096)
    rows = [
        next(part for part in cost.bill(StepLoad(chunks=((4096, 0, True),))).parts if part.name == "experts").flop
        for cost in (tp, ep)
    ]
    router = 58 * 2 * 4096 * 7168 * 256
    # Shared experts are split by tp either way, so only the routed part grows by the imbalance.
    shared = 58 * 2 * 4096 * 3 * 7168 * 2048 / 8
    assert rows[1] - router - shared == pytest.approx(1.2 * (rows[0] - router - shared))


def test_a_tile_makes_one_more_token_as_dear_as_a_full_row() -> None:
    tiled = StepCost(H200, QWEN, Calibration(tile_tokens=128))
    assert tiled.linear_s(257) == tiled.linear_s(384) == COST.linear_s(384)
    assert tiled.linear_s(256) == COST.linear_s(256)


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_the_ridge_of_a_gpu_lies_where_its_fit_says(gpu: Gpu) -> None:
    """Tokens at which computing a bf16 layer takes as long as reading it: e_c P / (e_m BW), 188 for H200."""
    fit = gpu.gemm["bf16"]
    ridge = fit.compute_eff * gpu.bf16_flops / (fit.mem_eff * gpu.bandwidth)
    expected = {"A100": 179, "H100": 269, "H200": 188, "H20": 34, "B200": 257, "MI300X": 189}
    assert ridge == pytest.approx(expected[gpu.name], rel=0.01)
