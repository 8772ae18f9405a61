"""Numbers for people: three significant digits, one unit a row, `-` where there is no value.

A row's unit is chosen once, from its median: an ITL of 21.6 ms whose maximum is 2.3 s reads best in ms throughout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeGuard

from longbench_sched.metrics.stat import Rate, Stat
from longbench_sched.quantity import compact, significant, time_unit
from longbench_sched.report.layout import NULL, TIE, Column

P99_MARK = "*"
P99_NOTE = f"{P99_MARK} p99 of fewer than 100 values: the maximum, or close to it."


@dataclass(frozen=True, slots=True)
class Scale:
    """How a row of numbers is printed: multiplied by `factor`, in `unit`."""

    factor: float
    unit: str

    def number(self, value: float | None) -> str:
        """Three significant digits, without the unit."""
        return significant(value * self.factor) if is_number(value) else NULL

    def range(self, low: float | None, high: float | None) -> str:
        """An interval, or `-` if an end is missing."""
        return NULL if not is_number(low) or not is_number(high) else f"{self.number(low)}{TIE}…{TIE}{self.number(high)}"


def is_number(value: float | None) -> TypeGuard[float]:
    """Whether there is a value: no summary should hold infinity or NaN, and no page prints them."""
    return value is not None and math.isfinite(value)


def scale_of(unit: str, typical: float | None) -> Scale:
    """The scale for values of this unit, of which `typical` is one."""
    if unit == "s":
        return Scale(*time_unit(typical or 1.0))
    return Scale(1.0, "" if unit == "1" else unit)


STAT_COLUMNS = (
    Column("mean"),
    Column("p50"),
    Column("p90"),
    Column("p95", gives_way=2),
    Column("p99"),
    Column("max"),
    Column("n"),
    Column("p50, 95 % interval", align="left", gives_way=1),
)


def typical(stat: Stat) -> float | None:
    """The value that chooses a row's unit: the median, or what there is; 0 is at home in any unit and chooses none."""
    return next((value for value in (stat.p50, stat.mean, stat.max) if is_number(value) and value), None)


def stat_cells(stat: Stat, scale: Scale) -> tuple[str, ...]:
    """The cells under STAT_COLUMNS."""
    p99 = scale.number(stat.p99)
    return (
        scale.number(stat.mean),
        scale.number(stat.p50),
        scale.number(stat.p90),
        scale.number(stat.p95),
        p99 + P99_MARK if stat.p99 is not None and stat.p99_is_marked else p99,
        scale.number(stat.max),
        str(stat.n),
        scale.range(stat.low, stat.high),
    )


def rate_text(rate: Rate | None) -> str:
    """A single figure with its unit: 25.1k tok/s, 97.3 %, 0.41/s."""
    if rate is None or not is_number(rate.value):
        return NULL
    return value_text(rate.value, rate.unit)


def value_text(value: float, unit: str) -> str:
    """A value with its unit, in the form people write it."""
    match unit:
        case "s":
            return duration_text(value)
        case "1/s" | "req/s":
            return f"{compact(value)}/s"
        case "%":
            return f"{significant(value)}{TIE}%"
        case "1" | "":
            return compact(value)
        case _:
            return f"{compact(value)}{TIE}{unit}"


def duration_text(seconds: float) -> str:
    """A duration in the unit that suits it: 142 s, 0.3 ms."""
    factor, unit = time_unit(seconds)
    return f"{significant(seconds * factor)}{TIE}{unit}"


def limit_text(seconds: float) -> str:
    """A limit as it was set, without digits that nobody gave: 15 s, 50 ms."""
    factor, unit = time_unit(seconds)
    return f"{seconds * factor:.6g}{TIE}{unit}"


def ms_text(milliseconds: float) -> str:
    """A lateness, always in ms, so that small ones compare at a glance: 0.4 ms."""
    return f"{significant(milliseconds, 2)}{TIE}ms"


def percent_text(share: float) -> str:
    """A share of 1 as a percentage."""
    return f"{significant(100 * share, 3)}{TIE}%"
