"""A text without an end, and the places where it may be cut."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from longbench_sched.errors import PromptError
from longbench_sched.workload import corpus

_PIECE = re.compile(r"\s*\S{1,16}")


class RoundText:
    """A text without an end: after its last character it begins again. Positions count on through the rounds.

    It may be cut at the ends of words (of 16 characters, where words are longer or there is no space at all).
    """

    def __init__(self, pieces: Iterator[str], n_chars: int) -> None:
        parts, size = [], 0
        for piece in pieces:
            parts.append(piece)
            size += len(piece)
            if size >= n_chars:
                break
        self._text = "".join(parts)
        self._ends = [m.end() for m in _PIECE.finditer(self._text)]
        if not self._ends:
            raise PromptError("prompts: the text is empty. Give another one, or use prose.")
        # At the ends of words, since no tokenizer in use joins a word to the space that follows it.
        marks = range(0, self._ends[-1], corpus.PIECE_CHARS)
        self._borders = sorted({self._ends[bisect_left(self._ends, at)] for at in marks})
        self._borders.append(len(self._text))

    def start(self, share: float) -> int:
        """The first character of a word, at about this share of the text."""
        return self.word_start(0 if share == 0 else self._ends[int(share * len(self._ends)) - 1])

    def word_start(self, at: int) -> int:
        """The first character that is no space, from `at` on."""
        while self._text[at % len(self._text)].isspace():
            at += 1
        return at

    def end_at_or_before(self, at: int) -> int:
        """The last place at or before `at` where the text may be cut."""
        lap, inner = divmod(at, len(self._text))
        i = bisect_right(self._ends, inner) - 1
        return lap * len(self._text) + self._ends[i] if i >= 0 else (lap - 1) * len(self._text) + self._ends[-1]

    def end_after(self, at: int) -> int:
        """The first place after `at` where the text may be cut."""
        lap, inner = divmod(at, len(self._text))
        i = bisect_left(self._ends, inner + 1)
        return lap * len(self._text) + self._ends[i] if i < len(self._ends) else (lap + 1) * len(self._text) + self._ends[0]

    def pieces_between(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The stretch from one position to another in pieces, of which prompts that overlap share all but the outer ones."""
        n = len(self._text)
        while start < end:
            lap, inner = divmod(start, n)
            stop = min(end, lap * n + self._borders[bisect_right(self._borders, inner)])
            yield start, stop
            start = stop

    def between(self, start: int, end: int) -> str:
        """The text from one position to another."""
        n = len(self._text)
        first, last = start // n, max(end - 1, start) // n
        if first == last:
            return self._text[start - first * n : end - first * n]
        middle = self._text * (last - first - 1)
        return self._text[start - first * n :] + middle + self._text[: end - last * n]
