"""Facts about an engine, read from what its information routes answer. Pure: text in, plain values out.

What a server does not say is absent: no default of an engine is ever assumed. Keys are the same for every engine (`FACTS`),
so that two engines can be compared line by line. What could hold secrets or paths beyond the model's (command lines,
environment) is not read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson

from longbench_sched.engine.error_body import clean
from longbench_sched.engine.prometheus import Sample, read_samples

Facts = dict[str, object]

FACTS: dict[str, str] = {
    "engine": "the kind of server, by its own words: vllm, sglang, trtllm, llama.cpp, dynamo",
    "version": "of the engine",
    "model": "the name under which the model is served",
    "model_path": "where the server loaded it from",
    "max_model_len": "tokens, prompt and output together",
    "token_budget": "prompt tokens that one step may take: vLLM's max_num_batched_tokens, SGLang's chunked_prefill_size",
    "chunked_prefill": "prompts are cut over steps",
    "mixed_chunk": "one step holds prompt chunks and decodes (SGLang)",
    "max_prefill_tokens": "tokens in one prefill batch (SGLang)",
    "max_num_seqs": "requests that run at once",
    "schedule_policy": "order of waiting requests",
    "long_prefill_token_threshold": "tokens above which a prompt counts as long (vLLM); 0 = off",
    "async_scheduling": "the next step is planned while one runs (vLLM async, SGLang overlap)",
    "stream_interval": "tokens between two events of a stream",
    "incremental_output": "/generate sends only what is new (SGLang)",
    "prefix_caching": "prompts that share a beginning share its KV blocks",
    "cache_report": "answers tell cached prompt tokens where there are any (SGLang): none told means none cached",
    "prefix_hit_tokens": "prompt tokens that the prefix cache gave during the run, by the server's counter; all its clients",
    "block_size": "tokens in a KV block",
    "kv_capacity_tokens": "tokens that fit in the KV cache",
    "kv_dtype": "type of the KV cache",
    "memory_fraction": "share of the GPU's memory that the engine takes",
    "tensor_parallel": "GPUs that share each layer",
    "pipeline_parallel": "GPUs in a row",
    "data_parallel": "copies of the engine",
    "gpus": "GPUs of all engines together; only the simulator says it",
    "speculative": "method of speculative decoding; null = none",
    "drafter": "what drafts are played as, and what was asked of them; only the simulator says it",
    "disaggregation": "role in a split of prefill and decode; of simulated pools, both and the way between them",
    "time_scale": "engine time over wall time; only the embedded engine says it",
    "simulated": "the engine is made of arithmetic; only the embedded engine says it",
}


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One model of a server's list."""

    id: str
    max_model_len: int | None = None
    root: str | None = None
    owned_by: str | None = None


_OWNERS = {"vllm": "vllm", "sglang": "sglang", "tensorrt_llm": "trtllm", "llamacpp": "llama.cpp", "nvidia": "dynamo"}


def read_models(body: bytes) -> list[ModelCard]:
    """The models of a `/v1/models` answer; empty if it is none."""
    listed = _object(body).get("data")
    return [_card(item) for item in listed if isinstance(item, dict) and item.get("id")] if isinstance(listed, list) else []


def model_facts(card: ModelCard) -> Facts:
    """What the entry of the measured model says."""
    engine = _OWNERS.get(card.owned_by or "")
    found = {"engine": engine, "model": card.id, "model_path": card.root, "max_model_len": card.max_model_len}
    return {key: value for key, value in found.items() if value is not None}


def _card(item: Mapping[str, Any]) -> ModelCard:
    meta = item.get("meta")
    lengths = (item.get("max_model_len"), item.get("context_window"), meta.get("n_ctx") if isinstance(meta, dict) else None)
    length = next((value for value in lengths if value is not True and isinstance(value, int) and value > 0), None)
    root, owner = item.get("root"), item.get("owned_by")
    return ModelCard(
        str(item["id"]), length, root if isinstance(root, str) else None, owner if isinstance(owner, str) else None
    )


def read_version(body: bytes) -> str | None:
    """The version of a `/version` answer."""
    version = _object(body).get("version")
    return clean(version) if isinstance(version, str) else None


def read_server_info(body: bytes) -> Facts:
    """Facts of a `/server_info` answer: SGLang's flat arguments, or vLLM's nested configuration (development mode, JSON)."""
    info = _object(body)
    config = info.get("vllm_config")
    facts = _vllm_facts(config) if isinstance(config, dict) else _sglang_facts(info)
    return facts | _pick(info, {"time_scale": "time_scale", "simulated": "simulated"})


_VLLM_SCHEDULER = {
    "token_budget": "max_num_batched_tokens",
    "max_num_seqs": "max_num_seqs",
    "max_model_len": "max_model_len",
    "chunked_prefill": "enable_chunked_prefill",
    "long_prefill_token_threshold": "long_prefill_token_threshold",
    "schedule_policy": "policy",
    "async_scheduling": "async_scheduling",
    "stream_interval": "stream_interval",
}
_VLLM_PARALLEL = {
    "tensor_parallel": "tensor_parallel_size",
    "pipeline_parallel": "pipeline_parallel_size",
    "data_parallel": "data_parallel_size",
}
_VLLM_CACHE = {
    "block_size": "block_size",
    "memory_fraction": "gpu_memory_utilization",
    "prefix_caching": "enable_prefix_caching",
    "kv_dtype": "cache_dtype",
}
_SGLANG = {
    "version": "version",
    "model": "served_model_name",
    "model_path": "model_path",
    "max_model_len": "context_length",
    "token_budget": "chunked_prefill_size",
    "mixed_chunk": "enable_mixed_chunk",
    "max_prefill_tokens": "max_prefill_tokens",
    "max_num_seqs": "max_running_requests",
    "schedule_policy": "schedule_policy",
    "stream_interval": "stream_interval",
    "incremental_output": "incremental_streaming_output",
    "cache_report": "enable_cache_report",
    "block_size": "page_size",
    "kv_capacity_tokens": "max_total_num_tokens",
    "kv_dtype": "kv_cache_dtype",
    "memory_fraction": "mem_fraction_static",
    "tensor_parallel": "tp_size",
    "pipeline_parallel": "pp_size",
    "data_parallel": "dp_size",
}


# No route of TensorRT-LLM tells these; the embedded engine announces the flags that it plays it with.
_TRTLLM = {
    "max_model_len": "max_seq_len",
    "token_budget": "max_num_tokens",
    "chunked_prefill": "enable_chunked_prefill",
    "max_num_seqs": "max_batch_size",
    "block_size": "tokens_per_block",
    "prefix_caching": "enable_block_reuse",
    "tensor_parallel": "tp_size",
    "pipeline_parallel": "pp_size",
}


def read_announcement(info: Mapping[str, Any]) -> Facts:
    """Settings that the embedded engine announces and the engine it plays would not tell."""
    options = info.get("options")
    return _pick(options, _TRTLLM) if isinstance(options, dict) and "max_num_tokens" in options else {}


def _vllm_facts(config: Mapping[str, Any]) -> Facts:
    facts: Facts = {"engine": "vllm"}
    for section, keys in (
        ("scheduler_config", _VLLM_SCHEDULER),
        ("parallel_config", _VLLM_PARALLEL),
        ("cache_config", _VLLM_CACHE),
    ):
        values = config.get(section)
        if isinstance(values, dict):
            facts |= _pick(values, keys)
    if "speculative_config" in config:
        speculative = config["speculative_config"]
        facts["speculative"] = _word(speculative.get("method")) if isinstance(speculative, dict) else None
    transfer = config.get("kv_transfer_config")
    if isinstance(transfer, dict) and isinstance(transfer.get("kv_role"), str):
        facts["disaggregation"] = transfer["kv_role"]
    return facts


def _sglang_facts(info: Mapping[str, Any]) -> Facts:
    if "chunked_prefill_size" not in info and "internal_states" not in info:
        return {}  # trtllm-serve has this route too, and says nothing of its settings there
    ranks = info.get("internal_states")
    rank = ranks[0] if isinstance(ranks, list) and ranks and isinstance(ranks[0], dict) else {}
    facts: Facts = {"engine": "sglang"} | _pick(rank, _SGLANG) | _pick(info, _SGLANG)
    running = rank.get("effective_max_running_requests_per_dp")
    if "max_num_seqs" not in facts and isinstance(running, int):
        facts["max_num_seqs"] = running
    budget = facts.get("token_budget")
    if isinstance(budget, int):
        facts["chunked_prefill"] = budget > 0
        if budget <= 0:
            del facts["token_budget"]  # -1 means off, which is no budget
    for key, off in (("prefix_caching", "disable_radix_cache"), ("async_scheduling", "disable_overlap_schedule")):
        if isinstance(info.get(off), bool):
            facts[key] = not info[off]
    if "speculative_algorithm" in info:
        facts["speculative"] = _word(info["speculative_algorithm"])
    mode = info.get("disaggregation_mode")
    if isinstance(mode, str) and mode != "null":  # the string "null" is SGLang's word for none
        facts["disaggregation"] = mode
    return facts


_SGLANG_GAUGES = {"max_total_num_tokens": "kv_capacity_tokens", "page_size": "block_size", "context_len": "max_model_len"}
_DYNAMO_GAUGES = {
    "context_length": "max_model_len",
    "kv_cache_block_size": "block_size",
    "max_num_batched_tokens": "token_budget",
    "max_num_seqs": "max_num_seqs",
}


def read_metrics(text: str) -> Facts:
    """Facts that hide in a `/metrics` answer: vLLM's cache configuration, SGLang's and Dynamo's sizes."""
    for _, labels, _ in read_samples(text, "vllm:cache_config_info"):
        return _cache_facts(labels)
    return _gauge_facts(text, "sglang", "sglang:", _SGLANG_GAUGES) or _dynamo_facts(text)


def _finite_samples(text: str, prefix: str) -> Iterator[Sample]:
    """The samples that are numbers: a gauge of something that has not happened yet is NaN."""
    return (sample for sample in read_samples(text, prefix) if math.isfinite(sample[2]))


_PREFIX_HITS = ("vllm:prefix_cache_hits_total", "sglang:cached_tokens_total", "llamacpp:prompt_tokens_cached_total")


def read_prefix_hits(text: str) -> int | None:
    """Prompt tokens that the prefix cache has given since the server started, over all ranks and tiers; None if not told."""
    hits = [value for name in _PREFIX_HITS for found, _, value in _finite_samples(text, name) if found == name]
    if not hits and any(read_samples(text, "sglang:")):
        return 0  # its counter appears with the first hit
    return int(sum(hits)) if hits else None


def _gauge_facts(text: str, engine: str, prefix: str, keys: Mapping[str, str]) -> Facts:
    facts: Facts = {}
    for name, _, value in _finite_samples(text, prefix):
        key = keys.get(name.removeprefix(prefix))
        if key is not None and value > 0:
            facts[key] = int(value)
    return {"engine": engine} | facts if facts else {}


def _dynamo_facts(text: str) -> Facts:
    prefix = "dynamo_frontend_model_"
    facts = _gauge_facts(text, "dynamo", prefix, _DYNAMO_GAUGES)
    block_size = facts.get("block_size")
    for _, _, blocks in _finite_samples(text, f"{prefix}total_kv_blocks"):
        if isinstance(block_size, int):
            facts["kv_capacity_tokens"] = int(blocks) * block_size
    return facts


def _cache_facts(labels: Mapping[str, str]) -> Facts:
    """Labels are Python's str() of each setting: `True`, `None`, numbers."""
    facts: Facts = {"engine": "vllm"}
    block_size, blocks = _whole(labels.get("block_size")), _whole(labels.get("num_gpu_blocks"))
    capacity = _whole(labels.get("kv_cache_size_tokens"))
    if capacity is None and block_size is not None and blocks is not None:
        capacity = block_size * blocks
    found: Facts = {"block_size": block_size, "kv_capacity_tokens": capacity}
    cached = labels.get("enable_prefix_caching")
    found["prefix_caching"] = {"True": True, "False": False}.get(cached or "")
    dtype = labels.get("cache_dtype")
    found["kv_dtype"] = None if dtype == "None" else dtype
    with suppress(KeyError, ValueError):
        found["memory_fraction"] = float(labels["gpu_memory_utilization"])
    return facts | {key: value for key, value in found.items() if value is not None}


def read_tokens(body: bytes) -> list[int] | None:
    """The token ids of a `/tokenize` answer; None if it holds none."""
    tokens = _object(body).get("tokens")
    is_ids = isinstance(tokens, list) and all(isinstance(token, int) for token in tokens)
    return tokens if is_ids else None


def read_text(body: bytes) -> str | None:
    """The text of a `/detokenize` answer: `prompt` in vLLM, `text` in SGLang, `content` in llama.cpp."""
    answer = _object(body)
    return next((answer[key] for key in ("prompt", "text", "content") if isinstance(answer.get(key), str)), None)


def _object(body: bytes) -> dict[str, Any]:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _pick(values: Mapping[str, Any], keys: Mapping[str, str]) -> Facts:
    """The plain values under those keys, by our names; null and nested values are left out."""
    found = {ours: values.get(theirs) for ours, theirs in keys.items()}
    return {
        key: clean(value) if isinstance(value, str) else value
        for key, value in found.items()
        if isinstance(value, int | float | str)
    }


def _word(value: object) -> str | None:
    return clean(value) if isinstance(value, str) else None


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 18 else None
