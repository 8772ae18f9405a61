"""Prompts of an exact length, no two of which begin alike.

A prompt goes out as token ids where the engine takes them: the length is then exact by construction, and the server adds
nothing. Otherwise it is text that is cut until the tokenizer counts exactly the length asked for, with the special tokens
that the server will add; in chat the content alone is exact, since the template is the server's. Decoding random ids is no way
to make text: encoded again it has another length.

What each prompt says depends on (seed, cell, repeat, kind, lane, index). The cell is the load itself, so that a sweep over
loads with one seed never sends a prompt twice, which a long-lived server would answer from its prefix cache.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from longbench_sched.errors import PromptError
from longbench_sched.workload import corpus
from longbench_sched.workload.fitted import TextWriter
from longbench_sched.workload.tokens import Tokenizer
from longbench_sched.workload.writer import (
    FIRST_BLOCK,
    CutWriter,
    EstimateWriter,
    Extent,
    IdWriter,
    Kind,
    PromptKey,
    PromptWriter,
)

PromptForm = Literal["ids", "text", "chat", "lengths"]

SOURCES = ("synthetic", "prose", "ids", "stdlib")  # synthetic: prose, or ids where nothing can count the tokens of prose
NO_PROMPT: array[int] = array("I")
_TRIES = 200


@dataclass(frozen=True, slots=True)
class PromptMaker:
    """How prompts are to be made for one engine.

    form: `ids` (the engine takes token ids), `text` (a plain prompt, to which the server adds its special tokens), `chat` (the
    content of a message, which the server wraps in its template), or `lengths` (prompts say nothing and are only counted, which
    is all that an engine made of arithmetic looks at).
    tokenizer_failure: why there is no tokenizer, if one was asked for.
    """

    form: PromptForm = "ids"
    tokenizer: Tokenizer | None = None
    tokenizer_failure: str | None = None


@dataclass(frozen=True, slots=True)
class PromptSource:
    """What is said about the prompts of a plan: where they came from and how their length is known."""

    name: str  # synthetic ids, synthetic prose, stdlib, lengths only, or the name of a file or folder
    isl_source: str  # ids, tokenizer, estimate
    notes: tuple[str, ...] = ()


class Prompts:
    """The prompts of one plan: each is asked for once, and none begins like another. Without writers all are empty."""

    def __init__(self, measured: PromptWriter | None, warmup: PromptWriter | None, source: PromptSource) -> None:
        self.source = source
        self._writers: dict[Kind, PromptWriter | None] = {"measured": measured, "warmup": warmup}
        self._seen: set[bytes] = set()

    def make(self, kind: Kind, lane: int, index: int, isl: int, prefix: int = 0) -> array[int] | str:
        """The prompt of one request. Raises PromptError if its first block cannot differ from all others."""
        writer = self._writers[kind]
        if writer is None:
            return NO_PROMPT
        for attempt in range(_TRIES):
            prompt, block = writer.write(kind, lane, index, isl, prefix, attempt)
            if block not in self._seen:
                self._seen.add(block)
                return prompt
        if isl - prefix < FIRST_BLOCK:  # so short a prompt has no block that could be cached
            return prompt
        raise PromptError(
            f"prompts: {self.source.name} is too short or too repetitive for {len(self._seen) + 1} prompts "
            "that begin differently. Give a longer text, or use prose."
        )


def open_prompts(
    maker: PromptMaker, source: str, id_range: tuple[int, int], key: PromptKey, *, measured: Extent, warmup: Extent
) -> Prompts:
    """Choose how to write the prompts of a plan: by what the engine takes, the text asked for and the tokenizer at hand."""
    if maker.form == "lengths":
        return Prompts(None, None, PromptSource("lengths only", "ids"))
    tokenizer = maker.tokenizer
    notes = [f"{maker.tokenizer_failure} Token counts are the server's."] if maker.tokenizer_failure else []
    if maker.form == "ids" and (source == "ids" or (source == "synthetic" and tokenizer is None)):
        ids = IdWriter(key, _usable_ids(id_range, tokenizer))
        return Prompts(ids, ids, PromptSource("synthetic ids", "ids", tuple(notes)))
    if source == "ids":
        notes.append("this API takes text, not token ids: the prompts are prose")
    if source in ("ids", "synthetic"):
        source = "prose"
    if tokenizer is None:
        notes.append("without a tokenizer the length of a text is only estimated; the server's counts are used")
    name = {"prose": "synthetic prose", "stdlib": "stdlib"}.get(source, Path(source).name)
    known_by = "estimate" if tokenizer is None else "ids" if maker.form == "ids" else "tokenizer"

    def writer(source: str, kind: Kind, extent: Extent) -> PromptWriter:
        text = _text(source, key, kind)
        if tokenizer is None:
            return EstimateWriter(key, text, extent, corpus.CHARS_PER_TOKEN.get(source, corpus.CHARS_PER_TOKEN_OF_FILES))
        if maker.form == "ids":
            return CutWriter(key, text, extent, tokenizer)
        return TextWriter(key, text, extent, tokenizer, special=maker.form == "text")

    # Warm-ups are never cut from the text that is measured: they would put it into the prefix cache.
    return Prompts(
        writer(source, "measured", measured),
        writer("prose", "warmup", warmup),
        PromptSource(name, known_by, tuple(notes)),
    )


def _usable_ids(id_range: tuple[int, int], tokenizer: Tokenizer | None) -> tuple[int, int]:
    """The range to draw from, inside the vocabulary if that is known to be smaller."""
    low, high = id_range
    size = tokenizer.vocab_size if tokenizer else None
    if size is None or size >= high:
        return low, high
    low = low if size - low >= FIRST_BLOCK else size // 2
    return low, size


def _text(source: str, key: PromptKey, kind: Kind) -> Iterator[str]:
    where = (key.cell, key.repeat, kind)
    if source == "prose":
        return corpus.prose(key.seed, *where)
    if source == "stdlib":
        return corpus.standard_library(key.seed, *where)
    path = Path(source)
    if not path.exists():
        raise PromptError(f"prompts: {source} does not exist. Give a text file, a folder, or one of {', '.join(SOURCES)}.")
    return corpus.files_text(path, key.seed, *where)
