"""Names of real prompts: they agree exactly as far as the tokens do."""

from __future__ import annotations

from array import array
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longbench_sched.sim.content import common, length_of
from longbench_sched.sim.naming import Names, common_bytes


def ids(*tokens: int) -> array[int]:
    return array("I", tokens)


def test_a_prompt_seen_before_has_the_same_name() -> None:
    names = Names(1000)
    assert names.name(0, ids(1, 2, 3)) == names.name(1, ids(1, 2, 3))


def test_a_prompt_shares_what_it_begins_with_and_the_rest_is_its_own() -> None:
    names = Names(1000)
    one, other = names.name(0, ids(1, 2, 3, 4)), names.name(1, ids(1, 2, 9, 9, 9))
    assert common(one, other) == 2
    assert (length_of(one), length_of(other)) == (4, 5)


def test_the_next_turn_of_a_conversation_begins_with_prompt_and_answer() -> None:
    names = Names(1000)
    first = names.name(0, ids(1, 2, 3))
    names.extend(0, ids(1, 2, 3), first, [7, 8])
    second = names.name(1, ids(1, 2, 3, 7, 8, 5))
    assert length_of(second) == 6
    assert common(names.name(2, ids(1, 2, 3, 7, 8, 6)), second) == 5
    assert common(first, second) == 3


def test_the_oldest_are_forgotten_and_then_share_nothing() -> None:
    names = Names(10)
    first = names.name(0, ids(1, 2, 3, 4))
    names.name(1, ids(5, 5, 5, 5))
    names.name(2, ids(6, 6, 6, 6))  # 12 tokens: the first goes
    assert common(names.name(3, ids(1, 2, 3, 4)), first) == 0


@pytest.mark.parametrize(
    ("one", "other", "n"), [(b"", b"", 0), (b"abc", b"abc", 3), (b"abc", b"abd", 2), (b"abc", b"ab", 2), (b"x", b"y", 0)]
)
def test_common_bytes(one: bytes, other: bytes, n: int) -> None:
    assert common_bytes(one, other) == n


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=2, max_size=12))
def test_two_names_agree_exactly_as_far_as_the_tokens_do(prompts: list[list[int]]) -> None:
    names = Names(10_000)
    named = [(prompt, names.name(number, ids(*prompt))) for number, prompt in enumerate(prompts)]
    for (one, its), (other, others) in combinations(named, 2):
        n = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        assert common(its, others) == n
