"""Workload and seed in, Plan out: lengths, due times and prompts, all decided before anything is sent.

The same workload, seed and prompt maker give the same plan on any machine; `Plan.digest` proves it. With token ids and no
tokenizer nothing else enters. With a tokenizer the prompts depend on it too; `extra["schedule_digest"]` is then what plans
for different engines have in common. Where prompts are lengths alone, the digest of the plan is that of its schedule.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from longbench_sched.errors import WorkloadError
from longbench_sched.plan import ClosedLoop, ConcurrencyStep, Lane, LengthFacts, Loop, OpenLoop, Plan, Request
from longbench_sched.workload import exact
from longbench_sched.workload.arrivals import due_ns, expected_requests, realised
from longbench_sched.workload.digest import lane_bytes, plan_digest
from longbench_sched.workload.lengths import Lengths, mean_of
from longbench_sched.workload.prompt import PromptMaker, Prompts, open_prompts
from longbench_sched.workload.shape import ClosedLoad, LaneSpec, OpenLoad, Workload
from longbench_sched.workload.strict import MAX_DURATION_S, MAX_WHOLE
from longbench_sched.workload.writer import Extent, PromptKey

MAX_PLAN_TOKENS = 1 << 28  # 1 GiB of token ids
MAX_PLAN_REQUESTS = 1 << 20
WARMUP_OSL = 32  # a few decode steps compile and capture what the rest would
MAX_WARMUPS = 4
UNDER_NOMINAL = 0.02

# Faster than any engine answers one request, so that prompts made ahead for a time-limited closed loop last until its end.
_FASTEST_PREFILL_PER_S = 500_000
_FASTEST_DECODE_PER_S = 2_000
_FASTEST_REQUEST_S = 0.02
_MAX_AHEAD_TOKENS = 1 << 23


@dataclass(frozen=True, slots=True)
class _Draft:
    """One lane with its lengths and due times, before its prompts are written."""

    spec: LaneSpec
    loop: Loop
    isl: list[int]
    osl: list[int]
    due_ns: list[int] | None

    def schedule(self) -> bytes:
        """What the digest of the schedule is taken over."""
        return lane_bytes(self.loop, self.spec.duration_s, self.isl, self.osl, self.due_ns, self.spec.priority)


@dataclass(frozen=True, slots=True)
class _Warmup:
    lane: int
    isl: int
    osl: int


def build_plan(workload: Workload, seed: int, prompts: PromptMaker, *, cell: str | None = None, repeat: int = 0) -> Plan:
    """Decide everything that a run will send. Raises WorkloadError, PromptError.

    `cell` and `repeat` go into the prompts' content alone: a repeat has the same lengths and due times but says something else.
    The default cell is the load itself, so that two loads never send the same prompt.
    """
    if abs(seed) > MAX_WHOLE:
        raise WorkloadError(f"--seed {seed} has more than 64 bits. Give a smaller one.")
    notes = list(workload.notes)
    is_lengths = prompts.form == "lengths"
    try:
        drafts = [_draft(spec, seed, notes) for spec in workload.lanes]
        warmups = _warmups(workload, drafts)
        _check_size(drafts, warmups, holds_tokens=not is_lengths)
    except WorkloadError as error:
        raise WorkloadError(f"{workload.file}: {error}" if workload.file else str(error)) from None
    schedule = b"".join(draft.schedule() for draft in drafts)
    schedule_digest = hashlib.sha256(schedule).hexdigest()
    key = PromptKey(seed, schedule_digest[:16] if cell is None else cell, repeat)
    made = open_prompts(
        prompts,
        workload.prompts,
        workload.id_range,
        key,
        measured=Extent.of([isl for draft in drafts for isl in draft.isl]),
        warmup=Extent.of([warmup.isl for warmup in warmups]),
    )
    lanes = _write_lanes(workload, drafts, made)
    warmup_requests = _write_warmups(workload, warmups, made, sum(len(lane.requests) for lane in lanes))
    isl = _facts([draft.spec.isl for draft in drafts], [draft.isl for draft in drafts])
    osl = _facts([draft.spec.osl for draft in drafts], [draft.osl for draft in drafts])
    notes += [*_nominal_notes("ISL", isl), *_nominal_notes("OSL", osl), *made.source.notes]
    return Plan(
        workload=workload.name,
        seed=seed,
        lanes=lanes,
        warmups=warmup_requests,
        digest=schedule_digest
        if is_lengths
        else plan_digest(schedule, [r for lane in lanes for r in lane.requests] + list(warmup_requests)),
        isl=isl,
        osl=osl,
        slo=workload.slo,
        prompt_source=made.source.name,
        shared_prefix_tokens=max(spec.shared_prefix for spec in workload.lanes),
        warmup_concurrency=max(1, min(len(warmups), MAX_WARMUPS)),
        notes=tuple(notes),
        workload_text=workload.text,
        extra={
            "title": workload.title,
            "prompt_form": prompts.form,
            "isl_source": made.source.isl_source,
            "cell": key.cell,
            "repeat": str(repeat),
            "schedule_digest": schedule_digest,
            **({"tokenizer": prompts.tokenizer.name} if prompts.tokenizer else {}),
            **({"corpus": f"Python {sys.version.split()[0]}"} if made.source.name == "stdlib" else {}),
            **_arrival_facts(drafts),
        },
    )


def _draft(spec: LaneSpec, seed: int, notes: list[str]) -> _Draft:
    n = _count_requests(spec, notes)
    isl = spec.isl.draw(exact.rng(seed, "isl", spec.name), n)
    osl = spec.osl.draw(exact.rng(seed, "osl", spec.name), n)
    if spec.shared_prefix and min(isl) <= spec.shared_prefix:
        raise WorkloadError(
            f"lane {spec.name}: shared_prefix is {spec.shared_prefix} but a prompt has {min(isl)} tokens. "
            "Lower shared_prefix, or raise isl."
        )
    due = None
    if isinstance(spec.load, OpenLoad):
        due = due_ns(spec.load.process, spec.load.stages, exact.rng(seed, "due", spec.name), n)
        if due[-1] > MAX_DURATION_S * 1e9:
            raise WorkloadError(
                f"lane {spec.name}: the last of {n} requests would be due after {due[-1] / 1e9:g} s. "
                "Give a higher rate, or fewer requests."
            )
    return _Draft(spec, _loop(spec, n), isl, osl, due)


def _count_requests(spec: LaneSpec, notes: list[str]) -> int:
    load = spec.load
    if isinstance(load, OpenLoad):
        n = _count_open(spec, load)
    elif spec.requests is not None:
        n = spec.requests
        if n < load.concurrency:
            notes.append(f"lane {spec.name}: {n} requests never fill {load.concurrency} places in flight")
    else:
        n = spec.max_requests or _ahead(spec, load, notes)
    if n > MAX_PLAN_REQUESTS:
        raise WorkloadError(
            f"lane {spec.name}: {n} requests are more than the {MAX_PLAN_REQUESTS} a plan may hold. Give fewer."
        )
    return n


def _count_open(spec: LaneSpec, load: OpenLoad) -> int:
    """The requests asked for, or those that the rate offers in the time, whichever are fewer."""
    offered = None
    if spec.duration_s is not None and load.stages:
        offered = expected_requests(load.stages, spec.duration_s)
        if not offered:
            raise WorkloadError(
                f"lane {spec.name}: no request falls into {spec.duration_s:g} s at that rate. "
                "Give a longer duration, or a higher rate."
            )
    return min(n for n in (spec.requests, offered) if n is not None)


def _ahead(spec: LaneSpec, load: ClosedLoad, notes: list[str]) -> int:
    """How many prompts to make for a closed loop that only time limits."""
    assert spec.duration_s is not None
    isl, osl = spec.isl.nominal_mean, spec.osl.nominal_mean
    fastest_s = max(_FASTEST_REQUEST_S, isl / _FASTEST_PREFILL_PER_S + osl / _FASTEST_DECODE_PER_S)
    wanted = math.ceil(load.concurrency * spec.duration_s / fastest_s)
    n = min(wanted, max(2 * load.concurrency, int(_MAX_AHEAD_TOKENS / isl)))
    notes.append(
        f"lane {spec.name}: {n} prompts are made for {spec.duration_s:g} s; set max_requests if it ends before its time"
    )
    return n


def _loop(spec: LaneSpec, n: int) -> Loop:
    load = spec.load
    if isinstance(load, ClosedLoad):
        steps, from_s = [], 0.0
        for stage in load.stages:
            steps.append(ConcurrencyStep(from_s, stage.concurrency))
            from_s += stage.duration_s or 0.0
        return ClosedLoop(tuple(steps))
    rate = load.stages[0].rate_per_s if len(load.stages) == 1 else None
    if len(load.stages) > 1 and spec.duration_s is not None:
        rate = n / spec.duration_s  # the mean over the ramp
    return OpenLoop(load.process.name, rate, load.max_in_flight)


def _warmups(workload: Workload, drafts: Sequence[_Draft]) -> list[_Warmup]:
    """Warm-ups as long as the first measured prompts, lane by lane in turn; by default one a place in flight, up to 4."""
    n = workload.warmups
    if n is None:
        places = sum(s.load.concurrency if isinstance(s.load, ClosedLoad) else 1 for s in workload.lanes)
        n = min(MAX_WARMUPS, places)
    if n > MAX_PLAN_REQUESTS:
        raise WorkloadError(f"warmups: {n} are more than the {MAX_PLAN_REQUESTS} requests that a plan may hold. Give fewer.")
    warmups = []
    for i in range(n):
        draft = drafts[i % len(drafts)]
        k = i // len(drafts) % len(draft.isl)
        warmups.append(_Warmup(i % len(drafts), draft.isl[k], min(draft.osl[k], WARMUP_OSL)))
    return warmups


def _check_size(drafts: Sequence[_Draft], warmups: Sequence[_Warmup], *, holds_tokens: bool) -> None:
    total = sum(sum(draft.isl) for draft in drafts) + sum(warmup.isl for warmup in warmups)
    if holds_tokens and total > MAX_PLAN_TOKENS:
        raise WorkloadError(
            f"the plan would hold {total} prompt tokens, more than the {MAX_PLAN_TOKENS} that fit. "
            "Lower requests, duration or isl."
        )


def _write_lanes(workload: Workload, drafts: Sequence[_Draft], made: Prompts) -> tuple[Lane, ...]:
    lanes: list[Lane] = []
    index = 0
    for number, draft in enumerate(drafts):
        requests: list[Request] = []
        spec = draft.spec
        for i, (isl, osl) in enumerate(zip(draft.isl, draft.osl, strict=True)):
            prompt = made.make("measured", number, i, isl, spec.shared_prefix)
            due_s = None if draft.due_ns is None else draft.due_ns[i] / 1e9
            requests.append(
                Request(
                    index, "measured", number, prompt, isl, osl, due_s, workload.sampling,
                    shared_prefix=spec.shared_prefix, priority=spec.priority,
                )
            )  # fmt: skip
            index += 1
        lanes.append(Lane(draft.spec.name, draft.loop, tuple(requests), draft.spec.duration_s))
    return tuple(lanes)


def _write_warmups(workload: Workload, warmups: Sequence[_Warmup], made: Prompts, first: int) -> tuple[Request, ...]:
    """Warm-ups count on after the measured requests, so that `r0` is the same request however many warm-ups there are."""
    return tuple(
        Request(first + i, "warmup", -1, made.make("warmup", w.lane, i, w.isl), w.isl, w.osl, sampling=workload.sampling)
        for i, w in enumerate(warmups)
    )


def _facts(nominal: Sequence[Lengths], lengths: Sequence[list[int]]) -> LengthFacts:
    """Over all lanes; the nominal mean weighs each lane by its requests."""
    every = [length for lane in lengths for length in lane]
    weighed = math.fsum(spec.nominal_mean * len(lane) for spec, lane in zip(nominal, lengths, strict=True))
    return LengthFacts(weighed / len(every), mean_of(every), min(every), max(every))


def _nominal_notes(name: str, facts: LengthFacts) -> list[str]:
    share = facts.mean / facts.nominal_mean - 1
    if share >= -UNDER_NOMINAL:
        return []
    return [f"{name} mean {facts.mean:.0f}, {share * 100:.0f} % vs nominal {facts.nominal_mean:.0f}"]


def _arrival_facts(drafts: Sequence[_Draft]) -> dict[str, str]:
    """Realised rate and CV of the gaps of each open lane, as planned."""
    facts = {}
    for draft in drafts:
        figures = None if draft.due_ns is None else realised(draft.due_ns)
        if figures is not None:
            facts[f"{draft.spec.name}.realised_rate_per_s"] = f"{figures[0]:.4g}"
            facts[f"{draft.spec.name}.realised_cv"] = f"{figures[1]:.3g}"
    return facts
