"""Gate: rules held against a comparison; a verdict that may be that it does not know.

A rule on a change
- fails, if the best estimate is worse than both of its limits and the runs show that it is worse at all (one-sided t; the p
  values of all rules are corrected together by Holm, so that two sets of runs of one build fail a check of any length at most
  once in twenty);
- passes, if the whole 95 % interval lies within one of its limits;
- is inconclusive otherwise, and says how many runs a side would decide it if the spread stays what it is.

Each rule stands for itself: what has improved does not pay for what has not. A rule on a value (`at_most`) looks at the mean
of the candidate's runs; errors are counted, not estimated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from longbench_sched.compare.comparison import Match, Side, left_out_notes, match_sides, same_runs_notes
from longbench_sched.compare.delta import ALPHA, Delta, Estimate, holm
from longbench_sched.compare.difference import FactDifference, differing_facts
from longbench_sched.compare.figure import ERROR_RATE, Figure
from longbench_sched.compare.noise import NoiseFloor, noise_floor
from longbench_sched.compare.parity import Disparity, find_disparities
from longbench_sched.compare.point import WHOLE, RunPoint, common_window
from longbench_sched.compare.policy import Policy, Rule
from longbench_sched.compare.power import MAX_RUNS, runs_for_half_width
from longbench_sched.errors import EXIT_GATE_FAILED, EXIT_INCONCLUSIVE, EXIT_OK
from longbench_sched.quantity import significant

Status = Literal["pass", "fail", "inconclusive"]
# Where errors may be of another load, or the client's own.
_EXCUSES = frozenset({"plans-differ", "client-limited", "client-rate", "impossible-values", "self-check-failed"})


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule says about one load."""

    rule: Rule
    cell: str
    window: str
    status: Status
    because: str  # empty where the numbers say it all
    delta: Delta | None = None  # of a rule on a change
    value: float | None = None  # of a rule on a value
    p: float | None = None  # of "not worse at all", one-sided, before the correction
    runs_to_decide: int | None = None  # a side, if inconclusive and the spread is known
    is_far: bool = False  # more than MAX_RUNS would be needed
    floor: NoiseFloor | None = None  # what two sets of runs of one build differ by


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a check."""

    policy: str
    base: Side
    candidate: Side
    findings: tuple[Finding, ...]
    disparities: tuple[Disparity, ...]
    facts: tuple[FactDifference, ...]
    paired: bool
    notes: tuple[str, ...] = ()

    @property
    def sides(self) -> tuple[Side, Side]:
        """Base and candidate."""
        return self.base, self.candidate

    @property
    def status(self) -> Status:
        """Fail before inconclusive before pass; nothing found is nothing known."""
        states = [finding.status for finding in self.findings]
        if "fail" in states:
            return "fail"
        return "pass" if states and all(state == "pass" for state in states) else "inconclusive"

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 3 inconclusive or not comparable."""
        return {"pass": EXIT_OK, "fail": EXIT_GATE_FAILED, "inconclusive": EXIT_INCONCLUSIVE}[self.status]


def check(base: Side, candidate: Side, policy: Policy, noise: Sequence[RunPoint] = ()) -> Verdict:
    """Hold every rule against every load that both sides have. `noise`: runs of one build, for the A/A noise floor."""
    findings: list[Finding] = []
    matches: list[Match] = []
    for cell in base.cells():
        if candidate.within(cell):
            matches += match_sides(cell, base, candidate, _figures(policy))
        else:
            findings += _missing(cell, base, policy)
    for match in matches:
        before, points = base.within(match.cell), candidate.within(match.cell)
        for rule in policy.rules:
            if rule.covers(match.cell, match.window):
                finding = _on_value(rule, match, points) if rule.is_on_value else _on_change(rule, match, before, points)
                findings.append(_with_floor(finding, match, noise))
    paired = bool(matches) and all(match.paired for match in matches)
    return Verdict(
        policy=policy.name,
        base=base,
        candidate=candidate,
        findings=tuple(_decide(findings)),
        disparities=tuple({d.text: d for match in matches for d in match.disparities}.values()),
        facts=differing_facts([base.points, candidate.points]),
        paired=paired,
        # Pairs share a part of what the floor is made of, so it bounds no paired check.
        notes=(
            *_notes(base, candidate, policy, findings),
            *left_out_notes(base, candidate),
            *_noise_notes(noise, base, candidate),
            *(() if paired else _floor_notes(findings)),
        ),
    )


def _missing(cell: str, base: Side, policy: Policy) -> list[Finding]:
    """A load that the candidate was not measured under: whatever killed it there, it has not passed."""
    because = "not measured on the candidate's side"
    windows = [WHOLE, *base.within(cell)[0].lanes]
    return [
        Finding(rule, cell, window, "inconclusive", because)
        for window in windows
        for rule in policy.rules
        if rule.covers(cell, window)
    ]


def _figures(policy: Policy) -> list[Figure]:
    return list({rule.figure.key: rule.figure for rule in policy.rules}.values())


def _on_value(rule: Rule, match: Match, points: Sequence[RunPoint]) -> Finding:
    """A limit on the candidate's own value. Errors beyond it fail whatever else differs: a warm cache makes them no better."""
    blocked = _blocked(match, rule)
    counts_anyway = rule.figure.key == ERROR_RATE and not any(d.id in _EXCUSES for d in match.disparities)
    if blocked and not counts_anyway:
        return Finding(rule, match.cell, match.window, "inconclusive", blocked)
    if rule.figure.key == ERROR_RATE:
        attempted = sum(point.attempted for point in points)
        values = [1 - sum(point.ok for point in points) / attempted] if attempted else []
    else:
        values = [value for point in points if (value := point.value(rule.figure.key, match.window)) is not None]
        if values and len(values) < rule.min_runs:
            return Finding(
                rule, match.cell, match.window, "inconclusive", _too_few(rule), value=math.fsum(values) / len(values)
            )
    if not values:
        return Finding(rule, match.cell, match.window, "inconclusive", f"{rule.figure.key} was not measured")
    value = math.fsum(values) / len(values)
    is_within = (rule.at_most is None or value <= rule.at_most) and (rule.at_least is None or value >= rule.at_least)
    if is_within and blocked:
        return Finding(rule, match.cell, match.window, "inconclusive", blocked, value=value)
    return Finding(rule, match.cell, match.window, "pass" if is_within else "fail", "", value=value)


def _on_change(rule: Rule, match: Match, before: Sequence[RunPoint], points: Sequence[RunPoint]) -> Finding:
    """A limit on how much worse the candidate may be; whether it fails is decided with all the others (`_decide`)."""
    delta = match.delta(rule.figure.key)
    finding = Finding(rule, match.cell, match.window, "inconclusive", "", delta)
    blocked = _blocked(match, rule)
    if blocked:
        return replace(finding, because=blocked)
    if delta is None and any(point.value(rule.figure.key, match.window) is None for point in (*before, *points)):
        return replace(finding, because=f"{rule.figure.key} was not measured")
    counted = match if delta is None else delta
    if min(counted.n_base, counted.n_candidate) < max(2, rule.min_runs):
        return replace(finding, because=_too_few(rule))
    if delta is None:  # 0 on both sides, as errors should be
        return replace(finding, status="pass")
    relative, plain = worse(delta.logs, rule), worse(delta.plain, rule)
    assert plain is not None
    if _is_within(relative, relative_limit(rule)) or _is_within(plain, _absolute_limit(rule, delta)):
        return replace(finding, status="pass")
    p = (relative or plain).p_above(0.0)
    return replace(finding, p=p)


def worse(estimate: Estimate | None, rule: Rule) -> Estimate | None:
    """The estimate, turned so that more is worse."""
    if estimate is None or rule.better == "lower":
        return estimate
    return replace(estimate, centre=-estimate.centre)


def relative_limit(rule: Rule) -> float:
    """The relative limit on the scale of logarithms, where more is worse: ln 1.05, or -ln 0.95 for a loss of throughput."""
    if rule.better == "lower":
        return math.log1p(rule.relative)
    return -math.log1p(-rule.relative) if rule.relative < 1 else math.inf


def _absolute_limit(rule: Rule, delta: Delta) -> float:
    """The absolute limit; without logarithms (values of 0) the relative one is taken of the base's mean as well."""
    if delta.logs is None and delta.base is not None:
        return max(rule.absolute, rule.relative * abs(delta.base))
    return rule.absolute


def _is_within(estimate: Estimate | None, limit: float) -> bool:
    """Whether the whole interval is within a limit. A limit of 0 is none: it can be kept only by what is surely better."""
    return estimate is not None and estimate.interval()[1] <= limit


def _is_beyond(finding: Finding) -> bool:
    """Whether the best estimate is worse than both limits."""
    delta, rule = finding.delta, finding.rule
    assert delta is not None
    relative, plain = worse(delta.logs, rule), worse(delta.plain, rule)
    assert plain is not None
    is_beyond_relative = relative is None or relative.centre > relative_limit(rule)
    return is_beyond_relative and plain.centre > _absolute_limit(rule, delta)


def _decide(findings: Sequence[Finding]) -> list[Finding]:
    """Fail what is beyond its limits and surely worse; say of the rest how many runs would decide it."""
    judged = [finding for finding in findings if finding.delta is not None and not finding.because]
    # Rules that pass take part in the correction: they were asked as well.
    p_values = [finding.p if finding.p is not None else 1.0 for finding in judged]
    adjusted = {id(finding): p for finding, p in zip(judged, holm(p_values), strict=True)}
    decided = []
    for finding in findings:
        if finding.p is not None:
            if _is_beyond(finding) and adjusted[id(finding)] <= ALPHA:
                finding = replace(finding, status="fail")
            else:
                finding = _undecided(finding)
        decided.append(finding)
    return decided


def _undecided(finding: Finding) -> Finding:
    """How many runs a side would bring the interval to one side of the limit, at the spread that was seen."""
    delta, rule = finding.delta, finding.rule
    assert delta is not None
    estimate, limit = worse(delta.logs, rule), relative_limit(rule)
    if estimate is None or rule.relative == 0:
        estimate, limit = worse(delta.plain, rule), _absolute_limit(rule, delta)
    assert estimate is not None
    # Beyond the limit it is enough to show that it is worse at all; within, the whole interval must come below the limit.
    distance = estimate.centre if estimate.centre > limit else limit - estimate.centre
    runs = runs_for_half_width(estimate, min(delta.n_base, delta.n_candidate), distance)
    return replace(finding, runs_to_decide=runs, is_far=runs is None or runs > MAX_RUNS)


def _blocked(match: Match, rule: Rule) -> str:
    """Why nothing can be said at all, or an empty text."""
    for disparity in match.disparities:
        if disparity.spoils(rule.figure) and not (disparity.id == "failures" and rule.figure.key == ERROR_RATE):
            return f"not comparable: {disparity.id}"
    return ""


def _too_few(rule: Rule) -> str:
    return f"need >= {max(2, rule.min_runs) if not rule.is_on_value else rule.min_runs} runs"


def _with_floor(finding: Finding, match: Match, noise: Sequence[RunPoint]) -> Finding:
    here = [point for point in noise if point.cell == match.cell]
    if finding.delta is None or len(here) < 2:
        return finding
    window = finding.window if finding.window.startswith("lane ") else common_window(here)
    return replace(finding, floor=noise_floor(finding.rule.figure, here, window, min(match.n_base, match.n_candidate)))


def _notes(base: Side, candidate: Side, policy: Policy, findings: Sequence[Finding]) -> list[str]:
    notes = same_runs_notes(base, candidate)
    notes += [f"{cell} was not measured on the base's side." for cell in candidate.cells() if not base.within(cell)]
    unused = [rule for rule in policy.rules if not any(finding.rule is rule for finding in findings)]
    return [*notes, *(f"No load of these runs is covered by the rule on {rule.figure.key}." for rule in unused)]


def _noise_notes(noise: Sequence[RunPoint], base: Side, candidate: Side) -> list[str]:
    """Where the runs of the noise floor are not of what is checked."""
    if not noise:
        return []
    notes = []
    for cell in [cell for cell in base.cells() if candidate.within(cell)]:
        here = [point for point in noise if point.cell == cell]
        if len(here) < 2:
            notes.append(f"The noise floor has {len(here) or 'no'} run{'s' * (not here)} under {cell}: it takes two to differ.")
            continue
        # A floor may be of other draws of lengths and arrivals, so plans are not looked at.
        others = [d for d in find_disparities(candidate.within(cell), here) if d.consequence in ("refuse", "rank")]
        notes += [
            f"The noise floor under {cell} is not of this load ({d.id}). {d.text}" for d in others if d.id != "plans-differ"
        ]
    differing = min((differing_facts([side.points, noise]) for side in (base, candidate)), key=len)
    if differing:
        names = ", ".join(fact.name.replace("_", " ") for fact in differing)
        notes.append(f"The noise floor is of neither build; what differs: {names}.")
    return notes


def _floor_notes(findings: Sequence[Finding]) -> list[str]:
    """Limits that lie below the noise floor."""
    notes = []
    for finding in findings:
        floor = finding.floor
        if floor is not None and finding.rule.relative and floor.change is not None and floor.change > finding.rule.relative:
            notes.append(
                f"{finding.rule.figure.title}: two sets of runs of one build differ by up to {_percent(floor.change)}, "
                f"more than the {_percent(finding.rule.relative)} allowed. More runs, or a wider limit."
            )
    return list(dict.fromkeys(notes))


def counts(verdict: Verdict) -> Mapping[Status, int]:
    """How many rules passed, failed, were undecided."""
    states: list[Status] = ["pass", "fail", "inconclusive"]
    return {state: sum(finding.status == state for finding in verdict.findings) for state in states}


def _percent(share: float) -> str:
    return f"{significant(100 * share)} %"
