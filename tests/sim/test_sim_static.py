"""Static batching on cases small enough to work out by hand."""

from __future__ import annotations

import pytest
from checked_engine import Arrival, drive, paged

from longbench_sched.sim.policy.static import Static, StaticOptions

P, D = "prefill", "decode"


def engine(size: int, timeout_s: float = 1.0):
    return paged("static", Static, StaticOptions(size, timeout_s))


def test_the_next_batch_waits_until_the_last_of_this_one_has_ended() -> None:
    """S1: request 1 ends after two tokens; its slot computes on, and 2 waits for 0."""
    story = drive(engine(2), [Arrival(0, 10, 4), Arrival(0, 6, 2), Arrival(0, 5, 1), Arrival(0, 5, 1)])
    assert story.plans == [
        [(0, 10, 0, P), (1, 6, 0, P)],
        [(0, 1, 10, D), (1, 1, 6, D)],
        [(0, 1, 11, D)],
        [(0, 1, 12, D)],
        [(2, 5, 0, P), (3, 5, 0, P)],
    ]


@pytest.mark.parametrize(
    ("outputs", "wasted"),
    [((4, 2), 1 - 3 / 4), ((10, 1, 1, 1), 1 - 3.25 / 10), ((5, 5), 0.0), ((1, 2, 3, 4, 5, 6, 7, 8, 9, 10), 0.45)],
)
def test_s2_the_wasted_decode_slots_are_those_of_the_closed_form(outputs: tuple[int, ...], wasted: float) -> None:
    """1 - mean(osl) / max(osl), counted over slots x max(osl): for 1..10 it is 45 %, not 90 %."""
    slots = padding = 0

    def count(plan, state) -> None:
        nonlocal slots, padding
        slots += len(outputs)  # the prefill yields a token for each as well
        padding += plan.padding

    drive(engine(len(outputs)), [Arrival(0, 10, osl) for osl in outputs], count)
    assert slots == len(outputs) * max(outputs)
    assert padding / slots == pytest.approx(wasted)


def test_prompts_are_padded_to_the_longest() -> None:
    paddings = []
    drive(engine(3), [Arrival(0, isl, 1) for isl in (10, 4, 7)], lambda plan, state: paddings.append(plan.padding))
    assert paddings == [3 * 10 - 21]


def test_a_batch_that_does_not_fill_starts_when_its_oldest_has_waited_long_enough() -> None:
    story = drive(engine(4, timeout_s=0.5), [Arrival(0.25, 10, 1), Arrival(0.5, 10, 1), Arrival(0.9, 10, 1)])
    assert [len(plan) for plan in story.plans] == [2, 1]
    assert story.ends_s[0] == pytest.approx(0.75, abs=0.1)


def test_waiting_long_for_a_batch_takes_one_look() -> None:
    """Whoever plays the engine looks again when somebody comes."""
    one = engine(2, timeout_s=86_400.0)
    one.submit(10, 1, 0.0)
    assert one.begin(0.0) == 86_400.0
    assert one.is_concurrent
    one.submit(10, 1, 1.5)
    assert one.begin(1.5) == pytest.approx(one.cost.explain(one.step).seconds)
    assert not one.is_concurrent


def test_a_full_batch_does_not_wait() -> None:
    starts_s = []
    one = engine(2, timeout_s=60.0)
    story = drive(one, [Arrival(0, 10, 1), Arrival(0.1234567, 10, 1)], lambda plan, state: starts_s.append(one.cost(plan)))
    assert len(story.plans) == 1
    assert story.ends_s[0] - starts_s[0] == pytest.approx(0.1234567, abs=1e-9)
