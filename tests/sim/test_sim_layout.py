"""How an engine is spread over GPUs: capacities worked out by hand, refusals, and the price of two GPUs."""

from __future__ import annotations

import pytest

from longbench_sched.errors import UsageError
from longbench_sched.sim.engine import build_engine
from longbench_sched.sim.flags import read_flags
from longbench_sched.sim.hardware import GPUS
from longbench_sched.sim.layout import Layout, layout_of, split_layers
from longbench_sched.sim.models import MODELS, quantized

QWEN, LLAMA = MODELS["Qwen2.5-Coder-7B"], MODELS["Llama-3.1-70B"]


def built(name: str, gpu: str, model: str, *flags: str):
    return build_engine(name, GPUS[gpu], MODELS[model], read_flags(name, flags))


# vLLM: 0.92 of the memory, less the weights and 2 T (2h + (H d + 3 f) / tp + KV elements) bytes for the T = 8192 tokens of a
# step; what is left over the KV bytes of a token on one GPU, in blocks of 16 of which one is a placeholder.
@pytest.mark.parametrize(
    ("gpu", "model", "flags", "tokens"),
    [
        # 138,297,946,931 - 620,756,992 - 7,615,283,200 = 130,061,906,739; 28 x 2 x 2 heads x 128 x 2 B = 28,672: 4,536,199
        pytest.param("H200", "Qwen2.5-Coder-7B", ("-tp", "2"), 4_536_176, id="7B on 2 H200"),
        # 79,027,398,246 - 662,700,032 - 35,276,193,792 = 43,088,504,422; 80 x 2 x 2 x 128 x 2 B = 81,920: 525,982
        pytest.param("H100", "Llama-3.1-70B", ("-tp", "4"), 525_952, id="70B on 4 H100"),
        # The projections to the latents, 7168 x (1536 + 576), and routers, 7168 x 256, are whole on each of 8 GPUs: 36,634,624
        # parameters of attention a layer, 84,547,665,920 in all. 138,297,946,931 - 378,535,936 - (these + 463,339,520 of
        # embedding and head) = 52,908,405,555; 61 x 576 x 2 B = 70,272: 752,908
        pytest.param("H200", "DeepSeek-V3.1", ("-tp", "8"), 752_880, id="latent attention on 8 H200"),
        # 2 GPUs hold 70.55 GB each: 7,418,046,054 / 163,840 = 45,276
        pytest.param("H100", "Llama-3.1-70B", ("-tp", "2", "--max-model-len", "32768"), 45_248, id="70B on 2 H100"),
        # The first of two stages has half of the layers and the embedding, 35,276,193,792 parameters, and no split activations:
        # 79,027,398,246 - 1,845,493,760 - 70,552,387,584 = 6,629,516,902; 40 layers x 4096 B = 163,840: 40,463
        pytest.param("H100", "Llama-3.1-70B", ("-pp", "2", "--max-model-len", "32768"), 40_432, id="70B in 2 stages of H100"),
    ],
)
def test_kv_memory_of_several_gpus_by_hand(gpu: str, model: str, flags: tuple[str, ...], tokens: int) -> None:
    engine = built("vllm", gpu, model, *flags)
    assert engine.kv_tokens == tokens
    assert engine.layout.n_gpus == int(flags[1])


def test_kv_heads_are_copied_once_there_are_more_gpus_than_heads() -> None:
    """8 KV heads: on 16 GPUs each has one, as on 8, so memory for KV grows by what the weights leave and no more."""
    assert Layout(16).kv_bytes_per_token(LLAMA, 0) == Layout(8).kv_bytes_per_token(LLAMA, 0) == 80 * 2 * 128 * 2
    # So are the projections to them: 80 x 8192 x 2 x 128 parameters.
    assert Layout(16).weight_bytes(LLAMA, 0) - Layout(8).weight_bytes(LLAMA, 0) / 2 == 80 * 8192 * 128 * 2


def test_stages_hold_their_layers_and_the_ends_embedding_and_head() -> None:
    """Qwen2.5-7B in 3 stages: 9, 9 and 10 layers of 233,046,016 parameters; 152,064 x 3584 at each end."""
    layout = Layout(pp=3)
    assert layout.stages(QWEN) == split_layers(28, 3) == (9, 9, 10)
    ends = 152_064 * 3584 * 2
    assert [layout.weight_bytes(QWEN, stage) for stage in range(3)] == [
        9 * 466_092_032 + ends, 9 * 466_092_032, 10 * 466_092_032 + ends,
    ]  # fmt: skip
    # The last stage has more layers, so less room, and each token takes more of it.
    usable = 100e9
    assert layout.kv_capacity_tokens(GPUS["H200"], QWEN, usable) == int(
        (usable - 10 * 466_092_032 - ends) // (10 * 2 * 4 * 128 * 2)
    )


def test_embedding_and_head_stay_at_two_bytes_when_layers_are_fp8() -> None:
    assert Layout().weight_bytes(quantized(QWEN, weights="fp8"), 0) == 6_525_288_448 + 2 * 1_089_994_752


def test_flags_of_precision_halve_weights_and_cache() -> None:
    """Qwen2.5-7B: 6.525e9 weights of a byte less; 57,344 B a token become 28,672. What is fp8 as published stays as it is."""
    plain, fp8 = (built("vllm", "H200", "Qwen2.5-Coder-7B", *flags) for flags in ((), ("--quantization", "fp8")))
    assert (fp8.kv_tokens - plain.kv_tokens) * 57_344 == pytest.approx(6_525_288_448, abs=2 * 16 * 57_344)
    small = built("vllm", "H200", "Qwen2.5-Coder-7B", "--kv-cache-dtype", "fp8")
    assert small.kv_tokens == pytest.approx(2 * plain.kv_tokens, abs=2 * 16)
    assert small.model.kv_bytes_per_token() == 28_672
    assert built("sglang", "H200", "DeepSeek-V3.1", "--tp-size=8", "--quantization=fp8").model.weights == "fp8-block"


def test_sglang_and_trtllm_split_memory_too() -> None:
    """SGLang keeps 0.5 + 12 + 2/8 GiB of 140 back: 0.909. TensorRT-LLM takes 0.9 of what weights and activations leave."""
    sglang = built("sglang", "H200", "Qwen2.5-Coder-7B", "--tp-size", "2")
    assert sglang.kv_tokens == int((0.909 * 140 * 2**30 - 7_615_283_200) // 28_672)
    trtllm = built("trtllm", "H200", "Qwen2.5-Coder-7B", "--tp_size", "2")
    assert trtllm.kv_tokens == int(0.9 * (140 * 2**30 - 620_756_992 - 7_615_283_200) // 28_672) // 32 * 32


def test_sglang_of_2025_takes_a_share_by_the_size() -> None:
    assert [
        built("sglang-0.4", "H200", "Qwen2.5-Coder-7B", f"--tp={n}").options.mem_fraction_static  # type: ignore[union-attr]
        for n in (1, 2, 4)
    ] == [0.88, 0.87, 0.85]


@pytest.mark.parametrize(
    ("model", "size", "said"),
    [
        pytest.param("Qwen2.5-Coder-7B", 8, r"28 attention heads and 4 KV heads.*\n.*do: 1, 2, 4, 28\.", id="28 heads over 8"),
        pytest.param("Qwen2.5-Coder-7B", 7, "does not divide", id="4 KV heads over 7"),
        pytest.param("Llama-3.1-70B", 3, r"do: 1, 2, 4, 8, 16, 32, 64\.", id="64 heads over 3"),
        pytest.param("DeepSeek-V3.1", 3, "128 attention heads: a", id="latent attention has query heads only"),
    ],
)
def test_heads_that_cannot_be_split_are_refused(model: str, size: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        built("vllm", "H200", model, f"--tensor-parallel-size={size}")


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(UsageError, match=r"28 layers: 29 pipeline stages"):
        built("sglang", "H200", "Qwen2.5-Coder-7B", "--pp-size=29")


def test_no_room_is_said_with_the_number_of_gpus() -> None:
    with pytest.raises(UsageError, match=r"71 GB of weights on each\) leaves no room for KV on 2 A100"):
        built("vllm", "A100", "Llama-3.1-70B", "-tp", "2", "--gpu-memory-utilization", "0.8")


ENGINES = ("vllm", "sglang", "sglang-0.4", "trtllm", "orca", "sarathi")


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    ("tp", "pp"),
    [
        (("--tensor-parallel-size", "2"), ("--pipeline-parallel-size", "4")),
        (("--tp-size=2",), ("--pp-size=4",)),
        (("--tp_size", "2"), ("--pp_size", "4")),
        (("--tp", "2"), ("--pp", "4")),
        (("-tp", "2"), ("-pp", "4")),
        (("-tp=2",), ("-pp=4",)),
    ],
)
def test_parallel_sizes_are_known_by_every_engines_name_for_them(name: str, tp: tuple[str, ...], pp: tuple[str, ...]) -> None:
    assert layout_of(read_flags(name, (*tp, *pp))) == Layout(2, 4)


@pytest.mark.parametrize(("name", "said"), [("static", "played with one stage"), ("vllm-v0", "not played here")])
def test_an_engine_without_stages_says_so(name: str, said: str) -> None:
    assert layout_of(read_flags(name, ("-tp", "2"))) == Layout(2)
    with pytest.raises(UsageError, match=said):
        read_flags(name, ("-pp", "2"))


def test_two_gpus_pay_for_their_all_reduces() -> None:
    """A step on two GPUs takes more than half of one GPU's, by no less than two all-reduces a layer."""
    one, two = (built("vllm", "H200", "Llama-3.1-8B", "-tp", str(n)).cost for n in (1, 2))
    assert two.parallel.tp == 2
    assert one.linear_s(8192) / 2 < two.linear_s(8192) - two.communication_s(8192) / 2
    assert two.linear_s(8192) < one.linear_s(8192)
    assert two.communication_s(8192) == pytest.approx(64 * (4.5e-6 + 8192 * 4096 * 2 / 225e9))
