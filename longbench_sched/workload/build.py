"""Workload and seed in, Plan out: lengths, due times and prompts, all decided before anything is sent.

The same workload, seed and prompt maker give the same plan on any machine; `Plan.digest` proves it. With token ids and no
tokenizer nothing else enters. With a tokenizer the prompts depend on it too; `extra["schedule_digest"]`, over lengths, due
times and loops alone, is then what two plans for different engines have in common.
"""

from __future__ import annotations

import hashlib
import math
import struct
import sys
from array import array
from collections.abc import Sequence

from longbench_sched.errors import WorkloadError
from longbench_sched.plan import ClosedLoop, ConcurrencyStep, Lane, LengthFacts, Loop, OpenLoop, Plan, Request
from longbench_sched.workload import exact
from longbench_sched.workload.arrivals import due_ns, expected_requests, realised
from longbench_sched.workload.lengths import Lengths, mean_of
from longbench_sched.workload.prompt import PromptKey, PromptMaker, Prompts, open_prompts
from longbench_sched.workload.shape import ClosedLoad, LaneSpec, OpenLoad, Workload

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


class _LanePlan:
    """Lengths and due times of one lane, before its prompts are written."""

    def __init__(self, spec: LaneSpec, seed: int, notes: list[str]) -> None:
        self.spec = spec
        n = _count_requests(spec, notes)
        self.isl = spec.isl.draw(exact.rng(seed, "isl", spec.name), n)
        self.osl = spec.osl.draw(exact.rng(seed, "osl", spec.name), n)
        self.due: list[int] | None = None
        if isinstance(spec.load, OpenLoad):
            self.due = due_ns(spec.load.process, spec.load.stages, exact.rng(seed, "due", spec.name), n)
        if spec.shared_prefix and min(self.isl) <= spec.shared_prefix:
            raise WorkloadError(
                f"lane {spec.name}: shared_prefix is {spec.shared_prefix} but a prompt has {min(self.isl)} tokens. "
                "Lower shared_prefix, or raise isl."
            )


def build_plan(workload: Workload, seed: int, prompts: PromptMaker, *, cell: str | None = None, repeat: int = 0) -> Plan:
    """Decide everything that a run will send. Raises WorkloadError, PromptError.

    `cell` and `repeat` go into the prompts' content alone: a repeat has the same lengths and due times but says something else.
    The default cell is the load itself, so that two loads never send the same prompt.
    """
    notes = list(workload.notes)
    lanes = [_LanePlan(spec, seed, notes) for spec in workload.lanes]
    warmup_sizes = _warmup_sizes(workload, lanes)
    sizes = [isl for lane in lanes for isl in lane.isl] + [isl for _, isl, _ in warmup_sizes]
    _check_size(sizes)
    cell = cell if cell is not None else hashlib.sha256(repr(workload.lanes).encode()).hexdigest()[:16]
    made = open_prompts(
        prompts, workload.prompts, workload.id_range, PromptKey(seed, cell, repeat, len(sizes), max(sizes), sum(sizes))
    )
    built = _build_lanes(workload, lanes, made)
    n = sum(len(lane.requests) for lane in built)
    warmups = tuple(
        Request(n + i, "warmup", -1, made.make("warmup", lane, i, isl), isl, osl, sampling=workload.sampling)
        for i, (lane, isl, osl) in enumerate(warmup_sizes)
    )
    isl = _facts([spec.isl for spec in workload.lanes], [lane.isl for lane in lanes])
    osl = _facts([spec.osl for spec in workload.lanes], [lane.osl for lane in lanes])
    notes += [*_nominal_notes("ISL", isl), *_nominal_notes("OSL", osl), *made.source.notes]
    schedule = _schedule_bytes(built, warmups)
    return Plan(
        workload=workload.name,
        seed=seed,
        lanes=built,
        warmups=warmups,
        digest=_digest(schedule, built, warmups),
        isl=isl,
        osl=osl,
        slo=workload.slo,
        prompt_source=made.source.name,
        shared_prefix_tokens=max(spec.shared_prefix for spec in workload.lanes),
        warmup_concurrency=max(1, min(len(warmups), MAX_WARMUPS)),
        notes=tuple(notes),
        workload_text=workload.text,
        extra=_extra(workload, prompts, made, lanes, cell, repeat) | {"schedule_digest": hashlib.sha256(schedule).hexdigest()},
    )


def _count_requests(spec: LaneSpec, notes: list[str]) -> int:
    load = spec.load
    if isinstance(load, OpenLoad):
        offered = None
        if spec.duration_s is not None and load.stages:
            offered = expected_requests(load.stages, spec.duration_s)
            if not offered:
                raise WorkloadError(
                    f"lane {spec.name}: no request falls into {spec.duration_s:g} s at that rate. "
                    "Give a longer duration, or a higher rate."
                )
        n = min(x for x in (spec.requests, offered) if x is not None)
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


def _warmup_sizes(workload: Workload, lanes: Sequence[_LanePlan]) -> list[tuple[int, int, int]]:
    """(lane, isl, osl) of each warm-up: as long as the first measured prompts, lane by lane in turn."""
    n = workload.warmups
    if n is None:
        n = min(MAX_WARMUPS, sum(s.load.concurrency if isinstance(s.load, ClosedLoad) else 1 for s in workload.lanes))
    sizes = []
    for i in range(n):
        lane = lanes[i % len(lanes)]
        k = i // len(lanes) % len(lane.isl)
        sizes.append((i % len(lanes), lane.isl[k], min(lane.osl[k], WARMUP_OSL)))
    return sizes


def _check_size(sizes: Sequence[int]) -> None:
    total = sum(sizes)
    if total > MAX_PLAN_TOKENS:
        raise WorkloadError(
            f"the plan would hold {total} prompt tokens, more than the {MAX_PLAN_TOKENS} that fit. "
            "Lower requests, duration or isl."
        )


def _build_lanes(workload: Workload, lanes: Sequence[_LanePlan], made: Prompts) -> tuple[Lane, ...]:
    built: list[Lane] = []
    index = 0
    for number, lane in enumerate(lanes):
        spec, requests = lane.spec, []
        for i, (isl, osl) in enumerate(zip(lane.isl, lane.osl, strict=True)):
            prompt = made.make("measured", number, i, isl, spec.shared_prefix)
            due_s = lane.due[i] / 1e9 if lane.due is not None else None
            requests.append(Request(index, "measured", number, prompt, isl, osl, due_s, workload.sampling))
            index += 1
        built.append(Lane(spec.name, _loop(spec, len(requests)), tuple(requests), spec.duration_s))
    return tuple(built)


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


def _extra(
    workload: Workload, maker: PromptMaker, made: Prompts, lanes: Sequence[_LanePlan], cell: str, repeat: int
) -> dict[str, str]:
    extra = {
        "title": workload.title,
        "prompt_form": maker.form,
        "isl_source": made.source.isl_source,
        "cell": cell,
        "repeat": str(repeat),
    }
    if maker.tokenizer is not None:
        extra["tokenizer"] = maker.tokenizer.name
    if made.source.name == "stdlib":
        extra["corpus"] = f"standard library of Python {sys.version.split()[0]}"
    for lane in lanes:
        figures = realised(lane.due) if lane.due is not None else None
        if figures is not None:
            extra[f"{lane.spec.name}.realised_rate_per_s"] = f"{figures[0]:.4g}"
            extra[f"{lane.spec.name}.realised_cv"] = f"{figures[1]:.3g}"
    return extra


def _schedule_bytes(lanes: Sequence[Lane], warmups: Sequence[Request]) -> bytes:
    """Lengths, due times and loops in one fixed form: little-endian 64-bit numbers, -1 where there is none."""
    parts: list[bytes] = []
    for lane in lanes:
        loop = lane.loop
        if isinstance(loop, ClosedLoop):
            words = ["closed", *(f"{_ns(step.from_s)}:{step.concurrency}" for step in loop.steps)]
        else:
            words = ["open", loop.process, str(loop.max_in_flight)]
        parts.append(" ".join(["lane", *words, str(_ns(lane.duration_s))]).encode() + b"\n")
        parts += [struct.pack("<qqq", r.isl, r.osl, _ns(r.due_s)) for r in lane.requests]
    parts.append(b"warmups\n")
    parts += [struct.pack("<qq", r.isl, r.osl) for r in warmups]
    return b"".join(parts)


def _ns(time_s: float | None) -> int:
    return -1 if time_s is None else round(time_s * 1e9)


def _digest(schedule: bytes, lanes: Sequence[Lane], warmups: Sequence[Request]) -> str:
    digest = hashlib.sha256(schedule)
    for request in [r for lane in lanes for r in lane.requests] + list(warmups):
        prompt, sampling = request.prompt, request.sampling
        raw = prompt.encode() if isinstance(prompt, str) else _little_endian(prompt)
        digest.update(f"{type(prompt).__name__} {len(raw)} {sampling}\n".encode())
        digest.update(raw)
    return digest.hexdigest()


def _little_endian(ids: array[int]) -> bytes:
    if sys.byteorder == "big":
        ids = array("I", ids)
        ids.byteswap()
    return ids.tobytes()
