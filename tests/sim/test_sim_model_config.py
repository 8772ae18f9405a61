"""Shapes from `config.json`: the values below are those that the models' authors publish."""

from __future__ import annotations

from dataclasses import replace

import pytest

from longbench_sched.errors import UsageError
from longbench_sched.sim.model_config import model_from_config
from longbench_sched.sim.models import MODELS, Experts, Gqa, Mla

QWEN = {
    "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 32768, "use_sliding_window": False,
    "sliding_window": 131072, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN_MOE = {
    "hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_hidden_layers": 94,
    "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 151936, "max_position_embeddings": 40960,
}  # fmt: skip
DEEPSEEK = {
    "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "first_k_dense_replace": 3, "vocab_size": 129280, "max_position_embeddings": 163840,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip
YARN = {"type": "yarn", "original_max_position_embeddings": 4096}
MIXTRAL = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000,
    "max_position_embeddings": 32768, "sliding_window": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "config"),
    [("Qwen2.5-Coder-7B", QWEN), ("Qwen3-235B-A22B", QWEN_MOE), ("DeepSeek-V3.1", DEEPSEEK)],
)
def test_a_known_model_is_recognised_by_its_config(name: str, config: dict) -> None:
    known = MODELS[name]
    assert model_from_config(name, config) == replace(known, has_bos=False, source="config.json as given")


def test_a_mixture_whose_experts_have_the_only_width_is_read() -> None:
    """Mixtral 8x7B has 46.7e9 parameters, 12.9e9 of them at work."""
    model = model_from_config("mixtral", MIXTRAL)
    assert model.experts == Experts(8, 2, 14336)
    assert model.total_weights() == pytest.approx(46.7e9, rel=1e-3)
    assert model.linear_weights() + model.embedding_weights() == pytest.approx(12.9e9, rel=2e-3)


def test_every_other_layer_may_be_dense() -> None:
    model = model_from_config("m", QWEN_MOE | {"decoder_sparse_step": 2, "mlp_only_layers": [1]})
    assert (model.n_dense_layers, model.ffn) == (48, 12288), "47 by the stride, and layer 1"


def test_a_wide_shared_expert_counts_as_several() -> None:
    """Qwen1.5-MoE: 60 experts of 1408, and a shared part of 5632."""
    moe = {"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632}
    assert model_from_config("m", QWEN_MOE | moe).experts == Experts(60, 4, 1408, n_shared=4)


def test_queries_may_be_uncompressed() -> None:
    """DeepSeek-V2-Lite: q_lora_rank is null."""
    attention = model_from_config("lite", DEEPSEEK | {"q_lora_rank": None, "num_attention_heads": 16}).attention
    assert attention == Mla(16, 0, 512, 128, 64, 128)
    assert attention.weights(2048) == 2048 * 16 * 192 + 2048 * 576 + 512 * 16 * 256 + 16 * 128 * 2048


@pytest.mark.parametrize(
    ("more", "weights"),
    [
        ({}, "bf16"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, "fp8-block"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, "nvfp4"),
    ],
)
def test_the_precision_of_the_weights_is_read(more: dict, weights: str) -> None:
    assert model_from_config("m", QWEN | more).weights == weights


def test_yarn_extends_the_context() -> None:
    yarn = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}
    assert model_from_config("m", QWEN | yarn).context == 131072


def test_heads_are_as_wide_as_the_config_says_or_as_the_width_shared_out() -> None:
    assert model_from_config("m", QWEN | {"head_dim": 64}).attention == Gqa(28, 4, 64)
    assert model_from_config("m", {**QWEN, "num_key_value_heads": None}).attention == Gqa(28, 28, 128)


def test_a_list_of_full_attention_alone_is_full_attention() -> None:
    assert model_from_config("m", QWEN | {"attn_type_list": [1] * 28}) == model_from_config("m", QWEN)


def test_the_text_part_of_a_multimodal_model_is_read() -> None:
    assert model_from_config("m", {"model_type": "vl", "text_config": QWEN}).layers == 28


@pytest.mark.parametrize(
    ("config", "words"),
    [
        pytest.param({key: value for key, value in QWEN.items() if key != "hidden_size"}, "no hidden_size", id="missing"),
        pytest.param(QWEN | {"num_hidden_layers": 0}, "num_hidden_layers is 0", id="no layers"),
        pytest.param(QWEN | {"vocab_size": "big"}, "vocab_size is 'big'", id="text"),
        pytest.param(QWEN | {"num_attention_heads": True}, "whole number", id="true"),
        pytest.param(QWEN | {"ssm_state_size": 128}, "no attention", id="state space"),
        pytest.param(QWEN | {"layer_types": ["full_attention", "linear_attention"]}, "linear_attention", id="linear attention"),
        pytest.param(QWEN | {"use_sliding_window": True, "sliding_window": 4096}, "window of 4096", id="a window"),
        pytest.param(QWEN | {"attention_chunk_size": 8192}, r"8192 tokens \(attention_chunk_size\)", id="chunked attention"),
        pytest.param(DEEPSEEK | {"index_topk": 2048}, r"2048 tokens \(index_topk\)", id="sparse attention"),
        pytest.param(QWEN | {"attn_type_list": [0, 0, 1]}, "no attention", id="linear attention by a list"),
        pytest.param(QWEN | {"linear_attn_config": {"kda_layers": [1]}}, "no attention", id="linear attention by a config"),
        pytest.param(QWEN | {"quantization_config": {"quant_method": "awq"}}, "awq", id="another quantization"),
        pytest.param(DEEPSEEK | {"first_k_dense_replace": "x"}, "first_k_dense_replace is 'x'", id="dense layers, text"),
        pytest.param(DEEPSEEK | {"first_k_dense_replace": 62}, "a number of the 61 layers", id="more dense layers than layers"),
        pytest.param(QWEN | {"layer_types": 5}, "layer_types is 5; it is a list", id="kinds of layers, a number"),
        pytest.param(QWEN_MOE | {"mlp_only_layers": 7}, "mlp_only_layers is 7; it is a list", id="dense layers, a number"),
        pytest.param(QWEN_MOE | {"num_experts_per_tok": 129}, "more than all 128", id="more experts a token than experts"),
        pytest.param(QWEN | {"num_key_value_heads": 56}, "56 KV heads are more than 28", id="more KV heads than heads"),
        pytest.param(DEEPSEEK | {"rope_scaling": YARN | {"factor": float("nan")}}, "factor of rope_scaling", id="no factor"),
        pytest.param(DEEPSEEK | {"rope_scaling": YARN | {"factor": 1e300}}, "factor of rope_scaling", id="a mad factor"),
    ],
)
def test_what_would_be_priced_wrongly_is_refused(config: dict, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        model_from_config("m", config)
