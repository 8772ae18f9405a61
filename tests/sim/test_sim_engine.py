"""Engines put together from a GPU, a model and flags: capacity, limits, abort."""

from __future__ import annotations

import pytest
from checked_engine import H200, QWEN, vllm

from longbench_sched.errors import UsageError
from longbench_sched.sim.engine import build_engine
from longbench_sched.sim.hardware import GPUS
from longbench_sched.sim.kv_blocks import KvBlocks
from longbench_sched.sim.models import MODELS
from longbench_sched.sim.policy.sglang import SglangOptions
from longbench_sched.sim.policy.trtllm import TrtllmOptions
from longbench_sched.sim.policy.vllm_v1 import VllmV1Options


def test_kv_capacity_is_what_weights_and_activations_leave() -> None:
    """0.92 x 140 GiB - 15.23 GB - 8192 x 68,608 x 2 B of activations, in blocks of 16 x 57,344 B, less the placeholder."""
    engine = build_engine("vllm", H200, QWEN, VllmV1Options())
    activations = 8192 * (2 * 3584 + 3584 + 1024 + 3 * 18944) * 2
    left = 0.92 * 140 * 2**30 - 7_615_283_200 * 2 - activations
    assert engine.state.kv.total == int(left // 57_344) // 16 - 1
    assert engine.context == 32_768


def test_64_requests_of_the_headline_fit_at_once_in_every_engine() -> None:
    for name, options in (("vllm", VllmV1Options()), ("sglang", SglangOptions()), ("trtllm", TrtllmOptions())):
        kv = build_engine(name, H200, QWEN, options).state.kv
        assert kv.total >= 64 * kv.blocks_for(30_500), name


def test_a_model_that_does_not_fit_is_refused_with_a_remedy() -> None:
    with pytest.raises(UsageError, match="leaves no room for KV on one H100"):
        build_engine("vllm", GPUS["H100"], MODELS["Llama-3.1-70B"], VllmV1Options())


def test_a_context_that_the_memory_cannot_hold_is_refused_as_vllm_does() -> None:
    with pytest.raises(UsageError, match="max_model_len is 3000000"):
        build_engine("vllm", H200, QWEN, VllmV1Options(max_model_len=3_000_000))


def test_flags_of_another_engine_are_refused() -> None:
    with pytest.raises(UsageError, match="vllm"):
        build_engine("vllm", H200, QWEN, SglangOptions())


@pytest.mark.parametrize("when", ["waiting", "before its step", "during its step", "between steps"])
def test_an_abort_frees_everything_whenever_it_comes(when: str) -> None:
    engine = vllm(1024, max_num_batched_tokens=32)
    other = engine.submit(8, 3, 0.0)
    request = engine.submit(40, 3, 0.0)
    if when == "waiting":
        engine.abort(request)
    assert engine.begin(0.0) is not None
    if when == "during its step":
        engine.abort(request)
    engine.end(1.0)
    if when in ("before its step", "between steps"):
        if when == "between steps":
            engine.begin(1.0)
            engine.end(2.0)
        engine.abort(request)
    now_s = 3.0
    while engine.begin(now_s) is not None:
        now_s += 1.0
        assert request not in engine.end(now_s)
    assert request.finish == "abort"
    assert other.generated == 3
    assert engine.state.kv.held == 0
    assert engine.counters.finished == {"stop": 0, "length": 1, "abort": 1}
    engine.abort(request)
    assert engine.counters.finished["abort"] == 1


def test_counters_count_each_token_once() -> None:
    engine = vllm(max_num_batched_tokens=16)
    engine.submit(40, 5, 0.0)
    now_s = 0.0
    while engine.begin(now_s) is not None:
        now_s += 1.0
        engine.end(now_s)
    counters = engine.counters
    assert (counters.prompt_tokens, counters.prefill_tokens, counters.generated_tokens, counters.n_steps) == (40, 40, 5, 7)


def test_blocks_are_rounded_up() -> None:
    blocks = KvBlocks(10, 16)
    assert [blocks.blocks_for(tokens) for tokens in (0, 1, 16, 17, 32)] == [0, 1, 1, 2, 2]


def test_more_blocks_than_there_are_cannot_be_taken() -> None:
    with pytest.raises(AssertionError):
        KvBlocks(10, 16).take(11)
