"""Comparisons and verdicts as plain rows, at full precision: what CSV and JSON are made of.

A row is one figure of one candidate under one load, or what one rule found. Ratios are candidate / base; intervals are 95 %.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longbench_sched.compare.comparison import Comparison, Match, Side
    from longbench_sched.compare.delta import Delta
    from longbench_sched.compare.difference import FactDifference
    from longbench_sched.compare.gate import Finding, Verdict
    from longbench_sched.compare.parity import Disparity

Cell = str | int | float | None


def comparison_rows(comparison: Comparison) -> list[dict[str, Cell]]:
    """One row a figure, load and candidate."""
    return [
        {
            "base": comparison.base.name,
            "candidate": match.candidate,
            "cell": match.cell,
            "window": match.window,
            **{f"param_{name}": value for name, value in sorted(match.params.items())},
            **delta_row(delta),
            "disparities": " ".join(disparity.id for disparity in match.disparities),
        }
        for match in comparison.matches
        for delta in match.deltas
    ]


def verdict_rows(verdict: Verdict) -> list[dict[str, Cell]]:
    """One row a finding."""
    return [{"base": verdict.base.name, "candidate": verdict.candidate.name, **finding_row(f)} for f in verdict.findings]


def delta_row(delta: Delta) -> dict[str, Cell]:
    """One figure."""
    return {
        "metric": delta.figure.key,
        "unit": delta.figure.unit,
        "better": delta.figure.better,
        "base_value": delta.base,
        "candidate_value": delta.candidate,
        "ratio": delta.ratio,
        "ratio_low": delta.low,
        "ratio_high": delta.high,
        "difference": delta.difference,
        "difference_low": delta.difference_low,
        "difference_high": delta.difference_high,
        "n_base": delta.n_base,
        "n_candidate": delta.n_candidate,
        "method": delta.method,
        "df": None if delta.logs is None else delta.logs.df,
        "p": delta.p,
        "p_holm": delta.p_adjusted,
        "smallest_visible": delta.smallest_visible,
        "call": delta.call,
    }


def finding_row(finding: Finding) -> dict[str, Cell]:
    """What one rule found."""
    rule, delta, floor = finding.rule, finding.delta, finding.floor
    return {
        "metric": rule.figure.key,
        "unit": rule.figure.unit,
        "cell": finding.cell,
        "window": finding.window,
        "status": finding.status,
        "because": finding.because,
        "base_value": delta.base if delta else None,
        "candidate_value": delta.candidate if delta else finding.value,
        "ratio": delta.ratio if delta else None,
        "ratio_low": delta.low if delta else None,
        "ratio_high": delta.high if delta else None,
        "difference": delta.difference if delta else None,
        "difference_low": delta.difference_low if delta else None,
        "difference_high": delta.difference_high if delta else None,
        "allowed_relative": None if rule.is_on_value else rule.relative,
        "allowed_absolute": None if rule.is_on_value else rule.absolute,
        "at_most": rule.at_most,
        "at_least": rule.at_least,
        "min_runs": rule.min_runs,
        "n_base": delta.n_base if delta else None,
        "n_candidate": delta.n_candidate if delta else None,
        "p_not_worse": finding.p,
        "smallest_visible": delta.smallest_visible if delta else None,
        "noise_floor": floor.change if floor else None,
        "runs_to_decide": finding.runs_to_decide,
    }


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """Everything about a comparison."""
    return {
        "base": _side(comparison.base),
        "candidates": [_side(side) for side in comparison.candidates],
        "facts_that_differ": [_fact(fact) for fact in comparison.facts],
        "is_comparable": comparison.is_comparable,
        "matches": [_match(match) for match in comparison.matches],
        "refused": [
            {"candidate": match.candidate, "cell": match.cell, "disparities": [_disparity(d) for d in match.disparities]}
            for match in comparison.refused
        ],
        "rankings": [
            {
                "cell": ranking.cell,
                "window": ranking.window,
                "metric": ranking.figure.key,
                "places": [
                    {
                        "name": place.name, "rank": place.rank, "value": place.value, "low": place.low, "high": place.high,
                        "n": place.n, "ties": list(place.ties),
                    }
                    for place in ranking.places
                ],
            }
            for ranking in comparison.rankings
        ],
        "frontiers": [
            {
                "cell": frontier.cell,
                "window": frontier.window,
                "setting": frontier.setting,
                "objectives": list(frontier.objectives),
                "standings": [
                    {
                        "name": standing.name, "setting": standing.setting, "values": list(standing.values),
                        "dominated_by": list(standing.dominated_by), "gpus": standing.gpus,
                        "tokens_per_s_and_gpu": standing.per_gpu, "tokens_per_dollar": standing.per_dollar,
                    }
                    for standing in frontier.standings
                ],
            }
            for frontier in comparison.frontiers
        ],
        "trends": [
            {
                "candidate": trend.candidate or None,
                "workload": trend.workload,
                "metric": trend.figure.key,
                "parameter": trend.parameter,
                "window": trend.window,
                "steps": [
                    {
                        "at": step.at, "cell": step.cell, "ratio": step.delta.ratio,
                        "low": step.delta.low, "high": step.delta.high,
                    }
                    for step in trend.steps
                ],
                "ratio_per_doubling": trend.per_doubling,
            }
            for trend in comparison.trends
        ],
        "notes": list(comparison.notes),
    }  # fmt: skip


def verdict_document(verdict: Verdict) -> dict[str, Any]:
    """Everything about a verdict."""
    return {
        "status": verdict.status,
        "exit_code": verdict.exit_code,
        "policy": verdict.policy,
        "base": _side(verdict.base),
        "candidate": _side(verdict.candidate),
        "paired": verdict.paired,
        "findings": [finding_row(finding) for finding in verdict.findings],
        "disparities": [_disparity(disparity) for disparity in verdict.disparities],
        "facts_that_differ": [_fact(fact) for fact in verdict.facts],
        "notes": list(verdict.notes),
    }


def _match(match: Match) -> dict[str, Any]:
    return {
        "cell": match.cell,
        "params": dict(match.params),
        "window": match.window,
        "candidate": match.candidate,
        "paired": match.paired,
        "disparities": [_disparity(disparity) for disparity in match.disparities],
        "deltas": [delta_row(delta) for delta in match.deltas],
    }


def _side(side: Side) -> dict[str, Any]:
    return {"name": side.name, "runs": [point.run_id for point in side.points]}


def _fact(fact: FactDifference) -> dict[str, Any]:
    return {"fact": fact.name, "values": list(fact.values)}


def _disparity(disparity: Disparity) -> dict[str, Any]:
    return {"id": disparity.id, "consequence": disparity.consequence, "text": disparity.text}
