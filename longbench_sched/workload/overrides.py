"""Overrides: what the command line changes in a workload.

A flag that fits is applied and written below the workload's text, so that a stored run can be repeated. A flag that turns
the load into another kind (a rate over a closed loop) is applied and noted. One that fits nowhere is an error: a flag that
is ignored gives a run of another load under the right name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from longbench_sched.errors import UsageError
from longbench_sched.slo import Slo
from longbench_sched.workload import strict
from longbench_sched.workload.arrivals import Burst, Constant, Gamma, Poisson, RateStage
from longbench_sched.workload.lengths import parse_lengths
from longbench_sched.workload.shape import ONLY_LANE, ClosedLoad, ConcurrencyStage, LaneSpec, OpenLoad, Workload

MAX_CV = 10.0
MIN_CV = 1e-3


@dataclass(frozen=True, slots=True)
class Overrides:
    """Values of flags; `None` = not given. Texts are read as in a workload file."""

    isl: str | int | None = None
    osl: str | int | None = None
    concurrency: int | None = None  # closed loop
    num_prompts: int | None = None
    request_rate: str | float | None = None  # open loop; inf = all at once
    cv: float | None = None
    burstiness: float | None = None  # the gamma's shape, 1 / cv^2
    max_concurrency: int | None = None  # the cap in an open loop
    duration: str | float | None = None
    num_warmups: int | None = None
    prompts: str | None = None
    slo: Slo | None = None

    def given(self) -> dict[str, object]:
        """The flags that were given, by field name."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}


def apply(workload: Workload, overrides: Overrides) -> Workload:
    """The workload with the flags applied. Raises UsageError for a flag that does not fit."""
    given = overrides.given()
    if not given:
        return workload
    _refuse_contradictions(overrides)
    notes: list[str] = []
    lanes = list(workload.lanes)
    if overrides.isl is not None:
        isl = parse_lengths("--isl", overrides.isl)
        _change(lanes, "--isl", lambda lane: replace(lane, isl=isl))
    if overrides.osl is not None:
        osl = parse_lengths("--osl", overrides.osl)
        _change(lanes, "--osl", lambda lane: replace(lane, osl=osl))
    if overrides.concurrency is not None:
        concurrency = strict.whole(1)(overrides.concurrency, "--concurrency")
        _change(lanes, "--concurrency", lambda lane: _close_loop(lane, concurrency, notes), ClosedLoad)
    if overrides.request_rate is not None:
        _change(lanes, "--request-rate", lambda lane: _open_loop(lane, overrides, notes), OpenLoad)
    elif overrides.cv is not None or overrides.burstiness is not None:
        flag = "--cv" if overrides.cv is not None else "--burstiness"
        _change(lanes, flag, lambda lane: _spread(lane, overrides, flag), OpenLoad)
    if overrides.max_concurrency is not None:
        cap = strict.whole(1)(overrides.max_concurrency, "--max-concurrency")
        _change(lanes, "--max-concurrency", lambda lane: _cap(lane, cap), OpenLoad)
    if overrides.num_prompts is not None:
        number = strict.whole(1)(overrides.num_prompts, "--num-prompts")
        _change(lanes, "--num-prompts", lambda lane: _limit(lane, number, overrides.duration is not None, notes))
    if overrides.duration is not None:
        duration_s = strict.duration_s(overrides.duration, "--duration")
        lanes = [_last(lane, duration_s, overrides.num_prompts is not None) for lane in lanes]
    return replace(
        workload,
        lanes=tuple(lanes),
        warmups=_warmups(workload, overrides),
        prompts=workload.prompts if overrides.prompts is None else strict.text(overrides.prompts, "--prompts"),
        slo=workload.slo if overrides.slo is None else overrides.slo,
        notes=(*workload.notes, *notes),
        text=workload.text.rstrip("\n") + "\n\n# From the command line:\n" + "".join(_comment(k, v) for k, v in given.items()),
    )


def _comment(name: str, value: object) -> str:
    if isinstance(value, Slo):
        value = " ".join(f"{metric}:{limit * 1e3:g}" for metric, limit in value.limits().items())
        name = "goodput"
    return f"# --{name.replace('_', '-')} {value}\n"


def _refuse_contradictions(o: Overrides) -> None:
    if o.concurrency is not None and o.request_rate is not None:
        raise UsageError(
            "--concurrency is a closed loop and --request-rate an open one; give one of them. "
            "To cap what is in flight at a given rate, use --max-concurrency."
        )
    if o.cv is not None and o.burstiness is not None:
        raise UsageError("--cv and --burstiness say the same (burstiness = 1 / cv^2); give one of them.")
    if o.concurrency is not None and o.max_concurrency is not None:
        raise UsageError(
            "--max-concurrency caps an open loop; in a closed loop --concurrency alone says how many are in flight."
        )


def _change(
    lanes: list[LaneSpec],
    flag: str,
    change: Callable[[LaneSpec], LaneSpec],
    kind: type[ClosedLoad] | type[OpenLoad] | None = None,
) -> None:
    """Change the one lane that the flag means: the only one, or the only one with a load of that kind."""
    fits = list(range(len(lanes)))
    if len(lanes) > 1 and kind is not None:
        fits = [i for i in fits if isinstance(lanes[i].load, kind)]
    if len(fits) != 1:
        raise UsageError(
            f"{flag} does not say which lane it means: this workload has {', '.join(lane.name for lane in lanes)}. "
            "Copy the workload's file, change it there, and run it by its path."
        )
    lanes[fits[0]] = change(lanes[fits[0]])


def _close_loop(lane: LaneSpec, concurrency: int, notes: list[str]) -> LaneSpec:
    if isinstance(lane.load, OpenLoad):
        notes.append(f"--concurrency {concurrency} made the open loop{_of(lane)} a closed one")
    elif len(lane.load.stages) > 1:
        notes.append(f"--concurrency {concurrency} replaced the ramp{_of(lane)}")
        lane = _keep_length(lane)
    return replace(lane, load=ClosedLoad((ConcurrencyStage(concurrency),)), max_requests=None)


def _of(lane: LaneSpec) -> str:
    """` of prefill`; nothing for the only lane of a workload without names, which nobody has named."""
    return "" if lane.name == ONLY_LANE else f" of {lane.name}"


def _who(lane: LaneSpec) -> str:
    return "the workload" if lane.name == ONLY_LANE else lane.name


def _open_loop(lane: LaneSpec, o: Overrides, notes: list[str]) -> LaneSpec:
    assert o.request_rate is not None
    if isinstance(lane.load, ClosedLoad):
        notes.append(f"--request-rate {o.request_rate} made the closed loop{_of(lane)} an open one")
    elif len(lane.load.stages) > 1:
        notes.append(f"--request-rate {o.request_rate} replaced the ramp{_of(lane)}")
    lane = _keep_length(lane)
    cap = lane.load.max_in_flight if isinstance(lane.load, OpenLoad) else None
    if str(o.request_rate).strip().lower() in ("inf", "infinity"):
        if o.cv is not None or o.burstiness is not None:
            raise UsageError("--request-rate inf sends all at once: there are no gaps for --cv or --burstiness to spread.")
        return replace(lane, load=OpenLoad(Burst(), (), cap), max_requests=None)
    rate = strict.rate_per_s(o.request_rate, "--request-rate")
    process = lane.load.process if isinstance(lane.load, OpenLoad) and not isinstance(lane.load.process, Burst) else Poisson()
    lane = replace(lane, load=OpenLoad(process, (RateStage(rate),), cap), max_requests=None)
    return _spread(lane, o, "--cv") if o.cv is not None or o.burstiness is not None else lane


def _keep_length(lane: LaneSpec) -> LaneSpec:
    """A ramp says how long it lasts by its stages: keep that when the stages go."""
    parts = [stage.duration_s for stage in lane.load.stages]
    if lane.duration_s is not None or lane.requests is not None or None in parts:
        return lane
    return replace(lane, duration_s=math.fsum(part for part in parts if part is not None))


def _spread(lane: LaneSpec, o: Overrides, flag: str) -> LaneSpec:
    if not isinstance(lane.load, OpenLoad) or isinstance(lane.load.process, Burst):
        raise UsageError(
            f"{flag} spreads the arrivals of an open loop, and {_who(lane)} is a closed one. Give --request-rate as well."
        )
    if o.cv is not None:
        cv = strict.number(0, is_open=False)(o.cv, "--cv")
    else:
        cv = 1 / math.sqrt(strict.number(0)(o.burstiness, "--burstiness"))
    if cv > MAX_CV:
        raise UsageError(
            f"{flag}: a CV of {cv:g} is more than {MAX_CV:g}, where one gap holds nearly the whole run. Give less."
        )
    if 0 < cv < MIN_CV:
        raise UsageError(f"{flag}: a CV of {cv:g} is next to none. Give --cv 0 for equal gaps.")
    process = Constant() if cv == 0 else Poisson() if cv == 1 else Gamma(cv)
    return replace(lane, load=replace(lane.load, process=process))


def _cap(lane: LaneSpec, cap: int) -> LaneSpec:
    if isinstance(lane.load, ClosedLoad):
        raise UsageError(
            f"--max-concurrency caps an open loop, and {_who(lane)} is a closed one with {lane.load.concurrency} in flight. "
            "Use --concurrency, or give --request-rate as well (inf = all at once)."
        )
    return replace(lane, load=replace(lane.load, max_in_flight=cap))


def _limit(lane: LaneSpec, number: int, has_duration: bool, notes: list[str]) -> LaneSpec:
    if lane.duration_s is not None and lane.requests is None and not has_duration:
        notes.append(f"--num-prompts {number} replaced the duration{_of(lane)}, {lane.duration_s:g} s")
        return replace(lane, requests=number, duration_s=None)
    return replace(lane, requests=number)


def _last(lane: LaneSpec, duration_s: float, has_number: bool) -> LaneSpec:
    """Limit a lane by time; the number of requests that it had falls away unless it was given too."""
    load = lane.load
    is_all_at_once = isinstance(load, OpenLoad) and not load.stages
    keeps = has_number or is_all_at_once  # a burst of all has no other measure
    return replace(lane, duration_s=duration_s, requests=lane.requests if keeps else None)


def _warmups(workload: Workload, o: Overrides) -> int | None:
    return workload.warmups if o.num_warmups is None else strict.whole(0)(o.num_warmups, "--num-warmups")
