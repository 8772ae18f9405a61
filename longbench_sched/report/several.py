"""Several runs side by side: each metric is a group of rows, one a run, so that mean and percentiles stay together.

More runs than fit that way, and the cells of a sweep, have one row each (`overview.py`).

Runs are only shown beside each other here, not judged; what differs between them besides the engine is listed, since a figure
that moved because the lengths moved says nothing about a scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from longbench_sched.metrics.definitions import DISTRIBUTIONS
from longbench_sched.metrics.stat import Section, Stat, Summary
from longbench_sched.report import carried, headline, overview
from longbench_sched.report.figures import P99_NOTE, STAT_COLUMNS, duration_text, rate_text, scale_of, stat_cells, typical
from longbench_sched.report.layout import NULL, Column, Line, Lines, Notice, Page, Table
from longbench_sched.report.outcomes import notices, outcome_text, reasons_table
from longbench_sched.report.untrusted import clean
from longbench_sched.run import RunMeta

METRICS = ("ttft", "tpot", "itl", "e2e")

MANY = 6  # more runs than this are shown in one row each, as are the cells of a sweep

_LEFT = Column("", "left")


def build(summaries: Sequence[Summary], files: tuple[Line, ...]) -> Page:
    """The page for none or several runs."""
    if not summaries:
        return Page("No runs", False, (), (), (), files, ())
    names = labels(summaries)
    workloads = {clean(summary.meta.workload) for summary in summaries}
    suffixes = {headline.simulated_suffix(summary.meta) for summary in summaries}
    title = f"{len(summaries)} runs of {', '.join(sorted(workloads))}" + (suffixes.pop() if len(suffixes) == 1 else "")
    is_many = len(summaries) > MANY or all(overview.cell_of(summary) for summary in summaries)
    blocks: list[Table | Lines]
    if is_many:
        blocks = [overview.table(names, summaries)]
    else:
        blocks = [*_stat_tables(names, summaries, "whole"), *_stat_tables(names, summaries, "steady")]
        blocks.append(_carried_table(names, summaries))
    blocks += [table for name, summary in zip(names, summaries, strict=True) if (table := _reasons(name, summary))]
    blocks.append(Lines((*(() if is_many else _health(names, summaries)), *files)))
    return Page(
        title=title,
        is_simulated=any(summary.meta.simulated for summary in summaries),
        head=tuple(_head_of_many(summaries) if is_many else _head(names, summaries)),
        blocks=tuple(blocks),
        notices=_notices_of_many(names, summaries) if is_many else _notices(names, summaries),
        files=files,
        summaries=tuple(summaries),
    )


def labels(summaries: Sequence[Summary]) -> list[str]:
    """The shortest names that tell the runs apart: what a sweep set, targets of an experiment, engines, else the run ids."""
    metas = [summary.meta for summary in summaries]
    cells = [overview.cell_of(summary) for summary in summaries]
    for candidates in (
        [" ".join(f"{knob}={value}" for knob, value in cell.items()) for cell in cells] if all(cells) else [],
        *_names_in_experiment(metas),
        [clean(meta.target.get("engine") or "?", 20) for meta in metas],
        [headline.engine_name(meta) for meta in metas],
        [f"{clean(meta.target.get('engine') or '?', 20)} {clean(meta.workload, 20)}" for meta in metas],
        [clean(meta.run_id, 40) for meta in metas],
    ):
        if len(set(candidates)) == len(summaries):
            return candidates
    return [f"{place}: {clean(meta.run_id, 40)}" for place, meta in enumerate(metas, 1)]


def _names_in_experiment(metas: Sequence[RunMeta]) -> list[list[str]]:
    """Targets, then with their blocks, with their loads, with both; nothing unless all runs belong to an experiment."""
    places = [meta.experiment for meta in metas]
    if not all("target" in place for place in places):
        return []
    targets = [clean(place["target"], 30) for place in places]
    numbers = [place["block"] + 1 if isinstance(place.get("block"), int) else "?" for place in places]
    blocks = [f"{target} block {number}" for target, number in zip(targets, numbers, strict=True)]
    loads = [f"{target} {clean(place.get('cell') or '?', 60)}" for target, place in zip(targets, places, strict=True)]
    everything = [f"{load} block {number}" for load, number in zip(loads, numbers, strict=True)]
    return [targets, blocks, loads, everything]


def _head(names: Sequence[str], summaries: Sequence[Summary]) -> list[Line]:
    """What is the same in all runs is said once; what is not, run by run."""
    metas = [summary.meta for summary in summaries]
    loads = [headline.SEPARATOR.join(headline.load_lines(meta)) for meta in metas]
    lengths = [
        headline.SEPARATOR.join([*headline.length_texts(summary), *headline.digest_texts(meta)])
        for meta, summary in zip(metas, summaries, strict=True)
    ]
    lines: list[Line] = []
    for label, texts in (("Load", loads), ("Lengths", lengths)):
        if len(set(texts)) == 1:
            lines.append(Line(label, texts[0]))
        else:
            lines += [
                Line(label if place == 0 else "", f"{name}: {text}")
                for place, (name, text) in enumerate(zip(names, texts, strict=True))
            ]
    for name, summary, meta in zip(names, summaries, metas, strict=True):
        engine = headline.engine_name(meta)
        texts = ([] if engine == name else [engine]) + headline.engine_texts(summary)
        if len({headline.simulated_suffix(other) for other in metas}) > 1 and (suffix := headline.simulated_suffix(meta)):
            texts.append(suffix.strip(" ()"))
        lines.append(Line(name, headline.SEPARATOR.join(texts) or headline.UNKNOWN_SETTINGS))
    scales = {meta.time_scale for meta in metas}
    if scales != {1.0}:
        lines.append(Line("Clock", "every time is the engine's: as measured x the factor of its clock"))
    return [*lines, *_load_notes(metas)]


def _head_of_many(summaries: Sequence[Summary]) -> list[Line]:
    """What is the same in all runs; the rest is for the table."""
    metas = [summary.meta for summary in summaries]
    loads = [headline.SEPARATOR.join(headline.load_lines(meta)) for meta in metas]
    lengths = [headline.SEPARATOR.join(headline.length_texts(summary)) for summary in summaries]
    engines = [[headline.engine_name(summary.meta), *headline.engine_texts(summary)] for summary in summaries]
    lines: list[Line] = []
    for label, texts in (("Load", loads), ("Lengths", lengths)):
        lines.append(Line(label, texts[0] if len(set(texts)) == 1 else "differs from run to run"))
    common = [text for text in engines[0] if all(text in texts for texts in engines[1:])]
    if common:
        lines.append(Line("Engine", headline.SEPARATOR.join(common)))
    return [*lines, *_load_notes(metas)]


def _load_notes(metas: Sequence[RunMeta]) -> list[Line]:
    """Whether the runs were sent the same: lengths and arrivals first, then what the prompts say."""
    if len({headline.schedule_digest(meta) or meta.digest for meta in metas}) > 1:
        return [Line("Note", "the runs did not send the same requests (plans differ): not like for like")]
    if len({meta.digest for meta in metas if meta.digest != headline.schedule_digest(meta)}) > 1:
        return [Line("Note", "the runs were sent the same lengths and arrivals, but other prompts (plans differ)")]
    return []


def _notices_of_many(names: Sequence[str], summaries: Sequence[Summary]) -> tuple[Notice, ...]:
    """Each warning once: in how many runs, and the first as an example."""
    found: dict[str, list[tuple[str, Notice]]] = {}
    for name, summary in zip(names, summaries, strict=True):
        for notice in notices(summary):
            found.setdefault(notice.id, []).append((name, notice))
    return tuple(
        replace(seen[0][1], text=f"in {len(seen)} of {len(summaries)} runs, for example {seen[0][0]}: {seen[0][1].text}")
        for seen in found.values()
    )


def _section(summary: Summary, window: str) -> Section | None:
    return summary.whole if window == "whole" else summary.steady


def _stat_tables(names: Sequence[str], summaries: Sequence[Summary], window: str) -> list[Table]:
    """One table a metric: title with the unit, a row a run."""
    sections = [
        (name, section) for name, summary in zip(names, summaries, strict=True) if (section := _section(summary, window))
    ]
    if not sections:
        return []
    rows: list[tuple[str, ...]] = []
    marked = False
    for metric in METRICS:
        stats = [(name, section.stats[metric]) for name, section in sections if metric in section.stats]
        scale = scale_of("s", max((value for _, stat in stats if (value := typical(stat)) is not None), default=None))
        for place, (name, stat) in enumerate(stats):
            unit = (_title(stat), scale.unit) if place == 0 else ("", "")
            rows.append((*unit, name, *stat_cells(stat, scale)))
            marked = marked or (stat.p99 is not None and stat.p99_is_marked)
    return [
        Table(_window_title(window, sections), (_LEFT, _LEFT, _LEFT, *STAT_COLUMNS), tuple(rows), (P99_NOTE,) if marked else ())
    ]


def _title(stat: Stat) -> str:
    return DISTRIBUTIONS[stat.metric].title if stat.metric in DISTRIBUTIONS else clean(stat.metric)


def _window_title(window: str, sections: Sequence[tuple[str, Section]]) -> str:
    spans = ", ".join(f"{name} {duration_text(section.to_s - section.from_s)}" for name, section in sections)
    return f"{carried.WINDOW_NAMES[window].capitalize()}: {spans}"


def _carried_table(names: Sequence[str], summaries: Sequence[Summary]) -> Table:
    rows = []
    for name, summary in zip(names, summaries, strict=True):
        for section in (summary.steady, summary.whole):
            if section is None:
                continue
            rates = section.rates
            rows.append(
                (
                    name,
                    carried.window_text(section),
                    rate_text(rates.get("total_throughput")),
                    rate_text(rates.get("output_throughput")),
                    rate_text(rates.get("request_rate")),
                    rate_text(rates.get("goodput")) if summary.meta.slo else NULL,
                )
            )
    columns = (_LEFT, Column("over", "left"), Column("in+out"), Column("out"), Column("requests"), Column("good"))
    limits = {text for summary in summaries if (text := carried.slo_text(summary))}
    return Table("Throughput", columns, tuple(rows), (f"good: SLO {' | '.join(sorted(limits))}",) if limits else ())


def _reasons(name: str, summary: Summary) -> Table | None:
    table = reasons_table(summary.outcomes)
    return table and Table(f"{name}: {table.title[0].lower()}{table.title[1:]}", table.columns, table.rows, table.notes)


def _health(names: Sequence[str], summaries: Sequence[Summary]) -> list[Line]:
    lines = []
    for name, summary in zip(names, summaries, strict=True):
        texts = [outcome_text(summary.outcomes)]
        if in_flight := carried.in_flight_text(summary, summary.steady or summary.whole):
            texts.append(f"in flight {in_flight}")
        texts.append(carried.client_text(summary))
        if summary.meta.client.server_lateness_p99_ms is not None:
            texts.append(carried.server_text(summary))
        if summary.marks:
            texts.append("marks: " + ", ".join(clean(mark) for mark in summary.marks))
        lines.append(Line(name, headline.SEPARATOR.join(texts)))
    return lines


def _notices(names: Sequence[str], summaries: Sequence[Summary]) -> tuple[Notice, ...]:
    """Each warning once, with what was seen in each run that it concerns."""
    found: dict[str, Notice] = {}
    for name, summary in zip(names, summaries, strict=True):
        for notice in notices(summary):
            text = f"{name}: {notice.text}"
            before = found.get(notice.id)
            found[notice.id] = replace(before, text=f"{before.text} {text}") if before else replace(notice, text=text)
    return tuple(found.values())
