"""Figures: the single numbers of a run that runs are compared by, such as `ttft_p99` or `output_throughput`.

A figure of a distribution is named METRIC_STATISTIC, a rate by its own name; all come from the catalogue of metrics, so a new
metric can be compared and gated as soon as it is there. `error_rate` is the share of requests that failed or timed out.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from longbench_sched.errors import UsageError
from longbench_sched.metrics.definitions import DISTRIBUTIONS, RATES, Better
from longbench_sched.metrics.stat import Section

STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
ERROR_RATE = "error_rate"

DEFAULT = (
    "ttft_p50", "ttft_p99", "tpot_p50", "itl_p99", "e2e_p50", "total_throughput", "output_throughput", "goodput", ERROR_RATE,
)  # fmt: skip

_WITHIN: dict[str, tuple[str, str]] = {"p50": ("low", "high"), "mean": ("mean_low", "mean_high")}


@dataclass(frozen=True, slots=True)
class Figure:
    """What a number is, in which unit, and which way is better (`None`: neither)."""

    key: str
    metric: str
    statistic: str | None  # None for a rate
    title: str
    unit: str
    better: Better | None
    scope: Literal["request", "token", "gap", "run"] = "run"

    @property
    def is_by_chunk(self) -> bool:
        """Whether it depends on how many tokens the server packs into one event."""
        return self.metric in ("itl", "icg")

    @property
    def is_by_limits(self) -> bool:
        """Whether it counts what met the limits that were given with `--goodput` or the workload."""
        return self.metric in ("goodput", "good_share", "deadline_misses")


def find_figure(key: str) -> Figure:
    """The figure of that name. Raises UsageError with what is close."""
    figure = _find(key)
    if figure is None:
        near = difflib.get_close_matches(key, known(), n=1, cutoff=0.5)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise UsageError(
            f"no figure named {key!r}. {hint}Write a metric and one of {', '.join(STATISTICS)} (ttft_p99), "
            f"or a rate: {', '.join([*RATES, ERROR_RATE])}."
        )
    return figure


def known() -> list[str]:
    """Every name that `find_figure` takes."""
    return [f"{metric}_{statistic}" for metric in DISTRIBUTIONS for statistic in STATISTICS] + [*RATES, ERROR_RATE]


def _find(key: str) -> Figure | None:
    if key == ERROR_RATE:
        return Figure(key, key, None, "Errors", "1", "lower")
    if key in RATES:
        rate = RATES[key]
        return Figure(key, key, None, rate.title, rate.unit, rate.better)
    metric, _, statistic = key.rpartition("_")
    if metric not in DISTRIBUTIONS or statistic not in STATISTICS:
        return None
    definition = DISTRIBUTIONS[metric]
    title = f"{definition.title} {statistic}"
    return Figure(key, metric, statistic, title, definition.unit, definition.better, definition.scope)


def values_of(section: Section) -> dict[str, float]:
    """Every figure of a window that is defined there."""
    values: dict[str, float] = {}
    for stat in section.stats.values():
        for statistic in STATISTICS:
            value = getattr(stat, statistic)
            if value is not None:
                values[f"{stat.metric}_{statistic}"] = value
    values |= {rate.metric: rate.value for rate in section.rates.values() if rate.value is not None}
    return values


def within_of(section: Section) -> dict[str, tuple[float, float]]:
    """The intervals inside the run (moving-block bootstrap), where a figure has one."""
    found: dict[str, tuple[float, float]] = {}
    for stat in section.stats.values():
        for statistic, (low_name, high_name) in _WITHIN.items():
            low, high = getattr(stat, low_name), getattr(stat, high_name)
            if low is not None and high is not None:
                found[f"{stat.metric}_{statistic}"] = (low, high)
    for rate in section.rates.values():
        if rate.low is not None and rate.high is not None:
            found[rate.metric] = (rate.low, rate.high)
    return found


def counts_of(section: Section) -> Mapping[str, int]:
    """How many values each distribution rests on."""
    return {stat.metric: stat.n for stat in section.stats.values()}
