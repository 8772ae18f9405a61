"""What SGLang's server tells of itself: the model, every flag as resolved, the load of each rank."""

from __future__ import annotations

from dataclasses import asdict

from longbench_sched.sim.policy.sglang import SglangOptions
from longbench_sched.sim.wire.base import Context

VERSION = "0.5.23+simulated"


def model_info(context: Context) -> dict[str, object]:
    """The answer of `/model_info`."""
    name = context.served_model
    return {
        "model_path": name,
        "served_model_name": name,
        "tokenizer_path": name,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "load_format": "dummy",
        "reasoning_parser": None,
        "tool_call_parser": None,
        "disaggregation_mode": "null",
    }


def server_info(context: Context) -> dict[str, object]:
    """The answer of `/server_info`: the flags, flat, and what they came to."""
    engine = context.engine
    state = engine.state
    options = engine.options
    assert isinstance(options, SglangOptions)
    capacity = state.kv.total * state.kv.block_tokens
    flags = asdict(options) | {
        "model_path": context.served_model,
        "served_model_name": context.served_model,
        "dp_size": 1,
        "quantization": getattr(options, "quantization", "") or None,
        "disable_radix_cache": not state.kv.is_caching,
        "stream_interval": 1,
        "incremental_streaming_output": False,
        "speculative_algorithm": getattr(options, "speculative_algorithm", "") or None,
        "disaggregation_mode": "null",
    }
    internal = {
        "effective_max_running_requests_per_dp": options.max_running(capacity),
        "memory_usage": {"token_capacity": capacity},
    }
    known = {"status": "ready", "max_total_num_tokens": capacity, "max_req_input_len": engine.context - 1, "version": VERSION}
    return flags | known | {"internal_states": [flags | internal], "frontend": "python"}


def loads(context: Context) -> dict[str, object]:
    """The answer of `/v1/loads`: requests and tokens of the one rank."""
    state = context.engine.state
    options = context.engine.options
    assert isinstance(options, SglangOptions)
    capacity, used = state.kv.total * state.kv.block_tokens, state.kv.held * state.kv.block_tokens
    load_of_rank = {
        "dp_rank": 0,
        "num_running_reqs": len(state.running),
        "num_waiting_reqs": len(state.waiting),
        "num_waiting_uncached_tokens": sum(sequence.length for sequence in state.waiting),
        "num_used_tokens": used,
        "num_total_tokens": used + sum(sequence.length for sequence in state.waiting),
        "max_total_num_tokens": capacity,
        "max_running_requests": options.max_running(capacity),
        "token_usage": round(used / capacity, 4),
        "cache_hit_rate": 0.0,
    }
    return {"version": VERSION, "accelerator": context.engine.gpu.name, "num_accelerators": 1, "loads": [load_of_rank]}
