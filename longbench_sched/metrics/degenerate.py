"""Degenerate output: answers that only repeat themselves, from the text that was kept.

A model that is fed random prompts may fall into a loop of a few tokens. Such text flatters speculative decoding (each draft is
right) and prefix caches, and says nothing about real answers. The server's tokens are not in the text, so it is cut into words
and signs; a text without spaces is cut into characters. It is degenerate if nearly all of its 4-grams occurred before in it.
"""

from __future__ import annotations

import re
from typing import Any

from longbench_sched.metrics.columns import Columns

GRAM = 4
MAX_REPEATED = 0.8  # share of 4-grams that occurred before; prose has some hundredths, tables and code up to a half
MIN_PIECES = 50  # a shorter text may repeat itself for good reasons

_PIECES = re.compile(r"\w+|[^\w\s]")


def find_degenerate(columns: Columns) -> dict[str, Any] | None:
    """What `Summary.facts` says under `degenerate`; None if no text was kept."""
    texts = columns.texts("text")
    kept = [row for row in columns.due_order.tolist() if columns.ok[row] and texts[row]]
    if not kept:
        return None
    found: list[tuple[int, list[str], float]] = []
    n_judged = 0
    for row in kept:
        pieces = cut(texts[row] or "")
        if len(pieces) >= MIN_PIECES:
            n_judged += 1
            if (share := repeated_share(pieces)) > MAX_REPEATED:
                found.append((row, pieces, share))
    sample = None
    if found:
        row, pieces, share = max(found, key=lambda one: one[2])
        sample = {
            "request_id": columns.texts("request_id")[row],
            "n_distinct": len(set(pieces)),
            "n": len(pieces),
            "repeated_share": share,
        }
    return {"n_texts": len(kept), "n_judged": n_judged, "n_degenerate": len(found), "worst": sample}


def cut(text: str) -> list[str]:
    """Words and signs; single characters where there are hardly any spaces (Chinese, Japanese, base64)."""
    pieces = _PIECES.findall(text)
    return pieces if len(text) < 20 * max(1, len(pieces)) else [character for character in text if not character.isspace()]


def repeated_share(pieces: list[str]) -> float:
    """Share of 4-grams that occurred before in the same text; 0 if there are none."""
    grams = list(zip(*(pieces[shift:] for shift in range(GRAM)), strict=False))
    return 1 - len(set(grams)) / len(grams) if grams else 0.0
