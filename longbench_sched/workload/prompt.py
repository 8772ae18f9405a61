"""Prompts of an exact length, no two of which begin alike.

A prompt goes out as token ids where the engine takes them: the length is then exact by construction, and the server adds
nothing. Otherwise it is text that is cut until the tokenizer counts exactly the length asked for, with the special tokens
that the server will add; in chat the content alone is exact, since the template is the server's. Text that comes from
decoding random ids is not
used: encoded again it has another length.

What each prompt says depends on (seed, cell, repeat, kind, lane, index). The cell is the load itself, so that a sweep over
loads with one seed never sends a prompt twice, which a long-lived server would answer from its prefix cache.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, Protocol

from longbench_sched.errors import PromptError
from longbench_sched.workload import corpus, exact
from longbench_sched.workload.tokens import Tokenizer, special_count

PromptForm = Literal["ids", "text", "chat"]
Kind = Literal["measured", "warmup"]

SOURCES = ("synthetic", "prose", "ids", "stdlib")  # synthetic: prose, or ids where nothing can count the tokens of prose
FIRST_BLOCK = 16  # tokens: the smallest block that engines cache by default
CHARS_PER_TOKEN = 4.6  # of the generated prose, for lengths that can only be estimated
_TRIES = 200
_CORPUS_TOKENS = 1 << 18  # enough text for prompts to start at different places; longer prompts get more
_PIECE = re.compile(r"\s*\S{1,16}")
_FILLERS = (" a", " I", ".", ",", " x", ":", "!", " 1", "0", "?", "e", "-")


@dataclass(frozen=True, slots=True)
class PromptMaker:
    """How prompts are to be made for one engine.

    form: `ids` (the engine takes token ids), `text` (a plain prompt: the server adds its special tokens), or `chat` (a
    message's
    content: the server wraps it in its template).
    tokenizer_failure: why there is no tokenizer, if one was asked for.
    """

    form: PromptForm = "ids"
    tokenizer: Tokenizer | None = None
    tokenizer_failure: str | None = None


@dataclass(frozen=True, slots=True)
class PromptKey:
    """What the content of every prompt of a plan depends on, and how long the prompts get."""

    seed: int
    cell: str
    repeat: int
    n: int  # prompts in the plan
    longest: int  # tokens of the longest one
    total: int  # tokens of all


@dataclass(frozen=True, slots=True)
class PromptSource:
    """What is said about the prompts of a plan: where they came from and how their length is known."""

    name: str  # synthetic ids, synthetic prose, stdlib, or the name of a file or folder
    isl_source: str  # ids, tokenizer, estimate
    notes: tuple[str, ...] = ()


class PromptWriter(Protocol):
    """Writes one prompt."""

    def write(self, kind: Kind, lane: int, index: int, isl: int, prefix: int, attempt: int) -> tuple[array[int] | str, bytes]:
        """A prompt of `isl` tokens, of which all of the lane share the first `prefix`, and what its first block is known by."""
        ...


class Prompts:
    """The prompts of one plan: each is asked for once, and none begins like another."""

    def __init__(self, measured: PromptWriter, warmup: PromptWriter, source: PromptSource) -> None:
        self.source = source
        self._writers: dict[Kind, PromptWriter] = {"measured": measured, "warmup": warmup}
        self._seen: set[bytes] = set()

    def make(self, kind: Kind, lane: int, index: int, isl: int, prefix: int = 0) -> array[int] | str:
        """The prompt of one request. Raises PromptError if its first block cannot differ from all others."""
        for attempt in range(_TRIES):
            prompt, block = self._writers[kind].write(kind, lane, index, isl, prefix, attempt)
            if block not in self._seen:
                self._seen.add(block)
                return prompt
        if isl - prefix < FIRST_BLOCK:  # so short a prompt has no block that could be cached
            return prompt
        raise PromptError(
            f"prompts: {self.source.name} is too short or too repetitive for {len(self._seen) + 1} prompts "
            "that begin differently. Give a longer text, or use prose."
        )


def open_prompts(maker: PromptMaker, source: str, id_range: tuple[int, int], key: PromptKey) -> Prompts:
    """Choose how to write the prompts of a plan: by what the engine takes, the text asked for and the tokenizer at hand."""
    tokenizer = maker.tokenizer
    notes = [f"{maker.tokenizer_failure} Prompt lengths are taken from the server's counts."] if maker.tokenizer_failure else []
    if maker.form == "ids" and (source == "ids" or (source == "synthetic" and tokenizer is None)):
        ids = IdWriter(key, _usable_ids(id_range, tokenizer))
        return Prompts(ids, ids, PromptSource("synthetic ids", "ids", tuple(notes)))
    if source == "ids":
        notes.append("this API takes text, not token ids: the prompts are prose")
    if source in ("ids", "synthetic"):
        source = "prose"
    name = {"prose": "synthetic prose", "stdlib": "stdlib"}.get(source, Path(source).name)
    # Warm-ups are never cut from the text that is measured: they would put it into the prefix cache.
    measured, warmup = (_text(s, key, kind) for s, kind in ((source, "measured"), ("prose", "warmup")))
    if tokenizer is None:
        notes.append("without a tokenizer the length of a text is only estimated; the server's counts are used")
        return Prompts(EstimateWriter(key, measured), EstimateWriter(key, warmup), PromptSource(name, "estimate", tuple(notes)))
    if maker.form == "ids":
        return Prompts(
            CutWriter(key, measured, tokenizer), CutWriter(key, warmup, tokenizer), PromptSource(name, "ids", tuple(notes))
        )
    special = maker.form == "text"
    return Prompts(
        TextWriter(key, measured, tokenizer, special),
        TextWriter(key, warmup, tokenizer, special),
        PromptSource(name, "tokenizer", tuple(notes)),
    )


def _usable_ids(id_range: tuple[int, int], tokenizer: Tokenizer | None) -> tuple[int, int]:
    """The range to draw from, inside the vocabulary if that is known to be smaller."""
    low, high = id_range
    size = tokenizer.vocab_size if tokenizer else None
    if size is None or size >= high:
        return low, high
    low = low if size - low >= FIRST_BLOCK else size // 2
    return low, size


def _text(source: str, key: PromptKey, kind: str) -> Iterator[str]:
    where = (key.cell, key.repeat, kind)
    if source == "prose":
        return corpus.prose(key.seed, *where)
    if source == "stdlib":
        return corpus.standard_library(key.seed, *where)
    path = Path(source)
    if not path.exists():
        raise PromptError(f"prompts: {source} does not exist. Give a text file, a folder, or one of {', '.join(SOURCES)}.")
    return corpus.files_text(path, key.seed, *where)


class IdWriter:
    """Token ids drawn at random from [low, high). Needs no tokenizer.

    The default range, 1000..7999, lies inside every vocabulary in use and above the places where vocabularies keep their
    special and control tokens (ids 0 to 999 in Mistral's Tekken, below 260 in Llama 2 and Gemma; Qwen, Llama 3 and DeepSeek
    keep theirs at the end, above 100,000).
    """

    def __init__(self, key: PromptKey, id_range: tuple[int, int]) -> None:
        self._key = key
        self._low, high = id_range
        self._span = high - self._low

    def write(self, kind: Kind, lane: int, index: int, isl: int, prefix: int, attempt: int) -> tuple[array[int], bytes]:
        """Draw the shared part and the own part."""
        prompt = self._draw(prefix, "prefix", lane)
        prompt.extend(self._draw(isl - prefix, kind, lane, index, attempt))
        return prompt, prompt[prefix : prefix + FIRST_BLOCK].tobytes()

    def _draw(self, n: int, *purpose: object) -> array[int]:
        import numpy as np

        key = self._key
        raw = exact.random_bytes(4 * n, key.seed, "ids", key.cell, key.repeat, *purpose)
        words = np.frombuffer(raw, dtype="<u4").astype(np.uint64)
        ids = (words * np.uint64(self._span) >> np.uint64(32)) + np.uint64(self._low)
        return array("I", ids.astype(np.uint32).tobytes())


class CutWriter:
    """Token ids cut out of a tokenised text, each prompt from a place of its own; a short text is gone round again."""

    def __init__(self, key: PromptKey, pieces: Iterator[str], tokenizer: Tokenizer) -> None:
        self._key = key
        self._pieces, self._tokenizer = pieces, tokenizer
        self._ids: array[int] = array("I")

    def write(self, kind: Kind, lane: int, index: int, isl: int, prefix: int, attempt: int) -> tuple[array[int], bytes]:
        """Cut the shared part and the own part."""
        prompt = self._cut(prefix, "prefix", lane)
        prompt.extend(self._cut(isl - prefix, kind, lane, index, attempt))
        return prompt, prompt[prefix : prefix + FIRST_BLOCK].tobytes()

    def _cut(self, n: int, *purpose: object) -> array[int]:
        if not n:
            return array("I")
        ids = self._filled()
        start = int(exact.rng(self._key.seed, "cut", self._key.cell, self._key.repeat, *purpose).random() * len(ids))
        out = ids[start : start + n]
        while len(out) < n:
            out.extend(ids[: n - len(out)])
        return out

    def _filled(self) -> array[int]:
        if not self._ids:
            want = _wanted_tokens(self._key)
            for piece in self._pieces:
                self._ids.extend(self._tokenizer.encode(piece, False))
                if len(self._ids) >= want:
                    break
            if not self._ids:
                raise PromptError("prompts: the text is empty. Give another one, or use prose.")
        return self._ids


def _wanted_tokens(key: PromptKey) -> int:
    """Tokens of text to prepare: all that is needed if that is little, else enough to start every prompt at its own place."""
    starts = 4 * FIRST_BLOCK * key.n
    return min(max(key.total, starts, 1 << 12), max(_CORPUS_TOKENS, key.longest + (1 << 14), starts))


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


class EstimateWriter:
    """Text of about the length asked for, where nothing can count its tokens."""

    def __init__(self, key: PromptKey, pieces: Iterator[str]) -> None:
        self._key = key
        self._pieces = pieces
        self._text: RoundText | None = None

    def write(self, kind: Kind, lane: int, index: int, isl: int, prefix: int, attempt: int) -> tuple[str, bytes]:
        """Cut by characters."""
        shared = self._cut(prefix, "prefix", lane) + "\n\n" if prefix else ""
        own = self._cut(isl - prefix, kind, lane, index, attempt)
        return shared + own, own[: 4 * FIRST_BLOCK].encode()

    def _cut(self, n_tokens: int, *purpose: object) -> str:
        if self._text is None:
            self._text = RoundText(self._pieces, round(_wanted_tokens(self._key) * CHARS_PER_TOKEN))
        text = self._text
        start = text.start(exact.rng(self._key.seed, "cut", self._key.cell, self._key.repeat, *purpose).random())
        return text.between(start, max(text.end_after(start), text.end_at_or_before(start + round(n_tokens * CHARS_PER_TOKEN))))


class TextWriter:
    """Text that the tokenizer counts at exactly the length asked for, special tokens included where the server adds them.

    A text is cut at a guess, and its length summed over the pieces it is made of, which are counted once for all prompts.
    What is missing is made up at its end, where a few hundred characters are enough to count with; then the whole is
    counted. Should the sum have been wrong (a token reached over where pieces meet), that is made up and counted again.
    Text begins and ends with a visible character, since chat templates trim.
    """

    def __init__(self, key: PromptKey, pieces: Iterator[str], tokenizer: Tokenizer, special: bool) -> None:
        self._key = key
        self._pieces, self._tokenizer, self._special = pieces, tokenizer, special
        self._n_special = special_count(tokenizer) if special else 0
        self._text: RoundText | None = None
        self._chars_per_token = CHARS_PER_TOKEN
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
            self._text = RoundText(chain(first, self._pieces), round(_wanted_tokens(self._key) * self._chars_per_token))
        return self._text


class _Count(Protocol):
    def __call__(self, to: int, more: str) -> int: ...
