"""How requests ended: counts that add up, every cause with one sample, percentiles that remember the failures, warnings."""

from __future__ import annotations

from longbench_sched.metrics.definitions import DISTRIBUTIONS
from longbench_sched.metrics.stat import Outcomes, ReasonCount, Section, Stat, Summary
from longbench_sched.report.figures import Scale, scale_of
from longbench_sched.report.layout import NULL, Column, Notice, Table
from longbench_sched.report.untrusted import clean

_NOT_OK = ("failed", "timeout", "cancelled", "lost")
_ADJUSTED = ("ttft", "tpot", "e2e")
_SHARES = ("p50", "p90", "p99")
_UNBOUNDED = "unbounded"


def outcome_text(outcomes: Outcomes) -> str:
    """`256 ok`, or `97/100 ok · 1 x connect-refused, 1 x HTTP 429`."""
    if outcomes.ok == outcomes.attempted == outcomes.planned:
        return f"{outcomes.ok} ok"
    text = f"{outcomes.ok}/{outcomes.attempted} ok"
    reasons = ", ".join(f"{reason.n} x {reason_text(reason)}" for reason in outcomes.reasons)
    if reasons:
        text += f", {reasons}"
    if outcomes.planned > outcomes.attempted:
        text += f" · {outcomes.planned - outcomes.attempted} of {outcomes.planned} planned were not sent"
    return text


def counts_text(outcomes: Outcomes) -> str:
    """Every outcome that occurred, with its count."""
    counts = [f"{outcomes.ok} ok", *(f"{n} {name}" for name in _NOT_OK if (n := getattr(outcomes, name)))]
    return f"{outcomes.attempted} attempted = " + " + ".join(counts)


def reason_text(reason: ReasonCount) -> str:
    """A cause in words: `HTTP 429`, `cut`."""
    text = clean(reason.reason, 60)
    return text.replace("http-status ", "HTTP ") if text.startswith("http-status ") else text


def reasons_table(outcomes: Outcomes) -> Table | None:
    """Why requests are not ok, one sample each; None if all are."""
    if not outcomes.reasons:
        return None
    rows = [
        (
            str(reason.n),
            reason.status,
            reason_text(reason),
            clean(reason.sample_request_id, 40),
            clean(reason.sample_detail or NULL, 200),
        )
        for reason in outcomes.reasons
    ]
    columns = (
        Column("n"),
        Column("status", "left"),
        Column("reason", "left"),
        Column("for example", "left"),
        Column("said", "left", 1),
    )
    return Table("Requests that are not ok", columns, tuple(rows))


def adjusted_table(outcomes: Outcomes, section: Section) -> Table | None:
    """Percentiles in which a failed request counts as one that never ended; None if none failed."""
    stats = [stat for name in _ADJUSTED if (stat := section.stats.get(name)) is not None and stat.adjusted]
    if not stats or not outcomes.failed + outcomes.timeout:
        return None
    rows = []
    for stat in stats:
        scale = scale_of(stat.unit, stat.p50 or max(stat.adjusted_at_least.values(), default=None))
        rows.append((DISTRIBUTIONS[stat.metric].title, scale.unit, *(_adjusted_cell(stat, share, scale) for share in _SHARES)))
    columns = (Column("", "left"), Column("", "left"), *(Column(share) for share in _SHARES))
    return Table("With every failure counted as one that never ended (nearest rank)", columns, tuple(rows))


def _adjusted_cell(stat: Stat, share: str, scale: Scale) -> str:
    value, least = stat.adjusted.get(share), stat.adjusted_at_least.get(share)
    if value is not None:
        return scale.number(value)
    return f"≥ {scale.number(least)}" if least is not None else _UNBOUNDED


def notices(summary: Summary) -> tuple[Notice, ...]:
    """The run's warnings, after the numbers that they cast doubt on."""
    return tuple(
        Notice(clean(advice.id), clean(advice.text, 400), clean(advice.cause, 400), clean(advice.next_step, 400))
        for advice in summary.advice
    )
