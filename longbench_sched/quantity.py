"""Reads and prints quantities: 128Ki, 30s, 2.5/s, 412 ms.

On input `k` is 1,000 and `Ki` is 1,024. On output numbers have three significant digits and one unit; the unit of a column is
chosen once, from its largest value.
"""

from __future__ import annotations

import re

from longbench_sched.errors import UsageError

_FACTORS = {"": 1, "k": 10**3, "Ki": 2**10, "M": 10**6, "Mi": 2**20, "G": 10**9, "Gi": 2**30}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|\.\d+)\s*([A-Za-zµ]*)\s*")


def count(text: str | int, what: str = "count") -> int:
    """Read a whole number: `128Ki` is 131,072, `1.5k` is 1,500. Raises UsageError."""
    if isinstance(text, int):
        return text
    match = _NUMBER.fullmatch(text)
    value = float(match[1]) * _FACTORS[match[2]] if match and match[2] in _FACTORS else None
    if value is None or not value.is_integer():  # nor is infinity, which 1e999 is read as
        raise UsageError(f"{what}: {text!r} is not a whole number. Write for example 30000, 30k (30,000) or 128Ki (131,072).")
    return int(value)


tokens = count


def duration_s(text: str | float, what: str = "duration") -> float:
    """Read a duration in seconds: `30s`, `250ms`, `2m`, `1h`; a bare number is seconds. Raises UsageError."""
    if isinstance(text, int | float):
        return float(text)
    match = _NUMBER.fullmatch(text)
    if not match or (match[2] and match[2] not in _SECONDS):
        raise UsageError(f"{what}: {text!r} is not a duration. Write for example 30s, 250ms, 2m or 1h.")
    return float(match[1]) * _SECONDS[match[2] or "s"]


def rate_per_s(text: str | float, what: str = "rate") -> float:
    """Read a rate: `2.5`, `2.5/s`, `30/min`. Raises UsageError."""
    if isinstance(text, int | float):
        return float(text)
    number, slash, unit = text.strip().partition("/")
    units = {"s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
    try:
        if slash and unit.strip() not in units:
            raise ValueError
        return float(number) / units[unit.strip() if slash else "s"]
    except ValueError:
        raise UsageError(f"{what}: {text!r} is not a rate. Write for example 1, 2.5/s or 30/min.") from None


def significant(value: float, digits: int = 3) -> str:
    """The value with so many significant digits and no exponent: 0.00123, 12.3, 1230."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    exponent = int(f"{rounded:e}".partition("e")[2])
    return f"{rounded:.{max(0, digits - 1 - exponent)}f}"


def time_unit(largest_s: float) -> tuple[float, str]:
    """Factor and unit in which a column of times reads best, given its largest value in seconds; 0 is 0 s."""
    for factor, unit, limit in ((1.0, "s", 1.0), (1e3, "ms", 1e-3), (1e6, "us", 0.0)):
        if largest_s and abs(largest_s) >= limit:
            return factor, unit
    return 1.0, "s"


def compact(value: float) -> str:
    """A large count in three digits: 25100 is 25.1k."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{significant(value / factor)}{unit}"
    return significant(value)
