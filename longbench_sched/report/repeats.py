"""Several runs of one engine under one load -> a table of what they come to together."""

from __future__ import annotations

from collections.abc import Sequence

from longbench_sched.compare.point import RunPoint
from longbench_sched.compare.repeats import Repeats, repeats_of
from longbench_sched.report.figures import percent_text, scale_of
from longbench_sched.report.layout import NULL, TIE, Column, Table
from longbench_sched.report.untrusted import clean
from longbench_sched.report.versus import figure_title, value_text


def repeats_table(points: Sequence[RunPoint]) -> Table | None:
    """One row a figure; None with fewer than two runs."""
    window, found = repeats_of(points)
    if not found:
        return None
    rows = tuple(
        (
            figure_title(one.figure),
            value_text(one.figure, one.mean),
            _in_unit(one, one.sd),
            NULL if one.cv is None else percent_text(one.cv),
            f"{_in_unit(one, one.low)}{TIE}…{TIE}{_in_unit(one, one.high)}",
        )
        for one in found
    )
    columns = (Column("", "left"), Column("mean"), Column("sd"), Column("CV"), Column("95 % interval of the mean"))
    name = "whole run" if window == "whole" else "steady window"
    title = f"{len(points)} runs of {clean(points[0].cell, 60)} together, {name}"
    note = "Between runs (Student's t): how far the mean of as many other runs would lie from this one."
    return Table(title, columns, rows, (note,))


def _in_unit(one: Repeats, value: float) -> str:
    """In the unit of the mean, so that a row has one."""
    if one.figure.unit != "s":
        return value_text(one.figure, value)
    return scale_of("s", one.mean).number(value)
