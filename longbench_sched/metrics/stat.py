"""Stat, Rate, Summary: what a run comes to, in numbers that say how sure they are.

Everything here is engine time (measured time x the run's time scale). `None` means not defined or not known; infinity and NaN
never occur, so that every file can hold these values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from longbench_sched.run import RunMeta

if TYPE_CHECKING:
    from longbench_sched.metrics.curves import Curves


@dataclass(frozen=True, slots=True)
class Stat:
    """A metric's distribution over requests (or over tokens, gaps: see its definition), successes only."""

    metric: str  # a name of definitions.CATALOGUE
    unit: str  # s, tok/s, 1, ...
    n: int
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    min: float | None = None
    max: float | None = None
    low: float | None = None  # 95 % interval of p50, moving-block bootstrap in due order
    high: float | None = None
    mean_low: float | None = None
    mean_high: float | None = None
    # Error-adjusted percentiles: every failed or timed-out request counts as +inf, nearest rank. A key whose value is None is
    # unbounded (the percentile falls on a failure); `adjusted_at_least` then gives the largest lower bound known, if any.
    adjusted: Mapping[str, float | None] = field(default_factory=dict)  # {"p50": ..., "p90": ..., "p99": ...}
    adjusted_at_least: Mapping[str, float] = field(default_factory=dict)
    hint: str | None = None  # "2 % in a second mode", ...

    @property
    def p99_is_marked(self) -> bool:
        """Fewer than 100 values: p99 is the maximum or close to it, and is shown marked."""
        return self.n < 100


@dataclass(frozen=True, slots=True)
class Rate:
    """A single figure over a stated interval: throughput, goodput, success rate, shares."""

    metric: str
    unit: str
    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    over_s: float | None = None  # the interval it was taken over


@dataclass(frozen=True, slots=True)
class Section:
    """All figures over one window of a run."""

    window: str  # "whole" or "steady"
    from_s: float  # from the start of the measured phase, engine time
    to_s: float
    stats: Mapping[str, Stat]
    rates: Mapping[str, Rate]


@dataclass(frozen=True, slots=True)
class ReasonCount:
    """One cause of failure."""

    status: str
    reason: str  # slug, with the HTTP status or error code where there is one: "http-status 429"
    n: int
    sample_request_id: str
    sample_detail: str | None


@dataclass(frozen=True, slots=True)
class Outcomes:
    """attempted = ok + failed + timeout + cancelled + lost; warm-ups are apart."""

    attempted: int
    ok: int
    failed: int
    timeout: int
    cancelled: int
    lost: int
    reasons: tuple[ReasonCount, ...]
    planned: int  # requests of the plan; more than attempted if the run was interrupted


@dataclass(frozen=True, slots=True)
class Advice:
    """A warning with its numbers, the probable cause and the next step."""

    id: str  # ITL-PREFILL, CLIENT-RATE, ...
    text: str  # what was seen, with the numbers and the limit
    cause: str
    next_step: str


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in numbers."""

    meta: RunMeta
    outcomes: Outcomes
    whole: Section
    steady: Section | None  # None: no part of the run had 90 % of its peak in flight for long enough
    lanes: Mapping[str, Section] = field(default_factory=dict)  # whole-run figures by lane, if there is more than one
    facts: Mapping[str, object] = field(default_factory=dict)  # realised ISL/OSL, packing, cache hits, self-check...
    advice: tuple[Advice, ...] = ()
    marks: tuple[str, ...] = ()  # run-level: client-limited, isl-mismatch, cache-assisted, incomplete, clock-stepped...
    curves: Curves | None = None  # what charts are drawn from, if it was asked for
