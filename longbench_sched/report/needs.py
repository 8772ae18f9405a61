"""What a precision costs -> Page: runs and requests by figure, load by load, and the time they take."""

from __future__ import annotations

from collections.abc import Sequence

from longbench_sched.compare.comparison import Side
from longbench_sched.compare.power import MAX_RUNS, Need, need
from longbench_sched.errors import UsageError
from longbench_sched.report.figures import percent_text
from longbench_sched.report.layout import NULL, Column, Line, Lines, Page, Table
from longbench_sched.report.untrusted import clean
from longbench_sched.report.versus import figure_title, seconds_text, side_text, simulated_suffix

DEFAULT = ("ttft_p50", "ttft_p99", "tpot_p50", "itl_p99", "e2e_p50", "total_throughput")
FORMULA = "Runs: the smallest n with t(0.975, n-1) x CV / sqrt(n) <= precision; normal: (1.96 x CV / precision)^2."


def build_needs(pilot: Side, figures: Sequence[str], precision: float) -> Page:
    """The page. Raises UsageError if no figure was measured."""
    blocks: list[Table | Lines] = []
    for cell in pilot.cells():
        found = []
        for key in figures:
            try:
                found.append(need(pilot.within(cell), key, precision))
            except UsageError:  # not measured in this load; another figure may be
                continue
        if not found:
            raise UsageError(f"none of {', '.join(figures)} was measured in these runs. Choose another --metric.")
        blocks += [_table(cell, found, precision), Lines(tuple(_conclusion(found, precision)))]
    return Page(
        title=f"What it takes to know {clean(pilot.name)} to {_plus_minus(precision)}{simulated_suffix([pilot])}",
        is_simulated=any(point.simulated for point in pilot.points),
        head=(Line("pilot", side_text(pilot)),),
        blocks=tuple(blocks),
        notices=(),
        files=(),
        summaries=(),
    )


def _table(cell: str, needs: Sequence[Need], precision: float) -> Table:
    rows = tuple(
        (
            figure_title(found.figure),
            _share(found.cv),
            _share(found.cv_inside),
            _number(found.runs),
            _number(found.runs_normal),
            _number(found.runs_to_see),
            _number(found.requests),
        )
        for found in needs
    )
    columns = (
        Column("", "left"),
        Column("CV of runs"),
        Column("inside"),
        Column("runs"),
        Column("normal"),
        Column("a side"),
        Column("requests"),
    )
    notes = [
        f"runs: for a 95 % interval of {_plus_minus(precision)}; a side: to see a change of {percent_text(precision)} in 4 "
        "of 5 comparisons; inside: chance within one run.",
        FORMULA,
    ]
    if any(found.requests is not None for found in needs):
        notes.append("requests: in each run, so that chance inside it takes at most half of the precision.")
    return Table(clean(cell, 60), columns, rows, tuple(notes))


def _conclusion(needs: Sequence[Need], precision: float) -> list[Line]:
    known = [found for found in needs if found.runs is not None]
    if not known:
        return [Line("Runs", "one pilot run does not tell how runs differ. Run at least 3: run ... --num-runs 3")]
    most = max(known, key=lambda found: found.runs or 0)
    assert most.runs is not None
    lines = [
        Line(
            "Runs",
            f"{most.runs} for {_plus_minus(precision)} on all of these ({figure_title(most.figure)} needs the most); "
            f"the pilot has {most.n_pilot}.",
        )
    ]
    if most.duration_s is not None:
        lines.append(
            Line("Time", f"about {seconds_text(most.duration_s)} of measuring for {most.runs} runs as long as the pilot's")
        )
    if most.runs > MAX_RUNS:
        lines.append(
            Line("", "So many runs say: look for the noise first (other tenants, clocks, a cold start), or ask for less.")
        )
    if most.n_pilot < 5:
        lines.append(Line("", f"A CV from {most.n_pilot} runs is rough itself: treat these numbers as an order of magnitude."))
    return lines


def _plus_minus(share: float) -> str:
    return f"±{percent_text(share)}"


def _share(value: float | None) -> str:
    return NULL if value is None else percent_text(value)


def _number(value: int | None) -> str:
    return NULL if value is None else str(value)
