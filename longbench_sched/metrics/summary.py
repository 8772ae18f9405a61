"""Summary of a run: the one call from records to numbers.

It holds every metric of the catalogue over the whole run and over the steady window, what became of the requests, what the load
really was, and what the reader should be warned of. Warm-ups are in none of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from longbench_sched.metrics import advice, check, distribution, interval, window
from longbench_sched.metrics.columns import Columns, Mask, Samples, equals
from longbench_sched.metrics.curves import Curves, stall_limit_s, trace_curves
from longbench_sched.metrics.definitions import DISTRIBUTIONS, RATES, Definition, RateDefinition
from longbench_sched.metrics.degenerate import find_degenerate
from longbench_sched.metrics.distribution import Ordered
from longbench_sched.metrics.facts import collect_facts
from longbench_sched.metrics.rates import Scene
from longbench_sched.metrics.stalls import find_stalls, pace_s
from longbench_sched.metrics.stat import Outcomes, Rate, ReasonCount, Section, Stat, Summary
from longbench_sched.metrics.window import Span
from longbench_sched.record import Status
from longbench_sched.run import NONE, Run, RunMeta
from longbench_sched.slo import Slo

SHARES = (0.5, 0.9, 0.95, 0.99)
ADJUSTED_SHARES = (0.5, 0.9, 0.99)


# What compares instants of different requests.
_WITHOUT_CLOCK: dict[str, object] = {
    "interval": "not known: the times of different requests cannot be compared",
    "in_flight": {"planned": None, "peak": 0, "whole": {}, "steady": {}},
    "littles_law": None,
    "stalls": None,
}


def summarize(run: Run, slo: Slo | None = None, *, with_curves: bool = False) -> Summary:
    """Turn a run into numbers. Without `slo`, goodput is judged by the limits stored with the run, if any.

    With curves it also holds what charts are drawn from.
    """
    columns = Columns.of(run)
    limits = slo if slo is not None else Slo.of_limits(run.meta.slo)
    meta = replace(run.meta, slo=limits.limits())  # a reader must see the limits that were applied
    whole_span = window.whole(columns) if meta.has_common_clock else None
    steady_span = _steady_span(meta, columns, whole_span)
    sections = _Sections(meta, columns, limits)
    everything = columns.measured
    whole = sections.build("whole", whole_span, everything, everything)
    steady = None
    if steady_span is not None:
        steady = sections.build("steady", steady_span, everything, window.due_inside(columns, steady_span))
    facts = collect_facts(meta, columns, whole_span, steady_span) | check.check_run(meta, columns)
    usual_gap_s = pace_s(columns, whole.stats["icg"].p50)
    facts["stalls"] = find_stalls(columns, usual_gap_s, meta.measured_from_ns)
    facts["degenerate"] = find_degenerate(columns)
    if not meta.has_common_clock:
        facts |= _WITHOUT_CLOCK
    bare = Summary(
        meta=meta,
        outcomes=count_outcomes(meta, columns),
        whole=whole,
        steady=steady,
        lanes=_lanes(sections, whole_span),
        facts=facts,
    )
    found, marks = advice.advise(bare)
    curves = _curves(bare, columns, limits, stall_limit_s(usual_gap_s)) if with_curves else None
    return replace(bare, advice=found, marks=marks, curves=curves)


def _curves(summary: Summary, columns: Columns, slo: Slo, limit_s: float) -> Curves:
    """Curves over the steady window, if there is one; timelines around the longest stall, else the middle of the window."""
    section = summary.steady or summary.whole
    span = Span(
        section.window, *(summary.meta.measured_from_ns + round(at / columns.scale_s) for at in (section.from_s, section.to_s))
    )
    due = columns.measured if summary.steady is None else window.due_inside(columns, span)
    stalls = summary.facts.get("stalls")
    longest = stalls["longest"] if isinstance(stalls, dict) else ()
    inside = [stall for stall in longest if section.from_s <= stall["from_s"] <= section.to_s]
    around_s = (section.from_s + section.to_s) / 2
    if inside:
        around_s = max(inside, key=lambda stall: float(stall["size_s"]))["from_s"]
    if not summary.meta.has_common_clock:
        return replace(trace_curves(columns, slo, due, 0, 0.0, 0.0), trails={}, bars=())
    return trace_curves(columns, slo, due, summary.meta.measured_from_ns, around_s, limit_s)


def count_outcomes(meta: RunMeta, columns: Columns) -> Outcomes:
    """What became of the measured requests; attempted = ok + failed + timeout + cancelled + lost."""
    counts = {status: int((columns.measured & equals(columns.texts("status"), status, columns.n)).sum()) for status in Status}
    attempted = int(columns.measured.sum())
    return Outcomes(
        attempted=attempted,
        ok=counts[Status.OK],
        failed=counts[Status.FAILED],
        timeout=counts[Status.TIMEOUT],
        cancelled=counts[Status.CANCELLED],
        lost=counts[Status.LOST],
        reasons=_reasons(columns),
        planned=max(attempted, int(meta.plan.get("requests", 0))),
    )


def _reasons(columns: Columns) -> tuple[ReasonCount, ...]:
    """Causes of failure, the most frequent first, each with its first request (in due order) as a sample."""
    http_status, error_code = columns.ints("http_status"), columns.ints("error_code")
    table: dict[tuple[str, str], list[int]] = {}
    for row in columns.due_order[(columns.measured & ~columns.ok)[columns.due_order]].tolist():
        status = columns.texts("status")[row] or ""
        reason = columns.texts("reason")[row] or (status if status == Status.LOST else "unknown")
        if reason == "http-status" and http_status[row] != NONE:
            reason = f"{reason} {http_status[row]}"
        elif error_code[row] != NONE:
            reason = f"{reason} {error_code[row]}"
        table.setdefault((status, reason), []).append(row)
    causes = sorted(table.items(), key=lambda cause: (-len(cause[1]), cause[0]))
    return tuple(
        ReasonCount(status, reason, len(rows), columns.texts("request_id")[rows[0]] or "", columns.texts("detail")[rows[0]])
        for (status, reason), rows in causes
    )


def _steady_span(meta: RunMeta, columns: Columns, whole: Span | None) -> Span | None:
    starts, stops = window.stays(columns, meta.measured_to_ns)
    if whole is None or not len(starts):
        return None
    return window.steady(columns, window.Flight.of(starts, stops), float((stops - starts).mean()), whole)


def _lanes(sections: _Sections, whole: Span | None) -> dict[str, Section]:
    """Figures by lane, if there is more than one; over the whole run's interval, so that the lanes' rates add up."""
    columns = sections.columns
    lanes = columns.texts("lane")
    names = sorted({lanes[row] or "" for row in np.flatnonzero(columns.measured).tolist()})
    if len(names) < 2:
        return {}
    built = {}
    for name in names:
        rows = columns.measured & equals(lanes, name, columns.n)
        built[name] = sections.build("whole", whole, rows, rows)
    return built


@dataclass(slots=True)
class _Sections:
    """Builds the sections of one run."""

    meta: RunMeta
    columns: Columns
    slo: Slo

    def build(self, name: str, span: Span | None, rows: Mask, due: Mask) -> Section:
        """A section: rates from events of `rows` inside the span, distributions over the requests `due`."""
        scene = Scene(self.columns, self.slo, span, rows, due, self.meta.seed & 0xFFFFFFFF)
        origin_ns = self.meta.measured_from_ns
        from_ns, to_ns = (span.from_ns, span.to_ns) if span else (origin_ns, max(origin_ns, self.meta.measured_to_ns))
        stats: dict[str, Stat] = {}
        for metric in DISTRIBUTIONS.values():
            # With one token a chunk ICG is ITL, and these are the two that cost: there is a value for each token.
            is_itl = metric.name == "icg" and self.columns.is_unpacked
            stats[metric.name] = replace(stats["itl"], metric="icg") if is_itl else self._stat(metric, scene)
        return Section(
            window=name,
            from_s=(from_ns - origin_ns) * self.columns.scale_s,
            to_s=(to_ns - origin_ns) * self.columns.scale_s,
            stats=stats,
            rates={metric.name: _rate(metric, scene) for metric in RATES.values()},
        )

    def _stat(self, metric: Definition, scene: Scene) -> Stat:
        columns = self.columns
        everyone = {"ok": columns.ok, "failed": columns.failed, "sent": columns.measured}[metric.over]
        samples = metric.of_rows(columns, self.slo, scene.due & everyone)
        stat = describe(metric, columns, samples, scene.seed)
        if not metric.is_adjusted:
            return stat
        exact, at_least = self._adjusted(metric, scene, samples)
        return replace(stat, adjusted=exact, adjusted_at_least=at_least)

    def _adjusted(self, metric: Definition, scene: Scene, samples: Samples) -> tuple[dict[str, float | None], dict[str, float]]:
        """Percentiles with failures as +inf. A timeout whose value was already known is bounded by it, else by its age."""
        columns = self.columns
        failed = scene.due & columns.failed
        bounds = np.zeros(0)
        if metric.bound_from is not None:
            known = metric.of_rows(columns, self.slo, columns.measured)
            values = np.full(columns.n, np.nan)
            values[known.counts > 0] = known.values
            start, end = columns.ints(metric.bound_from), columns.ints("end_ns")
            timed = failed & columns.timeout & (start != NONE) & (end != NONE)
            age_s = columns.seconds(end - start)
            is_final = (known.counts > 0) & (metric.name != "e2e")
            bounds = np.where(is_final, values, age_s)[timed]
        return distribution.adjusted(samples.values, bounds, int(failed.sum()) - len(bounds), ADJUSTED_SHARES)


def describe(metric: Definition, columns: Columns, samples: Samples, seed: int) -> Stat:
    """The figures of a distribution; all None where there are no values."""
    if not len(samples.values):
        return Stat(metric.name, metric.unit, 0)
    # Values of requests are few, and their shape is looked at as well.
    ascending = np.sort(samples.values) if metric.scope == "request" else None
    ordered = distribution.ordered(samples) if ascending is None else Ordered(ascending, is_sorted=True)
    p50, p90, p95, p99 = distribution.percentiles(ordered, SHARES)
    median = interval.median_interval(columns, samples, ordered, p50, seed)
    mean = interval.mean_interval(columns, samples, seed)
    return Stat(
        metric=metric.name,
        unit=metric.unit,
        n=samples.n,
        mean=distribution.mean(samples),
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        min=float(samples.values.min()),
        max=float(samples.values.max()),
        low=median[0] if median else None,
        high=median[1] if median else None,
        mean_low=mean[0] if mean else None,
        mean_high=mean[1] if mean else None,
        hint=None if ascending is None else distribution.second_mode(ascending, is_sorted=True),
    )


def _rate(metric: RateDefinition, scene: Scene) -> Rate:
    figure = metric.compute(scene)
    low, high = figure.interval or (None, None)
    return Rate(metric.name, metric.unit, figure.value, low, high, figure.n, figure.over_s)
