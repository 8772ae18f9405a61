"""Page -> text for a terminal: 80 columns, colour only where it is wanted.

Lines are wrapped at words with a hanging indent; a table that is too wide leaves out the columns that give way.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence

from longbench_sched.report.layout import TIE, Column, Line, Lines, Notice, Page, Table
from longbench_sched.report.untrusted import width

COLUMNS = 80

_INDENT = "  "
_GAP = "  "
_MAX_LABEL = 24
_NUMBER_AND_UNIT = re.compile(r"(?<=\d) (?=(?:%|[mu]?s|tok/s|MB)(?:\W|$))")
_BOLD, _DIM, _YELLOW, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[33m", "\x1b[0m"


_Paint = Callable[[str, str], str]


def render(page: Page, *, columns: int = COLUMNS, colour: bool = False) -> str:
    """The page as text of at most `columns` columns, but for a path that is longer; escape codes only with `colour`."""
    paint = _paint if colour else _leave
    parts: list[list[str]] = []
    if page.is_simulated or len(page.summaries) != 1:
        parts.append([paint(line, _BOLD) for line in _wrap(page.title, columns)])
    parts.append(_labelled(page.head, "", columns))
    parts += [_notice(alarm, columns, paint) for alarm in page.alarms]
    for block in page.blocks:
        match block:
            case Lines():
                parts.append(_labelled(block.lines, _INDENT, columns))
            case Table() if not block.is_detail:
                title, *rest = _table(block, columns)
                parts.append([paint(title, _BOLD), *rest])
    parts += [_notice(notice, columns, paint) for notice in page.notices]
    return "\n\n".join("\n".join(part) for part in parts if part).replace(TIE, " ") + "\n"


def _labelled(lines: Sequence[Line], indent: str, columns: int) -> list[str]:
    label_width = min(_MAX_LABEL, max((width(line.label) for line in lines), default=0))
    texts: list[str] = []
    for line in lines:
        hang = indent + " " * label_width + _GAP
        if width(line.label) > label_width:
            texts.append((indent + line.label)[:columns])
            start = hang
        else:
            start = indent + _pad(line.label, label_width, "left") + _GAP
        texts += _wrap(line.text, columns, start, hang)
    return [text.rstrip() for text in texts]


def _table(table: Table, columns: int) -> list[str]:
    shown = list(range(len(table.columns)))
    widths = [max([width(column.title), *(width(row[i]) for row in table.rows)]) for i, column in enumerate(table.columns)]
    while _total(shown, widths) > columns and any(table.columns[i].gives_way for i in shown):
        shown.remove(max(shown, key=lambda i: table.columns[i].gives_way))
    heading = [column.title for column in table.columns]
    rows = [
        _row(cells, table.columns, shown, widths)
        for cells in ([heading] if any(heading) else []) + [list(r) for r in table.rows]
    ]
    notes = [text for note in table.notes for text in _wrap(note, columns, _INDENT, _INDENT)]
    return [*_wrap(table.title, columns), *rows, *notes]


def _wrap(text: str, columns: int, first: str = "", rest: str = "") -> list[str]:
    """Lines of at most `columns`, broken at spaces but never between a number and its unit.

    A text of one word is most often a path, there to be copied: it stays whole, and the terminal folds it.
    """
    tied = _NUMBER_AND_UNIT.sub(TIE, text)
    is_whole = " " not in text
    return textwrap.wrap(
        tied,
        columns,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
        break_long_words=not is_whole,
    )


def _total(shown: Sequence[int], widths: Sequence[int]) -> int:
    return len(_INDENT) + sum(widths[i] for i in shown) + len(_GAP) * (len(shown) - 1)


def _row(cells: Sequence[str], columns: Sequence[Column], shown: Sequence[int], widths: Sequence[int]) -> str:
    return (_INDENT + _GAP.join(_pad(cells[i], widths[i], columns[i].align) for i in shown)).rstrip()


def _pad(text: str, to: int, align: str) -> str:
    space = " " * max(0, to - width(text))
    return text + space if align == "left" else space + text


def _notice(notice: Notice, columns: int, paint: _Paint) -> list[str]:
    first = _wrap(f"Warning {notice.id}: {notice.text}", columns, _INDENT, 2 * _INDENT)
    advice = " ".join(part for part in (notice.cause, notice.next_step) if part)
    return [paint(line, _YELLOW) for line in first] + _wrap(advice, columns, 2 * _INDENT, 2 * _INDENT)


def _paint(text: str, code: str) -> str:
    return f"{code}{text}{_PLAIN}"


def _leave(text: str, code: str) -> str:
    return text
