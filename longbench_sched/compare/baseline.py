"""Baseline: runs that later ones are held against, with the reason why these, and the machine that they were measured on.

It is plain JSON of run-level figures, small enough for git. Promoting new runs keeps what was there before in its history:
which runs, from when, and for which reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from longbench_sched.compare.parity import Disparity, find_disparities
from longbench_sched.compare.point import RunPoint, decode_point, encode_point
from longbench_sched.errors import StoreError, UsageError
from longbench_sched.store.json_types import fields_of

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One state of a baseline."""

    saved_at: str  # ISO 8601, UTC
    reason: str
    run_ids: tuple[str, ...]
    machine: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Baseline:
    """A named set of runs; `history` holds what it was before, newest last."""

    name: str
    entry: Entry
    points: tuple[RunPoint, ...]
    history: tuple[Entry, ...] = ()


def make_baseline(name: str, points: Sequence[RunPoint], reason: str, saved_at: str) -> Baseline:
    """A new baseline. Raises UsageError for runs that cannot be one, or without a reason."""
    if not reason.strip():
        raise UsageError(
            "a baseline needs a reason that can be read in a year. Give --reason 'vLLM 0.33.0, before the upgrade'."
        )
    if not points:
        raise UsageError("a baseline needs at least one run.")
    cut = [point.run_id for point in points if not point.complete]
    if cut:
        raise UsageError(f"{cut[0]} ended before all was sent; a baseline holds complete runs only. Run it again.")
    for disparity in flaws(points):
        if disparity.consequence == "refuse":
            raise UsageError(f"{disparity.text}\n  Against such runs no check decides anything. {disparity.next_step}")
    machine = points[0].machine
    if any(point.machine != machine for point in points):
        raise UsageError("these runs were measured from different machines. A baseline is of one machine.")
    return Baseline(
        name, Entry(saved_at, reason.strip(), tuple(point.run_id for point in points), dict(machine)), tuple(points)
    )


def flaws(points: Sequence[RunPoint]) -> list[Disparity]:
    """What would keep these runs from being compared with anything, load by load: failures, and marks of the client."""
    cells = dict.fromkeys(point.cell for point in points)
    here = [[point for point in points if point.cell == cell] for cell in cells]
    return [
        disparity for runs in here for disparity in find_disparities(runs, runs) if disparity.consequence in ("refuse", "rank")
    ]


def promote(before: Baseline, points: Sequence[RunPoint], reason: str, saved_at: str) -> Baseline:
    """The baseline with new runs in the place of the old, which go into its history. Raises UsageError."""
    after = make_baseline(before.name, points, reason, saved_at)
    return replace(after, history=(*before.history, before.entry))


def encode_baseline(baseline: Baseline) -> bytes:
    """JSON, indented, so that a change of it can be read in a diff."""
    plain = {
        "schema_version": SCHEMA_VERSION,
        "name": baseline.name,
        **asdict(baseline.entry),
        "history": [asdict(entry) for entry in baseline.history],
        "runs": [encode_point(point) for point in baseline.points],
    }
    return (json.dumps(plain, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def decode_baseline(data: bytes, where: str) -> Baseline:
    """Read a baseline back; `where` names the file in errors. Raises StoreError if it is newer or damaged."""
    try:
        plain = json.loads(data, parse_constant=_no_number)
        version = plain["schema_version"]
        if not isinstance(version, int) or version > SCHEMA_VERSION:
            raise StoreError(
                f"{where} was written by a newer longbench-sched (schema {version}; this one reads up to {SCHEMA_VERSION}). "
                "Upgrade."
            )
        points = tuple(decode_point(point, where) for point in plain["runs"])
        if not points:
            raise ValueError("there are no runs in it")
        return Baseline(
            name=str(plain["name"]),
            entry=_entry(plain),
            points=points,
            history=tuple(_entry(entry) for entry in plain["history"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        because = f"{type(error).__name__}: {error}"
        raise StoreError(f"{where} is damaged: it is no baseline ({because}). Restore it from a copy.") from None


def _no_number(word: str) -> None:
    """NaN and Infinity, which no file of ours holds."""
    raise ValueError(f"{word} is no number")


def _entry(plain: Mapping[str, Any]) -> Entry:
    known = fields_of(Entry, plain)
    return Entry(**{**known, "run_ids": tuple(known["run_ids"])})
