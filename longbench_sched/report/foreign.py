"""A run as another tool would print it: its names, its definitions, and which figure of ours each of them is."""

from __future__ import annotations

from collections.abc import Sequence

from longbench_sched.metrics.conventions import Converted, Foreign
from longbench_sched.metrics.stat import Summary
from longbench_sched.report import headline
from longbench_sched.report.figures import scale_of
from longbench_sched.report.layout import Column, Lines, Page, Table

_COLUMNS = (
    Column("", "left"),
    Column("", "left"),
    Column("mean"),
    Column("median"),
    Column("p90", gives_way=2),
    Column("p95", gives_way=3),
    Column("p99"),
    Column("n"),
)


def build_foreign(summaries: Sequence[Summary], converted: Sequence[Converted]) -> Page:
    """One page on one run or several, each as the tool would print it."""
    tool = converted[0].tool
    blocks: list[Table | Lines] = []
    for summary, one in zip(summaries, converted, strict=True):
        name = headline.title(summary.meta) if len(summaries) == 1 else f"{summary.meta.run_id}"
        blocks.append(Table(f"{name}, as {tool} defines it", _COLUMNS, tuple(map(_row, one.figures)), one.notes))
    means = tuple((figure.name, figure.ours) for figure in converted[0].figures)
    blocks.append(Table("Which figure here each of them is", (Column(tool, "left"), Column("here", "left")), means))
    return Page(
        title=f"{headline.title(summaries[0].meta) if len(summaries) == 1 else f'{len(summaries)} runs'}, as {tool} defines it",
        is_simulated=any(summary.meta.simulated for summary in summaries),
        head=headline.head(summaries[0]) if len(summaries) == 1 else (),
        blocks=tuple(blocks),
        notices=(),
        files=(),
        summaries=tuple(summaries),
    )


def _row(figure: Foreign) -> tuple[str, ...]:
    scale = scale_of(figure.unit, figure.p50 or figure.mean)
    values = (figure.mean, figure.p50, figure.p90, figure.p95, figure.p99)
    return (figure.name, scale.unit, *(scale.number(value) for value in values), str(figure.n))
