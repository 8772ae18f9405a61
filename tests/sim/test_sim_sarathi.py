"""SARATHI, Sarathi-Serve and FastGen on cases small enough to work out by hand."""

from __future__ import annotations

import pytest
from checked_engine import Arrival, drive, paged

from longbench_sched.errors import UsageError
from longbench_sched.sim.hardware import GPUS
from longbench_sched.sim.policy.sarathi import FastgenOptions, Sarathi, SarathiOptions

P, D = "prefill", "decode"


def engine(budget: int, places: int = 4, batching: str = "stall-free", kv_tokens: int = 1 << 20, **flags):
    return paged("sarathi", Sarathi, SarathiOptions(budget, places, batching, **flags), kv_tokens)


def test_stall_free_every_decode_is_in_every_step_and_prompts_share_the_rest() -> None:
    story = drive(engine(8), [Arrival(0, 6, 4), Arrival(0, 12, 2), Arrival(0, 3, 1)])
    assert story.plans == [
        [(0, 6, 0, P), (1, 2, 0, P)],
        [(1, 7, 2, P), (0, 1, 6, D)],
        [(1, 3, 9, P), (2, 3, 0, P), (0, 1, 7, D)],
        [(0, 1, 8, D), (1, 1, 12, D)],
    ]


def test_decode_maximal_one_piece_fills_the_step_up_to_the_budget() -> None:
    """A budget of 256 with three decodes leaves a piece of 253; a second prompt never shares the step."""
    work = [Arrival(0, 10, 40)] * 3 + [Arrival(0.02, 600, 1), Arrival(0.02, 20, 1)]
    story = drive(engine(256, 8, "decode-maximal"), work)
    pieces = [[line for line in plan if line[3] == P] for plan in story.plans]
    assert max(len(lines) for lines in pieces) == 1
    assert [line[1] for lines in pieces for line in lines if line[0] == 3] == [253, 253, 94]


def test_fastgen_is_sarathi_with_a_budget_of_its_own() -> None:
    options = FastgenOptions().resolved(GPUS["H200"], 32_768)
    assert (options.token_budget, options.batching) == (768, "stall-free")


def test_a_budget_that_cannot_give_every_place_a_token_is_refused() -> None:
    with pytest.raises(UsageError, match="every decode is in every step"):
        SarathiOptions(64, 128).resolved(GPUS["H200"], 32_768)


def test_the_latest_is_preempted_when_a_decode_finds_no_block() -> None:
    """6 blocks of 4: 0 and 1 hold three each when 0 needs its fourth."""
    story = drive(engine(32, 4, kv_tokens=24, block_size=4), [Arrival(0, 10, 6), Arrival(0, 8, 6)])
    assert story.preempted == [1]
    assert story.plans[6] == [(1, 11, 0, P)]
