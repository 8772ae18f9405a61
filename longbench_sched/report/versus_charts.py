"""Comparisons and verdicts -> charts: each change with its interval, both distributions over each other, and the trade-off.

A change is drawn on a logarithmic axis, since twice as long and half as long are as far from no change. What a distribution
looks like is known of runs that were read from their files; a baseline keeps run-level figures alone.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from longbench_sched.compare.comparison import Comparison, Side
from longbench_sched.compare.delta import Delta
from longbench_sched.compare.frontier import COST_FIGURE, centre
from longbench_sched.compare.gate import Finding, Verdict, relative_limit
from longbench_sched.metrics.curves import ECDFS, Ecdf
from longbench_sched.report.charts import COLOURS, SIZE, Chart, Rows, colours, step_rows, trade_off, value_axis
from longbench_sched.report.figures import scale_of
from longbench_sched.report.page import stat_title
from longbench_sched.report.sweep_charts import sweep_charts
from longbench_sched.report.untrusted import clean
from longbench_sched.report.versus import figure_title, simulated_suffix

MAX_PANELS = 12  # forests; a sweep of more steps is in the tables
MAX_CELLS = 4  # loads whose distributions are drawn
MAX_RUNS = 10  # of a side, drawn one by one beside their mean
FARTHEST = 20.0  # a ratio beyond this, or below its inverse, stands at the end of the axis
RANKS = 201  # of a mean distribution; single runs are drawn through fewer
_SPEED = "output_speed_p50"
_ROW = 26
_ROUND = (1.005, 1.01, 1.02, 1.05, 1.1, 1.2, 1.3, 1.5, 1.7, 1.8, 1.9, 1.95, 2.0, 3.0, 4.0, 6.0, 11.0, 16.0, 20.0)
_FEW = {"tickCount": 6, "labelOverlap": True}
_GOOD, _BAD, _NEITHER = COLOURS[2], COLOURS[4], COLOURS[6]
_CALLS = {
    "better": _GOOD,
    "worse": _BAD,
    "different": COLOURS[0],
    "unsure": COLOURS[1],
    "no difference shown": _NEITHER,
    "not judged": _NEITHER,
    "not comparable": _NEITHER,
}
_STATES = {"pass": _GOOD, "fail": _BAD, "inconclusive": COLOURS[1]}


@dataclass(frozen=True, slots=True)
class _Change:
    """One row of a forest: a ratio with its interval, what is said of it, and how far it may go."""

    title: str
    delta: Delta
    said: str
    allowed: float | None = None  # ratio


def comparison_charts(comparison: Comparison) -> list[Chart]:
    """All pictures of a comparison."""
    suffix = simulated_suffix(comparison.sides)
    several = len({(match.cell, match.window) for match in comparison.matches}) > 1
    found = []
    for number, match in enumerate(comparison.matches[:MAX_PANELS], 1):
        changes = [_Change(figure_title(delta.figure), delta, delta.call) for delta in match.deltas]
        words = [clean(match.candidate, 40)]
        if several:
            words += [clean(match.cell, 60), *([match.window] if match.window.startswith("lane ") else [])]
        found.append(_forest(f"change-{number}", f"Change: {', '.join(words)}{suffix}", changes, _CALLS))
    found += sweep_charts(comparison, suffix)
    found += _distributions(comparison.sides, suffix, {(match.candidate, match.cell) for match in comparison.refused})
    found += _trade_offs(comparison, suffix)
    return [chart for chart in found if chart is not None]


def verdict_charts(verdict: Verdict) -> list[Chart]:
    """All pictures of a check: each change with what its rule allows."""
    sides = (verdict.base, verdict.candidate)
    suffix = simulated_suffix(sides)
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in verdict.findings:
        groups.setdefault((finding.cell, finding.window), []).append(finding)
    found = []
    for number, ((cell, window), findings) in enumerate(list(groups.items())[:MAX_PANELS], 1):
        changes = [
            _Change(figure_title(finding.rule.figure), finding.delta, finding.status, _allowed(finding))
            for finding in findings
            if finding.delta is not None
        ]
        where = f": {clean(cell, 60)}" if len(groups) > 1 else ""
        lane = f", {window}" if window.startswith("lane ") else ""
        found.append(_forest(f"change-{number}", f"Change{where}{lane}{suffix}", changes, _STATES))
    return [chart for chart in (*found, *_distributions(sides, suffix)) if chart is not None]


def _allowed(finding: Finding) -> float | None:
    rule = finding.rule
    if not rule.relative:
        return None
    limit = float(np.exp(min(relative_limit(rule), 700.0)))
    return limit if rule.better == "lower" else 1 / limit


def _forest(name: str, title: str, changes: Sequence[_Change], states: Mapping[str, str]) -> Chart | None:
    """Ratios with their intervals, one below the other; a bar where the limit is, if there is one."""
    rows: Rows = []
    for change in changes:
        ratio = change.delta.ratio
        if ratio is None:
            continue
        low, high = change.delta.low, change.delta.high
        rows.append(
            {
                "figure": change.title,
                "ratio": _clipped(ratio),
                "low": _clipped(ratio if low is None else low),
                "high": _clipped(ratio if high is None else high),
                "said": change.said,
                **({"allowed": _clipped(change.allowed)} if change.allowed is not None else {}),
            }
        )
    if not rows:
        return None
    ends = [1.0, *(row[end] for row in rows for end in ("low", "high", "allowed") if end in row)]
    domain = [min(0.99, min(ends) / 1.01), max(1.01, max(ends) * 1.01)]
    said = [state for state in states if any(row["said"] == state for row in rows)]
    y = {"field": "figure", "type": "nominal", "title": None, "sort": [row["figure"] for row in rows]}
    axis = {
        "labelExpr": "datum.value == 1 ? '0 %' : format((datum.value - 1) * 100, '+.3~r') + ' %'",
        "values": _ticks(*domain),
    }
    x = {
        "type": "quantitative",
        "scale": {"type": "log", "domain": domain, "nice": False},
        "axis": axis,
        "title": "change, 95 % interval",
    }
    colour = {
        "field": "said",
        "type": "nominal",
        "scale": {"domain": said, "range": [states[state] for state in said]},
        "legend": {"title": None, "columns": 2},
    }
    layers: list[dict[str, Any]] = [
        {"mark": {"type": "rule", "strokeDash": [4, 4], "opacity": 0.7}, "encoding": {"x": {"datum": 1.0, **x}}},
        {
            "mark": {"type": "rule", "strokeWidth": 2.5},
            "encoding": {"x": {"field": "low", **x}, "x2": {"field": "high"}, "y": y, "color": colour},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 75, "opacity": 1},
            "encoding": {"x": {"field": "ratio", **x}, "y": y, "color": colour},
        },
    ]
    subtitle = "candidate against base; the broken line is no change"
    if any("allowed" in row for row in rows):
        subtitle += ", a bar is the limit"
        mark = {"type": "tick", "thickness": 3, "size": 16, "color": _NEITHER}
        layers.append(
            {
                "transform": [{"filter": "isValid(datum.allowed)"}],
                "mark": mark,
                "encoding": {"x": {"field": "allowed", **x}, "y": y},
            }
        )
    spec = {
        **SIZE,
        "height": {"step": _ROW},
        "title": {"text": title, "subtitle": subtitle},
        "data": {"values": rows},
        "layer": layers,
    }
    return Chart(name, f"{title}: {', '.join(_words(row) for row in rows)}.", spec)


def _ticks(low: float, high: float) -> list[float]:
    """Round changes within the axis, no change first, none closer to another than a sixth of the axis."""
    apart = (math.log(high) - math.log(low)) / 6
    found: list[float] = []
    for ratio in sorted((1.0, *_ROUND, *(1 - (ratio - 1) for ratio in _ROUND if ratio < 2)), key=lambda r: abs(math.log(r))):
        if low <= ratio <= high and all(abs(math.log(ratio / other)) >= apart for other in found):
            found.append(ratio)
    return sorted(found)


def _words(row: Mapping[str, Any]) -> str:
    """A row for those who cannot see it."""
    return f"{row['figure']} {100 * (row['ratio'] - 1):+.1f} % ({row['said']})"


def _clipped(ratio: float) -> float:
    return round(min(max(ratio, 1 / FARTHEST), FARTHEST), 6)


def _distributions(sides: Sequence[Side], suffix: str, refused: Container[tuple[str, str]] = frozenset()) -> list[Chart | None]:
    """Of each load, with all sides but those that are refused there; `refused`: (side, load)."""
    cells = {}
    for cell in sides[0].cells():
        here = [side for side in sides if (side.name, cell) not in refused]
        if len(here) > 1 and all(side.within(cell) for side in here):
            cells[cell] = here
    return [
        _distribution(f"ecdf-{metric}" + (f"-{number}" if len(cells) > 1 else ""), metric, cell, here, suffix, len(cells) > 1)
        for number, (cell, here) in enumerate(list(cells.items())[:MAX_CELLS], 1)
        for metric in ECDFS
    ]


def _distribution(name: str, metric: str, cell: str, sides: Sequence[Side], suffix: str, is_named: bool) -> Chart | None:
    """The distributions of all sides under one load: the mean over the runs of a side, and thin beside it each of its runs."""
    have = {
        clean(side.name, 40): [point.ecdfs[metric] for point in side.within(cell) if metric in point.ecdfs] for side in sides
    }
    if not all(have.values()):
        return None
    means = {side: mean_ecdf(ecdfs) for side, ecdfs in have.items()}
    scale = scale_of("s", max(float(np.interp(0.5, mean.shares, mean.values)) for mean in means.values()))
    axis, least = value_axis(list(means.values()), scale)
    rows: Rows = []
    for side, ecdfs in have.items():
        for place, ecdf in enumerate(ecdfs[:MAX_RUNS] if len(ecdfs) > 1 else []):
            rows += [{"run": side, "one": place, **row} for row in step_rows(_thinned(ecdf, RANKS // 2), scale, least)]
        rows += [{"run": side, "one": -1, **row} for row in step_rows(means[side], scale, least)]
    title = stat_title(metric)
    where = f", {clean(cell, 60)}" if is_named else ""
    shades = colours(list(have))
    shades["color"]["legend"] |= {"symbolOpacity": 1}
    encoding = {
        "x": {"field": "value", "type": "quantitative", "title": f"{title}, {scale.unit}", "scale": axis, "axis": _FEW},
        "y": {"field": "share", "type": "quantitative", "title": None, "axis": {"format": "%"}},
        "detail": {"field": "one", "type": "nominal"},
        **shades,
    }
    line = {"type": "line", "interpolate": "step-after", "clip": True}
    spec = {
        **SIZE,
        "title": {
            "text": f"{title}{where}{suffix}",
            "subtitle": "share of values at or below; thin: single runs" if any(row["one"] >= 0 for row in rows) else
            "share of values at or below",
        },
        "data": {"values": rows},
        "encoding": encoding,
        "layer": [
            {"transform": [{"filter": "datum.one >= 0"}], "mark": {**line, "strokeWidth": 1, "opacity": 0.35}},
            {"transform": [{"filter": "datum.one < 0"}], "mark": {**line, "strokeWidth": 2.5}},
        ],
    }  # fmt: skip
    counts = ", ".join(f"{side} {sum(ecdf.n for ecdf in ecdfs)} in {len(ecdfs)} runs" for side, ecdfs in have.items())
    return Chart(name, f"Distribution of {title}{where}; values: {counts}.", spec)


def mean_ecdf(ecdfs: Sequence[Ecdf]) -> Ecdf:
    """The mean of the shares at each value: every run counts alike, however many values it has."""
    first = ecdfs[0]
    values = np.unique(np.concatenate([ecdf.values for ecdf in ecdfs]))
    shares = np.zeros(len(values))
    for ecdf in ecdfs:
        places = np.searchsorted(np.asarray(ecdf.values), values, side="right")
        shares += np.concatenate([[0.0], ecdf.shares])[places]
    whole = Ecdf(
        first.metric, first.unit, sum(ecdf.n for ecdf in ecdfs), tuple(values.tolist()), tuple((shares / len(ecdfs)).tolist())
    )
    return _thinned(whole, RANKS)


def _thinned(ecdf: Ecdf, n: int) -> Ecdf:
    """At most `n` of its points, both ends included, and half as many more over the last hundredth."""
    last = len(ecdf.values) - 1
    everywhere = np.linspace(0, last, min(last + 1, n))
    tail = np.linspace(0.99 * last, last, min(last + 1, n // 2))
    kept = np.unique(np.concatenate([everywhere, tail]).astype(np.int64)).tolist()
    return Ecdf(ecdf.metric, ecdf.unit, ecdf.n, tuple(ecdf.values[i] for i in kept), tuple(ecdf.shares[i] for i in kept))


def _trade_offs(comparison: Comparison, suffix: str) -> list[Chart | None]:
    """What a side carries against how fast it serves one user; of the loads under which everything may be ranked."""
    found = []
    for frontier in comparison.frontiers[:MAX_CELLS]:
        window = frontier.window
        points = [
            (clean(name, 40), centre(runs, _SPEED, window), centre(runs, COST_FIGURE, window), runs[0].gpus)
            for name, runs in frontier.points.items()
        ]
        where = f", {clean(frontier.cell, 60)}" if len(comparison.frontiers) > 1 else ""
        found.append(trade_off(points, f"{where}{suffix}"))
    return found
