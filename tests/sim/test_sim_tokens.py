"""The embedded tokenizer: there and back without loss, exact lengths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longbench_sched.sim import tokens

texts = st.text(max_size=200) | st.text("ab z\n.é漢🙂", max_size=200)


@given(texts)
def test_text_comes_back_as_it_was(text: str) -> None:
    assert tokens.decode(tokens.encode(text)) == text


@given(texts, st.integers(0, 200))
def test_the_text_of_the_first_ids_encodes_to_exactly_these(text: str, n: int) -> None:
    """So that prompts of an exact length can be cut; a cut inside a character of several bytes is the exception."""
    ids = tokens.encode(text)[:n]
    cut = tokens.decode(ids)
    if "\ufffd" not in cut:
        assert tokens.encode(cut) == ids


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("a", [97]),
        (" a", [256]),
        (" z", [281]),
        ("aa", [282]),
        ("zz", [957]),
        (" aa", [958]),
        ("aaa", [1634]),
        (" aaa", [19_210]),
        (" zzz", [36_785]),
        ("abcd", [1634 + 28, 100]),  # a b c = 0 x 676 + 1 x 26 + 2, then the byte of d
        ("A b", [65, 257]),
        ("é", [0xC3, 0xA9]),
        ("", []),
    ],
)
def test_pieces_have_fixed_ids(text: str, ids: list[int]) -> None:
    assert tokens.encode(text) == ids


def test_no_two_pieces_share_an_id() -> None:
    """Every id below the special ones has a text of its own that encodes back to it."""
    ids = range(256, tokens.BOS)
    assert [tokens.encode(tokens.decode([number])) for number in ids] == [[number] for number in ids]


def test_a_conversation_costs_what_its_template_adds() -> None:
    """Three specials and the role lines: <start> user newline ... <end> newline <start> assistant newline."""
    overhead = len(tokens.encode_chat([("user", "")]))
    assert overhead == 1 + len(tokens.encode("user\n")) + 1 + 1 + 1 + len(tokens.encode("assistant\n"))
    assert len(tokens.encode_chat([("user", "One")])) == overhead + len(tokens.encode("One"))


def test_what_the_engine_says_is_what_its_ids_say() -> None:
    said = "".join(utterance.text for utterance in tokens.SPEECH)
    assert tokens.decode([utterance.id for utterance in tokens.SPEECH]) == said
    assert "naïve" in said
    assert "🙂" in said
    assert "é" in said


def test_one_character_is_split_over_two_tokens_the_first_of_which_shows_nothing() -> None:
    silent = [i for i, utterance in enumerate(tokens.SPEECH) if utterance.text == ""]
    assert len(silent) == 1
    assert tokens.SPEECH[silent[0] + 1].text == "é"
    assert silent[0] + 1 not in tokens.STARTS


def test_an_id_that_means_nothing_is_shown_as_one() -> None:
    assert tokens.decode([150_000]) == "<|150000|>"
    assert tokens.decode([tokens.EOS]) == "<|eos|>"


@given(texts)
def test_the_fewest_tokens_are_no_more_than_there_are(text: str) -> None:
    assert 0 <= tokens.fewest(text) <= len(tokens.encode(text))


def test_the_fewest_tokens_are_exact_for_the_longest_pieces() -> None:
    assert tokens.fewest(" abc" * 100) == len(tokens.encode(" abc" * 100)) == 100
