"""Metrics in Prometheus text: the names an engine exports, as far as the embedded engine has the number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict

from longbench_sched.sim.policy.sglang import Sglang, SglangNote, SglangOptions
from longbench_sched.sim.policy.vllm_v1 import VllmV1Options
from longbench_sched.sim.wire.base import Context

Sample = tuple[str, str, Mapping[str, str], float]  # name, type, further labels, value


def vllm(context: Context) -> bytes:
    """The /metrics of vLLM. Counters end in _total; kv_cache_usage_perc is a fraction."""
    engine = context.engine
    state, counters = engine.state, engine.counters
    n_waiting = float(len(state.waiting))
    options = engine.options
    is_own = isinstance(options, VllmV1Options)  # else an engine that only borrows this interface
    flags = asdict(options)
    cached = context.tally.cached_tokens
    queried = counters.prompt_tokens if state.kv.is_caching else 0
    samples: list[Sample] = [
        ("vllm:num_requests_running", "gauge", {}, len(state.running)),
        ("vllm:num_requests_waiting", "gauge", {}, n_waiting),
        ("vllm:num_requests_waiting_by_reason", "gauge", {"reason": "capacity"}, n_waiting),
        ("vllm:num_requests_waiting_by_reason", "gauge", {"reason": "deferred"}, 0),
        ("vllm:kv_cache_usage_perc", "gauge", {}, engine.kv_usage),
        ("vllm:num_preemptions_total", "counter", {}, state.n_preemptions),
        ("vllm:prefix_cache_queries_total", "counter", {}, queried),
        ("vllm:prefix_cache_hits_total", "counter", {}, cached),
        ("vllm:prompt_tokens_total", "counter", {}, counters.prompt_tokens),
        ("vllm:prompt_tokens_by_source_total", "counter", {"source": "local_compute"}, counters.prompt_tokens - cached),
        ("vllm:prompt_tokens_by_source_total", "counter", {"source": "local_cache_hit"}, cached),
        ("vllm:prompt_tokens_by_source_total", "counter", {"source": "external_kv_transfer"}, 0),
        ("vllm:prompt_tokens_cached_total", "counter", {}, cached),
        ("vllm:generation_tokens_total", "counter", {}, counters.generated_tokens),
    ]
    samples += [
        ("vllm:request_success_total", "counter", {"finished_reason": reason}, counters.finished.get(reason, 0))
        for reason in ("stop", "length", "abort", "error", "repetition")
    ]
    if flags.get("num_speculative_tokens"):
        samples += [
            ("vllm:spec_decode_num_drafts_total", "counter", {}, counters.n_verified),
            ("vllm:spec_decode_num_draft_tokens_total", "counter", {}, counters.draft_tokens),
            ("vllm:spec_decode_num_accepted_tokens_total", "counter", {}, counters.accepted_tokens),
        ]
    blocks = state.kv.total + is_own  # one is a placeholder
    config = {
        "block_size": str(state.kv.block_tokens),
        "cache_dtype": options.kv_cache_dtype,
        "enable_prefix_caching": str(state.kv.is_caching),
        "gpu_memory_utilization": str(flags.get("gpu_memory_utilization")),
        "num_gpu_blocks": str(blocks),
        "kv_cache_size_tokens": str(blocks * state.kv.block_tokens),
    }
    samples.append(("vllm:cache_config_info", "gauge", config, 1))
    rejections: list[Sample] = [
        ("vllm:admission_rejections_total", "counter", {"reason": limit}, context.tally.rejected.get(limit, 0))
        for limit in ("max_num_queued_reqs", "max_num_queued_tokens")
    ]
    model = {"model_name": context.served_model}
    return _text(samples, {"engine": "0", **model}) + _text(rejections, model)


def sglang(context: Context) -> bytes:
    """SGLang's /metrics (with --enable-metrics)."""
    engine = context.engine
    state, counters = engine.state, engine.counters
    options = engine.options
    assert isinstance(options, SglangOptions)
    capacity = state.kv.total * state.kv.block_tokens
    used = state.kv.held * state.kv.block_tokens
    n_finished = counters.finished["stop"] + counters.finished["length"]
    ratio = state.note.ratio if isinstance(state.note, SglangNote) else Sglang(options).init_ratio
    streaming = {"is_streaming": "true"}
    samples: list[Sample] = [
        ("sglang:num_running_reqs", "gauge", {}, len(state.running)),
        ("sglang:num_queue_reqs", "gauge", {}, len(state.waiting)),
        ("sglang:token_usage", "gauge", {}, round(used / capacity, 2)),
        ("sglang:full_token_usage", "gauge", {}, used / capacity),
        ("sglang:num_used_tokens", "gauge", {}, used),
        ("sglang:kv_used_tokens", "gauge", {}, used),
        ("sglang:kv_available_tokens", "gauge", {}, capacity - used),
        ("sglang:kv_evictable_tokens", "gauge", {}, state.kv.idle * state.kv.block_tokens),
        ("sglang:max_total_num_tokens", "gauge", {}, capacity),
        ("sglang:page_size", "gauge", {}, options.page_size),
        ("sglang:context_len", "gauge", {}, engine.context),
        ("sglang:new_token_ratio", "gauge", {}, ratio),
        ("sglang:cache_hit_rate", "gauge", {}, _share(context.tally.cached_tokens, counters.prompt_tokens)),
        ("sglang:realtime_tokens_total", "counter", {"mode": "prefill_compute"}, counters.prefill_tokens),
        ("sglang:realtime_tokens_total", "counter", {"mode": "prefill_cache"}, context.tally.cached_tokens),
        ("sglang:realtime_tokens_total", "counter", {"mode": "decode"}, counters.generated_tokens),
        ("sglang:num_requests_total", "counter", streaming, n_finished),
        ("sglang:num_aborted_requests_total", "counter", {}, counters.finished["abort"] + sum(context.tally.rejected.values())),
    ]
    scheduler = {
        "engine_type": "unified",
        "model_name": context.served_model,
        "moe_ep_rank": "0",
        "pp_rank": "0",
        "tp_rank": "0",
    }
    return _text(samples, scheduler)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def options_as_labels(context: Context) -> dict[str, object]:
    """The engine's flags by their own names."""
    return asdict(context.engine.options)


def _text(samples: Iterable[Sample], labels: Mapping[str, str]) -> bytes:
    lines: list[str] = []
    typed: set[str] = set()
    for name, kind, further, value in samples:
        if name not in typed:
            typed.add(name)
            family = name.removesuffix("_total") if kind == "counter" else name
            lines += [f"# HELP {family} Of the embedded engine.", f"# TYPE {family} {kind}"]
        inside = ",".join(f'{key}="{_escape(text)}"' for key, text in sorted({**labels, **further}.items()))
        lines.append(f"{name}{{{inside}}} {float(value)}")
    return ("\n".join(lines) + "\n").encode()


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
