"""Texts that prompts are cut from: generated prose, the running Python's own sources, or files of the user.

Generated prose is the default: it needs no file, tokenises like English, and repeats nowhere, so that no prefix cache and
no n-gram speculation finds what a real document would not offer. Python's standard library is real code that every machine
has. All come in pieces of a few thousand characters, in an order that depends on the seed.
"""

from __future__ import annotations

import os
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from longbench_sched.errors import PromptError
from longbench_sched.workload import exact

PIECE_CHARS = 4000
MAX_FILE_BYTES = 64 << 20

# For lengths that can only be estimated: measured with a byte-level BPE of 65,000 entries for English and code, 2026-11-30.
CHARS_PER_TOKEN = {"prose": 5.5, "stdlib": 4.5}
CHARS_PER_TOKEN_OF_FILES = 4.5


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_NOUNS = _words(
    "harbour river archive engine letter garden window bridge market journey valley lantern orchard signal station "
    "ledger kitchen mountain forest museum teacher captain merchant painter doctor farmer council village sailor "
    "cabinet machine pattern question answer argument proposal contract treaty report survey measurement experiment "
    "theory instrument telescope compass calendar notebook manuscript dictionary library theatre concert melody "
    "season winter summer morning evening shadow colour surface current pressure temperature weather storm island "
    "coast desert meadow quarry tunnel railway platform carriage ticket passenger neighbour stranger child family "
    "household company factory workshop warehouse cargo timber copper silver glass paper cotton leather barrel "
    "bottle basket blanket candle mirror curtain staircase corridor chamber tower gate wall roof floor field fence "
    "harvest grain bread butter honey pepper kettle supper festival ceremony election parliament minister clerk "
    "judge"
)
_COUNTED = _words(
    "rivers engines letters gardens windows bridges markets lanterns orchards signals stations ledgers kitchens mountains "
    "forests teachers captains merchants painters farmers villages sailors cabinets machines patterns questions proposals "
    "contracts reports surveys instruments telescopes notebooks manuscripts libraries concerts islands tunnels carriages "
    "tickets passengers neighbours strangers children families companies factories barrels bottles baskets blankets candles"
)
_VERBS = _words(
    "carried described measured repaired followed crossed visited opened closed painted counted copied examined "
    "delivered remembered forgot questioned answered promised refused accepted collected arranged divided restored "
    "replaced admired ignored defended criticised explained recorded discovered abandoned inherited borrowed "
    "returned exchanged gathered sheltered warned surrounded approached observed compared translated published "
    "corrected simplified imagined preferred watched"
)
_ADJECTIVES = _words(
    "old quiet narrow distant careful broken heavy early patient ordinary remarkable uncertain northern southern "
    "wooden iron crowded empty bright pale hollow generous stubborn curious famous forgotten foreign local modest "
    "enormous delicate rough ancient recent gradual sudden peculiar familiar invisible temporary permanent "
    "reluctant cheerful solemn weary practical expensive worthless precise doubtful"
)
_ADVERBS = _words(
    "slowly carefully rarely often quietly suddenly gradually usually almost nearly already eventually twice "
    "reluctantly openly secretly partly entirely elsewhere afterwards"
)
_PLACES = _words("beyond beside above below behind near inside outside opposite across along around")
_LINKS = _words("because although while until unless whenever since before after as though so that whereas wherever once")
_OPENINGS = (
    "In the end,",
    "At first,",
    "By then,",
    "Some years later,",
    "According to the report,",
    "For that reason,",
    "On the other hand,",
    "Most of all,",
    "As a rule,",
    "In those days,",
    "Without warning,",
    "To nobody's surprise,",
    "Before long,",
    "In practice,",
)
_SYLLABLES = _words(
    "al an ar bel ber bor cal car dan del dor el en fal far gan gor hal han il in jor kal kor lan lor mal mar nor "
    "ol or pel ral ran sal sor tal tor ul val ven vor wen yar zel"
)


def prose(seed: int, *purpose: object) -> Iterator[str]:
    """Endless pieces of prose; each ends with a blank line."""
    rng = exact.rng(seed, "prose", *purpose)
    while True:
        paragraphs, size = [], 0
        while size < PIECE_CHARS:
            paragraph = " ".join(_sentence(rng) for _ in range(3 + int(rng.random() * 5)))
            paragraphs.append(paragraph)
            size += len(paragraph) + 2
        yield "\n\n".join(paragraphs) + "\n\n"


def files_text(path: Path, seed: int, *purpose: object) -> Iterator[str]:
    """Pieces of a text file, or of the text files of a folder in an order that depends on the seed. Raises PromptError."""
    if path.is_dir():
        found = sorted(
            p
            for p in path.rglob("*")
            if os.path.isfile(p)  # pathlib's own raises (before 3.14) where the system will not look: too long a name
            and not any(part.startswith(".") for part in p.relative_to(path).parts)
        )
        yield from _folder_text(path, found, seed, purpose)
        return
    text = _read(path)
    if text is None:
        raise PromptError(f"prompts: {path} cannot be read as UTF-8 text. Give a text file, a folder of them, or prose.")
    yield from _pieces(text)


def standard_library(seed: int, *purpose: object) -> Iterator[str]:
    """Pieces of the running Python's own modules: real code on every machine, other on other Python versions."""
    root = Path(sysconfig.get_paths()["stdlib"])
    top = sorted(root.glob("*.py"))
    packages = sorted(
        p for name in ("asyncio", "email", "http", "json", "logging", "unittest", "xml") for p in (root / name).rglob("*.py")
    )
    yield from _folder_text(root, top + packages, seed, purpose)


def _folder_text(root: Path, found: list[Path], seed: int, purpose: tuple[object, ...]) -> Iterator[str]:
    order = sorted(found, key=lambda p: exact.random_bytes(8, seed, "order", *purpose, p.relative_to(root).as_posix()))
    n = 0
    for path in order:
        text = _read(path)
        if text:
            n += 1
            yield from _pieces(text)
    if not n:
        raise PromptError(f"prompts: {root} holds no UTF-8 text files. Give another folder, a text file, or prose.")


def _read(path: Path) -> str | None:
    """The text of a file, or None if it cannot be read, is larger than 64 MiB or is no text."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError:
        return None
    if len(raw) > MAX_FILE_BYTES or b"\0" in raw:
        return None
    try:
        return raw.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        return None


def _pieces(text: str) -> Iterator[str]:
    """The text in pieces that end with a line, else with a word, where one ends in the second half of the piece."""
    at = 0
    while at < len(text):
        end = min(at + PIECE_CHARS, len(text))
        if end < len(text):
            middle = at + PIECE_CHARS // 2
            end = text.rfind("\n", middle, end) + 1 or text.rfind(" ", middle, end) + 1 or end
        piece = text[at:end]
        yield piece if end < len(text) or piece.endswith("\n") else piece + "\n"
        at = end


def _sentence(rng: random.Random) -> str:
    def pick(words: tuple[str, ...]) -> str:
        return words[int(rng.random() * len(words))]

    def thing() -> str:
        kind = rng.random()
        if kind < 0.55:
            return f"the {pick(_ADJECTIVES)} {pick(_NOUNS)}"
        if kind < 0.8:
            return f"the {pick(_NOUNS)}"
        if kind < 0.92:
            return _name(rng)
        return f"{2 + int(rng.random() * 900)} {pick(_COUNTED)}"

    clause = f"{thing()} {pick(_VERBS)} {thing()}"
    shape = rng.random()
    if shape < 0.3:
        clause = f"{clause} {pick(_PLACES)} {thing()}"
    elif shape < 0.55:
        clause = f"{clause} {pick(_LINKS)} {thing()} {pick(_ADVERBS)} {pick(_VERBS)} {thing()}"
    elif shape < 0.7:
        clause = f"{clause}, and {thing()} {pick(_VERBS)} {thing()} {pick(_ADVERBS)}"
    if rng.random() < 0.25:
        return f"{pick(_OPENINGS)} {clause}."
    return f"{clause[0].upper()}{clause[1:]}."


def _name(rng: random.Random) -> str:
    parts = [_SYLLABLES[int(rng.random() * len(_SYLLABLES))] for _ in range(2 + int(rng.random() * 2))]
    return "".join(parts).capitalize()
