"""Orca on cases small enough to work out by hand."""

from __future__ import annotations

from checked_engine import Arrival, drive, paged

from longbench_sched.sim.policy.orca import Orca, OrcaOptions

P, D = "prefill", "decode"


def test_whole_prompts_join_the_decodes_of_an_iteration() -> None:
    story = drive(paged("orca", Orca, OrcaOptions(2)), [Arrival(0, 10, 3), Arrival(0, 6, 1), Arrival(0, 5, 1)])
    assert story.plans == [
        [(0, 10, 0, P), (1, 6, 0, P)],
        [(2, 5, 0, P), (0, 1, 10, D)],
        [(0, 1, 11, D)],
    ]


def test_o2_nobody_joins_whose_maximum_cannot_be_reserved_and_nobody_passes_him() -> None:
    """6 blocks of 16: 0 reserves 4 for its 60 tokens, 1 needs 3, 2 would need 1."""
    story = drive(paged("orca", Orca, OrcaOptions(8), 96), [Arrival(0, 40, 20), Arrival(0, 30, 10), Arrival(0, 8, 2)])
    assert story.plans[20] == [(1, 30, 0, P), (2, 8, 0, P)]
    assert all(len(plan) == 1 for plan in story.plans[:20])


def test_o3_an_iteration_lasts_as_long_as_a_prompt() -> None:
    """The second token of 0 waits for all 20,000 tokens of 1."""
    story = drive(paged("orca", Orca, OrcaOptions(2)), [Arrival(0, 10, 3), Arrival(0.001, 20_000, 1)])
    first, second, third = story.tokens_at[0]
    assert second - first > 20 * (third - second)
