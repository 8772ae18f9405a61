"""Marks: each has one meaning, in code and in the documentation."""

from __future__ import annotations

from pathlib import Path

from longbench_sched.engine.marks import MARKS


def test_the_documentation_lists_every_mark() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "engines.md").read_text(encoding="utf-8")
    rows = [line for line in page.partition("## Marks")[2].splitlines() if line.startswith("| `")]
    assert rows == [f"| `{mark}` | {meaning} |" for mark, meaning in MARKS.items()]
