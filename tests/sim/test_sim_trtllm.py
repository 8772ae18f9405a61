"""TensorRT-LLM's two schedulers on cases small enough to work out by hand. Blocks hold 32 tokens."""

from __future__ import annotations

from checked_engine import Arrival, drive, trtllm

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
