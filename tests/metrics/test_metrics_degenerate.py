"""Answers that only repeat themselves are told from those that say something."""

from __future__ import annotations

import random
from typing import Any

import pytest
from handmade import row, run_of, steps

from longbench_sched.metrics.degenerate import cut, repeated_share
from longbench_sched.metrics.stat import Summary
from longbench_sched.metrics.summary import summarize

WORDS = [
    f"{start}{end}" for start in ("de", "pre", "re", "un", "out") for end in ("code", "fill", "run", "wait", "chunk", "batch")
]
PROSE = " ".join(random.Random(1).choices(WORDS, k=500))
LOOP = "a b " * 250


def kept(*texts: str | None, **fields: Any) -> Summary:
    records = []
    for index, text in enumerate(texts):
        record = row(0.0, steps(100.0, 10.0, 20), index=index)
        record.decoded.text = text
        records.append(record)
    return summarize(run_of(records, **fields))


def warned(summary: Summary) -> dict[str, str]:
    return {advice.id: f"{advice.text} {advice.cause}" for advice in summary.advice}


def test_e07_a_loop_of_two_tokens_is_warned_of_and_prose_is_not() -> None:
    """500 tokens alternating "a " and "b "; the second answer is prose."""
    looped = kept(LOOP)
    assert "1 of 1 answers" in warned(looped)["DEGENERATE-OUTPUT"]
    assert "2 distinct tokens in 500" in warned(looped)["DEGENERATE-OUTPUT"]
    assert "degenerate-output" in looped.marks
    assert "DEGENERATE-OUTPUT" not in warned(kept(PROSE))
    found = kept(LOOP, PROSE).facts["degenerate"]
    assert isinstance(found, dict)
    assert (found["n_texts"], found["n_degenerate"], found["worst"]["request_id"]) == (2, 1, "r0")


def test_with_speculative_decoding_the_warning_says_what_it_flatters() -> None:
    assert "ngram" in warned(kept(LOOP, engine_facts={"speculative": "ngram"}))["DEGENERATE-OUTPUT"]
    assert "ngram" not in warned(kept(LOOP))["DEGENERATE-OUTPUT"]


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        pytest.param("a b " * 20, False, id="40 tokens are too few to say"),
        pytest.param("等" * 400, True, id="one character without spaces"),
        pytest.param("no no no no. " * 50, True, id="a sentence"),
        pytest.param("\n".join(f"def f{i}(x): return x + {i}" for i in range(60)), False, id="code"),
    ],
)
def test_other_texts(text: str, is_found: bool) -> None:
    assert ("DEGENERATE-OUTPUT" in warned(kept(text))) == is_found


def test_without_kept_text_nothing_is_said() -> None:
    assert kept(None).facts["degenerate"] is None


def test_four_grams_are_counted() -> None:
    # a b a b a b: the grams abab, baba, abab: one of three occurred before.
    assert repeated_share(cut("a b a b a b")) == pytest.approx(1 / 3)
    assert repeated_share(cut("a b")) == 0.0
