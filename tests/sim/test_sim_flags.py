"""Engines' own flags, in their own spelling."""

from __future__ import annotations

import pytest

from longbench_sched.errors import UsageError
from longbench_sched.sim.flags import read_flags
from longbench_sched.sim.policy.orca import OrcaOptions
from longbench_sched.sim.policy.sarathi import FastgenOptions, SarathiOptions
from longbench_sched.sim.policy.sglang import Sglang042Options, SglangOptions
from longbench_sched.sim.policy.static import StaticOptions
from longbench_sched.sim.policy.trtllm import TrtllmOptions
from longbench_sched.sim.policy.vllm_v0 import VllmV0Options
from longbench_sched.sim.policy.vllm_v1 import VllmV1Options


@pytest.mark.parametrize(
    ("engine", "words", "options"),
    [
        ("vllm", [], VllmV1Options()),
        ("vllm", ["--max-num-batched-tokens", "4096"], VllmV1Options(max_num_batched_tokens=4096)),
        (
            "vllm",
            ["--max-num-batched-tokens=16Ki", "--watermark=0.1"],
            VllmV1Options(max_num_batched_tokens=16_384, watermark=0.1),
        ),
        ("vllm", ["--no-enable-chunked-prefill"], VllmV1Options(enable_chunked_prefill=False)),
        ("sglang", ["--enable-mixed-chunk", "--chunked-prefill-size", "-1"], SglangOptions(-1, enable_mixed_chunk=True)),
        ("trtllm", ["--enable_chunked_prefill", "--max_num_tokens", "2048"], TrtllmOptions(2048, enable_chunked_prefill=True)),
        ("trtllm", ["--enable_chunked_prefill=true"], TrtllmOptions(enable_chunked_prefill=True)),
        ("trtllm", ["--enable_chunked_prefill", "false"], TrtllmOptions(enable_chunked_prefill=False)),
        ("trtllm", ["--capacity_scheduler_policy=MAX_UTILIZATION"], TrtllmOptions(capacity_scheduler_policy="MAX_UTILIZATION")),
        ("vllm", ["--scheduling-policy", "priority"], VllmV1Options(scheduling_policy="priority")),
        ("vllm", ["--no-enable-prefix-caching"], VllmV1Options(enable_prefix_caching=False)),
        (
            "vllm",
            ["--speculative-config", '{"method": "eagle3", "num_speculative_tokens": 3}'],
            VllmV1Options(speculative_method="eagle3", num_speculative_tokens=3),
        ),
        ("vllm-v0", ["--enable-chunked-prefill", "--max-num-seqs=64"], VllmV0Options(None, 64, enable_chunked_prefill=True)),
        ("sglang-0.4", ["--schedule-policy", "fcfs"], Sglang042Options(schedule_policy="fcfs")),
        ("sglang", ["--speculative-algorithm=EAGLE3"], SglangOptions(speculative_algorithm="EAGLE3")),
        ("static", ["--batch-size", "8"], StaticOptions(8)),
        ("static", ["--batch-size=8", "--batch-timeout-s=0"], StaticOptions(8, 0.0)),
        (
            "sglang",
            ["--priority-scheduling-preemption-threshold", "0"],
            SglangOptions(priority_scheduling_preemption_threshold=0),
        ),
        ("orca", ["--max-batch-size=16"], OrcaOptions(16)),
        ("sarathi", ["--batching", "decode-maximal"], SarathiOptions(batching="decode-maximal")),
        ("fastgen", [], FastgenOptions()),
        (
            "vllm",
            ["--quantization", "fp8", "--kv-cache-dtype=fp8_e4m3"],
            VllmV1Options(quantization="fp8", kv_cache_dtype="fp8_e4m3"),
        ),
        ("sglang", ["--quantization=fp8"], SglangOptions(quantization="fp8")),
        ("trtllm", ["--kv_cache_dtype", "fp8"], TrtllmOptions(kv_cache_dtype="fp8")),
    ],
)
def test_flags_become_options(engine: str, words: list[str], options: object) -> None:
    assert read_flags(engine, words) == options


@pytest.mark.parametrize(
    ("engine", "words", "message"),
    [
        ("vlm", [], "does not play 'vlm'"),
        ("vllm", ["--max-num-batched-token", "1"], "Did you mean --max-num-batched-tokens"),
        (
            "vllm",
            ["--chunked-prefill-size", "1"],
            "not a flag that the embedded vllm knows. Did you mean --max-num-batched-tokens",
        ),
        ("sglang", ["--max-num-batched-tokens", "1"], "Did you mean --chunked-prefill-size"),
        ("trtllm", ["--max-num-seqs", "1"], "Did you mean --max-batch-size"),
        ("vllm", ["--max-num-seqs"], "needs a value"),
        ("vllm", ["--max-num-batched-tokens=-1"], "--max-num-batched-tokens=-1: -1 is too small"),
        ("vllm", ["--max-num-seqs", "0"], "0 is too small"),
        ("sglang", ["--chunked-prefill-size=-2"], "-2 is too small"),
        ("sglang", ["--schedule-conservativeness", "nan"], "nan is not a number to run with"),
        ("vllm", ["--gpu-memory-utilization=0"], "0 is too small"),
        ("vllm", ["--gpu-memory-utilization=1.5"], "1.5 is more than all there is"),
        ("vllm", ["--max-model-len=1e20"], "is not a number to run with"),
        ("vllm", ["--max-num-seqs", "many"], "not a whole number"),
        ("vllm", ["--watermark", "low"], "not a number"),
        ("vllm", ["--enable-chunked-prefill=maybe"], "neither true nor false"),
        ("vllm", ["8192"], "is no flag"),
        ("vllm", ["--speculative-config", "eagle"], "is not JSON"),
        ("vllm", ["--speculative-config", '{"method": "eagle"}'], "num_speculative_tokens is missing"),
        ("vllm", ["--scheduling-policy", "lifo"], "'lifo' is not known. Known: fcfs, priority"),
        ("vllm", ["--performance-mode=fast"], "Known: balanced, interactivity, throughput"),
        ("sglang", ["--speculative-algorithm", "HYDRA"], "Known: EAGLE, EAGLE3, NEXTN, STANDALONE, NGRAM"),
        ("vllm", ["--quantization", "awq"], "Known: fp8"),
        ("trtllm", ["--quantization", "fp8"], "takes what the checkpoint is"),
        ("sglang", ["--speculative-config", "{}"], "not a flag that the embedded sglang knows"),
    ],
)
def test_a_flag_that_makes_no_sense_is_refused_with_a_remedy(engine: str, words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_flags(engine, words)
