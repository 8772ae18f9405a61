r"""Words of a server made harmless before anyone sees them.

Model names, versions, finish reasons and error texts come from outside. Shown raw they could colour a terminal, move its
cursor, turn the direction of a line or add lines of their own. What does that is written out (`\x1b`, `\u202e`); the stored run
keeps the original.
"""

from __future__ import annotations

import unicodedata

# Control, format (bidi overrides, zero width), surrogate, private, unassigned; line and paragraph separators.
_UNSHOWN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
ELLIPSIS = "…"


def clean(text: object, limit: int = 120) -> str:
    """One line of at most `limit` characters, in which nothing acts on the reader's screen."""
    words = " ".join(str(text)[: 4 * limit].split())
    shown = "".join(_shown(character) for character in words)
    return shown if len(shown) <= limit and len(str(text)) <= 4 * limit else shown[: limit - 1].rstrip() + ELLIPSIS


def width(text: str) -> int:
    """How many columns of a terminal a cleaned text takes: East Asian wide characters take two, combining marks none."""
    return sum(_width(character) for character in text)


def _shown(character: str) -> str:
    if unicodedata.category(character) not in _UNSHOWN:
        return character
    code = ord(character)
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return f"\\u{code:04x}" if code > 0xFF else f"\\x{code:02x}"


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
