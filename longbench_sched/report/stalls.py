"""The table of stalls: when running answers stood still, and which request was being prefilled then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longbench_sched.metrics.stat import Summary
from longbench_sched.quantity import significant
from longbench_sched.report.figures import duration_text, percent_text, scale_of
from longbench_sched.report.layout import NULL, TIE, Column, Table
from longbench_sched.report.untrusted import clean

MOST = 5  # rows: the longest; all that were kept are in the JSON export

_COLUMNS = (
    Column("at"),
    Column("gap"),
    Column("still"),
    Column("of"),
    Column("waiting"),
    Column("arrived then", "left"),
    Column("first token next", "left"),
)


def stalls_table(summary: Summary) -> Table | None:
    """The longest stalls in the order of time; None without any."""
    stalls = summary.facts.get("stalls")
    if not isinstance(stalls, Mapping) or not stalls.get("longest"):
        return None
    longest = sorted(stalls["longest"], key=lambda stall: -float(stall["size_s"]))[:MOST]
    shown = sorted(longest, key=lambda stall: float(stall["from_s"]))
    scale = scale_of("s", shown[0]["size_s"])
    prefix = f"{summary.meta.run_id}-"
    rows = tuple(
        (
            duration_text(stall["from_s"]),
            f"{scale.number(stall['size_s'])}{TIE}{scale.unit}",
            str(stall["n_streams"]),
            str(stall["n_decoding"]),
            str(stall["n_prefilling"]),
            _arrived(stall, prefix),
            _next(stall, prefix),
        )
        for stall in shown
    )
    return Table(_title(stalls), _COLUMNS, rows, _notes(stalls))


def _title(stalls: Mapping[str, Any]) -> str:
    n, shown = stalls["n_stalls"], min(MOST, len(stalls["longest"]))
    which = f", the longest {shown}" if n > shown else ""
    return f"Stalls: gaps over {significant(stalls['factor'])} x the median of {duration_text(stalls['median_gap_s'])}{which}"


def _notes(stalls: Mapping[str, Any]) -> tuple[str, ...]:
    shares = f"{percent_text(stalls['share'])} of the gaps, {percent_text(stalls['time_share'])} of the time between tokens"
    return (
        f"{stalls['n_stalls']} stalls: {shares}; in {stalls['n_with_prefill']} another request was before its first token.",
        "still: answers that stood still, of those that had begun; waiting: requests before their first token.",
    )


def _arrived(stall: Mapping[str, Any], prefix: str) -> str:
    """The first request that arrived then, and how many more are known."""
    ids = stall["arrived"]
    return f"{_name(ids[0], prefix)}{f' +{len(ids) - 1}' if len(ids) > 1 else ''}" if ids else NULL


def _next(stall: Mapping[str, Any], prefix: str) -> str:
    """The request whose first token came next, and how long after the stall."""
    if not stall["next_id"]:
        return NULL
    later = f", {duration_text(stall['next_after_s'])} later" if stall["next_after_s"] else ""
    return f"{_name(stall['next_id'], prefix)}{later}"


def _name(request_id: str, prefix: str) -> str:
    return clean(request_id.removeprefix(prefix), 16)
