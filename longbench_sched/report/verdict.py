"""Verdict -> Page: a row a rule, what was allowed and what could have been seen; then the verdict, and what would decide more.

The Markdown of this page is meant for the summary of a CI job as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from longbench_sched.compare.gate import Finding, Verdict, counts
from longbench_sched.compare.policy import Rule
from longbench_sched.compare.power import MAX_RUNS
from longbench_sched.report.figures import percent_text
from longbench_sched.report.layout import NULL, TIE, Column, Line, Lines, Notice, Page, Table
from longbench_sched.report.untrusted import clean
from longbench_sched.report.versus import (
    change_text,
    fact_lines,
    figure_title,
    interval_text,
    side_text,
    simulated_suffix,
    spread_notes,
    value_text,
)

_WORDS = {"pass": "pass", "fail": "FAIL", "inconclusive": "inconclusive"}
_LEFT = Column("", "left")


def build_verdict(verdict: Verdict) -> Page:
    """The page of a check."""
    sides = verdict.sides
    groups = list(dict.fromkeys((finding.cell, finding.window) for finding in verdict.findings))
    blocks: list[Table | Lines] = [_table(verdict, cell, window) for cell, window in groups]
    blocks.append(Lines(tuple(_conclusion(verdict))))
    if any(finding.floor is not None and finding.floor.change is not None for finding in verdict.findings):
        blocks.append(_noise_table(verdict))
    grave = [d for d in verdict.disparities if d.consequence in ("refuse", "rank")]
    return Page(
        title=f"{clean(verdict.candidate.name)} checked against {clean(verdict.base.name)}{simulated_suffix(sides)}",
        is_simulated=any(point.simulated for side in sides for point in side.points),
        head=(
            Line("base", side_text(verdict.base)),
            Line("candidate", side_text(verdict.candidate)),
            *fact_lines(verdict.facts),
        ),
        blocks=tuple(blocks),
        notices=tuple(
            Notice(d.id.upper(), clean(d.text, 500), "", clean(d.next_step, 300)) for d in verdict.disparities if d not in grave
        ),
        files=(),
        summaries=(),
        alarms=tuple(Notice(d.id.upper(), clean(d.text, 500), "", clean(d.next_step, 300)) for d in grave),
        verdict=verdict,
    )


def allowed_text(rule: Rule) -> str:
    """What the rule allows: `+5 %`, `-5 %` of throughput, `1 %` of errors."""
    if rule.is_on_value:
        limits = ((">=", rule.at_least), ("<=", rule.at_most))
        return " ".join(f"{sign}{TIE}{_limit(rule, limit)}" for sign, limit in limits if limit is not None)
    sign = "+" if rule.better == "lower" else "-"
    return f"{sign}{100 * rule.relative:.3g}{TIE}%" if rule.relative else f"{sign}{value_text(rule.figure, rule.absolute)}"


def _limit(rule: Rule, value: float) -> str:
    return f"{100 * value:.3g}{TIE}%" if rule.figure.unit == "1" else value_text(rule.figure, value)


def _table(verdict: Verdict, cell: str, window: str) -> Table:
    here = [finding for finding in verdict.findings if (finding.cell, finding.window) == (cell, window)]
    has_absolute = any(finding.rule.absolute and finding.rule.relative for finding in here)
    columns = [_LEFT, Column("change"), Column("allowed")]
    if has_absolute:
        columns.append(Column("and", gives_way=2))
    columns += [Column("95 % interval"), Column("smallest visible", gives_way=1), Column("", "left")]
    rows = tuple(_row(finding, has_absolute) for finding in here)
    name = window if window.startswith("lane ") else f"{window} {'run' if window == 'whole' else 'window'}"
    return Table(
        f"{clean(cell, 60)}, {name}",
        tuple(columns),
        rows,
        (*_reasons(here), *spread_notes([f.delta for f in here if f.delta is not None])),
    )


def _reasons(findings: Sequence[Finding]) -> list[str]:
    """Why rules are undecided, each reason once with the figures that it is about."""
    reasons: dict[str, list[str]] = {}
    for finding in findings:
        if finding.because:
            reasons.setdefault(finding.because, []).append(figure_title(finding.rule.figure))
    return [f"{', '.join(figures)}: {because}." for because, figures in reasons.items()]


def _row(finding: Finding, has_absolute: bool) -> tuple[str, ...]:
    rule, delta = finding.rule, finding.delta
    if rule.is_on_value:
        change, interval, visible = value_text(rule.figure, finding.value), NULL, NULL
    else:
        change = NULL if delta is None else change_text(delta)
        interval = NULL if delta is None else interval_text(delta)
        visible = NULL if delta is None or delta.smallest_visible is None else percent_text(delta.smallest_visible)
    both = [value_text(rule.figure, rule.absolute) if rule.absolute and rule.relative else ""] if has_absolute else []
    return (figure_title(rule.figure), change, allowed_text(rule), *both, interval, visible, _WORDS[finding.status])


def _conclusion(verdict: Verdict) -> list[Line]:
    number = counts(verdict)
    total = len(verdict.findings)
    rules = f"{total} rule{'' if total == 1 else 's'}"
    runs = f"{len(verdict.base.points)} + {len(verdict.candidate.points)} runs{', paired by block' if verdict.paired else ''}."
    undecided = f", {number['inconclusive']} undecided" if number["inconclusive"] else ""
    match verdict.status:
        case "pass":
            first = Line("PASSED", f"{rules}. {runs}")
        case "fail":
            first = Line("FAILED", f"{number['fail']} of {rules}{undecided}. {runs}")
        case _:
            first = Line("INCONCLUSIVE", f"{number['inconclusive']} of {rules} undecided. {runs}")
    return [first, *_next_steps(verdict), *(Line("Note", clean(note, 400)) for note in verdict.notes)]


def _next_steps(verdict: Verdict) -> list[Line]:
    """What would decide what is undecided."""
    known = [f for f in verdict.findings if f.runs_to_decide is not None]
    lines = []
    if known:
        most = max(known, key=lambda f: f.runs_to_decide or 0)
        names = ", ".join(dict.fromkeys(figure_title(f.rule.figure) for f in known))
        n = most.runs_to_decide
        lines.append(Line("", f"To decide {names}, about {n} runs a side: run ... --num-runs {n}"))
    far = [f for f in verdict.findings if f.is_far]
    if far:
        names = ", ".join(dict.fromkeys(figure_title(f.rule.figure) for f in far))
        lines.append(Line("", f"{names}: more than {MAX_RUNS} runs a side; the change is about as large as what is allowed."))
    short = [f for f in verdict.findings if f.because.startswith("need >=")]
    if short:
        n = max(f.rule.min_runs for f in short)
        lines.append(Line("", f"At least {n} runs a side are needed to judge at all: run ... --num-runs {max(n, 5)}"))
    return lines


def _noise_table(verdict: Verdict) -> Table:
    rows = []
    floors = {(f.cell, f.rule.figure.key): f.floor for f in verdict.findings if f.floor is not None}
    for floor in floors.values():
        if floor.change is None or floor.cv is None:
            continue
        visible = NULL if floor.visible is None else percent_text(floor.visible)
        rows.append(
            (figure_title(floor.figure), percent_text(floor.cv), percent_text(floor.change), visible, str(floor.n_runs))
        )
    columns = (_LEFT, Column("between runs"), Column("A/A differs by"), Column("smallest visible"), Column("runs"))
    n = next(floor.n_a_side for floor in floors.values())
    note = f"A/A: two sets of {n} runs of one build differ by less than this in 19 of 20 cases."
    if verdict.paired:
        note += " Pairs of one block share a part of it, so this check is held back by less."
    return Table("Noise floor", columns, tuple(rows), (note,))
