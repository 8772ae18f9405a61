"""vLLM V0 (0.7.2) on cases small enough to work out by hand, and how its defaults are decided."""

from __future__ import annotations

import pytest
from checked_engine import Arrival, drive, paged

from longbench_sched.errors import UsageError
from longbench_sched.sim.hardware import GPUS
from longbench_sched.sim.policy.vllm_v0 import VllmV0, VllmV0Options

P, D = "prefill", "decode"


def engine(kv_tokens: int = 1 << 20, n_drafts: int = 0, **flags):
    return paged("vllm-v0", VllmV0, VllmV0Options(num_speculative_tokens=n_drafts, **flags), kv_tokens, n_drafts)


def test_prompts_go_before_decodes_and_decodes_stand_still() -> None:
    """Budget 20: 0 and 1 together, then 2 and 3, and only then does anyone decode."""
    work = [Arrival(0, 10, 2), Arrival(0, 8, 2), Arrival(0, 15, 2), Arrival(0, 4, 2)]
    story = drive(engine(max_model_len=20, max_num_batched_tokens=20, max_num_seqs=8), work)
    assert story.plans == [
        [(0, 10, 0, P), (1, 8, 0, P)],
        [(2, 15, 0, P), (3, 4, 0, P)],
        [(0, 1, 10, D), (1, 1, 8, D), (2, 1, 15, D), (3, 1, 4, D)],
    ]


def test_a_late_prompt_stops_all_decodes_for_its_whole_length() -> None:
    story = drive(engine(), [Arrival(0, 10, 3), Arrival(0.001, 20_000, 2)])
    assert story.plans[1] == [(1, 20_000, 0, P)]
    assert story.plans[2] == [(0, 1, 10, D), (1, 1, 20_000, D)]


def test_one_percent_of_the_blocks_stays_free_after_an_admission() -> None:
    """100 blocks of 4, one must stay: 0 takes 90 and leaves 10, 1 would take 10, 2 would fit and waits behind it."""
    work = [Arrival(0, 358, 2), Arrival(0, 40, 1), Arrival(0, 4, 1)]
    story = drive(engine(400, block_size=4, max_model_len=400), work)
    assert story.plans == [[(0, 358, 0, P)], [(0, 1, 358, D)], [(1, 40, 0, P), (2, 4, 0, P)]]


def test_out_of_blocks_the_last_running_starts_again_with_prompt_and_output() -> None:
    """6 blocks of 4, as in V1, but without a cache and with the prompt before the decodes."""
    story = drive(engine(24, block_size=4, max_model_len=16, max_num_batched_tokens=32, max_num_seqs=8), [
        Arrival(0, 10, 6),
        Arrival(0, 8, 6),
    ])  # fmt: skip
    assert story.preempted == [1]
    assert story.plans[6] == [(1, 11, 0, P)]


def test_with_chunks_decodes_go_first_and_a_prompt_takes_the_rest() -> None:
    work = [Arrival(0, 6, 3), Arrival(0, 20, 2)]
    story = drive(engine(enable_chunked_prefill=True, max_num_batched_tokens=8, max_num_seqs=4), work)
    assert story.plans == [
        [(0, 6, 0, P), (1, 2, 0, P)],
        [(1, 7, 2, P), (0, 1, 6, D)],
        [(1, 7, 9, P), (0, 1, 7, D)],
        [(1, 4, 16, P)],
        [(1, 1, 20, D)],
    ]


def test_drafts_are_verified_in_a_decode_step() -> None:
    """Two drafts, both accepted: three tokens a step after the first."""
    one = engine(n_drafts=2)
    one.accepted = lambda sequence, k: k
    story = drive(one, [Arrival(0, 10, 7)])
    assert story.plans == [[(0, 10, 0, P)], [(0, 3, 10, "verify")], [(0, 3, 13, "verify")]]


@pytest.mark.parametrize(
    ("flags", "context", "chunked", "budget"),
    [
        ({}, 32_768, False, 32_768),
        ({}, 32_769, True, 2048),
        ({}, 131_072, True, 2048),
        ({}, 1024, False, 2048),
        ({"num_speculative_tokens": 3}, 131_072, False, 131_072),
        ({"enable_chunked_prefill": False}, 131_072, False, 131_072),
        ({"enable_chunked_prefill": True}, 32_768, True, 2048),
        ({"enable_chunked_prefill": True, "max_num_batched_tokens": 8192}, 32_768, True, 8192),
    ],
    ids=str,
)
def test_chunking_goes_by_the_context_and_not_under_speculation(flags, context: int, chunked: bool, budget: int) -> None:
    options = VllmV0Options(**flags).resolved(GPUS["H200"], context)
    assert (options.enable_chunked_prefill, options.max_num_batched_tokens) == (chunked, budget)


def test_a_budget_below_the_context_is_refused_where_prompts_are_not_cut() -> None:
    with pytest.raises(UsageError, match="enable-chunked-prefill"):
        VllmV0Options(max_num_batched_tokens=2048).resolved(GPUS["H200"], 32_768)
