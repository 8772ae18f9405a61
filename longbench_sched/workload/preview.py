"""A plan looked at before anything is sent: lengths, due times, totals and the digest. Data only; the command line prints it.

No engine and no tokenizer is needed. The digest is that of a run which sends token ids; a run that sends text, or has a
tokenizer, shares its `schedule_digest`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from longbench_sched.plan import Lane, LengthFacts, Plan, Request
from longbench_sched.workload.arrivals import realised
from longbench_sched.workload.build import build_plan
from longbench_sched.workload.lengths import mean_of
from longbench_sched.workload.overrides import Overrides
from longbench_sched.workload.prompt import PromptMaker
from longbench_sched.workload.shape import LaneSpec, Workload
from longbench_sched.workload.spec import load_workload


@dataclass(frozen=True, slots=True)
class Row:
    """One request of a preview."""

    id: str
    lane: str
    due_s: float | None
    isl: int
    osl: int


@dataclass(frozen=True, slots=True)
class LanePreview:
    """One lane in numbers."""

    name: str
    load: str  # closed loop, 64 in flight
    asked_isl: str
    asked_osl: str
    n: int
    duration_s: float | None
    isl: LengthFacts
    osl: LengthFacts
    last_due_s: float | None  # None in a closed loop
    realised_rate_per_s: float | None
    realised_cv: float | None
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Preview:
    """What a run of this workload would send."""

    name: str
    title: str
    seed: int
    digest: str
    schedule_digest: str
    lanes: tuple[LanePreview, ...]
    warmups: tuple[Row, ...]
    rows: tuple[Row, ...]  # the first requests of each lane
    prompt_tokens: int  # measured requests only
    output_tokens: int
    notes: tuple[str, ...]


def preview(name_or_path: str, seed: int = 0, overrides: Overrides | None = None, n_rows: int = 8) -> Preview:
    """Build the plan of a workload offline and say what is in it. Raises WorkloadError, UsageError, PromptError."""
    workload = load_workload(name_or_path, overrides)
    return preview_plan(workload, build_plan(workload, seed, PromptMaker()), n_rows)


def preview_plan(workload: Workload, plan: Plan, n_rows: int = 8) -> Preview:
    """Say what is in a plan."""
    lanes = tuple(_lane(spec, lane) for spec, lane in zip(workload.lanes, plan.lanes, strict=True))
    return Preview(
        name=plan.workload,
        title=workload.title,
        seed=plan.seed,
        digest=plan.digest,
        schedule_digest=plan.extra["schedule_digest"],
        lanes=lanes,
        warmups=tuple(_row(request, "warm-up") for request in plan.warmups),
        rows=tuple(_row(request, lane.name) for lane in plan.lanes for request in islice(lane.requests, n_rows)),
        prompt_tokens=sum(lane.prompt_tokens for lane in lanes),
        output_tokens=sum(lane.output_tokens for lane in lanes),
        notes=plan.notes,
    )


def _row(request: Request, lane: str) -> Row:
    return Row(request.id, lane, request.due_s, request.isl, request.osl)


def _lane(spec: LaneSpec, lane: Lane) -> LanePreview:
    isl = [request.isl for request in lane.requests]
    osl = [request.osl for request in lane.requests]
    due = [request.due_s for request in lane.requests if request.due_s is not None]
    rate, cv = realised([round(due_s * 1e9) for due_s in due]) or (None, None)
    return LanePreview(
        name=lane.name,
        load=spec.load.describe(),
        asked_isl=spec.isl.describe(),
        asked_osl=spec.osl.describe(),
        n=len(isl),
        duration_s=lane.duration_s,
        isl=_facts(spec.isl.nominal_mean, isl),
        osl=_facts(spec.osl.nominal_mean, osl),
        last_due_s=due[-1] if due else None,
        realised_rate_per_s=rate,
        realised_cv=cv,
        prompt_tokens=sum(isl),
        output_tokens=sum(osl),
    )


def _facts(nominal_mean: float, lengths: Sequence[int]) -> LengthFacts:
    return LengthFacts(nominal_mean, mean_of(lengths), min(lengths), max(lengths))
