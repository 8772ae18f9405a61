"""Summaries -> charts, as specifications of a declarative library: what is drawn, not how.

One run has its distributions, its latency over time and the timelines of some of its requests. Several runs share these
pictures, one colour a run, and get two more: how much the server carries for how fast a user is served, and each figure against
the load. Every title says if the runs, or some of them, are simulated. Texts of a server are data here; the library escapes
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longbench_sched.compare.point import gpus_of
from longbench_sched.metrics.curves import Bar, Curves, Ecdf
from longbench_sched.metrics.stat import Section, Summary
from longbench_sched.report import headline, several
from longbench_sched.report.drawing import Spec
from longbench_sched.report.figures import Scale, scale_of, typical
from longbench_sched.report.page import stat_title
from longbench_sched.report.untrusted import clean

# Seen on white and on black alike, and told apart by those who do not see red and green as others do (Okabe & Ito 2008).
COLOURS = ("#2b8cc4", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8c8c8c")
STALL, WAIT = "#d55e00", "#8c8c8c"
_DASHES = ([1, 0], [7, 3], [2, 3], [10, 3, 2, 3])
MAX_TIMELINES = 6  # runs whose timelines are drawn
LOG_RATIO = 10.0  # of the largest to the median: above it an axis is logarithmic
SIZE: dict[str, Any] = {"width": 380, "height": 220}
_WIDE = 1000
_ROW = 16  # of a timeline
_TICK = 2  # pixels of a token in a timeline that stands alone

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture with its name (for a file), what it says in words, and whether it needs the whole width."""

    name: str
    caption: str
    spec: Spec
    is_wide: bool = False


def charts(summaries: Sequence[Summary]) -> list[Chart]:
    """All pictures of these runs; those of which a run has nothing are left out."""
    names = _names(summaries)
    drawn = [(name, summary, summary.curves) for name, summary in zip(names, summaries, strict=True) if summary.curves]
    suffix = _suffix(summaries)
    found: list[Chart] = []
    if drawn:
        curves = [(name, curves) for name, _, curves in drawn]
        found += [chart for metric in ("ttft", "tpot", "itl", "e2e") if (chart := _ecdf(metric, drawn, suffix))]
        found += [chart for metric in ("ttft", "tpot") if (chart := _trail(metric, curves, suffix))]
    if len(summaries) > 1:
        found += [chart for chart in (_frontier(names, summaries, suffix), *_sweep(summaries, suffix)) if chart]
    for place, (name, summary, one) in enumerate(drawn[:MAX_TIMELINES], 1):
        if one.bars:
            found.append(_timelines(f"timelines-{place}" if len(drawn) > 1 else "timelines", name, summary, one))
    return found


def _names(summaries: Sequence[Summary]) -> list[str]:
    return [headline.engine_name(summaries[0].meta)] if len(summaries) == 1 else several.labels(summaries)


def _suffix(summaries: Sequence[Summary]) -> str:
    """What stands behind every title: ` (simulated, clock x6)`; where runs differ in that, that some are."""
    suffixes = {headline.simulated_suffix(summary.meta) for summary in summaries}
    return suffixes.pop() if len(suffixes) == 1 else " (some runs are simulated)"


def _ecdf(metric: str, drawn: Sequence[tuple[str, Summary, Curves]], suffix: str) -> Chart | None:
    have = [(name, curves.ecdfs[metric]) for name, _, curves in drawn if metric in curves.ecdfs]
    if not have:
        return None
    medians = [value for _, summary, _ in drawn if (value := typical(_section(summary).stats[metric])) is not None]
    scale = scale_of("s", max(medians, default=None))
    axis, least = value_axis([ecdf for _, ecdf in have], scale)
    rows: Rows = [{"run": name, **row} for name, ecdf in have for row in step_rows(ecdf, scale, least)]
    spec = {
        **SIZE,
        "title": {"text": f"{stat_title(metric)}{suffix}", "subtitle": "share of values at or below"},
        "data": {"values": rows},
        "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 2, "clip": True},
        "encoding": {
            "x": {
                "field": "value",
                "type": "quantitative",
                "title": f"{stat_title(metric)}, {scale.unit}",
                "scale": axis,
            },
            "y": {"field": "share", "type": "quantitative", "title": None, "axis": {"format": "%"}},
            **colours([name for name, _ in have], is_dashed=True),
        },
    }
    counts = ", ".join(f"{name} {ecdf.n}" for name, ecdf in have) if len(have) > 1 else str(have[0][1].n)
    return Chart(f"ecdf-{metric}", f"Distribution of {stat_title(metric)}; values: {counts}.", spec)


def step_rows(ecdf: Ecdf, scale: Scale, least: float) -> Rows:
    """The points of a step function: at a value the share rises; it begins at 0."""
    steps = zip((ecdf.values[0], *ecdf.values), (0.0, *ecdf.shares), strict=True)
    return [{"value": round(max(value * scale.factor, least), 6), "share": round(share, 6)} for value, share in steps]


def _trail(metric: str, curves: Sequence[tuple[str, Curves]], suffix: str) -> Chart | None:
    have = [(name, one.trails[metric]) for name, one in curves if metric in one.trails]
    if not have:
        return None
    scale = scale_of("s", max(sorted(trail.values)[len(trail.values) // 2] for _, trail in have))
    rows: Rows = []
    for name, trail in have:
        bands = zip(trail.low, trail.high, strict=True) if trail.low else [(None, None)] * len(trail.values)
        for at_s, value, (low, high) in zip(trail.at_s, trail.values, bands, strict=True):
            row = {"run": name, "at": round(at_s, 3), "value": round(value * scale.factor, 4)}
            if low is not None and high is not None:
                row |= {"low": round(low * scale.factor, 4), "high": round(high * scale.factor, 4)}
            rows.append(row)
    is_banded = any(trail.low for _, trail in have)
    y = {"type": "quantitative", "title": f"{stat_title(metric)}, {scale.unit}"}
    x = {"field": "at", "type": "quantitative", "title": "sent at, s"}
    colour = colours([name for name, _ in have])
    points = {"mark": {"type": "point", "filled": True, "size": 22, "opacity": 0.7}, "encoding": {"y": {"field": "value", **y}}}
    band = {"mark": {"type": "area", "opacity": 0.25}, "encoding": {"y": {"field": "low", **y}, "y2": {"field": "high"}}}
    line = {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"y": {"field": "value", **y}}}
    words = "median and 5 to 95 % of the requests sent at a time" if is_banded else "each request"
    spec = {
        **SIZE,
        "title": {"text": f"{stat_title(metric)} over the run{suffix}", "subtitle": words},
        "data": {"values": rows},
        "encoding": {"x": x, **colour},
        "layer": [band, line] if is_banded else [points],
    }
    return Chart(f"over-time-{metric}", f"{stat_title(metric)} by when requests were sent: {words}.", spec)


def _frontier(names: Sequence[str], summaries: Sequence[Summary], suffix: str) -> Chart | None:
    sections = [_section(summary) for summary in summaries]
    speeds = [section.stats["output_speed"].p50 if "output_speed" in section.stats else None for section in sections]
    gpus = [gpus_of(summary.meta) for summary in summaries]
    return trade_off(list(zip(names, speeds, map(_total, sections), gpus, strict=True)), suffix)


def trade_off(points: Sequence[tuple[str, float | None, float | None, int | None]], suffix: str) -> Chart | None:
    """Throughput against the output speed of one user: (name, tok/s of a user, tok/s in all, GPUs) for each.

    Throughput is that of one GPU where every point says how many it had; else that of all, as the axis says.
    """
    is_per_gpu = all(gpus for *_, gpus in points)
    rows: Rows = [
        {"run": name, "speed": round(speed, 4), "carried": round(carried / gpus if is_per_gpu and gpus else carried, 2)}
        for name, speed, carried, gpus in points
        if speed is not None and carried is not None
    ]
    if len(rows) < 2:
        return None
    for row in rows:
        row["best"] = not any(
            other["speed"] >= row["speed"] and other["carried"] >= row["carried"] and other is not row for other in rows
        )
    x = {
        "field": "speed",
        "type": "quantitative",
        "title": "output of one user, tok/s (median)",
        "scale": {"zero": False, "padding": 30},
    }
    unit = "tok/s per GPU" if is_per_gpu else "tok/s of all GPUs"
    y = {
        "field": "carried",
        "type": "quantitative",
        "title": f"input + output, {unit}",
        "scale": {"zero": False, "padding": 20},
    }
    spec = {
        **SIZE,
        "title": {
            "text": f"Throughput and interactivity{suffix}",
            "subtitle": "up and right is better; the line joins the best",
        },
        "data": {"values": rows},
        "encoding": {"x": x, "y": y},
        "layer": [
            {"transform": [{"filter": "datum.best"}], "mark": {"type": "line", "strokeDash": [4, 4], "opacity": 0.6}},
            {
                "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
                "encoding": colours([name for name, *_ in points]),
            },
        ],
    }
    of = "a GPU" if is_per_gpu else "the server"
    return Chart("frontier", f"What {of} carries against how fast it serves one user.", spec)


def _sweep(summaries: Sequence[Summary], suffix: str) -> Iterator[Chart]:
    """A figure against the load, where the runs were made under at least three loads."""
    loads = [_load(summary) for summary in summaries]
    kinds = {kind for kind, _ in loads}
    if len({load for _, load in loads}) < 3 or len(kinds) != 1 or None in kinds:
        return
    title = kinds.pop()
    for metric in ("ttft", "tpot"):
        stats = [_section(summary).stats[metric] for summary in summaries]
        scale = scale_of("s", max((stat.p50 for stat in stats if stat.p50 is not None), default=None))
        rows = [
            {
                "run": clean(summary.meta.experiment.get("target") or headline.engine_name(summary.meta), 40),
                "load": load,
                "value": stat.p50 * scale.factor,
                "low": (stat.low if stat.low is not None else stat.p50) * scale.factor,
                "high": (stat.high if stat.high is not None else stat.p50) * scale.factor,
            }
            for summary, (_, load), stat in zip(summaries, loads, stats, strict=True)
            if stat.p50 is not None
        ]
        if rows:
            yield _against(metric, title or "", rows, scale, suffix)


def _against(metric: str, title: str, rows: Rows, scale: Scale, suffix: str) -> Chart:
    y = {"type": "quantitative", "title": f"{stat_title(metric)} p50, {scale.unit}"}
    spec = {
        **SIZE,
        "title": {"text": f"{stat_title(metric)} against the load{suffix}", "subtitle": "median, 95 % interval within the run"},
        "data": {"values": rows},
        "encoding": {
            "x": {"field": "load", "type": "quantitative", "title": title},
            **colours(list(dict.fromkeys(str(row["run"]) for row in rows))),
        },
        "layer": [
            {"mark": {"type": "line", "point": True}, "encoding": {"y": {"field": "value", **y}}},
            {"mark": "rule", "encoding": {"y": {"field": "low", **y}, "y2": {"field": "high"}}},
        ],
    }
    return Chart(f"load-{metric}", f"{stat_title(metric)} p50 against the load.", spec)


def _load(summary: Summary) -> tuple[str | None, float | None]:
    """What kind of load the first lane is, and how much of it."""
    lanes = summary.meta.plan.get("lanes") or [{}]
    lane: Mapping[str, Any] = lanes[0]
    if lane.get("loop") == "closed":
        return "in flight", lane.get("concurrency")
    rate = lane.get("rate_per_s")
    return ("requests a second", rate) if rate else (None, None)


def _timelines(file_name: str, name: str, summary: Summary, curves: Curves) -> Chart:
    prefix = f"{summary.meta.run_id}-"
    order = list(dict.fromkeys(bar.request for bar in curves.bars))
    labels = {request: f"{place:02}" for place, request in enumerate(order)}
    span_s = max(bar.to_s for bar in curves.bars) - min(bar.from_s for bar in curves.bars)
    rows = [
        {"r": labels[bar.request], "k": bar.kind, "a": round(bar.from_s, 4), "b": round(bar.to_s, 4)} for bar in curves.bars
    ]
    for place in _ticks(curves.bars, span_s * _TICK / _WIDE):
        rows[place]["t"] = 1
    shown = {labels[request]: clean(request.removeprefix(prefix), 20) for request in order}
    kinds = {"prefill": "before the first token", "decode": "tokens come", "stall": "stands still"}
    y = {
        "field": "r",
        "type": "nominal",
        "title": None,
        "sort": list(shown),
        "axis": {"labelExpr": _lookup(shown), "grid": False, "ticks": False, "domain": False, "labelFontSize": 11},
    }
    spec = {
        "width": _WIDE,
        "height": {"step": _ROW},
        "title": {
            "text": f"{name}: timelines of {len(order)} requests{headline.simulated_suffix(summary.meta)}",
            "subtitle": "what the scheduler did to each: a gap in the blue is a token that came late",
        },
        "data": {"values": rows},
        "encoding": {
            "x": {
                "field": "a",
                "type": "quantitative",
                "title": "time in the run, s",
                "axis": {"tickCount": 12},
                "scale": {"zero": False, "nice": False},
            },
            "y": y,
        },
        "layer": [
            {
                "mark": {"type": "bar", "height": {"band": 0.62}},
                "encoding": {
                    "x2": {"field": "b"},
                    "color": {
                        "field": "k",
                        "type": "nominal",
                        "title": None,
                        "scale": {"domain": list(kinds), "range": [WAIT, COLOURS[0], STALL]},
                        "legend": {"labelExpr": _lookup(kinds), "symbolType": "square"},
                    },
                },
            },
            {
                "transform": [{"filter": "datum.t"}],
                "mark": {"type": "tick", "color": COLOURS[0], "thickness": _TICK, "height": {"band": 1}, "opacity": 1},
            },
        ],
    }
    stalls = sum(bar.kind == "stall" for bar in curves.bars)
    caption = f"{name}: {len(order)} requests in the order in which they were sent, with the {stalls} longest of their stalls."
    return Chart(file_name, caption, spec, is_wide=True)


def _ticks(bars: Sequence[Bar], tick_s: float) -> Iterator[int]:
    """Places of bars too short to be seen that stand alone between two long stalls: with a token for each chunk of a prompt."""
    for place, (before, bar, after) in enumerate(zip(bars, bars[1:], bars[2:], strict=False), 1):
        is_lone = bar.kind == "decode" and bar.to_s - bar.from_s < tick_s and before.kind == after.kind == "stall"
        if is_lone and min(before.to_s - before.from_s, after.to_s - after.from_s) > 2 * tick_s:
            yield place


def _lookup(labels: Mapping[str, str]) -> str:
    """An expression that turns a value into its label; the labels are strings of JSON, so nothing in them is code."""
    import orjson

    return f"({orjson.dumps(dict(labels)).decode()})[datum.value]"


def _section(summary: Summary) -> Section:
    return summary.steady or summary.whole


def _total(section: Section) -> float | None:
    rate = section.rates.get("total_throughput")
    return rate.value if rate is not None else None


def value_axis(ecdfs: Sequence[Ecdf], scale: Scale) -> tuple[dict[str, Any], float]:
    """The axis of values, and the least that it shows: logarithmic where a tail would press all else against its side."""
    medians = [_median(ecdf) * scale.factor for ecdf in ecdfs]
    largest = max(ecdf.values[-1] for ecdf in ecdfs) * scale.factor
    if min(medians) <= 0 or largest <= LOG_RATIO * max(medians):
        return {"zero": False}, float("-inf")
    # Tokens that came in one read have no gap at all; they stand at the axis.
    least = min(medians) / LOG_RATIO
    return {"type": "log", "domain": [least, largest], "nice": False}, least


def _median(ecdf: Ecdf) -> float:
    return next(value for value, share in zip(ecdf.values, ecdf.shares, strict=True) if share >= 0.5)


def colours(names: Sequence[str], *, is_dashed: bool = False) -> dict[str, Any]:
    """One colour a run, with a legend where there are several; lines that may lie on each other also differ in their dashes."""
    legend = {"title": None, "columns": 2, "symbolStrokeWidth": 3} if len(names) > 1 else None
    scale = {"domain": list(names), "range": [COLOURS[place % len(COLOURS)] for place in range(len(names))]}
    found: dict[str, Any] = {"color": {"field": "run", "type": "nominal", "scale": scale, "legend": legend}}
    if is_dashed:
        dashes = {"domain": list(names), "range": [_DASHES[place % len(_DASHES)] for place in range(len(names))]}
        found["strokeDash"] = {"field": "run", "type": "nominal", "scale": dashes, "legend": legend}
    return found
