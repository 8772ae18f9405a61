"""The pictures of the documents are those that this version draws."""

from __future__ import annotations

import pytest

from benchmarks.pictures import DOCS, PARALLEL, PICTURES, draw, path_of


@pytest.mark.parametrize("name", [*PICTURES, *PARALLEL])
def test_a_stored_picture_is_the_one_that_would_be_drawn(name: str) -> None:
    is_same = draw(name) == path_of(name).read_text("utf-8")
    assert is_same, f"{path_of(name).name} is of another version: `python -m benchmarks.pictures {name}`, and look at it"


def test_every_stored_picture_has_a_load_to_be_drawn_from() -> None:
    stored = {path for folder in ("policies", "parallel") for path in (DOCS / folder).glob("*.svg")}
    assert stored == {path_of(name) for name in (*PICTURES, *PARALLEL)}
