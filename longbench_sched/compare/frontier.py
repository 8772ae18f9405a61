"""Frontier: sides that no other side beats in everything, and what each of them costs per GPU and per dollar.

TTFT, the tail of ITL and throughput pull in different directions: a larger prefill chunk gives one for another. A side is
dominated if another is at least as good in all three and better in one; what is left (the Pareto set) is a choice, not a
ranking.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from longbench_sched.compare.difference import NOT_SETTINGS
from longbench_sched.compare.figure import Figure, find_figure
from longbench_sched.compare.point import RunPoint

OBJECTIVES = ("ttft_p50", "itl_p99", "total_throughput")
_INSTEAD = {"itl_p99": "tpot_p99"}  # where sides pack tokens into events in other ways
COST_FIGURE = "total_throughput"
_S_PER_HOUR = 3600.0
# What an engine works out for itself, from the memory that is left: a larger chunk leaves less of it for KV.
_FOLLOWS = (frozenset({"kv_tokens", "kv_capacity_tokens"}), frozenset({"kv_tokens", "kv_capacity_tokens", "memory_fraction"}))


@dataclass(frozen=True, slots=True)
class Standing:
    """One side: its objectives, who dominates it, and its throughput by what it costs."""

    name: str
    setting: float | None  # value of the fact that alone differs, if there is one such
    values: tuple[float | None, ...]  # in the order of the frontier's objectives
    dominated_by: tuple[str, ...]
    gpus: int | None
    per_gpu: float | None  # tok/s
    per_dollar: float | None  # tokens

    @property
    def is_on_frontier(self) -> bool:
        """Whether no side beats it in everything; False where an objective is not known."""
        return not self.dominated_by and all(value is not None for value in self.values)


@dataclass(frozen=True, slots=True)
class Frontier:
    """The sides of one load; in the order of the setting that differs, else as given."""

    cell: str
    window: str
    setting: str | None  # the fact that alone differs between the sides, and is a number: token_budget, ...
    standings: tuple[Standing, ...]
    objectives: tuple[str, ...] = OBJECTIVES
    points: Mapping[str, Sequence[RunPoint]] = field(default_factory=dict)  # the runs that it is of, by side


def objectives_of(spoils: Callable[[Figure], bool]) -> tuple[str, ...]:
    """The objectives, TPOT in the place of ITL where ITL is not comparable."""
    return tuple(_INSTEAD.get(key, key) if spoils(find_figure(key)) else key for key in OBJECTIVES)


def find_frontier(
    cell: str, window: str, sides: Mapping[str, Sequence[RunPoint]], objectives: tuple[str, ...] = OBJECTIVES
) -> Frontier:
    """The standings of all sides; objectives are geometric means over the runs."""
    values = {name: tuple(centre(points, key, window) for key in objectives) for name, points in sides.items()}
    lower = [find_figure(key).better == "lower" for key in objectives]
    setting = single_setting(list(sides.values()))
    standings = [
        Standing(
            name=name,
            setting=None if setting is None else float(points[0].facts[setting]),
            values=values[name],
            dominated_by=tuple(other for other in sides if other != name and dominates(values[other], values[name], lower)),
            gpus=points[0].gpus,
            per_gpu=per_gpu(centre(points, COST_FIGURE, window), points[0].gpus),
            per_dollar=per_dollar(centre(points, COST_FIGURE, window), points[0].dollars_per_hour),
        )
        for name, points in sides.items()
    ]
    if setting is not None:
        standings.sort(key=lambda standing: standing.setting or 0.0)
    return Frontier(cell, window, setting, tuple(standings), objectives, sides)


def dominates(one: Sequence[float | None], other: Sequence[float | None], lower_is_better: Sequence[bool]) -> bool:
    """Whether `one` is at least as good in everything and better in something; unknown values dominate nothing."""
    signed: list[tuple[float, float]] = []
    for mine, theirs, lower in zip(one, other, lower_is_better, strict=True):
        if mine is None or theirs is None:
            return False
        signed.append((mine, theirs) if lower else (-mine, -theirs))
    return all(mine <= theirs for mine, theirs in signed) and any(mine < theirs for mine, theirs in signed)


def per_gpu(tokens_per_s: float | None, gpus: int | None) -> float | None:
    """Throughput of one GPU; None where the number of GPUs is not known."""
    return tokens_per_s / gpus if tokens_per_s is not None and gpus else None


def per_dollar(tokens_per_s: float | None, dollars_per_hour: float | None) -> float | None:
    """Tokens for a dollar."""
    return tokens_per_s * _S_PER_HOUR / dollars_per_hour if tokens_per_s is not None and dollars_per_hour else None


def single_setting(sides: Sequence[Sequence[RunPoint]]) -> str | None:
    """The one numeric fact that differs between all sides, with everything else equal or following: what a sweep swept."""
    if len({point.engine for points in sides for point in points}) > 1:
        return None
    facts = [points[0].facts for points in sides]
    names = {name for fact in facts for name in fact} - NOT_SETTINGS
    differing = {name for name in names if len({str(fact.get(name)) for fact in facts}) > 1}
    for follows in _FOLLOWS:
        if len(differing - follows) == 1:
            (name,) = differing - follows
            return name if _is_swept([fact.get(name) for fact in facts]) else None
    return None


def _is_swept(values: Sequence[object]) -> bool:
    """Whether these are numbers, each another."""
    are_numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return are_numbers and len(set(map(str, values))) == len(values)


def centre(points: Sequence[RunPoint], key: str, window: str) -> float | None:
    """The geometric mean of a figure over runs (arithmetic where a value is 0 or below); None where none has it."""
    values = [value for point in points if (value := point.value(key, window)) is not None]
    if not values:
        return None
    if min(values) <= 0:
        return math.fsum(values) / len(values)
    return math.exp(math.fsum(math.log(value) for value in values) / len(values))
