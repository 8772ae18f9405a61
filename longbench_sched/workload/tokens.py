"""Tokenizers: what counts the tokens of a text as the server will.

Two kinds share one Protocol: a local `tokenizer.json` (here), and a server's own `/tokenize` (made by `load/probe.py` and
handed in). A local tokenizer is read from disk and nothing else: no model hub is asked, so it works with the network
blocked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from longbench_sched.errors import PromptError


class Tokenizer(Protocol):
    """Text to token ids and back."""

    @property
    def name(self) -> str:
        """What the record calls it; never a path."""
        ...

    @property
    def vocab_size(self) -> int | None:
        """Number of ids, if known."""
        ...

    def encode(self, text: str, special: bool) -> list[int]:
        """The ids of a text; with `special`, those that a server adds around a plain prompt (BOS) too."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens kept."""
        ...


class LocalTokenizer:
    """A `tokenizer.json`, given by its path or its folder's. Raises PromptError that names the path and the cause."""

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            where = f"{path} has no tokenizer.json" if path.is_dir() else f"{path} is no file or folder"
            raise PromptError(f"tokenizer: {where}. Give a model folder with a tokenizer.json, or that file.")
        self._inner = _load(file)
        self._name = f"{file.resolve().parent.name} {hashlib.sha256(file.read_bytes()).hexdigest()[:8]}"

    @property
    def name(self) -> str:
        """The model folder's name and the first digits of the file's sha256."""
        return self._name

    @property
    def vocab_size(self) -> int | None:
        """Number of ids, added tokens included."""
        return int(self._inner.get_vocab_size())

    def encode(self, text: str, special: bool) -> list[int]:
        """The ids of a text."""
        return list(self._inner.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        return str(self._inner.decode(list(ids), skip_special_tokens=False))


def _load(file: Path) -> Any:
    try:
        from tokenizers import Tokenizer as Inner
    except ImportError:
        raise PromptError(
            f"tokenizer: {file.parent} cannot be read without the tokenizers package. Install longbench-sched[tokenizers]."
        ) from None
    try:
        inner = Inner.from_file(str(file))
    except Exception as error:  # the library raises plain Exception for any file it cannot read
        raise PromptError(
            f"tokenizer: {file.parent} cannot be loaded ({_first_line(error)}). Give another --tokenizer."
        ) from None
    # A file may ask for truncation or padding, which suits training; here both would falsify every count.
    inner.no_truncation()
    inner.no_padding()
    return inner


def open_tokenizer(path: str | Path) -> tuple[LocalTokenizer | None, str | None]:
    """The tokenizer, or None and the reason: a run can go on with the server's counts."""
    try:
        return LocalTokenizer(path), None
    except PromptError as error:
        return None, str(error)


def special_count(tokenizer: Tokenizer) -> int:
    """How many special tokens a server adds to a plain prompt: usually 1 (BOS) or 0."""
    return len(tokenizer.encode("a", True)) - len(tokenizer.encode("a", False))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
