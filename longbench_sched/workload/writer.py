"""Writers of single prompts: random token ids, ids cut from a tokenised text, text of an estimated length.

Text of an exact length is a longer story: see `fitted.py`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from longbench_sched.errors import PromptError
from longbench_sched.workload import exact
from longbench_sched.workload.roundtext import RoundText
from longbench_sched.workload.tokens import Tokenizer

Kind = Literal["measured", "warmup"]

FIRST_BLOCK = 16  # tokens: the smallest block that engines cache by default
_CORPUS_TOKENS = 1 << 18  # enough text for prompts to start at different places; longer prompts get more


@dataclass(frozen=True, slots=True)
class PromptKey:
    """What the content of every prompt of a plan depends on, beside kind, lane and index."""

    seed: int
    cell: str
    repeat: int


@dataclass(frozen=True, slots=True)
class Extent:
    """How much text prompts will be cut from: their number, the longest one and all together, in tokens."""

    n: int
    longest: int
    total: int

    @classmethod
    def of(cls, lengths: Sequence[int]) -> Extent:
        """The extent of prompts of these lengths."""
        return cls(len(lengths), max(lengths, default=0), sum(lengths))

    @property
    def text_tokens(self) -> int:
        """Tokens of text to prepare: all that is needed if that is little, else enough that each prompt has its own start."""
        starts = 4 * FIRST_BLOCK * self.n
        return min(max(self.total, starts, 1 << 12), max(_CORPUS_TOKENS, self.longest + (1 << 14), starts))


class PromptWriter(Protocol):
    """Writes one prompt."""

    def write(self, kind: Kind, lane: int, index: int, isl: int, prefix: int, attempt: int) -> tuple[array[int] | str, bytes]:
        """A prompt of `isl` tokens, of which all of the lane share the first `prefix`, and what its first block is known by."""
        ...


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

    def __init__(self, key: PromptKey, pieces: Iterator[str], extent: Extent, tokenizer: Tokenizer) -> None:
        self._key = key
        self._want = extent.text_tokens
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
            for piece in self._pieces:
                self._ids.extend(self._tokenizer.encode(piece, False))
                if len(self._ids) >= self._want:
                    break
            if not self._ids:
                raise PromptError("prompts: the text is empty. Give another one, or use prose.")
        return self._ids


class EstimateWriter:
    """Text of about the length asked for, where nothing can count its tokens."""

    def __init__(self, key: PromptKey, pieces: Iterator[str], extent: Extent, chars_per_token: float) -> None:
        self._key = key
        self._want = extent.text_tokens
        self._pieces = pieces
        self._chars_per_token = chars_per_token
        self._text: RoundText | None = None

    def write(self, kind: Kind, lane: int, index: int, isl: int, prefix: int, attempt: int) -> tuple[str, bytes]:
        """Cut by characters."""
        shared = self._cut(prefix, "prefix", lane) + "\n\n" if prefix else ""
        own = self._cut(isl - prefix, kind, lane, index, attempt)
        return shared + own, own[: 4 * FIRST_BLOCK].encode()

    def _cut(self, n_tokens: int, *purpose: object) -> str:
        if self._text is None:
            self._text = RoundText(self._pieces, round(self._want * self._chars_per_token))
        text = self._text
        start = text.start(exact.rng(self._key.seed, "cut", self._key.cell, self._key.repeat, *purpose).random())
        return text.between(
            start, max(text.end_after(start), text.end_at_or_before(start + round(n_tokens * self._chars_per_token)))
        )
