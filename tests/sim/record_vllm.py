"""Records what vLLM's own V1 scheduler decides. Run with the python of an environment that has vLLM; imports nothing of ours.

Reads scenarios, one JSON object a line, `{"knobs": {...}, "requests": [...]}`, and writes for each a line with its steps in the
form of tests/sim/traces. The scheduler class is untouched; where a model would be, each request that samples gets its next
made-up token, after as many accepted drafts as the scenario lists. A scenario that the engine's configuration refuses yields
`{"refused": why}`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from collections import deque

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_USE_V2_MODEL_RUNNER="0")
os.environ.update(CUDA_VISIBLE_DEVICES="", VLLM_CPU_KVCACHE_SPACE="1")
logging.disable(logging.CRITICAL)
ANSWERS = os.dup(1)  # whatever else writes to standard output goes to standard error
os.dup2(2, 1)

import torch  # noqa: E402
from vllm.config import CacheConfig, ModelConfig, ParallelConfig, SchedulerConfig, SpeculativeConfig, VllmConfig  # noqa: E402
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.utils.hashing import get_hash_fn_by_name  # noqa: E402
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash  # noqa: E402
from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec  # noqa: E402
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput  # noqa: E402
from vllm.v1.request import Request, RequestStatus  # noqa: E402
from vllm.v1.structured_output import StructuredOutputManager  # noqa: E402

SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 128,
    "max_position_embeddings": 1 << 20,
    "torch_dtype": "bfloat16",
}
STREAM, STOP = 10_000_000, 3  # ids a stream of tokens has to itself; the stop token
OURS = {
    "max_model_len": 8192,
    "block_size": 16,
    "num_blocks": 1024,
    "enable_prefix_caching": True,
    "async_scheduling": False,
    "num_speculative_tokens": 0,
    "speculative_method": "ngram",
    "accepted_drafts": [0],
}
SMALL = {"max_num_batched_tokens": 512, "max_num_seqs": 16}


def make_scheduler(knobs: dict, folder: str) -> Scheduler:
    ours = OURS | {name: value for name, value in knobs.items() if name in OURS}
    theirs = SMALL | {name: value for name, value in knobs.items() if name not in OURS}
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(SHAPE, file)
    model = ModelConfig(
        model=folder, tokenizer=folder, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=ours["max_model_len"]
    )
    parallel = ParallelConfig()
    speculative = None
    if ours["num_speculative_tokens"]:
        speculative = SpeculativeConfig(
            method=ours["speculative_method"],
            num_speculative_tokens=ours["num_speculative_tokens"],
            target_model_config=model,
            target_parallel_config=parallel,
            **({} if ours["speculative_method"] == "ngram" else {"model": folder}),
        )
    config = VllmConfig(
        model_config=model,
        parallel_config=parallel,
        cache_config=CacheConfig(block_size=ours["block_size"], enable_prefix_caching=ours["enable_prefix_caching"]),
        scheduler_config=SchedulerConfig(
            max_model_len=ours["max_model_len"], is_encoder_decoder=False, async_scheduling=False, **theirs
        ),
        speculative_config=speculative,
    )
    config.scheduler_config.async_scheduling = ours["async_scheduling"]  # the CPU platform would turn it off
    config.cache_config.num_gpu_blocks = ours["num_blocks"]
    changed = {name: value for name, value in theirs.items() if getattr(config.scheduler_config, name) != value}
    if changed:
        raise ValueError(f"vLLM changes {changed}")
    attention = FullAttentionSpec(block_size=ours["block_size"], num_kv_heads=1, head_size=64, dtype=torch.bfloat16)
    group = KVCacheGroupSpec(["layer"], attention)
    kind = AsyncScheduler if ours["async_scheduling"] else Scheduler
    return kind(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(num_blocks=ours["num_blocks"], kv_cache_tensors=[], kv_cache_groups=[group]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=ours["block_size"],
    )


class Recording:
    def __init__(self, scenario: dict, folder: str) -> None:
        self.knobs = OURS | SMALL | scenario["knobs"]
        self.asked = scenario["requests"]
        self.scheduler = make_scheduler(scenario["knobs"], folder)
        self.pending = deque(sorted(range(len(self.asked)), key=lambda i: self.asked[i]["at"]))
        self.requests: dict[str, Request] = {}
        self.verified: dict[str, int] = {}
        self.flying: deque = deque()
        self.bases: dict[str, int] = {}
        self.victims: list[int] = []
        self.hasher = None
        if self.knobs["enable_prefix_caching"]:
            digest = get_hash_fn_by_name("sha256")
            init_none_hash(digest)
            self.hasher = get_request_block_hasher(self.knobs["block_size"], digest)
        original = self.scheduler._preempt_request

        def preempt(request: Request, *args: object, **named: object) -> None:
            self.victims.append(int(request.request_id))
            original(request, *args, **named)

        self.scheduler._preempt_request = preempt

    def ids(self, stream: str, start: int, n: int) -> list[int]:
        base = STREAM * (1 + self.bases.setdefault(stream, len(self.bases)))
        return list(range(base + start, base + start + n))

    def run(self, limit: int = 4000) -> list:
        rows: list = []
        depth = 2 if self.knobs["async_scheduling"] else 1
        for number in range(limit):
            busy = bool(self.flying) or self.scheduler.has_unfinished_requests()
            if not busy and not self.pending:
                return rows
            if not busy and self.asked[self.pending[0]]["at"] > number:
                continue
            self.arrive(number)
            unfinished = self.scheduler.has_unfinished_requests()
            planned = self.plan(number) if unfinished else None
            read = None
            if len(self.flying) == depth or (self.flying and not unfinished):
                read = self.read()
            pool = self.scheduler.kv_cache_manager.block_pool
            idle = sum(1 for block in pool.blocks if block.ref_cnt == 0 and block.block_hash is not None)
            rows.append([number, planned, read, pool.get_num_free_blocks(), idle])
        return rows

    def arrive(self, number: int) -> None:
        while self.pending and self.asked[self.pending[0]]["at"] <= number:
            i = self.pending.popleft()
            asked = self.asked[i]
            shared: list[int] = []
            if "continues" in asked:
                shared = list(self.requests[str(asked["continues"])].all_token_ids)[: asked["isl"]]
            elif "group" in asked:
                shared = self.ids("group " + asked["group"], 0, asked["prefix"])
            prompt = shared + self.ids(f"prompt {i}", 0, asked["isl"] - len(shared))
            request = Request(
                request_id=str(i),
                prompt_token_ids=prompt,
                pooling_params=None,
                sampling_params=SamplingParams(max_tokens=asked["osl"], stop_token_ids=[STOP], temperature=0.0),
                arrival_time=float(len(self.requests)),
                priority=asked.get("priority", 0),
                block_hasher=self.hasher,
            )
            self.requests[str(i)] = request
            self.scheduler.add_request(request)
        gone = [i for i in self.scheduler.requests if self.asked[int(i)].get("abort") == number]
        self.scheduler.finish_requests(gone, RequestStatus.FINISHED_ABORTED)

    def plan(self, number: int) -> list:
        scheduler = self.scheduler
        before = {request.request_id for request in scheduler.running}
        self.victims.clear()
        out = scheduler.schedule(throttle_prefills=number % self.knobs.get("prefill_schedule_interval", 1) != 0)
        counts = out.num_scheduled_tokens
        self.flying.append((out, [i for i in counts if not self.requests[i].is_prefill_chunk]))
        drafts = {i: len(ids) for i, ids in out.scheduled_spec_decode_tokens.items()}
        start = {i: self.requests[i].num_computed_tokens - n for i, n in counts.items()}
        joined = [i for i in counts if i not in before or int(i) in self.victims]
        held = [
            [int(r.request_id), len(scheduler.kv_cache_manager.get_blocks(r.request_id).blocks[0])] for r in scheduler.running
        ]
        return [
            [[int(i), start[i], n, drafts.get(i, 0)] for i, n in counts.items()],
            sorted([int(i), start[i]] for i in joined),
            list(self.victims),
            held,
            [int(request.request_id) for request in scheduler.waiting],
            scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        ]

    def read(self) -> list:
        out, samplers = self.flying.popleft()
        ids = list(out.num_scheduled_tokens)
        alive = {i for i in samplers if i in self.scheduler.requests}
        tokens = [self.sample(i, len(out.scheduled_spec_decode_tokens.get(i, ()))) if i in alive else [] for i in ids]
        result = self.scheduler.update_from_output(
            out, ModelRunnerOutput(req_ids=ids, req_id_to_index={i: n for n, i in enumerate(ids)}, sampled_token_ids=tokens)
        )
        k = self.knobs["num_speculative_tokens"]
        if k and not self.knobs["async_scheduling"]:
            self.scheduler.update_draft_token_ids(DraftTokenIds(samplers, [[-1] * k for _ in samplers]))
        outputs = [output for group in result.values() for output in group.outputs]
        return [
            sorted([int(output.request_id), len(output.new_token_ids)] for output in outputs if output.new_token_ids),
            sorted(
                [int(output.request_id), str(output.finish_reason)] for output in outputs if output.finish_reason is not None
            ),
        ]

    def sample(self, i: str, n_drafts: int) -> list[int]:
        accepted = 0
        if n_drafts:
            turn = self.verified.get(i, 0)
            self.verified[i] = turn + 1
            listed = self.knobs["accepted_drafts"]
            accepted = min(listed[turn % len(listed)], n_drafts)
        done = self.requests[i].num_output_tokens
        stop = self.asked[int(i)].get("stop")
        ids = self.ids(f"output {i}", done, accepted + 1)
        return [STOP if n == stop else token for n, token in enumerate(ids, done + 1)]


def main() -> None:
    with os.fdopen(ANSWERS, "w") as answers:
        for line in sys.stdin:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    recording = Recording(json.loads(line), folder)
                except ValueError as error:
                    answers.write(json.dumps({"refused": str(error)[-300:]}) + "\n")
                    continue
                answers.write(json.dumps({"steps": recording.run()}) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
