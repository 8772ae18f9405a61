"""Models as shapes: what a token costs in FLOP and bytes.

Shapes are those of each model's published `config.json`. Attention is grouped-query (a KV head shared by several query heads)
or latent (MLA: one compressed vector a token, shared by all heads). A mixture of experts does the work of `top_k` experts a
token but must read every expert that any token of the step was sent to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from longbench_sched.errors import UsageError
from longbench_sched.sim.hardware import Precision, lookup

# Words of the engines' flags `--quantization` and `--kv-cache-dtype`; the first of each keeps what the model has.
Quantization = Literal["", "fp8"]
KvCacheDtype = Literal["auto", "bfloat16", "bf16", "fp8", "fp8_e4m3", "fp8_e5m2"]

# Bytes a weight takes; nvfp4 with its scales (a byte for 16 weights).
WEIGHT_BYTES: Mapping[Precision, float] = {"bf16": 2.0, "fp8": 1.0, "fp8-block": 1.0, "nvfp4": 0.5625}


@dataclass(frozen=True, slots=True)
class Gqa:
    """Grouped-query attention."""

    heads: int
    kv_heads: int
    head_dim: int

    def weights(self, hidden: int, tp: int = 1) -> int:
        """Parameters of the projections of one layer on one of `tp` GPUs: split by heads, as the cache is."""
        return 2 * hidden * self.heads // tp * self.head_dim + hidden * self.kv_elements(tp)

    def kv_parts(self, tp: int) -> int:
        """GPUs that hold different parts of the cache; the rest hold copies."""
        return min(tp, self.kv_heads)

    def kv_elements(self, tp: int = 1) -> int:
        """Cached elements a token and layer on one of `tp` GPUs: heads are split, and copied once there are more GPUs."""
        return 2 * max(1, self.kv_heads // tp) * self.head_dim

    def flop_per_pair(self) -> float:
        """FLOP for one query token attending to one key token, in one layer: scores and values, 2 FLOP a multiply-add."""
        return 4.0 * self.heads * self.head_dim

    def decode_flop_per_pair(self) -> float:
        """The same in decode."""
        return self.flop_per_pair()


@dataclass(frozen=True, slots=True)
class Mla:
    """Multi-head latent attention (DeepSeek): keys and values are expanded from one cached latent vector.

    Prefill expands them; decode works on the latent itself, with the expansion folded into query and output.
    """

    heads: int
    q_rank: int  # 0: queries are not compressed
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int

    def weights(self, hidden: int, tp: int = 1) -> int:
        """Parameters of the projections of one layer on one of `tp` GPUs: those to the latents are whole on every GPU.

        In vLLM and SGLang (`deepseek_v2.py`) `q_a_proj` and `kv_a_proj_with_mqa` are replicated, the others split by heads.
        """
        heads = self.heads // tp
        width = heads * (self.nope_dim + self.rope_dim)
        query = hidden * self.q_rank + self.q_rank * width if self.q_rank else hidden * width
        latent = hidden * (self.kv_rank + self.rope_dim) + self.kv_rank * heads * (self.nope_dim + self.v_dim)
        return query + latent + heads * self.v_dim * hidden

    def kv_parts(self, tp: int) -> int:
        """GPUs that hold different parts of the cache: all hold the same."""
        return 1

    def kv_elements(self, tp: int = 1) -> int:
        """Cached elements a token and layer: the latent is whole on every GPU."""
        return self.kv_rank + self.rope_dim

    def flop_per_pair(self) -> float:
        """FLOP for one query and one key token in one layer in prefill: 2 H (d_qk + d_v), keys and values expanded."""
        return 2.0 * self.heads * (self.nope_dim + self.rope_dim + self.v_dim)

    def decode_flop_per_pair(self) -> float:
        """The same in decode, on the latent: 2 H (2 r + d_rope)."""
        return 2.0 * self.heads * (2 * self.kv_rank + self.rope_dim)


@dataclass(frozen=True, slots=True)
class Experts:
    """The expert part of a layer."""

    n_experts: int
    top_k: int
    ffn: int  # of one expert
    n_shared: int = 0

    def n_loaded(self, tokens: float) -> float:
        """Experts read by a step of so many tokens under uniform routing: E (1 - (1 - k/E)^T)."""
        return float(self.n_experts * (1.0 - (1.0 - self.top_k / self.n_experts) ** tokens))


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder-only transformer."""

    name: str
    layers: int
    hidden: int
    attention: Gqa | Mla
    ffn: int  # of a dense layer; 0 where there is none
    vocab: int
    context: int
    experts: Experts | None = None
    n_dense_layers: int = 0  # of a mixture of experts: how many of `layers` are dense
    tied_embeddings: bool = False
    has_bos: bool = False  # the tokenizer puts one token before a text prompt
    weights: Precision = "bf16"  # of the linear layers; embeddings and head stay bf16
    kv_bytes: int = 2
    source: str = "config.json as published"

    @property
    def weight_bytes(self) -> float:
        """Bytes of one weight of a linear layer."""
        return WEIGHT_BYTES[self.weights]

    def kv_bytes_per_token(self, tp: int = 1) -> int:
        """Bytes of KV cache a token takes on one of `tp` GPUs."""
        return self.layers * self.attention.kv_elements(tp) * self.kv_bytes

    def dense_layers(self) -> int:
        """Layers with an ordinary feed-forward part."""
        return self.n_dense_layers if self.experts else self.layers

    def linear_weights(self) -> int:
        """Parameters that work on every token: attention projections, feed-forward, the active experts; no embeddings."""
        return round(self._layers_weights(self.experts.top_k if self.experts else 0))

    def total_weights(self) -> int:
        """All parameters that lie in memory (norms and biases left out: below 0.1 %)."""
        return round(self.layer_weights()) + self.embedding_weights()

    def layer_weights(self, tp: int = 1) -> float:
        """Parameters of all layers on one of `tp` GPUs: heads, feed-forward and experts are split, routers are whole."""
        return self._layers_weights(self.experts.n_experts if self.experts else 0, tp)

    def embedding_weights(self) -> int:
        """Parameters of the embedding and the head."""
        return (1 if self.tied_embeddings else 2) * self.vocab * self.hidden

    def activation_bytes(self, tokens: int, tp: int = 1) -> float:
        """Activations that lie in memory of one of `tp` GPUs at once in a step of so many tokens, at 2 bytes an element.

        T (2h + ((H + 2 KV) d + 3 f) / tp) elements: hidden states are whole on every GPU.

        They are the widest in the feed-forward part: hidden states and residual, both inputs of its product, the product.
        """
        width = self.experts.top_k * self.experts.ffn if self.experts else self.ffn
        heads = self.attention.heads * (self.attention.head_dim if isinstance(self.attention, Gqa) else self.attention.v_dim)
        return 2.0 * tokens * (2 * self.hidden + (heads + 3 * width) / tp + self.attention.kv_elements(tp))

    def _layers_weights(self, n_experts: int, tp: int = 1) -> float:
        attention, feed_forward = self.attention.weights(self.hidden, tp), 3 * self.hidden / tp
        total = self.layers * attention + self.dense_layers() * feed_forward * self.ffn
        if self.experts:
            moe = (n_experts + self.experts.n_shared) * feed_forward * self.experts.ffn
            total += (self.layers - self.n_dense_layers) * (moe + self.hidden * self.experts.n_experts)
        return total


_MODELS = (
    Model("Qwen2.5-Coder-7B", 28, 3584, Gqa(28, 4, 128), 18944, 152064, 32768),
    Model("Llama-3.1-8B", 32, 4096, Gqa(32, 8, 128), 14336, 128256, 131072, has_bos=True),
    Model("Llama-3.1-70B", 80, 8192, Gqa(64, 8, 128), 28672, 128256, 131072, has_bos=True),
    Model("Qwen3-8B", 36, 4096, Gqa(32, 8, 128), 12288, 151936, 40960),
    Model("Qwen3-235B-A22B", 94, 4096, Gqa(64, 4, 128), 0, 151936, 40960, experts=Experts(128, 8, 1536)),
    Model(
        "DeepSeek-V3.1", 61, 7168, Mla(128, 1536, 512, 128, 64, 128), 18432, 129280, 163840,
        experts=Experts(256, 8, 2048, n_shared=1), n_dense_layers=3, has_bos=True, weights="fp8-block",
    ),
)  # fmt: skip
MODELS: Mapping[str, Model] = {model.name: model for model in _MODELS}


def find_model(name: str) -> Model:
    """The model of that name: in any case, with or without the organisation before it and `-Instruct` or `-FP8` after it.

    `-FP8` takes the weights as fp8. Raises UsageError with the alternatives.
    """
    bare = name.rpartition("/")[2]
    is_fp8 = False
    for suffix in ("-FP8", "-Instruct", "-Chat"):
        if bare.casefold().endswith(suffix.casefold()):
            bare = bare[: -len(suffix)]
            is_fp8 = is_fp8 or suffix == "-FP8"
    model = lookup(MODELS, bare, "model")
    return quantized(model, weights="fp8") if is_fp8 else model


def quantized(model: Model, weights: Precision | None = None, kv: Literal["bf16", "fp8"] | None = None) -> Model:
    """The same model with weights or KV cache of another precision; attention itself stays bf16."""
    return replace(model, weights=weights or model.weights, kv_bytes={"bf16": 2, "fp8": 1, None: model.kv_bytes}[kv])


def as_served(model: Model, quantization: Quantization, kv_cache_dtype: KvCacheDtype) -> Model:
    """The model as an engine with these flags holds it: bf16 weights made fp8, another KV cache. Raises UsageError.

    Weights that are 8 bits wide as published stay as they are.
    """
    if quantization and model.weights == "nvfp4":
        raise UsageError(f"--quantization {quantization}: the weights of {model.name} are nvfp4 already. Leave the flag out.")
    weights: Precision | None = "fp8" if quantization and model.weights == "bf16" else None
    kv: Literal["bf16", "fp8"] | None = None if kv_cache_dtype == "auto" else "fp8" if "fp8" in kv_cache_dtype else "bf16"
    return quantized(model, weights, kv)
