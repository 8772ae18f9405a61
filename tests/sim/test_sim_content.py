"""Prompts by name."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longbench_sched.sim.content import Content, after, common, first, joined, length_of, output_stream, prompt_content

pieces = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 4)), max_size=5)


def written_out(content: Content) -> list[tuple[int, int]]:
    """Token by token."""
    return [(stream, start + i) for stream, start, n in content for i in range(n)]


def put_together(parts: list[tuple[int, int, int]]) -> Content:
    content: Content = ()
    for piece in parts:
        content = joined(content, piece)
    return content


def test_a_prompt_is_its_groups_prefix_and_its_own_rest() -> None:
    assert prompt_content(5, 100, group=0, prefix_tokens=30) == ((-1, 0, 30), (10, 0, 70))
    assert prompt_content(5, 20, group=0, prefix_tokens=30) == ((-1, 0, 20),)
    assert prompt_content(5, 20) == ((10, 0, 20),)
    assert output_stream(5) == 11


def test_what_goes_on_where_a_piece_ended_becomes_part_of_it() -> None:
    assert joined(((1, 0, 4),), (1, 4, 2)) == ((1, 0, 6),)
    assert joined(((1, 0, 4),), (1, 5, 2)) == ((1, 0, 4), (1, 5, 2))
    assert joined(((1, 0, 4),), (2, 0, 0)) == ((1, 0, 4),)


@given(pieces, pieces)
def test_what_is_common_is_what_is_equal_token_by_token(one, other) -> None:
    a, b = put_together(one), put_together(other)
    equal = 0
    for left, right in zip(written_out(a), written_out(b), strict=False):
        if left != right:
            break
        equal += 1
    assert common(a, b) == common(b, a) == equal


@given(pieces, st.integers(0, 25))
def test_cutting_and_joining_lose_nothing(parts, n) -> None:
    content = put_together(parts)
    head, tail = first(content, n), after(content, n)
    assert written_out(head) + written_out(tail) == written_out(content)
    assert length_of(head) == min(n, length_of(content))
