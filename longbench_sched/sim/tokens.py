"""The embedded engine's tokenizer and the words it says.

A token is up to three lower-case ASCII letters with at most one space before them, else one byte of UTF-8; there are also
special tokens and whole words that only the engine itself utters. Encoding is greedy from the left without looking ahead, so
text and ids go back and forth without loss and the text of the first n ids encodes to exactly these n ids: prompts of an
exact length can be made through /tokenize.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_PIECE = re.compile(rb" ?[a-z]{1,3}|.", re.DOTALL)
_LETTERS = b"abcdefghijklmnopqrstuvwxyz"
LONGEST_BYTES = 4  # of a piece: a space and three letters

_N_BYTES = 256
_BASE = {  # first id of each kind of piece: (has a space, letters)
    (True, 1): _N_BYTES,
    (False, 2): _N_BYTES + 26,
    (True, 2): _N_BYTES + 26 + 26**2,
    (False, 3): _N_BYTES + 26 + 2 * 26**2,
    (True, 3): _N_BYTES + 26 + 2 * 26**2 + 26**3,
}
_END = _N_BYTES + 26 + 2 * 26**2 + 2 * 26**3
BOS, EOS, TURN_START, TURN_END = range(_END, _END + 4)
_SPECIAL_TEXT = {BOS: "<|bos|>", EOS: "<|eos|>", TURN_START: "<|im_start|>", TURN_END: "<|im_end|>"}
_FIRST_WORD = _END + 4

_SPEECH_TEXT = (
    " The| scheduler| hands| out| tokens| step| by| step|,| and| every| request| waits| its| turn|.| A| long| prompt| is| cut"
    "| into| chunks|;| each| chunk| shares| a| step| with| those| that| decode|.| Memory| comes| in| blocks|:| when| they| run"
    "| out|,| someone| starts| again|.| —| naïve| schedules| stall|;| 待ち|時間| grows|.|\n| def| wait|(|n|):|\n|    |return"
    "| n| *| 2|\n| #| “|why|”|?| Because| queues| are| honest| 🙂|.| So| measure| first|,| then| tune|,| then| measure| again"
    "|.\n"
)
_WORDS = tuple(_SPEECH_TEXT.split("|"))

# One character in two tokens: its first byte shows no text, as in any byte-level tokenizer.
_SPLIT = "é".encode()


@dataclass(frozen=True, slots=True)
class Utterance:
    """One token of the engine's speech and the text that becomes visible with it."""

    id: int
    text: str


def _speech() -> tuple[Utterance, ...]:
    words = [Utterance(_FIRST_WORD + i, word) for i, word in enumerate(_WORDS)]
    half = len(words) // 2
    return (*words[:half], Utterance(_SPLIT[0], ""), Utterance(_SPLIT[1], _SPLIT.decode()), *words[half:])


SPEECH = _speech()
N_IDS = _FIRST_WORD + len(_WORDS)
SPLIT_IDS = frozenset(_SPLIT)
# A speech begins anywhere but in the middle of a character.
STARTS = tuple(i for i, utterance in enumerate(SPEECH) if utterance.id != _SPLIT[1])


class _PieceIds(dict[bytes, int]):
    """The id of a piece, worked out when it is first met."""

    def __missing__(self, piece: bytes) -> int:
        letters = piece.lstrip(b" ") if len(piece) > 1 else piece
        if len(piece) == 1:
            number = piece[0]
        else:
            number = 0
            for letter in letters:
                number = number * 26 + _LETTERS.index(letter)
            number += _BASE[piece[0] == 0x20, len(letters)]
        self[piece] = number
        return number


_piece_ids = _PieceIds()


def encode(text: str) -> list[int]:
    """The ids of a text, without special tokens."""
    return [_piece_ids[piece] for piece in _PIECE.findall(text.encode("utf-8", "surrogatepass"))]


def fewest(text: str) -> int:
    """How many tokens a text has at least, known without encoding it."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // LONGEST_BYTES)


def decode(ids: Iterable[int]) -> str:
    """The text of ids; bytes that are no UTF-8 become U+FFFD, ids that mean nothing `<|id|>`."""
    return b"".join(_piece(number) for number in ids).decode("utf-8", "replace")


def encode_chat(messages: Sequence[tuple[str, str]]) -> list[int]:
    """The ids of a conversation (role, content) after the chat template, ready for the assistant's turn."""
    ids: list[int] = []
    for role, content in messages:
        ids += [TURN_START, *encode(f"{role}\n{content}"), TURN_END, *encode("\n")]
    return [*ids, TURN_START, *encode("assistant\n")]


def fingerprint(ids: Sequence[int] | array[int]) -> int:
    """A number that depends on the prompt, the same on any machine: where the speech begins, when it ends by itself."""
    value = len(ids)
    for number in (*ids[:64], *ids[-64:]):
        value = (value * 1_000_003 + number) & 0xFFFF_FFFF
    return value


def _piece(number: int) -> bytes:
    if 0 <= number < _N_BYTES:
        return bytes((number,))
    if _N_BYTES <= number < _END:
        (has_space, n_letters), base = max(
            ((kind, first) for kind, first in _BASE.items() if first <= number), key=lambda item: item[1]
        )
        number -= base
        letters = bytearray()
        for _ in range(n_letters):
            number, letter = divmod(number, 26)
            letters.insert(0, _LETTERS[letter])
        return (b" " if has_space else b"") + bytes(letters)
    if _FIRST_WORD <= number < N_IDS:
        return _WORDS[number - _FIRST_WORD].encode()
    return _SPECIAL_TEXT.get(number, f"<|{number}|>").encode()
