"""Models as shapes: what a token costs in FLOP and bytes.

Shapes are those of each model's published `config.json`. Attention is grouped-query (a KV head shared by several query heads)
or latent (MLA: one compressed vector a token, shared by all heads). A mixture of experts does the work of `top_k` experts a
token but must read every expert that any token of the step was sent to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from longbench_sched.sim.hardware import lookup


@dataclass(frozen=True, slots=True)
class Gqa:
    """Grouped-query attention."""

    heads: int
    kv_heads: int
    head_dim: int

    def weights(self, hidden: int) -> int:
        """Parameters of the projections of one layer."""
        return hidden * (self.heads + 2 * self.kv_heads) * self.head_dim + self.heads * self.head_dim * hidden

    def kv_elements(self) -> int:
        """Cached elements a token and layer."""
        return 2 * self.kv_heads * self.head_dim

    def flop_per_pair(self) -> float:
        """FLOP for one query token attending to one key token, in one layer: scores and values, 2 FLOP a multiply-add."""
        return 4.0 * self.heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Mla:
    """Multi-head latent attention (DeepSeek): keys and values are expanded from one cached latent vector."""

    heads: int
    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int

    def weights(self, hidden: int) -> int:
        """Parameters of the projections of one layer."""
        query = hidden * self.q_rank + self.q_rank * self.heads * (self.nope_dim + self.rope_dim)
        latent = hidden * (self.kv_rank + self.rope_dim) + self.kv_rank * self.heads * (self.nope_dim + self.v_dim)
        return query + latent + self.heads * self.v_dim * hidden

    def kv_elements(self) -> int:
        """Cached elements a token and layer."""
        return self.kv_rank + self.rope_dim

    def flop_per_pair(self) -> float:
        """FLOP for one query and one key token in one layer in prefill (keys and values expanded)."""
        return 2.0 * self.heads * (self.nope_dim + self.rope_dim + self.v_dim)


@dataclass(frozen=True, slots=True)
class Experts:
    """The expert part of a layer."""

    n_experts: int
    top_k: int
    ffn: int  # of one expert
    n_shared: int = 0

    def n_loaded(self, tokens: int) -> float:
        """Experts read by a step of so many tokens under uniform routing: E (1 - (1 - k/E)^T)."""
        return self.n_experts * (1.0 - (1.0 - self.top_k / self.n_experts) ** tokens)


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
    weight_bytes: int = 2
    kv_bytes: int = 2
    source: str = "config.json as published"

    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache a token takes."""
        return self.layers * self.attention.kv_elements() * self.kv_bytes

    def dense_layers(self) -> int:
        """Layers with an ordinary feed-forward part."""
        return self.n_dense_layers if self.experts else self.layers

    def linear_weights(self) -> int:
        """Parameters that work on every token: attention projections, feed-forward, the active experts; no embeddings."""
        total = self.layers * self.attention.weights(self.hidden) + self.dense_layers() * 3 * self.hidden * self.ffn
        if self.experts:
            active = self.experts.top_k + self.experts.n_shared
            moe = active * 3 * self.hidden * self.experts.ffn + self.hidden * self.experts.n_experts
            total += (self.layers - self.n_dense_layers) * moe
        return total

    def total_weights(self) -> int:
        """All parameters that lie in memory (norms and biases left out: below 0.1 %)."""
        total = self.layers * self.attention.weights(self.hidden) + self.dense_layers() * 3 * self.hidden * self.ffn
        if self.experts:
            held = self.experts.n_experts + self.experts.n_shared
            moe = held * 3 * self.hidden * self.experts.ffn + self.hidden * self.experts.n_experts
            total += (self.layers - self.n_dense_layers) * moe
        return total + (1 if self.tied_embeddings else 2) * self.vocab * self.hidden

    def activation_bytes(self, tokens: int) -> float:
        """Peak of activations for a step of so many tokens, a rough upper bound: 2 T (2h + (H + 2 KV) d + 3 f) elements."""
        width = self.experts.top_k * self.experts.ffn if self.experts else self.ffn
        heads = self.attention.heads * (self.attention.head_dim if isinstance(self.attention, Gqa) else self.attention.v_dim)
        return 2.0 * tokens * (2 * self.hidden + heads + self.attention.kv_elements() + 3 * width) * 2


_MODELS = (
    Model("Qwen2.5-Coder-7B", 28, 3584, Gqa(28, 4, 128), 18944, 152064, 32768),
    Model("Llama-3.1-8B", 32, 4096, Gqa(32, 8, 128), 14336, 128256, 131072, has_bos=True),
    Model("Llama-3.1-70B", 80, 8192, Gqa(64, 8, 128), 28672, 128256, 131072, has_bos=True),
    Model("Qwen3-8B", 36, 4096, Gqa(32, 8, 128), 12288, 151936, 40960),
    Model("Qwen3-235B-A22B", 94, 4096, Gqa(64, 4, 128), 0, 151936, 40960, experts=Experts(128, 8, 1536)),
    Model(
        "DeepSeek-V3.1", 61, 7168, Mla(128, 1536, 512, 128, 64, 128), 18432, 129280, 163840,
        experts=Experts(256, 8, 2048, n_shared=1), n_dense_layers=3, has_bos=True,
    ),
)  # fmt: skip
MODELS: Mapping[str, Model] = {model.name: model for model in _MODELS}


def find_model(name: str) -> Model:
    """The model of that name: in any case, with or without the organisation before it and `-Instruct` after it.

    Raises UsageError with the alternatives.
    """
    bare = name.rpartition("/")[2]
    for suffix in ("-Instruct", "-Chat"):
        if bare.casefold().endswith(suffix.casefold()):
            bare = bare[: -len(suffix)]
    return lookup(MODELS, bare, "model")
