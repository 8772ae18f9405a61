"""A Llama with random weights and a tokenizer of its own, in the folder layout that engines load, made without any network.

It knows nothing: its output is noise, often half a character at a time, which is what a reader of streams should be tried on.
What counts here is that a real engine schedules it, at lengths up to 128Ki, in a few MB.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from longbench_sched.workload.corpus import standard_library

BOS, EOS, START, END = "<s>", "</s>", "<turn>", "</turn>"
SPECIALS = (BOS, EOS, START, END)
TRAINING_CHARS = 2_000_000
# The standard library is mostly ASCII; these give the vocabulary tokens that are parts of characters.
MANY_BYTES = (
    "größer als früher, été, señor",
    "задержка первого токена",
    "最初のトークンまでの時間",
    "长上下文预填充",
    "🙂🚀 ∑ ≤ √",
)

CHAT_TEMPLATE = (
    f"{BOS}{{% for message in messages %}}{START}{{{{ message.role }}}}\n{{{{ message.content }}}}{END}\n{{% endfor %}}"
    f"{{% if add_generation_prompt %}}{START}assistant\n{{% endif %}}"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the model, by the names of a Llama's config.json. 2 KiB of KV cache a token in bfloat16."""

    hidden_size: int = 256
    intermediate_size: int = 768
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    vocab_size: int = 8192
    max_position_embeddings: int = 131_072


def write_model(folder: Path, shape: Shape = Shape(), seed: int = 0) -> None:
    """Write model and tokenizer; done already where the weights, which come last, are there."""
    if (folder / "model.safetensors").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(folder, shape)
    _write_json(folder / "config.json", _config(shape))
    _write_json(folder / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 1})
    part = folder / "model.part"
    part.write_bytes(safetensors(dict(_weights(shape, np.random.default_rng(seed)))))
    part.rename(folder / "model.safetensors")


def _write_tokenizer(folder: Path, shape: Shape) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=shape.vocab_size,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_training_text(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": shape.max_position_embeddings,
            "bos_token": BOS,
            "eos_token": EOS,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )


def _training_text() -> Iterator[str]:
    left = TRAINING_CHARS
    for piece in standard_library(0, "tokenizer"):
        yield piece
        left -= len(piece)
        if left <= 0:
            break
    for _ in range(8):
        yield from MANY_BYTES


def _config(shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **asdict(shape),
        "rope_theta": 500_000.0,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "float16",
    }


def _weights(shape: Shape, rng: np.random.Generator) -> Iterator[tuple[str, np.ndarray]]:
    """Each tensor of the network. Scales keep activations near 1, so that no logit runs away."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim

    def normal(rows: int, columns: int, scale: float) -> np.ndarray:
        return (rng.standard_normal((rows, columns), dtype=np.float32) * scale).astype("<f2")

    ones = np.ones(hidden, dtype="<f2")
    yield "model.embed_tokens.weight", normal(shape.vocab_size, hidden, 1.0)
    for layer in range(shape.num_hidden_layers):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", ones
        yield f"{at}.post_attention_layernorm.weight", ones
        for name, rows, columns in (
            ("self_attn.q_proj", queries, hidden),
            ("self_attn.k_proj", keys, hidden),
            ("self_attn.v_proj", keys, hidden),
            ("self_attn.o_proj", hidden, queries),
            ("mlp.gate_proj", inner, hidden),
            ("mlp.up_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        ):
            yield f"{at}.{name}.weight", normal(rows, columns, columns**-0.5)
    yield "model.norm.weight", ones
    # Wider than the rest, so that greedy decoding wanders through the vocabulary instead of repeating one token.
    yield "lm_head.weight", normal(shape.vocab_size, hidden, 3.0 * hidden**-0.5)


def safetensors(tensors: Mapping[str, np.ndarray]) -> bytes:
    """The file format: length of a JSON header (8 bytes, little-endian), that header, the float16 tensors in its order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F16", "shape": list(tensor.shape), "data_offsets": [end, end + tensor.nbytes]}
        end += tensor.nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)  # tensors are mapped into memory and want to be aligned
    return len(head).to_bytes(8, "little") + head + b"".join(tensor.tobytes() for tensor in tensors.values())


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
