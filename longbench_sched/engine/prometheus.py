"""Prometheus text, as engines write it: lines in, samples out."""

from __future__ import annotations

import re
from collections.abc import Iterator

Sample = tuple[str, dict[str, str], float]  # name, labels, value

_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'\s*([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n"}  # a backslash and a quote stand for themselves


def read_samples(text: str, prefix: str = "") -> Iterator[Sample]:
    """The samples whose names begin so. Comments, and lines that are no sample, are skipped."""
    for line in text.splitlines():
        if not line.startswith(prefix) or not (match := _SAMPLE.fullmatch(line)):
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        yield match[1], {name: _unescape(raw) for name, raw in _LABEL.findall(match[2] or "")}, value


def _unescape(raw: str) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[1]), raw) if "\\" in raw else raw
