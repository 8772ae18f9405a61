"""Comparison -> Page: who against whom, what differs in their settings, then the numbers, then which doubts remain.

Settings and disparities stand above the numbers: a reader who has seen "+30 %" does not unsee it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from longbench_sched.compare.comparison import Comparison, Match, Side
from longbench_sched.compare.delta import Delta
from longbench_sched.compare.difference import UNKNOWN, FactDifference
from longbench_sched.compare.figure import Figure, find_figure
from longbench_sched.compare.frontier import Frontier
from longbench_sched.compare.parity import Disparity
from longbench_sched.compare.point import RunPoint
from longbench_sched.compare.ranking import Ranking
from longbench_sched.compare.trend import Trend
from longbench_sched.quantity import compact, significant
from longbench_sched.report.figures import duration_text, is_number, percent_text, scale_of
from longbench_sched.report.headline import DIGEST_DIGITS, SEPARATOR, UNKNOWN_SETTINGS, settings_texts
from longbench_sched.report.layout import NULL, TIE, Column, Line, Lines, Notice, Page, Table
from longbench_sched.report.untrusted import clean

_LEFT = Column("", "left")
# Short enough that a row of a comparison fits 80 columns.
_SHORT = {
    "total_throughput": "tok/s all",
    "output_throughput": "tok/s out",
    "input_throughput": "tok/s in",
    "request_rate": "requests/s",
    "goodput": "goodput/s",
    "error_rate": "errors",
    "success_rate": "success",
}
WORSE_LIMIT = 1.2  # of a ratio, from which on a step of a sweep is named
MAX_STEPS_ACROSS = 5  # of a sweep; more are rows
LONG_FACT = 60  # characters; what is shorter stays on one line


def build_comparison(comparison: Comparison, limit: float = WORSE_LIMIT) -> Page:
    """The page. `limit`: a ratio that is worse than this names the first step of a sweep where it is so."""
    blocks: list[Table | Lines] = [_match_table(comparison, match) for match in comparison.matches]
    blocks += _trend_tables(comparison.trends, limit)
    blocks += _ranking_tables(comparison.rankings)
    if len(comparison.sides) > 2 or any(
        s.gpus not in (None, 1) or s.per_dollar for f in comparison.frontiers for s in f.standings
    ):
        blocks += [_frontier_table(frontier) for frontier in comparison.frontiers]
    if comparison.notes:
        blocks.append(Lines(tuple(Line("Note", clean(note, 400)) for note in comparison.notes)))
    disparities = _named_disparities(comparison)
    refused = {(match.candidate, match.cell): match for match in comparison.refused}.values()
    return Page(
        title=f"{clean(comparison.base.name)} against {', '.join(clean(side.name) for side in comparison.candidates)}"
        + simulated_suffix(comparison.sides),
        is_simulated=any(point.simulated for side in comparison.sides for point in side.points),
        head=(*side_lines(comparison), *fact_lines(comparison.facts)),
        blocks=tuple(blocks),
        notices=tuple(_notice(d) for d in disparities if d.consequence in ("chunks", "limits", "mark")),
        files=(),
        summaries=(),
        alarms=(
            *(_refused(match) for match in refused),
            *(_notice(d) for d in disparities if d.consequence in ("refuse", "rank")),
        ),
        comparison=comparison,
    )


def simulated_suffix(sides: Sequence[Side]) -> str:
    """` (simulated)` if any run was, so that no figure passes for a measured one."""
    kinds = {point.simulated for side in sides for point in side.points}
    return "" if kinds == {False} else " (simulated)" if kinds == {True} else " (partly simulated)"


def side_lines(comparison: Comparison) -> list[Line]:
    """Base and candidates: engine, settings, number of runs, day; and what makes them like with like."""
    lines = [Line("base", side_text(comparison.base))]
    label = "candidate" if len(comparison.candidates) == 1 else "candidates"
    for place, side in enumerate(comparison.candidates):
        lines.append(Line(label if place == 0 else "", side_text(side)))
    schedules = {point.schedule for side in comparison.sides for point in side.points}
    schedule = f" (schedule {clean(schedules.pop())[:DIGEST_DIGITS]})" if len(schedules) == 1 else ""
    if comparison.is_comparable:
        how = "paired by block" if all(match.paired for match in comparison.matches) else "not paired"
        lines.append(Line("", f"same lengths and arrivals{schedule}, {how}"))
    return lines


def side_text(side: Side) -> str:
    """`sglang-32k: sglang 0.5.23 · token budget 32768 · 5 runs · 2026-11-30`."""
    first = side.points[0]
    version = first.facts.get("version")
    engine = clean(first.engine, 20) + (f" {clean(version, 40)}" if version else "")
    name = [] if side.name in (engine, first.engine) else [clean(side.name, 40)]
    days = sorted({point.started_at[:10] for point in side.points})
    day = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    parts = [*name, engine, SEPARATOR.join(settings_texts(first.facts)) or UNKNOWN_SETTINGS, runs_text(side.points), day]
    return SEPARATOR.join(parts)


def runs_text(points: Sequence[RunPoint]) -> str:
    """`5 runs`, or `5 runs of each of 3 loads`."""
    cells = list(dict.fromkeys(point.cell for point in points))
    each = {sum(point.cell == cell for point in points) for cell in cells}
    n = f"{len(points) if len(cells) == 1 else min(each)}" + (f" to {max(each)}" if len(each) > 1 else "")
    runs = f"{n} run{'' if n == '1' else 's'}"
    return runs if len(cells) == 1 else f"{runs} of each of {len(cells)} loads"


def fact_lines(facts: Sequence[FactDifference]) -> list[Line]:
    """What differs in the settings; what some side does not tell stands apart, since it may be the same."""
    told = [_fact_text(fact) for fact in facts if UNKNOWN not in fact.values]
    untold = [_fact_text(fact) for fact in facts if UNKNOWN in fact.values]
    return [Line(label, SEPARATOR.join(texts)) for label, texts in (("differs", told), ("not told", untold)) if texts]


def _fact_text(fact: FactDifference) -> str:
    """`token budget 8192 / 32768`; `?` for what is not told. Lines break after a slash, and that only in a long one."""
    values = (clean(value, 30) if value != UNKNOWN else "?" for value in fact.values)
    text = f"{clean(fact.name, 40).replace('_', ' ')} {' / '.join(values)}".replace(" ", TIE)
    return text if len(text) <= LONG_FACT else text.replace(f"/{TIE}", "/ ")


def _notice(disparity: Disparity) -> Notice:
    return Notice(disparity.id.upper(), clean(disparity.text, 500), "", clean(disparity.next_step, 300))


def _named_disparities(comparison: Comparison) -> list[Disparity]:
    """Each once; with the candidates and loads that it is about, where there are others."""
    found: dict[str, tuple[Disparity, list[Match]]] = {}
    for match in comparison.matches:
        for disparity in match.disparities:
            found.setdefault(disparity.text, (disparity, []))[1].append(match)
    named = []
    for disparity, about in found.values():
        where = [
            ", ".join(clean(name, 60) for name in dict.fromkeys(names))
            for names, everywhere in (
                ([match.candidate for match in about], {match.candidate for match in comparison.matches}),
                ([match.cell for match in about], {match.cell for match in comparison.matches}),
            )
            if set(names) != everywhere
        ]
        named.append(replace(disparity, text=f"{' under '.join(where)}: {disparity.text}") if where else disparity)
    return named


def _refused(match: Match) -> Notice:
    """What is left out of the page, and why."""
    disparity = match.disparities[0]
    text = f"{clean(match.candidate, 40)}, {clean(match.cell, 60)} is left out. {clean(disparity.text, 500)}"
    return Notice(disparity.id.upper(), text, "", clean(disparity.next_step, 300))


def figure_title(figure: Figure) -> str:
    """A short name for the first column."""
    return _SHORT.get(figure.key, figure.title)


def value_text(figure: Figure, value: float | None, typical: float | None = None) -> str:
    """A value with its unit; what the unit is of `tok/s` and the like is in the row's name."""
    if not is_number(value):
        return NULL
    if figure.unit == "s":
        scale = scale_of("s", typical if is_number(typical) else value)
        return f"{scale.number(value)}{TIE}{scale.unit}"
    return percent_text(value) if figure.key in ("error_rate", "success_rate", "good_share") else compact(value)


def signed(share: float | None, *, unit: bool = True) -> str:
    """A change in percent with its sign: -7.1 %, +1330 %."""
    if not is_number(share):
        return NULL
    percent = 100 * share
    if abs(percent) >= 1e6:
        text = f"{'+' if percent > 0 else '-'}>{10**6}"
    elif abs(percent) >= 99.95:
        text = f"{'+' if percent > 0 else '-'}{significant(abs(percent))}"
    else:
        text = f"{percent:+.1f}".replace("-0.0", "0.0").replace("+0.0", "0.0")
    return f"{text}{TIE}%" if unit else text


def interval_text(delta: Delta) -> str:
    """The interval of the change: -9.8 … -4.4 %."""
    if delta.low is None or delta.high is None:
        return NULL
    text = f"{signed(delta.low - 1, unit=False)}{TIE}…{TIE}{signed(delta.high - 1)}"
    return f"({text})" if delta.method == "within run" else text


def change_text(delta: Delta) -> str:
    """The change in percent, or the difference where there is no ratio."""
    if delta.ratio is not None:
        return signed(delta.change)
    if not is_number(delta.difference):
        return NULL
    if delta.figure.key == "error_rate":
        return f"{100 * delta.difference:+.1f}{TIE}points"
    return ("+" if delta.difference >= 0 else "-") + value_text(delta.figure, abs(delta.difference))


def _match_table(comparison: Comparison, match: Match) -> Table:
    rows = [
        (
            figure_title(delta.figure),
            value_text(delta.figure, delta.base),
            value_text(delta.figure, delta.candidate),
            change_text(delta),
            interval_text(delta),
            percent_text(delta.smallest_visible) if delta.smallest_visible is not None else NULL,
            delta.call,
        )
        for delta in match.deltas
    ]
    title = [clean(match.cell, 60)]
    if len(comparison.candidates) > 1:
        title.append(clean(match.candidate, 40))
    title.append(
        match.window if match.window.startswith("lane ") else f"{match.window} {'run' if match.window == 'whole' else 'window'}"
    )
    columns = (
        _LEFT, Column("base"), Column("candidate"), Column("change"), Column("95 % interval"),
        Column("smallest visible", gives_way=2), Column("", "left"),
    )  # fmt: skip
    return Table(", ".join(title), columns, tuple(rows), tuple(_match_notes(match)))


def _match_notes(match: Match) -> list[str]:
    notes = []
    if not match.deltas:
        notes.append("Nothing to show: none of these figures is known here, or all are 0.")
    if any(delta.call == "unsure" for delta in match.deltas):
        notes.append("unsure: different if it were the only figure looked at, not after correction for all of them (Holm).")
    if any(delta.method == "within run" for delta in match.deltas):
        notes.append("(...) from inside single runs: it does not say how the next run would differ.")
    notes += spread_notes(match.deltas)
    n = match.n_base, match.n_candidate
    if n[0] != n[1] or min(n) < 3:
        notes.append(f"{n[0]} + {n[1]} runs.")
    return notes


def spread_notes(deltas: Sequence[Delta]) -> list[str]:
    """Where no figure varies from run to run, what that does not mean."""
    if not deltas or any(delta.has_spread for delta in deltas):
        return []
    return [
        "No change varies from run to run: intervals without width say nothing of other traffic or of a machine that varies."
    ]


def _trend_tables(trends: Sequence[Trend], limit: float) -> list[Table]:
    """One table a candidate and window: figures down, steps across; the steps' intervals are in their own tables."""
    groups: dict[tuple[str, str, str], list[Trend]] = {}
    n_workloads = len({trend.workload for trend in trends})
    for trend in trends:
        # Over a setting of the engine the steps are sides, under one load.
        whose = trend.candidate or trend.steps[0].cell
        if trend.candidate and n_workloads > 1:
            whose += f", {trend.workload}"
        groups.setdefault((whose, trend.window, trend.parameter), []).append(trend)
    tables = []
    for (whose, window, parameter), group in groups.items():
        over = clean(parameter).replace("_", " ")
        notes = [
            f"{trend.figure.title}: worse by more than a factor {limit:g} from {over} {_step(first.at)} on."
            for trend in group
            if trend.candidate and (first := trend.first_beyond(limit)) is not None
        ]
        where = "" if window in ("whole", "steady") else f", {clean(window)}"
        title = f"{clean(whose, 60)}: change over {over}{where}"
        tables.append(Table(title, *_trend_grid(over, group), tuple(notes)))
    return tables


def _trend_grid(over: str, group: Sequence[Trend]) -> tuple[tuple[Column, ...], tuple[tuple[str, ...], ...]]:
    """Figures down and steps across; the other way round where there are many steps, of which none may be left out."""
    steps = [_step(step.at) for step in group[0].steps]
    cells = [
        [*(signed(step.delta.change) for step in trend.steps), signed(None if (by := trend.per_doubling) is None else by - 1)]
        for trend in group
    ]
    if len(steps) <= MAX_STEPS_ACROSS:
        rows = [(figure_title(trend.figure), *row) for trend, row in zip(group, cells, strict=True)]
        return (_LEFT, *(Column(step) for step in steps), Column("a doubling", gives_way=1)), tuple(rows)
    columns = (Column(over), *(Column(figure_title(trend.figure), gives_way=place) for place, trend in enumerate(group)))
    return columns, tuple((label, *row) for label, row in zip([*steps, "a doubling"], zip(*cells, strict=True), strict=True))


def _step(value: float) -> str:
    return f"{value:g}" if value < 1e6 else compact(value)


def _ranking_tables(rankings: Sequence[Ranking]) -> list[Table]:
    tables = []
    for cell in dict.fromkeys(ranking.cell for ranking in rankings):
        here = [ranking for ranking in rankings if ranking.cell == cell]
        names = [place.name for place in here[0].places]
        places = {(ranking.figure.key, place.name): place for ranking in here for place in ranking.places}
        rows = []
        for name in names:
            ranks = (places[ranking.figure.key, name] for ranking in here)
            rows.append((clean(name, 30), *(f"{place.rank}{'=' if place.ties else ''}" for place in ranks)))
        columns = (_LEFT, *(Column(figure_title(ranking.figure), gives_way=i) for i, ranking in enumerate(here)))
        notes = ("= a tie: the intervals overlap. A rank is one more than the number of those that are surely better.",)
        tables.append(Table(f"Ranking, {clean(cell, 60)}", columns, tuple(rows), notes))
        tables += [_places_table(ranking) for ranking in here]
    return tables


def _places_table(ranking: Ranking) -> Table:
    rows = []
    for place in ranking.places:
        ends = [value_text(ranking.figure, end, place.value) for end in (place.low, place.high)]
        interval = f"{ends[0]}{TIE}…{TIE}{ends[1]}" if place.low is not None else NULL
        value = value_text(ranking.figure, place.value)
        rows.append(
            (str(place.rank), clean(place.name, 30), value, interval, str(place.n), ", ".join(map(clean, place.ties)) or NULL)
        )
    columns = (Column("rank"), _LEFT, Column("value"), Column("95 % interval"), Column("runs"), Column("ties with", "left"))
    return Table(f"Ranking by {ranking.figure.title}, {clean(ranking.cell, 60)}", columns, tuple(rows), is_detail=True)


def _frontier_table(frontier: Frontier) -> Table:
    figures = [find_figure(key) for key in frontier.objectives]
    has_gpus = any(standing.per_gpu is not None for standing in frontier.standings)
    has_dollars = any(standing.per_dollar is not None for standing in frontier.standings)
    rows = []
    for standing in frontier.standings:
        cells = [clean(standing.name, 24)]
        cells += [value_text(figure, value) for figure, value in zip(figures, standing.values, strict=True)]
        if has_gpus:
            cells += [
                NULL if standing.gpus is None else str(standing.gpus),
                NULL if standing.per_gpu is None else compact(standing.per_gpu),
            ]
        if has_dollars:
            cells.append(NULL if standing.per_dollar is None else compact(standing.per_dollar))
        beaten = f"beaten by {clean(standing.dominated_by[0], 20)}" if standing.dominated_by else ""
        cells.append(beaten or ("best in some" if standing.is_on_frontier else NULL))
        rows.append(tuple(cells))
    columns = [_LEFT, *(Column(figure_title(figure)) for figure in figures)]
    if has_gpus:
        columns += [Column("GPUs", "right", 1), Column("tok/s/GPU")]
    if has_dollars:
        columns.append(Column("tok/$"))
    title = f"Trade-off, {clean(frontier.cell, 60)}" + (
        f", by {frontier.setting.replace('_', ' ')}" if frontier.setting else ""
    )
    second = "ITL p99" if "itl_p99" in frontier.objectives else "TPOT p99 (tokens come packed in other ways, so not ITL)"
    note = f"best in some: no other is at least as good in TTFT, {second} and throughput and better in one (the Pareto set)."
    return Table(title, (*columns, Column("", "left")), tuple(rows), (note,))


def seconds_text(seconds: float) -> str:
    """A length of time for planning: 40 s, 25 min, 3.5 h."""
    if seconds < 120:
        return duration_text(seconds)
    return f"{seconds / 60:.0f}{TIE}min" if seconds < 7200 else f"{seconds / 3600:.1f}{TIE}h"
