"""Page -> Markdown (GitHub's flavour), for issues, pull requests and notebooks.

Every text is escaped, ours as well as a server's: no pipe ends a cell, no backtick, link or tag does anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote

from longbench_sched.report.layout import TIE, Line, Lines, Notice, Page, Table

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|~#&$!@])")
_URL = re.compile(r"(?i)\b(https?|ftp|mailto|www)([:.])")
_STARTS_SOMETHING = re.compile(r"^(\s*\d*)([-+.)](?=\s|$)|[-=](?=[-=\s]*$))")  # a list, a rule, an underline


def render(page: Page, pictures: Sequence[tuple[str, str]] = ()) -> str:
    """The whole page, details included, with pictures (caption, file name) at its end."""
    parts = [f"# {escape(page.title)}"]
    if page.head:
        parts.append(_lines(page.head))
    parts += [_notice(alarm) for alarm in page.alarms]
    parts += [_lines(block.lines) if isinstance(block, Lines) else _table(block) for block in page.blocks]
    parts += [_notice(notice) for notice in page.notices]
    parts += [f"![{escape(caption)}](<{quote(name)}>)" for caption, name in pictures]
    return "\n\n".join(parts).replace(TIE, " ") + "\n"


def _notice(notice: Notice) -> str:
    advice = " ".join(escape(part) for part in (notice.cause, notice.next_step) if part)
    return f"> **Warning {escape(notice.id)}:** {escape(notice.text)}" + (f"  \n> {advice}" if advice else "")


def escape(text: str) -> str:
    """The text as Markdown shows it literally, within a line."""
    return _URL.sub(r"\1\\\2", _SPECIAL.sub(r"\\\1", text))  # a bare address would become a link


def _escape_line(text: str) -> str:
    """The text as Markdown shows it literally where it begins a line: no list, no rule."""
    return _STARTS_SOMETHING.sub(lambda match: f"{match[1]}\\{match[2]}", escape(text))


def _lines(lines: Sequence[Line]) -> str:
    """A list; lines without a label continue the item above."""
    texts: list[str] = []
    for line in lines:
        if line.label or not texts:
            texts.append(f"- **{escape(line.label)}**: {escape(line.text)}" if line.label else f"- {_escape_line(line.text)}")
        else:
            texts[-1] += f"  \n  {_escape_line(line.text)}"
    return "\n".join(texts)


def _table(table: Table) -> str:
    heading = _row([column.title for column in table.columns])
    rule = "|" + "|".join("---" if column.align == "left" else "--:" for column in table.columns) + "|"
    rows = [_row(row) for row in table.rows]
    notes = [_escape_line(note) for note in table.notes]
    text = "\n".join([f"### {escape(table.title)}", "", heading, rule, *rows])
    return "\n\n".join([text, *notes])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(escape(cell) for cell in cells) + " |"
