"""Curves: what a chart shows of a run, thinned to what a picture can hold.

A distribution keeps its values at `RANKS` ranks spread evenly over all of them and `TAIL_RANKS` more over the last hundredth,
the smallest and the largest included. Between two of them no value can lie outside, so the curve is off by less than 1 / 400
of the values anywhere and by a hundredth of that in the tail. A metric over time keeps every request up to `MAX_POINTS`; of
more it keeps the 5th, 50th and 95th percentile of `BINS` equal stretches of the run. Timelines keep every stall of the
requests that they show: a bar is unbroken while tokens come at gaps that are no stall.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from longbench_sched.metrics.columns import Columns, Floats, Ints, Mask
from longbench_sched.metrics.definitions import DISTRIBUTIONS
from longbench_sched.metrics.stalls import FACTOR
from longbench_sched.run import NONE
from longbench_sched.slo import Slo

RANKS, TAIL_RANKS = 401, 101
MAX_POINTS, BINS = 1500, 120
MAX_TIMELINES = 24  # requests
MAX_BARS = 4000
ECDFS = ("ttft", "tpot", "itl", "e2e")
TRAILS = ("ttft", "tpot")


@dataclass(frozen=True, slots=True)
class Ecdf:
    """Share of values at or below each value; both ascending, in the metric's unit."""

    metric: str
    unit: str
    n: int
    values: tuple[float, ...]
    shares: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Trail:
    """A metric over the run, by when requests were sent; `low` and `high` are empty where each point is a request."""

    metric: str
    unit: str
    at_s: tuple[float, ...]
    values: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of one request's life: it waited for its first token, got tokens, or stood still between two."""

    request: str
    kind: str  # prefill, decode, stall
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class Curves:
    """Everything that is drawn of one run. Times are engine time, from the start of the measured phase."""

    ecdfs: Mapping[str, Ecdf]
    trails: Mapping[str, Trail]
    bars: tuple[Bar, ...]


def trace_curves(columns: Columns, slo: Slo, due: Mask, measured_from_ns: int, around_s: float, stall_s: float) -> Curves:
    """The curves of successes among the requests `due`, and timelines of those in flight around an instant.

    A gap above `stall_s` is a stall.
    """
    rows = due & columns.ok
    origin_ns = measured_from_ns
    return Curves(
        ecdfs={name: ecdf for name in ECDFS if (ecdf := _ecdf(columns, slo, name, rows)) is not None},
        trails={name: trail for name in TRAILS if (trail := _trail(columns, slo, name, rows, origin_ns)) is not None},
        bars=_bars(columns, origin_ns, origin_ns + round(around_s / columns.scale_s), stall_s),
    )


def _ecdf(columns: Columns, slo: Slo, name: str, rows: Mask) -> Ecdf | None:
    metric = DISTRIBUTIONS[name]
    samples = metric.of_rows(columns, slo, rows)
    if not len(samples.values):
        return None
    if samples.weights is None:
        values, upto = samples.values, np.arange(1, len(samples.values) + 1)
        values.sort()
    else:
        order = np.argsort(samples.values, kind="stable")
        values, upto = samples.values[order], np.cumsum(samples.weights[order])
    kept = _ranks(len(values))
    shares = upto[kept] / upto[-1]
    return Ecdf(name, metric.unit, samples.n, _numbers(values[kept]), _numbers(shares))


def _ranks(n: int) -> Ints:
    """Places in sorted values that are kept: all of a few."""
    everywhere = np.linspace(0, n - 1, min(n, RANKS))
    tail = np.linspace(0.99 * (n - 1), n - 1, min(n, TAIL_RANKS))
    return np.unique(np.concatenate([everywhere, tail]).astype(np.int64))


def _trail(columns: Columns, slo: Slo, name: str, rows: Mask, origin_ns: int) -> Trail | None:
    metric = DISTRIBUTIONS[name]
    samples = metric.of_rows(columns, slo, rows)
    values, sent = samples.values, columns.ints("sent_ns")[samples.counts > 0]
    if not len(values):
        return None
    order = np.argsort(sent, kind="stable")
    at_s, values = columns.seconds(sent[order] - origin_ns), values[order]
    if len(values) <= MAX_POINTS:
        return Trail(name, metric.unit, _numbers(at_s), _numbers(values))
    edges = np.linspace(at_s[0], at_s[-1], BINS + 1)
    bounds = np.searchsorted(at_s, edges[1:-1])
    bins = [
        (middle, part) for middle, part in zip((edges[1:] + edges[:-1]) / 2, np.split(values, bounds), strict=True) if len(part)
    ]
    low, middle, high = np.transpose([np.quantile(part, (0.05, 0.5, 0.95)) for _, part in bins])
    return Trail(name, metric.unit, tuple(float(at) for at, _ in bins), _numbers(middle), _numbers(low), _numbers(high))


def _bars(columns: Columns, origin_ns: int, around_ns: int, stall_s: float) -> tuple[Bar, ...]:
    """The lives of some requests, those in flight at that instant first, in the order in which they were sent."""
    sent = columns.ints("sent_ns")
    rows = np.flatnonzero(columns.measured & (sent != NONE) & (columns.last_ns != NONE))
    if not len(rows):
        return ()
    away = np.maximum(sent[rows] - around_ns, 0) + np.maximum(around_ns - columns.last_ns[rows], 0)
    nearest = rows[np.lexsort((sent[rows], away))][:MAX_TIMELINES]
    chosen = nearest[np.argsort(sent[nearest], kind="stable")]
    stall_ns = _drawn_above(columns, chosen, stall_s / columns.scale_s)
    bars = [bar for row in chosen.tolist() for bar in _life(columns, row, origin_ns, stall_ns)]
    return tuple(bars)


def _drawn_above(columns: Columns, rows: Ints, stall_ns: float) -> float:
    """Gaps up to this are not drawn as stalls: more stalls than a picture can hold lose the shortest."""
    gaps = np.concatenate([np.diff(_stamps(columns, row)) for row in rows.tolist()])
    n = MAX_BARS // 2
    return max(stall_ns, float(np.partition(gaps, -n)[-n])) if len(gaps) > n else stall_ns


def _stamps(columns: Columns, row: int) -> Ints:
    return columns.chunk_at_ns[columns.offsets[row] : columns.offsets[row + 1]]


def _life(columns: Columns, row: int, origin_ns: int, stall_ns: float) -> list[Bar]:
    at_ns = _stamps(columns, row)
    name = columns.texts("request_id")[row] or ""

    def bar(kind: str, from_ns: int, to_ns: int) -> Bar:
        return Bar(name, kind, (from_ns - origin_ns) * columns.scale_s, (to_ns - origin_ns) * columns.scale_s)

    bars = [bar("prefill", int(columns.ints("sent_ns")[row]), int(at_ns[0]))]
    begin = 0
    for place in np.flatnonzero(np.diff(at_ns) > stall_ns).tolist():
        bars += [bar("decode", int(at_ns[begin]), int(at_ns[place])), bar("stall", int(at_ns[place]), int(at_ns[place + 1]))]
        begin = place + 1
    return [*bars, bar("decode", int(at_ns[begin]), int(at_ns[-1]))]


def stall_limit_s(pace_s: float | None) -> float:
    """Gaps above this are stalls; without a pace none are."""
    return FACTOR * pace_s if pace_s else float("inf")


def _numbers(values: Floats) -> tuple[float, ...]:
    return tuple(values.tolist())
