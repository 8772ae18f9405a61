"""Many runs at a glance: one row a run, one column a figure; for a sweep, a column a knob.

The page of a few runs gives each metric a table of its own. With more runs than fit on a screen that way, what matters is how a
figure moves from row to row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from longbench_sched.metrics.stat import Section, Summary
from longbench_sched.quantity import compact
from longbench_sched.report.figures import is_number, percent_text, scale_of
from longbench_sched.report.layout import NULL, Column, Table
from longbench_sched.report.untrusted import clean

MAX_KNOB_WIDTH = 32  # all knobs together; longer names become letters, explained below the table

_Pick = Callable[[Section], float | None]


def _figure(metric: str, share: str) -> _Pick:
    def pick(section: Section) -> float | None:
        stat = section.stats.get(metric)
        return None if stat is None else getattr(stat, share)

    return pick


def _rate(name: str) -> _Pick:
    def pick(section: Section) -> float | None:
        rate = section.rates.get(name)
        return None if rate is None else rate.value

    return pick


# Title, how to read it, whether it is a time; the columns that are dropped first have the highest number.
_FIGURES: tuple[tuple[str, _Pick, bool, int], ...] = (
    ("TTFT p50", _figure("ttft", "p50"), True, 0),
    ("p99", _figure("ttft", "p99"), True, 1),
    ("TPOT p50", _figure("tpot", "p50"), True, 0),
    ("ITL p99", _figure("itl", "p99"), True, 2),
    ("max", _figure("itl", "max"), True, 4),
    ("E2E p50", _figure("e2e", "p50"), True, 3),
    ("tok/s", _rate("total_throughput"), False, 0),
    ("out", _rate("output_throughput"), False, 3),
)


def cell_of(summary: Summary) -> dict[str, str]:
    """What a sweep set in this run: knob -> value; empty for a run that belongs to none."""
    cell = summary.meta.target.get("cell")
    return {clean(knob, 40): clean(value, 40) for knob, value in cell.items()} if isinstance(cell, Mapping) else {}


def table(names: Sequence[str], summaries: Sequence[Summary]) -> Table:
    """The table; figures are over the steady windows if every run that has figures has one, else all over whole runs."""
    cells = [cell_of(summary) for summary in summaries]
    knobs = list(cells[0]) if cells and all(list(cell) == list(cells[0]) for cell in cells) else []
    heads = [[cell[knob] for knob in knobs] for cell in cells] if knobs else [[name] for name in names]
    titles, notes = _knob_titles(knobs) if knobs else ([""], [])
    without = sum(summary.steady is None for summary in summaries if summary.outcomes.ok)
    sections = [summary.whole if without else summary.steady or summary.whole for summary in summaries]
    columns = [Column(title, "right" if knobs else "left") for title in titles]
    figures: list[list[str]] = []
    for title, pick, is_time, gives_way in _FIGURES:
        cells_text, unit = _column([pick(section) for section in sections], is_time=is_time)
        columns.append(Column(f"{title} {unit}".rstrip(), "right", gives_way))
        figures.append(cells_text)
    if any(summary.meta.slo for summary in summaries):
        columns.append(Column("good", "right", 0))
        figures.append([_good(summary, section) for summary, section in zip(summaries, sections, strict=True)])
    if any(summary.outcomes.ok != summary.outcomes.attempted for summary in summaries):
        columns.append(Column("ok", "right", 0))
        figures.append([f"{summary.outcomes.ok}/{summary.outcomes.attempted}" for summary in summaries])
    rows = [(*head, *(column[place] for column in figures)) for place, head in enumerate(heads)]
    if not without:
        notes.append("over each run's steady window")
    else:
        lack = "none has" if without == len(summaries) else f"{without} of {len(summaries)} lack"
        notes.append(f"over whole runs: {lack} a steady window")
    return Table(f"{len(summaries)} runs", tuple(columns), tuple(rows), tuple(notes))


def _knob_titles(knobs: Sequence[str]) -> tuple[list[str], list[str]]:
    if sum(map(len, knobs)) <= MAX_KNOB_WIDTH:
        return list(knobs), []
    letters = [chr(ord("A") + place) for place in range(len(knobs))]
    return letters, [", ".join(f"{letter}: {knob}" for letter, knob in zip(letters, knobs, strict=True))]


def _column(values: Sequence[float | None], *, is_time: bool) -> tuple[list[str], str]:
    """Cells in one unit, chosen by the middle value."""
    known = sorted(value for value in values if is_number(value))
    if not is_time:
        return [compact(value) if is_number(value) else NULL for value in values], ""
    scale = scale_of("s", known[len(known) // 2] if known else None)
    return [scale.number(value) for value in values], scale.unit


def _good(summary: Summary, section: Section) -> str:
    share = section.rates.get("good_share")
    return percent_text(share.value) if summary.meta.slo and share is not None and share.value is not None else NULL
