"""A model's shape from its Hugging Face `config.json`, handed in as data.

Read are the keys of Llama-, Qwen-, Mixtral- and DeepSeek-like decoders: dense or mixture of experts, grouped-query or latent
attention. A model that is something else (no attention in some layers, attention through a window) is refused rather than
priced wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longbench_sched.errors import UsageError
from longbench_sched.sim.hardware import Precision
from longbench_sched.sim.models import Experts, Gqa, Mla, Model

_MOST_YARN = 10_000  # times a context can be stretched
_STATE_SPACE_KEYS = (
    "ssm_cfg", "mamba_d_state", "ssm_state_size", "linear_num_key_heads", "linear_attn_config", "rwkv_version"
)  # fmt: skip
# What a token attends to at most, in some layers or all: a window, a chunk (Llama 4), the best by an index (DeepSeek-V3.2).
_REACH_KEYS = ("sliding_window", "attention_chunk_size", "index_topk")


def model_from_config(name: str, config: Mapping[str, Any]) -> Model:
    """The shape that a `config.json` describes. Raises UsageError naming the key that is missing or not understood."""
    inner = config.get("text_config")
    reader = _Reader(name, {**config, **inner} if isinstance(inner, Mapping) else config)
    reader.refuse_unknown_layers()
    hidden, layers = reader.count("hidden_size"), reader.count("num_hidden_layers")
    experts = reader.experts()
    n_dense = reader.n_dense_layers(layers) if experts else 0
    # Mixtral has one width, that of its experts; models without dense layers need none.
    ffn = reader.count("intermediate_size") if experts is None or n_dense else 0
    return Model(
        name=name,
        layers=layers,
        hidden=hidden,
        attention=reader.attention(hidden),
        ffn=ffn,
        vocab=reader.count("vocab_size"),
        context=reader.context(),
        experts=experts,
        n_dense_layers=n_dense,
        tied_embeddings=bool(reader.data.get("tie_word_embeddings", False)),
        weights=reader.precision(),
        source="config.json as given",
    )


class _Reader:
    """The values of one configuration, checked as they are asked for."""

    def __init__(self, name: str, data: Mapping[str, Any]) -> None:
        self.name, self.data = name, data

    def count(self, *keys: str, default: int | None = None) -> int:
        """A positive whole number under the first of these keys that is there."""
        for key in keys:
            value = self.data.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"{self.name}: {key} is {value!r}; it is a whole number from 1.")
            return value
        if default is None:
            raise UsageError(f"{self.name}: no {' or '.join(keys)} in config.json, so its cost cannot be worked out.")
        return default

    def _list(self, key: str) -> list[Any]:
        value = self.data.get(key) or []
        if not isinstance(value, list):
            raise UsageError(f"{self.name}: {key} is {value!r}; it is a list.")
        return value

    def attention(self, hidden: int) -> Gqa | Mla:
        heads = self.count("num_attention_heads")
        if self.data.get("kv_lora_rank"):
            return Mla(
                heads,
                self.count("q_lora_rank") if self.data.get("q_lora_rank") else 0,
                self.count("kv_lora_rank"),
                self.count("qk_nope_head_dim"),
                self.count("qk_rope_head_dim"),
                self.count("v_head_dim"),
            )
        kv_heads = self.count("num_key_value_heads", default=heads)
        if kv_heads > heads:
            raise UsageError(f"{self.name}: {kv_heads} KV heads are more than {heads} attention heads.")
        return Gqa(heads, kv_heads, self.count("head_dim", default=hidden // heads))

    def experts(self) -> Experts | None:
        keys = ("num_experts", "num_local_experts", "n_routed_experts")
        if not any(self.data.get(key) for key in keys):
            return None
        ffn = self.count("moe_intermediate_size", "intermediate_size")
        shared = self.count("n_shared_experts") if self.data.get("n_shared_experts") else 0
        if self.data.get("shared_expert_intermediate_size"):
            # Qwen2-MoE gives the width of its shared part: as many experts as are equally wide.
            shared = max(1, round(self.count("shared_expert_intermediate_size") / ffn))
        n_experts, top_k = self.count(*keys), self.count("num_experts_per_tok")
        if top_k > n_experts:
            raise UsageError(f"{self.name}: {top_k} experts a token (num_experts_per_tok) are more than all {n_experts}.")
        return Experts(n_experts, top_k, ffn, shared)

    def n_dense_layers(self, layers: int) -> int:
        """Layers without experts: the first few (DeepSeek), those listed, or all but every n-th (Qwen2-MoE)."""
        if "first_k_dense_replace" in self.data:
            n_dense = self.data["first_k_dense_replace"] or 0
            if isinstance(n_dense, bool) or not isinstance(n_dense, int) or not 0 <= n_dense <= layers:
                raise UsageError(f"{self.name}: first_k_dense_replace is {n_dense!r}; it is a number of the {layers} layers.")
            return n_dense
        listed = self._list("mlp_only_layers")
        stride = self.count("decoder_sparse_step", default=1)
        return sum(i in listed or (i + 1) % stride != 0 for i in range(layers))

    def context(self) -> int:
        """Positions, extended by YaRN where the file says so."""
        stated = self.count("max_position_embeddings")
        scaling = self.data.get("rope_scaling")
        if isinstance(scaling, Mapping) and (scaling.get("rope_type") or scaling.get("type")) == "yarn":
            original, factor = scaling.get("original_max_position_embeddings"), scaling.get("factor")
            if isinstance(original, int) and isinstance(factor, int | float):
                if not 0 < factor <= _MOST_YARN:
                    raise UsageError(f"{self.name}: the factor of rope_scaling is {factor!r}; it is from 0 to {_MOST_YARN}.")
                return max(stated, int(original * factor))
        return stated

    def precision(self) -> Precision:
        quantization = self.data.get("quantization_config")
        if not isinstance(quantization, Mapping):
            return "bf16"
        method = str(quantization.get("quant_method", "")).casefold()
        if method == "fp8":
            return "fp8-block" if quantization.get("weight_block_size") else "fp8"
        if "fp4" in method or "fp4" in str(quantization.get("quant_algo", "")).casefold():
            return "nvfp4"
        raise UsageError(f"{self.name}: quantization {method!r} is not modelled. Known: fp8, fp8 with blocks, nvfp4.")

    def refuse_unknown_layers(self) -> None:
        """Layers that are no full attention would be priced far too high. Raises UsageError."""
        for key in _STATE_SPACE_KEYS:
            if self.data.get(key):
                raise UsageError(f"{self.name}: {key} says that some layers are no attention; such models are not modelled.")
        if 0 in self._list("attn_type_list"):  # MiniMax: 0 is linear attention, 1 full attention
            raise UsageError(
                f"{self.name}: attn_type_list says that some layers are no attention; such models are not modelled."
            )
        kinds = {str(kind) for kind in self._list("layer_types")} - {"full_attention"}
        if kinds:
            raise UsageError(f"{self.name}: layers of the kind {', '.join(sorted(kinds))} are not modelled.")
        for key in _REACH_KEYS:
            reach = self.data.get(key)
            is_off = key == "sliding_window" and not self.data.get("use_sliding_window", True)
            if isinstance(reach, int) and not is_off and reach < self.context():
                raise UsageError(f"{self.name}: attention through a window of {reach} tokens ({key}) is not modelled.")
