"""Page -> JSON for programs: every figure at full precision, in SI units, with a schema version.

A figure that is not defined is null. Infinity and NaN do not occur. Texts are as the run holds them; a program that shows a
server's words has to make them harmless itself.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from longbench_sched.metrics.stat import Section, Summary
from longbench_sched.report.layout import Page
from longbench_sched.report.rows import comparison_document, verdict_document
from longbench_sched.run import RunMeta

SCHEMA_VERSION = 1  # of this JSON; fields may be added within a version, never changed

_META_FIELDS = (
    "run_id", "started_at", "workload", "seed", "digest", "plan", "target", "engine_facts", "host", "versions", "clock",
    "time_scale", "simulated", "complete", "interrupted", "slo", "preflight", "origin",
)  # fmt: skip


def render(page: Page) -> str:
    """The summaries of a page, its comparison or its verdict, as indented JSON."""
    import orjson

    document: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "title": page.title}
    if page.verdict is not None:
        document["verdict"] = verdict_document(page.verdict)
    elif page.comparison is not None:
        document["comparison"] = comparison_document(page.comparison)
    else:
        document["runs"] = [_run(summary) for summary in page.summaries]
    document["files"] = {line.label: line.text for line in page.files}
    return orjson.dumps(_plain(document), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


def _run(summary: Summary) -> dict[str, Any]:
    return {
        "meta": _meta(summary.meta),
        "client": {"note": "as measured: not multiplied by time_scale", **dataclasses.asdict(summary.meta.client)},
        "marks": summary.marks,
        "outcomes": dataclasses.asdict(summary.outcomes),
        "whole": _section(summary.whole),
        "steady": None if summary.steady is None else _section(summary.steady),
        "lanes": {name: _section(section) for name, section in summary.lanes.items()},
        "facts": summary.facts,
        "advice": [dataclasses.asdict(advice) for advice in summary.advice],
    }


def _meta(meta: RunMeta) -> dict[str, Any]:
    return {name: getattr(meta, name) for name in _META_FIELDS}


def _section(section: Section) -> dict[str, Any]:
    return {
        "window": section.window,
        "from_s": section.from_s,
        "to_s": section.to_s,
        "stats": {
            name: {**dataclasses.asdict(stat), "p99_is_marked": stat.p99_is_marked} for name, stat in section.stats.items()
        },
        "rates": {name: dataclasses.asdict(rate) for name, rate in section.rates.items()},
    }


def _plain(value: Any) -> Any:
    """The value in JSON's own types; what JSON cannot hold becomes null (not finite) or loses it (half a surrogate pair)."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_plain(item) for item in value]
    return value
