"""Reads a TOML table strictly: every key is known, has the right type, and makes sense, or there is one clear error.

A misspelt key that is silently ignored gives a run of another load under the right name. Keys and values that look like a
secret are refused, without repeating them: a workload file is stored in every run made with it. Errors here are
`UsageError`s that begin with the key; `spec.py` puts the file's name before them.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from longbench_sched import quantity
from longbench_sched.errors import UsageError

T = TypeVar("T")

MAX_WHOLE = 2**63 - 1  # of TOML itself, and of what a server reads as JSON
MAX_DURATION_S = 1e8  # three years: in ns it still fits 64 bits
MAX_RATE_PER_S = 1e9  # one a ns, in which due times are kept; also the other way round, one in so many s

_SECRET_KEY = re.compile(
    r"api[-_]?keys?|.*[-_]?(secret|password|passwd|credential)s?|(auth|access|bearer|hf|api)?[-_]?token|(.*[-_])?authori[sz]ation"
    r"|auth|bearer|headers?|cookies?|key",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(r"\s*bearer\s|\bsk-[\w-]{8}|\bhf_\w{8}|://[^/\s]*:[^/\s]*@|-----BEGIN", re.IGNORECASE)
_ELSEWHERE = {
    "engine": "--engine",
    "api": "--api",
    "base_url": "--base-url",
    "url": "--base-url",
    "model": "--model",
    "transport": "--transport",
    "tokenizer": "--tokenizer",
    "seed": "--seed",
    "output_dir": "--output-dir",
}


def refuse_secrets(data: Any, where: str = "") -> None:
    """Raise UsageError if a key or a value anywhere in `data` looks like a secret."""
    if isinstance(data, str) and _SECRET_VALUE.search(data):
        raise UsageError(
            f"{where}: the value looks like a secret, and workload files are stored with every run. "
            "Take it out; name the variable that holds the key with --api-key-env."
        )
    if isinstance(data, list):
        for item in data:
            refuse_secrets(item, where)
    if isinstance(data, dict):
        for key, value in data.items():
            path = f"{where}.{key}" if where else key
            if _SECRET_KEY.fullmatch(key):
                raise UsageError(
                    f"{path}: keys, tokens and headers do not belong in a workload, which is stored with every run. "
                    "Take it out; use --api-key-env NAME or --header."
                )
            refuse_secrets(value, path)


def refuse_huge_numbers(data: Any, where: str = "") -> None:
    """Raise UsageError for a whole number beyond the 64 bits that TOML promises, anywhere in `data`.

    Python reads any number of digits, and then can neither compute with them as floats nor, past 4,300, print them.
    """
    if isinstance(data, int) and not -MAX_WHOLE <= data <= MAX_WHOLE:
        raise UsageError(f"{where}: the number has more than 64 bits, which TOML does not allow. Write a smaller one.")
    if isinstance(data, list):
        for item in data:
            refuse_huge_numbers(item, where)
    if isinstance(data, dict):
        for key, value in data.items():
            refuse_huge_numbers(value, f"{where}.{key}" if where else key)


class Table:
    """One table of a workload file. `take` the keys, then `close` it: what is left over is an error."""

    def __init__(self, data: Mapping[str, Any], where: str = "") -> None:
        self.where = where
        self._left = dict(data)
        self._known: list[str] = []

    def __contains__(self, key: str) -> bool:
        return key in self._left

    def peek(self, key: str) -> Any:
        """The raw value of a key, or None; the key is not taken."""
        return self._left.get(key)

    def path(self, key: str) -> str:
        """The key with the tables it lies in: `lane 2.isl.min`."""
        key = key if key.isprintable() else repr(key)
        return f"{self.where}.{key}" if self.where and key else self.where or key

    def fail(self, key: str, message: str) -> NoReturn:
        """Raise UsageError for a key of this table."""
        raise UsageError(f"{self.path(key)}: {message}")

    def take(self, key: str, read: Callable[[Any, str], T], default: T) -> T:
        """The value of a key, read by `read(value, path)`, or the default."""
        self._known.append(key)
        if key not in self._left:
            return default
        return read(self._left.pop(key), self.path(key))

    def table(self, key: str) -> Table | None:
        """A table inside this one, or None."""
        self._known.append(key)
        if key not in self._left:
            return None
        value = self._left.pop(key)
        if not isinstance(value, dict):
            self.fail(key, f"{value!r} is not a table. Write [{key}] and its keys below, or {key} = {{ ... }}.")
        return Table(value, self.path(key))

    def tables(self, key: str) -> list[Table]:
        """The tables of an array of tables, `[[key]]`; empty if there is none."""
        self._known.append(key)
        value = self._left.pop(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            self.fail(key, f"{value!r} is not an array of tables. Write [[{key}]] above each one.")
        return [Table(item, f"{self.path(key)} {i + 1}") for i, item in enumerate(value)]

    def rest(self) -> dict[str, Any]:
        """Every key that was not taken, taken now: for tables whose keys someone else knows."""
        left, self._left = self._left, {}
        return left

    def close(self, misplaced: Mapping[str, str] | None = None) -> None:
        """Raise UsageError for a key that nobody took; `misplaced` says what to do about keys known elsewhere."""
        for key in self._left:
            if misplaced and key in misplaced:
                self.fail(key, misplaced[key])
            if key in _ELSEWHERE:
                self.fail(key, f"a workload says what is sent, not where or how. Give {_ELSEWHERE[key]} on the command line.")
            self.fail(key, f"unknown key. {did_you_mean(key, self._known)}Known here: {', '.join(sorted(set(self._known)))}.")

    def fail_if_misspelt(self, wanted: Sequence[str]) -> None:
        """Raise UsageError for a key that nobody took and that looks like one of these: it may be the one that is missing."""
        for key in self._left:
            if hint := did_you_mean(key, wanted):
                self.fail(key, f"unknown key. {hint.rstrip()}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`Did you mean isl? `, or nothing if no known word is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"Did you mean {close[0]}? " if close else ""


def text(value: Any, path: str) -> str:
    """A string."""
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{path}: {value!r} is not a text. Write it in quotes.")
    if not value.isprintable():
        raise UsageError(f"{path}: {value!r} has line breaks or control characters. Write one line of plain text.")
    return value


def flag(value: Any, path: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise UsageError(f"{path}: {value!r} is neither true nor false.")
    return value


def whole(least: int) -> Callable[[Any, str], int]:
    """Reads a whole number of at least `least`: 64, or a text such as "128Ki"."""

    def read(value: Any, path: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise UsageError(f'{path}: {value!r} is not a whole number. Write for example 30000 or "128Ki".')
        number = quantity.count(value, path)
        if number < least:
            raise UsageError(f"{path}: {number} is too small. Give {least} or more.")
        if number > MAX_WHOLE:
            raise UsageError(f"{path}: {value!r} is too large. Give a number of 64 bits.")
        return number

    return read


def number(least: float, *, most: float = math.inf, is_open: bool = True) -> Callable[[Any, str], float]:
    """Reads a finite number above `least` (or from `least` on), up to `most`."""

    def read(value: Any, path: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"{path}: {value!r} is not a number.")
        read_value = _bounded(float(value), path, least, is_open)
        if read_value > most:
            raise UsageError(f"{path}: {value:g} is too large. Give {most:g} or less.")
        return read_value

    return read


def duration_s(value: Any, path: str) -> float:
    """A duration above 0 in seconds: 30, or a text such as "30s"."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise UsageError(f'{path}: {value!r} is not a duration. Write for example "30s".')
    read = _bounded(quantity.duration_s(value, path), path, 0.0, True)
    if not 1e-9 <= read <= MAX_DURATION_S:
        raise UsageError(f"{path}: {value!r} is not between 1 ns and {MAX_DURATION_S:g} s.")
    return read


def rate_per_s(value: Any, path: str) -> float:
    """A rate above 0 per second: 2.5, or a text such as "30/min"."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise UsageError(f'{path}: {value!r} is not a rate. Write for example 2.5 or "30/min".')
    read = _bounded(quantity.rate_per_s(value, path), path, 0.0, True)
    if not 1 / MAX_RATE_PER_S <= read <= MAX_RATE_PER_S:
        raise UsageError(f"{path}: {value!r} is not between one in {MAX_RATE_PER_S:g} s and {MAX_RATE_PER_S:g} a second.")
    return read


def choice(*options: str) -> Callable[[Any, str], str]:
    """Reads one of a few words."""

    def read(value: Any, path: str) -> str:
        if value not in options:
            guess = did_you_mean(value, options) if isinstance(value, str) else ""
            raise UsageError(f"{path}: {value!r} is not one of {', '.join(options)}. {guess}".rstrip())
        return str(value)

    return read


def _bounded(value: float, path: str, least: float, is_open: bool) -> float:
    too_low = value <= least if is_open else value < least
    if too_low or not value < float("inf"):  # nan fails the second test
        raise UsageError(
            f"{path}: {value:g} is not a finite number {'above' if is_open else 'from'} {least:g}{'' if is_open else ' on'}."
        )
    return value
