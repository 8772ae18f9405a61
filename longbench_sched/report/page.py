"""Summaries -> Page: what is said, in which order, and what is left unsaid until it matters.

One run gives its distributions (the whole run and the steady window apart, each named), what it carried, how its requests
ended, how well the client kept up, then the warnings. Several runs give one table: each metric is a group of rows, one a
run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from longbench_sched.metrics.definitions import DISTRIBUTIONS
from longbench_sched.metrics.stat import Section, Stat, Summary
from longbench_sched.report import carried, headline, several
from longbench_sched.report.figures import P99_NOTE, STAT_COLUMNS, Scale, duration_text, scale_of, stat_cells, typical
from longbench_sched.report.layout import Column, Line, Lines, Page, Table
from longbench_sched.report.outcomes import adjusted_table, notices, reasons_table
from longbench_sched.report.stalls import stalls_table
from longbench_sched.report.untrusted import clean

HEADLINE_METRICS = ("ttft", "tpot", "itl", "e2e")


def build_page(summaries: Sequence[Summary], files: Mapping[str, str] | None = None) -> Page:
    """The report on one run, or on several side by side.

    files: label -> path of what was written, for the last lines ("Stored": "results/....parquet").
    """
    lines = tuple(Line(label, clean(path, 400)) for label, path in (files or {}).items())
    if len(summaries) == 1:
        return _single(summaries[0], lines)
    return several.build(summaries, lines)


def _single(summary: Summary, files: tuple[Line, ...]) -> Page:
    sections = [section for section in (summary.whole, summary.steady) if section is not None]
    blocks: list[Table | Lines] = [_headline_table(section) for section in sections]
    blocks += [_lane_table(name, section) for name, section in summary.lanes.items()]
    tables = adjusted_table(summary.outcomes, summary.whole), reasons_table(summary.outcomes), stalls_table(summary)
    blocks += [table for table in tables if table]
    blocks.append(Lines((*carried.lines(summary), *files)))
    blocks += [_full_table(section) for section in sections]
    return Page(
        title=headline.title(summary.meta),
        is_simulated=summary.meta.simulated or summary.meta.time_scale != 1,
        head=headline.head(summary),
        blocks=tuple(blocks),
        notices=notices(summary),
        files=files,
        summaries=(summary,),
    )


def section_title(section: Section) -> str:
    """Which part of the run the figures are over."""
    name = {"whole": "Whole run", "steady": "Steady window"}.get(section.window, section.window)
    span = duration_text(section.to_s - section.from_s)
    if section.window == "steady":
        return f"{name}, {span} from {duration_text(section.from_s)} on (requests due in it)"
    return f"{name}, {span}"


def _headline_table(section: Section) -> Table:
    return _stat_table(section_title(section), [section.stats[name] for name in HEADLINE_METRICS if name in section.stats])


def _lane_table(name: str, section: Section) -> Table:
    stats = [section.stats[metric] for metric in HEADLINE_METRICS if metric in section.stats]
    return _stat_table(f"Lane {clean(name)}, {section_title(section).lower()}", stats)


def _full_table(section: Section) -> Table:
    rest = [stat for name, stat in section.stats.items() if name not in HEADLINE_METRICS and stat.n]
    return _stat_table(f"{section_title(section)}: everything else", rest, is_detail=True)


def _stat_table(title: str, stats: Sequence[Stat], *, is_detail: bool = False) -> Table:
    rows = []
    for stat in stats:
        scale: Scale = scale_of(stat.unit, typical(stat))
        rows.append((stat_title(stat.metric), scale.unit, *stat_cells(stat, scale)))
    marked = any(stat.p99 is not None and stat.p99_is_marked for stat in stats)
    hints = [f"{stat_title(stat.metric)}: {clean(stat.hint)}." for stat in stats if stat.hint]
    return Table(
        title,
        (Column("", "left"), Column("", "left"), *STAT_COLUMNS),
        tuple(rows),
        (*((P99_NOTE,) if marked else ()), *hints),
        is_detail,
    )


def stat_title(metric: str) -> str:
    """A metric's name for people."""
    return DISTRIBUTIONS[metric].title if metric in DISTRIBUTIONS else clean(metric).replace("_", " ")
