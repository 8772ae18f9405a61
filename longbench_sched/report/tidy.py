"""Summaries -> tidy rows: every figure of every metric, window and run as a row of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from longbench_sched.metrics.stat import Rate, Section, Stat, Summary
from longbench_sched.store.summary import SummaryRow

FIGURES = ("mean", "p50", "p90", "p95", "p99", "min", "max")

_INTERVALS = {"p50": ("low", "high"), "mean": ("mean_low", "mean_high")}


def tidy_rows(summaries: Sequence[Summary]) -> list[SummaryRow]:
    """The rows for `store.summary.write_summary`; a metric without values keeps its rows, with null."""
    return [
        row for summary in summaries for name, section in sections(summary) for row in _section_rows(summary, name, section)
    ]


def sections(summary: Summary) -> Iterator[tuple[str, Section]]:
    """Every window of a run with its name."""
    yield "whole", summary.whole
    if summary.steady is not None:
        yield "steady", summary.steady
    for name, section in summary.lanes.items():
        yield f"lane {name}", section


def _section_rows(summary: Summary, window: str, section: Section) -> Iterator[SummaryRow]:
    meta = summary.meta
    version = meta.engine_facts.get("version")
    shared: dict[str, Any] = {
        "run_id": meta.run_id,
        "workload": meta.workload,
        "engine": str(meta.target.get("engine") or ""),
        "engine_version": None if version is None else str(version),
        "window": window,
    }
    span_s = section.to_s - section.from_s
    for stat in section.stats.values():
        yield from _stat_rows(shared, stat, span_s)
    for rate in section.rates.values():
        yield _rate_row(shared, rate, span_s)


def _stat_rows(shared: dict[str, Any], stat: Stat, span_s: float) -> Iterator[SummaryRow]:
    for figure in FIGURES:
        low, high = (getattr(stat, name) for name in _INTERVALS[figure]) if figure in _INTERVALS else (None, None)
        yield SummaryRow(
            **shared,
            metric=stat.metric,
            unit=stat.unit,
            figure=figure,
            value=getattr(stat, figure),
            low=low,
            high=high,
            n=stat.n,
            over_s=span_s,
        )


def _rate_row(shared: dict[str, Any], rate: Rate, span_s: float) -> SummaryRow:
    return SummaryRow(
        **shared,
        metric=rate.metric,
        unit=rate.unit,
        figure="value",
        value=rate.value,
        low=rate.low,
        high=rate.high,
        n=rate.n,
        over_s=rate.over_s if rate.over_s is not None else span_s,
    )
