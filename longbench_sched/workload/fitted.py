"""Text of an exact number of tokens: cut, counted, and mended at its end until the count is right."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import chain
from typing import Protocol

from longbench_sched.errors import PromptError
from longbench_sched.workload import exact
from longbench_sched.workload.roundtext import RoundText
from longbench_sched.workload.tokens import Tokenizer, special_count
from longbench_sched.workload.writer import FIRST_BLOCK, Extent, Kind, PromptKey

_FILLERS = (" a", " I", ".", ",", " x", ":", "!", " 1", "0", "?", "e", "-")


class _Count(Protocol):
    def __call__(self, to: int, more: str) -> int: ...


class TextWriter:
    """Text that the tokenizer counts at exactly the length asked for, special tokens included where the server adds them.

    A text is cut at a guess, and its length summed over the pieces it is made of, which are counted once for all prompts.
    What is missing is made up at its end, where a few hundred characters are enough to count with; then the whole is
    counted. Should the sum have been wrong (a token reached over where pieces meet), that is made up and counted again.
    Text begins and ends with a visible character, since chat templates trim.
    """

    def __init__(self, key: PromptKey, pieces: Iterator[str], extent: Extent, tokenizer: Tokenizer, *, special: bool) -> None:
        self._key = key
        self._want = extent.text_tokens
        self._pieces, self._tokenizer, self._special = pieces, tokenizer, special
        self._n_special = special_count(tokenizer) if special else 0
        self._text: RoundText | None = None
        self._chars_per_token = 1.0  # measured when the text is opened
        self._prefixes: dict[tuple[int, int], str] = {}
        self._piece_counts: dict[tuple[int, int], int] = {}

    def write(self, kind: Kind, lane: int, index: int, isl: int, prefix: int, attempt: int) -> tuple[str, bytes]:
        """Find a text of exactly `isl` tokens."""
        shared = self._prefix(lane, prefix) if prefix else ""
        if isl <= self._n_special + prefix:
            raise PromptError(
                f"prompts: {isl} tokens leave no room for text beside {self._n_special} special tokens"
                f"{f' and a shared prefix of {prefix}' if prefix else ''}. Give a larger isl."
            )
        text, ids = self._fit(isl, shared, self._special, kind, lane, index, attempt)
        own = ids[self._n_special + prefix :]
        return text, array("I", own[:FIRST_BLOCK]).tobytes()

    def _prefix(self, lane: int, n: int) -> str:
        if (lane, n) not in self._prefixes:
            self._prefixes[lane, n] = self._fit(n, "", False, "prefix", lane)[0]
        return self._prefixes[lane, n] + "\n"

    def _fit(self, isl: int, lead: str, special: bool, *purpose: object) -> tuple[str, list[int]]:
        text = self._filled()
        start = text.start(exact.rng(self._key.seed, "cut", self._key.cell, self._key.repeat, *purpose).random())
        n_lead = len(self._tokenizer.encode(lead, False)) if lead else 0
        end = max(start, text.end_at_or_before(start + round((isl - self._n_special - n_lead) * self._chars_per_token)))
        filler = "" if end > start else "a"
        summed = (self._n_special if special else 0) + n_lead + self._sum(start, end)
        end, filler = self._make_up(start, end, filler, isl - summed) or (end, filler)
        for _ in range(12):
            whole = lead + text.between(start, end) + filler
            ids = self._tokenizer.encode(whole, special)
            if len(ids) == isl:
                return whole, ids
            reached = self._make_up(start, end, filler, isl - len(ids))
            if reached is None:
                break
            end, filler = reached
        raise PromptError(
            f"prompts: no text of exactly {isl} tokens was found with the tokenizer {self._tokenizer.name}. "
            "Send token ids, or use another text."
        )

    def _sum(self, start: int, end: int) -> int:
        text = self._filled()
        total = 0
        for cut in text.pieces_between(start, end):
            if cut not in self._piece_counts:
                self._piece_counts[cut] = len(self._tokenizer.encode(text.between(*cut), False))
            total += self._piece_counts[cut]
        return total

    def _make_up(self, start: int, end: int, filler: str, missing: int) -> tuple[int, str] | None:
        """Another end, and letters to add there, with which the end of the text counts `missing` tokens more (or fewer)."""
        text = self._filled()
        jump = round(missing * self._chars_per_token)
        anchor = text.word_start(max(start, text.end_at_or_before(max(start, end + min(0, 2 * jump) - 400))))

        def count(to: int, more: str) -> int:
            return len(self._tokenizer.encode(text.between(anchor, to) + more, False))

        goal = count(end, filler) + missing
        at = max(anchor, text.end_at_or_before(max(start, end + jump)))
        for _ in range(8):  # words of code and of prose differ in length: come near before going word by word
            far = goal - count(at, "")
            if abs(far) < 8:
                break
            at = max(anchor, text.end_at_or_before(max(start, at + round(far * self._chars_per_token))))
        while at > anchor and count(at, "") > goal:
            at = max(anchor, text.end_at_or_before(at - 1))
        while (further := count(text.end_after(at), "")) <= goal:
            at = text.end_after(at)
            if further == goal:
                return at, ""
        return self._pad(count, at, anchor, goal)

    def _pad(self, count: _Count, at: int, anchor: int, goal: int) -> tuple[int, str] | None:
        """Add single letters at the end until the goal is met; where none fits, one word less."""
        text = self._filled()
        for _ in range(4):
            more, have = "", count(at, "")
            while have < goal:
                fits = ((have_with, f) for f in _FILLERS if have < (have_with := count(at, more + f)) <= goal)
                have, letter = next(fits, (have, ""))
                if not letter:
                    break
                more += letter if at > anchor or more else letter.strip()
            if have == goal:
                return at, more
            at = max(anchor, text.end_at_or_before(at - 1))
        return None

    def _filled(self) -> RoundText:
        if self._text is None:
            first = [piece for piece, _ in zip(self._pieces, range(8), strict=False)]
            n_tokens = sum(len(self._tokenizer.encode(piece, False)) for piece in first)
            self._chars_per_token = sum(map(len, first)) / max(1, n_tokens)
            self._text = RoundText(chain(first, self._pieces), round(self._want * self._chars_per_token))
        return self._text
