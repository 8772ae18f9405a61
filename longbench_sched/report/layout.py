"""Page: what a report says, before it is text in any format.

A page is built once (`page.py`) and rendered by each format. Its texts are for people: numbers are already rounded, words of a
server already harmless. `summaries` holds the figures at full precision, for formats that machines read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from longbench_sched.metrics.stat import Summary

if TYPE_CHECKING:
    from longbench_sched.compare.comparison import Comparison
    from longbench_sched.compare.gate import Verdict

NULL = "-"  # a value that is not defined or not known
TIE = "\u00a0"  # between a number and its unit: no line breaks there; printed as a space


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table. Where a line is too narrow, columns with the highest `gives_way` are left out first; 0 stays."""

    title: str
    align: Literal["left", "right"] = "right"
    gives_way: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of ready cells under a title; a row has one cell a column."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    is_detail: bool = False  # for documents; too much for a terminal


@dataclass(frozen=True, slots=True)
class Line:
    """A labelled line; an empty label continues the one above."""

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Lines:
    """Labelled lines that belong together."""

    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the reader should doubt: what was seen, why it probably is so, what to do next."""

    id: str
    text: str
    cause: str
    next_step: str


@dataclass(frozen=True, slots=True)
class Page:
    """A report on one run or several, a comparison, or a verdict."""

    title: str
    is_simulated: bool
    head: tuple[Line, ...]
    blocks: tuple[Table | Lines, ...]
    notices: tuple[Notice, ...]
    files: tuple[Line, ...]  # what was written, label -> path; also in the last of the blocks
    summaries: Sequence[Summary]
    alarms: tuple[Notice, ...] = ()  # what the reader must know before any number; shown above the blocks
    comparison: Comparison | None = None  # at full precision, for formats that machines read
    verdict: Verdict | None = None
