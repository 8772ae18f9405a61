"""Whether a value read from JSON is of the type that a field's annotation says, for files that hands may have touched."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

_JSON_TYPES: Mapping[str, Any] = {"str": str, "int": int, "float": int | float, "bool": bool}
_WORDS = {"str": "text", "int": "whole number", "float": "number", "bool": "truth value"}


def in_words(annotation: str) -> str:
    """What a field of that type holds: a text, a whole number, a list of numbers."""
    outer, _, inner = annotation.removesuffix(" | None").partition("[")
    if outer == "tuple":
        return f"list of {in_words(inner.removesuffix(', ...]'))}s"
    return _WORDS.get(outer, "object")


def is_of(value: object, annotation: str) -> bool:
    """Whether a value read from JSON can stand in a field of that type."""
    if value is None:
        return annotation.endswith("| None")
    outer, _, inner = annotation.removesuffix(" | None").partition("[")
    if isinstance(value, bool):
        return outer == "bool"
    if outer == "tuple":
        return isinstance(value, list) and all(is_of(item, inner.removesuffix(", ...]")) for item in value)
    if outer == "Mapping":
        return isinstance(value, dict) and (inner == "str, Any]" or all(is_of(v, inner[5:-1]) for v in value.values()))
    return isinstance(value, _JSON_TYPES[outer])


def fields_of(kind: type, plain: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass that are there, whatever else is. Raises TypeError that names one of another type."""
    types = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    known = {name: value for name, value in plain.items() if name in types}
    for name, value in known.items():
        if not is_of(value, types[name]):
            raise TypeError(f"{name} is no {in_words(types[name])}")
    return known
