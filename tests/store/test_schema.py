"""Columns: described once, and the same everywhere."""

from __future__ import annotations

from pathlib import Path

from longbench_sched.run import INT_COLUMNS, LIST_COLUMNS, TEXT_COLUMNS
from longbench_sched.store.schema import COLUMNS, arrow_schema, columns_table

DOCS = Path(__file__).parents[2] / "docs" / "columns.md"


def test_every_column_of_a_record_is_stored_once() -> None:
    names = [column.name for column in COLUMNS]
    assert sorted(names) == sorted([*INT_COLUMNS, *TEXT_COLUMNS, *LIST_COLUMNS, "marks"])


def test_d04_the_documentation_lists_every_column_with_its_unit() -> None:
    """docs/columns.md, between its two comments, is what `schema.columns_table` says."""
    written = DOCS.read_text(encoding="utf-8").partition("<!-- columns -->\n")[2].partition("<!-- /columns -->")[0]
    assert written == columns_table()


def test_instants_have_their_unit_in_name_and_metadata() -> None:
    for field in arrow_schema(with_text=True):
        assert field.name.endswith("_ns") == (field.metadata[b"unit"] == b"ns")


def test_text_is_the_only_column_that_may_be_absent() -> None:
    assert set(arrow_schema(with_text=True).names) - set(arrow_schema(with_text=False).names) == {"text"}
