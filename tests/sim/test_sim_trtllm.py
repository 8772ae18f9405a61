"""TensorRT-LLM's two schedulers on cases small enough to work out by hand. Blocks hold 32 tokens."""

from __future__ import annotations

import pytest
from checked_engine import Arrival, drive, trtllm

from longbench_sched.errors import UsageError

P, D = "prefill", "decode"


def test_chunks_take_whole_blocks_of_what_generation_leaves() -> None:
    """Step 1 has 24 tokens left: less than a block. Step 2 has 63 left beside a decode: one block."""
    engine = trtllm(max_num_tokens=64, enable_chunked_prefill=True)
    story = drive(engine, [Arrival(0, 40, 2), Arrival(0, 100, 2)])
    assert story.plans == [
        [(0, 40, 0, P)],
        [(1, 32, 0, P), (0, 1, 40, D)],
        [(1, 64, 32, P)],
        [(1, 4, 96, P)],
        [(1, 1, 100, D)],
    ]


def test_without_chunks_the_first_that_does_not_fit_ends_the_walk() -> None:
    story = drive(trtllm(max_num_tokens=64), [Arrival(0, 40, 2), Arrival(0, 30, 1), Arrival(0, 20, 1)])
    assert story.plans == [[(0, 40, 0, P)], [(1, 30, 0, P), (2, 20, 0, P), (0, 1, 40, D)]]


def test_nobody_is_admitted_whose_end_does_not_fit_and_nobody_passes_him() -> None:
    """4 blocks: 0 reserves 3 for its 80 tokens, 1 needs 2, 2 needs the 1 that is free but stands behind 1."""
    engine = trtllm(128, enable_chunked_prefill=True)
    story = drive(engine, [Arrival(0, 40, 40), Arrival(0, 20, 20), Arrival(0, 20, 4)])
    assert all(line[0] == 0 for plan in story.plans[:40] for line in plan)
    assert story.plans[40] == [(1, 20, 0, P), (2, 20, 0, P)]
    assert story.admitted == [0, 1, 2]


def test_t6_a_prompt_longer_than_a_step_is_refused_not_cut() -> None:
    reason = trtllm().policy.refusal(8193, 10)
    assert reason is not None
    assert "8193" in reason
    assert "enable_chunked_prefill" in reason
    assert trtllm().policy.refusal(8192, 10) is None
    assert trtllm(enable_chunked_prefill=True).policy.refusal(30_000, 10) is None


def test_equal_progress_gives_one_block_each_in_turn() -> None:
    """200 tokens: 0 and 1 get three blocks each and the rest, 8 tokens, is less than a block."""
    engine = trtllm(max_num_tokens=200, enable_chunked_prefill=True, context_chunking_policy="EQUAL_PROGRESS")
    story = drive(engine, [Arrival(0, 150, 1), Arrival(0, 150, 1)])
    assert story.plans == [[(0, 96, 0, P), (1, 96, 0, P)], [(0, 54, 96, P), (1, 54, 96, P)]]


def test_first_come_first_served_gives_the_first_all_it_can_take() -> None:
    story = drive(trtllm(max_num_tokens=200, enable_chunked_prefill=True), [Arrival(0, 150, 1), Arrival(0, 150, 1)])
    assert story.plans == [[(0, 150, 0, P), (1, 32, 0, P)], [(1, 118, 32, P)]]


def test_first_come_first_served_lets_a_short_prompt_have_what_is_less_than_a_block() -> None:
    """64 tokens: 24 are left beside 0, too few for a block of 1, enough for all of 2."""
    engine = trtllm(max_num_tokens=64, enable_chunked_prefill=True)
    story = drive(engine, [Arrival(0, 40, 1), Arrival(0, 100, 1), Arrival(0, 20, 1)])
    assert story.plans == [[(0, 40, 0, P), (2, 20, 0, P)], [(1, 64, 0, P)], [(1, 36, 64, P)]]


def test_by_utilization_the_one_started_last_is_paused_and_comes_back_first() -> None:
    """4 blocks of 32: 0 and 1 hold two each when 0 needs a third; 1 goes back with the 6 tokens that it had, before 2."""
    engine = trtllm(128, capacity_scheduler_policy="MAX_UTILIZATION", enable_block_reuse=False)
    story = drive(engine, [Arrival(0, 59, 10), Arrival(0, 40, 10), Arrival(0, 20, 1)])
    assert story.preempted == [1]
    assert story.plans[6] == [(0, 1, 64, D)]
    assert story.plans[10] == [(1, 46, 0, P), (2, 20, 0, P)]


SHARED = {"group": 0, "prefix": 32}


def test_by_utilization_the_list_is_in_order_of_arrival_whoever_was_started_first() -> None:
    """5 blocks of 32. 1 waits for the blocks that 0 computes, while 2 is started. 0 and 1 then lack one, and 2 gives it."""
    work = [Arrival(0, 64, 12, group=0, prefix=64), Arrival(0, 100, 30, group=0, prefix=64), Arrival(0, 20, 20)]
    story = drive(trtllm(160, capacity_scheduler_policy="MAX_UTILIZATION"), work)
    assert story.plans[:2] == [
        [(0, 64, 0, P), (2, 20, 0, P)],
        [(1, 36, 64, P), (0, 1, 64, D)],
    ]
    assert story.preempted[0] == 2


def test_by_utilization_an_earlier_prompt_is_charged_before_a_later_one_that_generates() -> None:
    """84 tokens: 0 verifies 32, 1 has 52 left, and 2, which was started before 1, sits the step out."""
    flags = {"max_num_tokens": 84, "num_speculative_tokens": 31, "capacity_scheduler_policy": "MAX_UTILIZATION"}
    story = drive(trtllm(**flags), [Arrival(0, 64, 9, **SHARED), Arrival(0, 84, 9, **SHARED), Arrival(0, 20, 9)])
    assert story.plans[0] == [(0, 64, 0, P), (2, 20, 0, P)]
    assert story.plans[1] == [(1, 52, 32, P), (0, 32, 64, "verify")]


def test_a_prompt_that_came_earlier_goes_before_one_in_progress() -> None:
    """128 tokens: 1 waits for the block that 0 computes, so 2 begins; then 1 has its 68 and 2 what is left."""
    flags = {"max_num_tokens": 128, "enable_chunked_prefill": True}
    story = drive(trtllm(**flags), [Arrival(0, 64, 2, **SHARED), Arrival(0, 100, 2, **SHARED), Arrival(0, 200, 2)])
    assert story.plans[0] == [(0, 64, 0, P), (2, 64, 0, P)]
    assert story.plans[1] == [(1, 68, 32, P), (2, 32, 64, P), (0, 1, 64, D)]


def test_all_blocks_of_a_prompt_are_taken_when_it_is_started() -> None:
    """4 blocks: of its 100 tokens 0 computes 64 in the first step, and 1, whose one block would fit beside them, waits."""
    flags = {"max_num_tokens": 64, "enable_chunked_prefill": True, "capacity_scheduler_policy": "MAX_UTILIZATION"}
    held: list[int] = []
    story = drive(trtllm(128, **flags), [Arrival(0, 100, 1), Arrival(0, 20, 1)], lambda plan, state: held.append(state.kv.held))
    assert story.plans == [[(0, 64, 0, P)], [(0, 36, 64, P)], [(1, 20, 0, P)]]
    assert held == [4, 4, 1]


def test_of_a_static_batch_prompts_in_progress_wait_while_somebody_generates() -> None:
    flags = {"max_num_tokens": 64, "enable_chunked_prefill": True, "capacity_scheduler_policy": "STATIC_BATCH"}
    story = drive(trtllm(**flags), [Arrival(0, 32, 3), Arrival(0, 100, 1)])
    assert story.plans == [
        [(0, 32, 0, P), (1, 32, 0, P)],
        [(0, 1, 32, D)],
        [(0, 1, 33, D)],
        [(1, 64, 32, P)],
        [(1, 4, 96, P)],
    ]


def test_t2_no_evict_would_have_kept_1_waiting() -> None:
    story = drive(trtllm(128, enable_block_reuse=False), [Arrival(0, 59, 10), Arrival(0, 40, 10)])
    assert story.plans[0] == [(0, 59, 0, P)]
    assert story.plans[10] == [(1, 40, 0, P)]


def test_a_static_batch_is_not_joined() -> None:
    engine = trtllm(capacity_scheduler_policy="STATIC_BATCH", max_batch_size=2)
    story = drive(engine, [Arrival(0, 40, 3), Arrival(0, 40, 1), Arrival(0, 40, 1)])
    assert [sorted({line[0] for line in plan}) for plan in story.plans] == [[0, 1], [0], [0], [2]]


def test_a_prompt_waits_for_the_block_that_another_is_computing() -> None:
    """Both begin with the same 64 tokens: 1 sits out the step in which 0 computes them and then has 36 to do; 2 passes."""
    work = [Arrival(0, 100, 2, group=0, prefix=64), Arrival(0, 100, 2, group=0, prefix=64), Arrival(0, 40, 2)]
    story = drive(trtllm(), work)
    assert story.plans[0] == [(0, 100, 0, P), (2, 40, 0, P)]
    assert story.plans[1] == [(1, 36, 64, P), (0, 1, 100, D), (2, 1, 40, D)]


def test_in_a_static_batch_nobody_waits_for_a_block_of_another() -> None:
    work = [Arrival(0, 100, 2, group=0, prefix=64), Arrival(0, 100, 2, group=0, prefix=64)]
    assert drive(trtllm(capacity_scheduler_policy="STATIC_BATCH"), work).plans[0] == [(0, 100, 0, P), (1, 100, 0, P)]


def test_a_prompt_that_not_even_a_block_of_fits_a_step_is_refused() -> None:
    policy = trtllm(max_num_tokens=31, enable_chunked_prefill=True, tokens_per_block=32).policy
    assert "whole blocks of 32" in (policy.refusal(32, 1) or "")
    assert policy.refusal(31, 1) is None


def test_a_step_that_holds_no_verification_is_refused() -> None:
    with pytest.raises(UsageError, match="holds no verification"):
        trtllm(max_num_tokens=3, num_speculative_tokens=3)
    assert trtllm(max_num_tokens=4, num_speculative_tokens=3)


def test_policies_that_it_does_not_have_are_refused() -> None:
    with pytest.raises(UsageError, match="Known: GUARANTEED_NO_EVICT"):
        trtllm(capacity_scheduler_policy="BEST_EFFORT")
