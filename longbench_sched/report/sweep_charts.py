"""A comparison over a sweep -> curves: each figure against what the loads differ in, a curve a side.

The intervals are those of a ranking: Student's t on the logarithms of the runs of a side. That of the change between two sides
is narrower where they ran in the same blocks; it stands in the table.
"""

from __future__ import annotations

from collections.abc import Sequence

from longbench_sched.compare.comparison import Comparison, Side
from longbench_sched.compare.ranking import span
from longbench_sched.compare.trend import Trend
from longbench_sched.report.charts import SIZE, Chart, Rows, colours
from longbench_sched.report.figures import scale_of
from longbench_sched.report.untrusted import clean
from longbench_sched.report.versus import figure_title

FIGURES = ("ttft_p50", "ttft_p99", "tpot_p50", "itl_p99", "total_throughput")  # that have a curve
_FEW = {"tickCount": 6, "labelOverlap": True}


def sweep_charts(comparison: Comparison, suffix: str) -> list[Chart]:
    """The curves; none where the loads do not differ in one parameter alone."""
    groups: dict[tuple[str, str, str, str], list[Trend]] = {}
    for trend in comparison.trends:
        if trend.candidate and trend.figure.key in FIGURES:
            groups.setdefault((trend.workload, trend.figure.key, trend.parameter, trend.window), []).append(trend)
    several = len({workload for workload, *_ in groups}) > 1
    drawn = [
        _curves(f"sweep-{number}", comparison.sides, trends, (f", {clean(workload, 40)}" if several else "") + suffix)
        for number, ((workload, *_), trends) in enumerate(groups.items(), 1)
    ]
    return [chart for chart in drawn if chart is not None]


def _curves(name: str, sides: Sequence[Side], trends: Sequence[Trend], suffix: str) -> Chart | None:
    """One figure, of the base and of the candidates that have a trend."""
    figure, window = trends[0].figure, trends[0].window
    steps = {step.cell: step.at for trend in trends for step in trend.steps}
    spans = [
        (clean(side.name, 40), at, span(values))
        for side in sides
        if side is sides[0] or any(trend.candidate == side.name for trend in trends)
        for cell, at in steps.items()
        if (values := _known(side, cell, figure.key, window))
    ]
    if not spans:
        return None
    scale = scale_of(figure.unit, max(centre for _, _, (centre, _, _) in spans))
    rows: Rows = [
        {
            "run": side,
            "at": at,
            "value": centre * scale.factor,
            "low": (centre if low is None else low) * scale.factor,
            "high": (centre if high is None else high) * scale.factor,
        }
        for side, at, (centre, low, high) in spans
    ]
    over = clean(trends[0].parameter).replace("_", " ") + (f", {clean(window)}" if window.startswith("lane ") else "")
    title = f"{figure_title(figure)} over {over}"
    y = {"type": "quantitative", "title": figure_title(figure) + (f", {scale.unit}" if figure.unit == "s" else "")}
    spec = {
        **SIZE,
        "title": {"text": f"{title}{suffix}", "subtitle": "mean of the runs, 95 % interval between runs"},
        "data": {"values": rows},
        "encoding": {
            "x": {"field": "at", "type": "quantitative", "title": over, "scale": {"type": "log", "nice": False}, "axis": _FEW},
            **colours(list(dict.fromkeys(str(row["run"]) for row in rows))),
        },
        "layer": [
            {"mark": {"type": "line", "point": True}, "encoding": {"y": {"field": "value", **y}}},
            {"mark": "rule", "encoding": {"y": {"field": "low", **y}, "y2": {"field": "high"}}},
        ],
    }
    return Chart(name, f"{title}, with intervals between runs.", spec)


def _known(side: Side, cell: str, key: str, window: str) -> list[float]:
    """The figure in the runs of a side; nothing where one is 0, which no logarithm has."""
    values = [value for point in side.within(cell) if (value := point.value(key, window)) is not None]
    return values if values and min(values) > 0 else []
