"""Random scenarios for schedulers: small pools, budgets and prompts, so that every rule is met again and again."""

from __future__ import annotations

from random import Random
from typing import Any

Scenario = dict[str, Any]


def vllm_scenario(seed: int) -> Scenario:
    """One for vLLM V1: knobs, and requests each of which fits into the pool by itself."""
    rng = Random(seed)
    budget = rng.choice([16, 32, 48, 64, 100, 128, 256])
    knobs: dict[str, Any] = {"max_num_batched_tokens": budget, "max_num_seqs": min(rng.choice([2, 3, 4, 6, 8, 16]), budget)}
    if rng.random() < 0.4:
        knobs["enable_prefix_caching"] = False
    if rng.random() < 0.3:
        knobs["scheduler_reserve_full_isl"] = False
    if rng.random() < 0.25:
        knobs["watermark"] = rng.choice([0.02, 0.05, 0.1])
    if rng.random() < 0.25:
        knobs["policy"] = "priority"
    if rng.random() < 0.3:
        knobs["long_prefill_token_threshold"] = rng.choice([8, 16, 30, 50])
        knobs["long_prefill_token_threshold_adaptive"] = rng.random() < 0.4
    if rng.random() < 0.2:
        knobs["max_num_active_seqs"] = rng.randint(1, knobs["max_num_seqs"])
    if rng.random() < 0.2:
        knobs["prefill_schedule_interval"] = rng.choice([2, 3, 4])
    if rng.random() < 0.35:
        knobs["async_scheduling"] = True
    lookahead = 0
    if rng.random() < 0.4:
        k = rng.choice([1, 2, 3, 4])
        knobs["num_speculative_tokens"] = k
        knobs["speculative_method"] = rng.choice(["ngram", "eagle", "draft_model"])
        knobs["accepted_drafts"] = [rng.randint(0, k) for _ in range(rng.randint(1, 4))]
        lookahead = k
    longest = rng.choice([40, 100, 200, 300])
    if rng.random() < 0.1:
        knobs["enable_chunked_prefill"] = False
        knobs["max_model_len"] = budget
        longest = max(4, budget - 30)
    output = rng.choice([4, 12, 30, 60])
    requests = [_request(rng, knobs, longest, output) for _ in range(rng.randint(2, 9))]
    requests.sort(key=lambda request: request["at"])  # their numbers are their order of arrival
    _share(rng, requests, can_continue="max_model_len" not in knobs)
    most = max(request["isl"] + request["osl"] for request in requests) + lookahead + 1
    knobs["num_blocks"] = 2 + -(-most // 16) + rng.choice([0, 1, 2, 4, 8, 16, 40])
    return {"knobs": knobs, "requests": requests}


def _request(rng: Random, knobs: dict[str, Any], longest: int, output: int) -> dict[str, Any]:
    request = {"at": rng.choice([0, 0, 0, 1, 2, 5, 10, 20]), "isl": rng.randint(1, longest), "osl": rng.randint(1, output)}
    if knobs.get("enable_chunked_prefill", True) is False:
        request["osl"] = min(request["osl"], 20)
    if knobs.get("policy") == "priority":
        request["priority"] = rng.randint(0, 3)
    if rng.random() < 0.2:
        request["stop"] = rng.randint(1, output)
    if rng.random() < 0.1:
        request["abort"] = request["at"] + rng.randint(1, 15)
    return request


def _share(rng: Random, requests: list[dict[str, Any]], can_continue: bool) -> None:
    """Give some a common prefix, and let one go on where an earlier one has (long) ended."""
    for request in requests:
        if rng.random() < 0.5:
            request["group"] = rng.choice("ab")
            request["prefix"] = rng.randint(1, request["isl"])
    if can_continue and rng.random() < 0.3:
        length = requests[0]["isl"] + requests[0]["osl"] + rng.randint(0, 40)
        requests.append({"at": 150, "isl": length, "osl": rng.randint(1, 8), "continues": 0})
