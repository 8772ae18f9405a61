"""Facts that differ: which settings of the engines are not the same, said before any number.

Most surprises between two engines are settings that one side changed, or that the two have chosen differently by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longbench_sched.compare.point import RunPoint

UNKNOWN = "not told"
# Measured, not set: how often a cache was hit is in the numbers, where the client ran in the marks.
NOT_SETTINGS = frozenset({"prefix_hit_tokens", "template_overhead", "time_scale", "simulated"})


@dataclass(frozen=True, slots=True)
class FactDifference:
    """One fact with what each side says, the same or not; several values where the runs of a side do not agree."""

    name: str
    values: tuple[str, ...]  # by side


def differing_facts(sides: Sequence[Sequence[RunPoint]]) -> tuple[FactDifference, ...]:
    """Facts that are not the same on all sides. One that some side does not tell is listed if another does."""
    return tuple(fact for fact in all_facts(sides) if len(set(fact.values)) > 1)


def all_facts(sides: Sequence[Sequence[RunPoint]]) -> tuple[FactDifference, ...]:
    """Every fact that some side tells, with what each side says."""
    names = dict.fromkeys(name for side in sides for point in side for name in ("engine", *point.facts))
    return tuple(FactDifference(name, tuple(_say(name, side) for side in sides)) for name in names if name not in NOT_SETTINGS)


def _say(name: str, side: Sequence[RunPoint]) -> str:
    values = [point.facts.get(name, point.engine if name == "engine" else None) for point in side]
    said = sorted({_text(value) for value in values})
    return " and ".join(said) if said else UNKNOWN


def _text(value: object) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
