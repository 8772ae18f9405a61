"""docs/policies/laws.md: every law that the schedulers are held to stands there, and each test that it names asserts it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "policies" / "laws.md"
FAMILIES = {"G": 8, "S": 2, "O": 3, "V0-": 4, "V1-": 8, "SG-": 9, "T-": 6, "SS-": 4, "SP-": 4, "PP-": 4, "PD-": 4}


def rows() -> dict[str, list[str]]:
    """The tests that the page names, by law."""
    lines = [line.strip("| \n").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return {cells[0]: re.findall(r"`(test_\w+)`", cells[2]) for cells in lines[1:]}


def sources() -> dict[str, str]:
    """Every test of this folder with its own text."""
    found: dict[str, str] = {}
    for path in HERE.glob("test_sim_*.py"):
        text = path.read_text()
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found[node.name] = ast.get_source_segment(text, node) or ""
    return found


def test_every_law_is_in_the_table() -> None:
    assert list(rows()) == [f"{family}{i}" for family, n in FAMILIES.items() for i in range(1, n + 1)]


@pytest.mark.parametrize("law", rows())
def test_each_test_that_is_named_names_the_law(law: str) -> None:
    """In its name or its text: `test_sg6_...`, "SG-6"."""
    names, texts = rows()[law], sources()
    assert names, "no test is named"
    in_a_name = re.compile(rf"_{law.lower().replace('-', '')}_")
    for name in names:
        assert name in texts, f"there is no {name}"
        assert in_a_name.search(name) or re.search(rf"\b{law}\b", texts[name]), f"{name} does not speak of {law}"
