"""Errors on a terminal: folded between words, with paths and commands in one piece."""

from __future__ import annotations

import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longbench_sched.cli.app import main
from longbench_sched.cli.prose import fold

PATH = "/a/very/long/path/" + "x" * 80 + "/results/2026-11-30T1012-vllm-smoke.parquet"


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("Error: one two three four", "Error: one two three\n  four"),
        ("Error: first\n  second and more words", "Error: first\n  second and more\n  words"),
        ("See: `longbench-sched run --help`", "See:\n  `longbench-sched run --help`"),
        ("no run 'with a space in its name' here", "no run\n  'with a space in its name'\n  here"),
        ("Write for it --set a=1 or not", "Write for it\n  --set a=1 or not"),
        ("the server's end, the engine's own", "the server's end,\n  the engine's own"),
        (f"cannot write {PATH}: no", f"cannot write\n  {PATH}:\n  no"),
        ("", ""),
    ],
    ids=["words", "lines", "command", "quoted", "flag", "apostrophes", "path", "nothing"],
)
def test_lines_end_between_words_and_never_within_what_is_copied(text: str, folded: str) -> None:
    assert fold(text, 20) == folded


@given(st.lists(st.text("abc-/.", min_size=1, max_size=15), min_size=1, max_size=30), st.integers(20, 80))
def test_no_word_is_lost_and_no_line_too_wide(words: list[str], columns: int) -> None:
    folded = fold(" ".join(words), columns)
    assert folded.split() == words
    assert all(len(line) <= columns for line in folded.splitlines())


@pytest.mark.parametrize("is_terminal", [True, False])
def test_an_error_is_folded_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal() if is_terminal else io.StringIO())
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["run", "no-such-workload"]) == 2
    first, *rest = stream.getvalue().splitlines()
    assert first.startswith("Error: no workload named")
    assert bool(rest) is is_terminal
    if is_terminal:
        assert max(map(len, (first, *rest))) <= 60
        assert all(line.startswith("  ") for line in rest)
