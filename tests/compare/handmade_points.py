"""Runs as points, made by hand: run-level values only, so that every expected result can be worked out on paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from longbench_sched.compare.comparison import Side
from longbench_sched.compare.point import RunPoint


def make_point(values: Mapping[str, float] | None = None, **changes: Any) -> RunPoint:
    """A complete run of the usual load with these figures over the whole run."""
    fields: dict[str, Any] = {
        "run_id": "run",
        "started_at": "2026-11-30T10:12:07Z",
        "workload": "30k-500-c64",
        "schedule": "9f3c21",
        "engine": "vllm",
        "target": "vllm",
        "cell": "30k-500-c64",
        "params": {"isl": 30000.0, "osl": 500.0, "concurrency": 64.0},
        "experiment": None,
        "block": None,
        "simulated": False,
        "complete": True,
        "marks": (),
        "facts": {"version": "0.33.0", "token_budget": 8192},
        "machine": {"cpu": "X", "cores": 8},
        "attempted": 256,
        "ok": 256,
        "isl_mean": 30000.0,
        "osl_mean": 500.0,
        "osl_share": 1.0,
        "cached_share": 0.0,
        "shared_prefix": 0,
        "tokens_per_chunk": 1.0,
        "duration_s": 100.0,
        "gpus": 1,
        "dollars_per_hour": None,
        "values": {"whole": dict(values or {})},
        "within": {},
        "counts": {},
    }
    return RunPoint(**fields | changes)


def make_side(name: str, values: Mapping[str, Sequence[float]], *, blocks: bool = False, **changes: Any) -> Side:
    """One run for each entry of the values; with `blocks`, entry i was measured in block i of one experiment."""
    n = len(next(iter(values.values())))
    points = []
    for i in range(n):
        place = {"experiment": "x", "block": i} if blocks else {}
        fields = {"run_id": f"{name}.{i + 1}", "target": name, **place, **changes}
        points.append(make_point({key: entries[i] for key, entries in values.items()}, **fields))
    return Side(name, tuple(points))


def around(centre: float, cv: float, n: int) -> list[float]:
    """`n` values whose logarithms have exactly this mean and (sample) standard deviation: half above, half below, evenly."""
    import math

    steps = [i - (n - 1) / 2 for i in range(n)]
    sd = math.sqrt(sum(step * step for step in steps) / (n - 1))
    return [centre * math.exp(cv * step / sd) for step in steps]
