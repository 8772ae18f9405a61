"""Page -> CSV: a small wide table for a spreadsheet, one row a run and window; or a tidy one, one row a figure.

Numbers have six significant digits, in the units their column names say; what is not defined is an empty cell. A text cell
that a spreadsheet would take for a formula gets an apostrophe in front (OWASP, "CSV injection"); numbers are never touched.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields

from longbench_sched.metrics.stat import Section, Summary
from longbench_sched.report.layout import Page
from longbench_sched.report.rows import Cell, comparison_rows, verdict_rows
from longbench_sched.report.tidy import FIGURES, sections, tidy_rows
from longbench_sched.report.untrusted import clean
from longbench_sched.run import SCHEMA_VERSION

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%")
_DIGITS = 6  # more than any figure here is good for; keeps a table of five cells under 50 KB
_UNIT_NAMES = {"s": "s", "tok/s": "tok_per_s", "1/s": "per_s", "tok": "tok", "1": ""}


def render(page: Page) -> str:
    """The table, with a line of column names; only that line if there are no runs."""
    if page.verdict is not None:
        rows = verdict_rows(page.verdict)
    elif page.comparison is not None:
        rows = comparison_rows(page.comparison)
    else:
        rows = [_row(summary, window, section) for summary in page.summaries for window, section in sections(summary)]
    return _write(rows)


def render_tidy(page: Page) -> str:
    """One row a figure: run, window, metric, figure, value with its interval and n; the columns of the tidy Parquet file."""
    return _write([{field.name: getattr(row, field.name) for field in fields(row)} for row in tidy_rows(page.summaries)])


def _write(rows: Sequence[Mapping[str, Cell]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns or ["schema_version"])
    writer.writerows([_cell(row.get(name)) for name in columns] for row in rows)
    return text.getvalue()


def guard(text: str) -> str:
    """A text that no spreadsheet takes for a formula, in one line."""
    cleaned = clean(text, 500)
    return f"'{cleaned}" if cleaned.startswith(_FORMULA_STARTS) or text.startswith(_FORMULA_STARTS) else cleaned


def _cell(value: Cell) -> str | int | float:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    return guard(value) if isinstance(value, str) else value


def _row(summary: Summary, window: str, section: Section) -> dict[str, Cell]:
    meta, outcomes = summary.meta, summary.outcomes
    row: dict[str, Cell] = {
        "schema_version": SCHEMA_VERSION,
        "run_id": meta.run_id,
        "started_at": meta.started_at,
        "workload": meta.workload,
        "engine": _text(meta.target, "engine"),
        "engine_version": _text(meta.engine_facts, "version"),
        "model": _text(meta.engine_facts, "model") or _text(meta.target, "model"),
        "simulated": "yes" if meta.simulated else "no",
        "time_scale": meta.time_scale,
        "plan_digest": meta.digest,
        "seed": meta.seed,
        "complete": "yes" if meta.complete else "no",
        "marks": " ".join(summary.marks),
        "attempted": outcomes.attempted,
        "ok": outcomes.ok,
        "failed": outcomes.failed,
        "timeout": outcomes.timeout,
        "cancelled": outcomes.cancelled,
        "lost": outcomes.lost,
        "window": window,
        "window_s": section.to_s - section.from_s,
    }
    for stat in section.stats.values():
        unit = _unit_suffix(stat.unit)
        row |= {f"{stat.metric}_{figure}{unit}": getattr(stat, figure) for figure in FIGURES}
        row |= {
            f"{stat.metric}_p50_low{unit}": stat.low,
            f"{stat.metric}_p50_high{unit}": stat.high,
            f"{stat.metric}_n": stat.n,
        }
    for rate in section.rates.values():
        unit = _unit_suffix(rate.unit)
        row |= {
            f"{rate.metric}{unit}": rate.value,
            f"{rate.metric}_low{unit}": rate.low,
            f"{rate.metric}_high{unit}": rate.high,
        }
    return row


def _unit_suffix(unit: str) -> str:
    name = _UNIT_NAMES.get(unit, unit.replace("/", "_per_"))
    return f"_{name}" if name else ""


def _text(values: Mapping[str, object], name: str) -> str | None:
    value = values.get(name)
    return None if value is None else str(value)
