"""Trend: how the effect of a setting changes over a swept parameter, such as concurrency or ISL.

Where the sides differ in one number of their own (the chunk size), that number is swept, and the sides are its steps.

A loss that grows with concurrency is invisible at concurrency 1 and average over a sweep. So the ratio is given step by step,
the slope of its logarithm per doubling of the parameter beside it, and the first step beyond a limit by name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from longbench_sched.compare.delta import Delta, Estimate
from longbench_sched.compare.figure import Figure
from longbench_sched.compare.frontier import Frontier

if TYPE_CHECKING:
    from longbench_sched.compare.comparison import Match, Side


@dataclass(frozen=True, slots=True)
class Step:
    """One value of the parameter with the ratio there."""

    at: float
    cell: str
    delta: Delta


@dataclass(frozen=True, slots=True)
class Trend:
    """One figure of one candidate over one parameter; steps in ascending order."""

    candidate: str  # empty where each step is a side of its own
    workload: str
    figure: Figure
    parameter: str
    window: str
    steps: tuple[Step, ...]
    slope: Estimate | None  # of ln(ratio) per doubling of the parameter; None where runs give no error, or steps share the base

    @property
    def per_doubling(self) -> float | None:
        """The factor by which the ratio changes when the parameter doubles."""
        if self.slope is not None:
            return math.exp(self.slope.centre)
        weights = slope_weights([step.at for step in self.steps])
        ratios = [step.delta.ratio for step in self.steps]
        if any(ratio is None for ratio in ratios):
            return None
        return math.exp(math.fsum(w * math.log(ratio) for w, ratio in zip(weights, ratios, strict=True) if ratio))

    def first_beyond(self, limit: float) -> Step | None:
        """The first step whose ratio is worse than `limit` (1.2: 20 % more latency, or throughput below 1 / 1.2)."""
        for step in self.steps:
            ratio = step.delta.ratio
            if ratio is not None and (ratio if self.figure.better != "higher" else 1 / ratio) > limit:
                return step
        return None


def find_trends(matches: Sequence[Match]) -> list[Trend]:
    """A trend for each candidate, figure and parameter of a workload that takes several values while nothing else changes."""
    groups: dict[tuple[str, str, str], list[Match]] = {}
    for match in matches:
        groups.setdefault((match.candidate, match.workload, match.window), []).append(match)
    return [trend for here in groups.values() for parameter in _varying(here) for trend in _along(parameter, here)]


def find_setting_trends(base: Side, frontiers: Sequence[Frontier], matches: Sequence[Match]) -> list[Trend]:
    """A trend for each load and figure over the one number that the sides differ in; the base is a step of it, unchanged."""
    trends = []
    for frontier in frontiers:
        here = {match.candidate: match for match in matches if (match.cell, match.window) == (frontier.cell, frontier.window)}
        steps = [(standing.setting, here.get(standing.name), standing.name) for standing in frontier.standings]
        if len(steps) < 3 or not all(_is_positive(at) and (match or name == base.name) for at, match, name in steps):
            continue
        for first in next(iter(here.values())).deltas:
            found = [(at, match.delta(first.figure.key) if match else _unchanged(first)) for at, match, _ in steps]
            if all(delta and delta.ratio is not None and delta.call != "not comparable" for _, delta in found):
                along = tuple(
                    Step(float(at), frontier.cell, delta) for at, delta in found if at is not None and delta is not None
                )
                workload = next(iter(here.values())).workload
                trends.append(Trend("", workload, first.figure, str(frontier.setting), frontier.window, along, None))
    return trends


def _unchanged(of: Delta) -> Delta:
    """The base against itself."""
    return Delta(of.figure, of.base, of.base, of.n_base, of.n_base, "none", ratio=1.0, low=1.0, high=1.0, call="not judged")


def slope_weights(at: Sequence[float]) -> list[float]:
    """Weights of least squares: the sum of weight x value is the slope per doubling of `at`."""
    x = [math.log2(value) for value in at]
    mean = math.fsum(x) / len(x)
    spread = math.fsum((value - mean) ** 2 for value in x)
    return [(value - mean) / spread for value in x]


def slope_of(at: Sequence[float], logs: Sequence[Estimate]) -> Estimate:
    """Slope per doubling, with the error that follows from those of the steps (degrees of freedom by Satterthwaite)."""
    weights = slope_weights(at)
    centre = math.fsum(w * log.centre for w, log in zip(weights, logs, strict=True))
    parts = [((w * log.error) ** 2, log.df) for w, log in zip(weights, logs, strict=True)]
    total = math.fsum(part for part, _ in parts)
    if total == 0:
        return Estimate(centre, 0.0, min(log.df for log in logs))
    return Estimate(centre, math.sqrt(total), total**2 / math.fsum(part**2 / df for part, df in parts))


def _varying(matches: Sequence[Match]) -> list[str]:
    """Parameters above 0 that alone differ between the loads."""
    names = list(dict.fromkeys(name for match in matches for name in match.params))
    values = {name: {match.params.get(name) for match in matches} for name in names}
    varying = [name for name in names if len(values[name]) > 1]
    return (
        [name for name in varying if all(_is_positive(match.params.get(name)) for match in matches)]
        if len(varying) == 1
        else []
    )


def _is_positive(value: float | None) -> bool:
    return value is not None and value > 0


def _along(parameter: str, matches: Sequence[Match]) -> list[Trend]:
    """The trends over a parameter; the matches are of one candidate, workload and window."""
    first = matches[0]
    ordered = sorted(matches, key=lambda match: match.params[parameter])
    at = [match.params[parameter] for match in ordered]
    if len(set(at)) != len(at) or not all(match.is_ranked for match in ordered):
        return []
    trends = []
    for delta in ordered[0].deltas:
        deltas = [found for match in ordered if (found := match.delta(delta.figure.key)) is not None]
        if len(deltas) < len(ordered) or any(found.ratio is None or found.call == "not comparable" for found in deltas):
            continue
        logs = [found.logs for found in deltas if found.logs is not None]
        steps = tuple(Step(x, match.cell, found) for x, match, found in zip(at, ordered, deltas, strict=True))
        slope = slope_of(at, logs) if len(logs) == len(steps) else None
        trends.append(Trend(first.candidate, first.workload, delta.figure, parameter, first.window, steps, slope))
    return trends
