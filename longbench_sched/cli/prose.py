"""Sentences for a terminal: folded between words, while what is there to be copied stays in one piece.

A command in backticks, a quoted word, a path and a flag with its value are never broken, even where they are wider than the
terminal: half a path is of no use to anybody.
"""

from __future__ import annotations

import re
import textwrap

_HANG = "  "
_TIE = "\ue000"  # stands for a space that holds two words together
_PIECE = re.compile(r"`[^`\n]+`|(?<!\w)'[^'\n]+'(?!\w)|(?<!\S)--[a-z][\w-]* (?!--)\S+")


def fold(text: str, columns: int) -> str:
    """The text with no line wider than `columns`, but for a piece that is wider by itself; each line hangs under its first."""
    return "\n".join(part for line in text.splitlines() for part in _fold_line(line, columns))


def _fold_line(line: str, columns: int) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())]
    tied = _PIECE.sub(lambda piece: piece[0].replace(" ", _TIE), line.strip())
    folded = textwrap.wrap(
        tied,
        columns,
        initial_indent=indent,
        subsequent_indent=indent or _HANG,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [part.replace(_TIE, " ") for part in folded] or [""]
