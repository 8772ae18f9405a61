"""Answers to claims -> text: a line a claim for a terminal, a page with all figures for a document, JSON for programs."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence

from longbench_sched.experiment.claims import FINDINGS, Answered, Cell, Grid
from longbench_sched.quantity import significant
from longbench_sched.report.layout import NULL, Column, Line, Lines, Page, Table
from longbench_sched.report.terminal import render as render_page
from longbench_sched.report.untrusted import width

TITLES = ("id", "claim", "published", "predicted", "after fit", "off by", "verdict")
LABEL = "All figures are simulated or computed, none is measured here."
_RIGHT = (False, False, True, True, True, True, False)
_SCHEMA = "longbench-answers/1"


def render_lines(answered: Sequence[Answered], *, columns: int, explain: bool) -> str:
    """A table of one line a claim, each beginning with its id; with `explain` the correction below each, wrapped."""
    rows = [_cells(one) for one in answered]
    widths = [max(width(row[i]) for row in (TITLES, *rows)) for i in range(len(TITLES))]
    gap = " " * (2 if sum(widths) + 2 * (len(widths) - 1) <= columns else 1)
    lines = [_line(TITLES, widths, gap)]
    for one, row in zip(answered, rows, strict=True):
        lines.append(_line(row, widths, gap))
        if explain:
            texts = [f"Claim: {one.claim.claim}", f"Source: {one.claim.source}.", one.claim.correction, *one.answer.notes]
            texts += [f"Fitted: {value.name} = {significant(value.value)} ({value.on})." for value in one.answer.parameters]
            lines += [line for text in texts for line in _wrap(text, columns)] + [""]
    found = [word for word in FINDINGS if any(one.answer.finding == word for one in answered)]
    lines += [line for word in found for line in _wrap(f"{word}: {FINDINGS[word]}.", columns)]
    return "\n".join([*lines, *_wrap(LABEL, columns)])


def render_grids(grids: Sequence[Grid], *, columns: int) -> str:
    """Tables of figures, as wide as they must be."""
    blocks = tuple(_table(grid, is_detail=False) for grid in grids)
    page = Page("Simulated", True, (), blocks, (), (), ())
    return render_page(page, columns=columns)


def build_claims_page(answered: Sequence[Answered], tables: Mapping[str, Grid]) -> Page:
    """The document: the lines, then each claim with its correction and its figures."""
    blocks: list[Table | Lines] = []
    if answered:
        columns = tuple(Column(title, "right" if right else "left") for title, right in zip(TITLES, _RIGHT, strict=True))
        blocks.append(Table("Claims", columns, tuple(_cells(one) for one in answered), (LABEL,)))
    for one in answered:
        lines = [
            Line(one.claim.id, one.claim.claim),
            Line("Source", f"{one.claim.source}{'' if one.claim.verified else ' (not read, or not found there)'}"),
            Line("Verdict", f"{one.answer.finding}: {one.claim.correction}"),
        ]
        lines += [Line("Note", note) for note in one.answer.notes]
        lines += [Line("Fitted", f"{value.name} = {significant(value.value)}, {value.on}") for value in one.answer.parameters]
        blocks += [Lines(tuple(lines)), *(_table(grid, is_detail=True) for grid in one.answer.grids)]
    blocks += [_table(grid, is_detail=True) for grid in tables.values()]
    return Page("Claims about long-context scheduling, simulated", True, (), tuple(blocks), (), (), ())


def render_json(answered: Sequence[Answered], tables: Mapping[str, Grid]) -> str:
    """Everything at full precision."""
    document = {
        "schema": _SCHEMA,
        "simulated": True,
        "claims": [one.as_json() for one in answered],
        "tables": {
            name: {"title": grid.title, "columns": grid.columns, "rows": grid.rows, "notes": grid.notes}
            for name, grid in tables.items()
        },
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _cells(one: Answered) -> tuple[str, ...]:
    answer = one.answer
    off = NULL if answer.deviation is None else f"{answer.deviation:+.0%}"
    return one.claim.id, one.claim.name, answer.published, answer.predicted, answer.fitted or NULL, off, answer.finding


def _line(cells: Sequence[str], widths: Sequence[int], gap: str) -> str:
    padded = []
    for cell, to, right in zip(cells, widths, _RIGHT, strict=True):
        space = " " * (to - width(cell))
        padded.append(space + cell if right else cell + space)
    return gap.join(padded).rstrip()


def _wrap(text: str, columns: int) -> list[str]:
    return textwrap.wrap(text, columns, initial_indent="     ", subsequent_indent="     ", break_on_hyphens=False)


def _table(grid: Grid, *, is_detail: bool) -> Table:
    is_text = [any(isinstance(row[i], str) for row in grid.rows) for i in range(len(grid.columns))]
    columns = tuple(Column(title, "left" if text else "right") for title, text in zip(grid.columns, is_text, strict=True))
    rows = tuple(tuple(_cell(title, value) for title, value in zip(grid.columns, row, strict=True)) for row in grid.rows)
    return Table(grid.title, columns, rows, grid.notes, is_detail)


def _cell(title: str, value: Cell) -> str:
    if value is None:
        return NULL
    if isinstance(value, float):
        return f"{value:+.1%}" if title.startswith("deviation") else significant(value)
    return str(value)
