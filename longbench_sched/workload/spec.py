"""Reads a workload file: TOML in, `Workload` out, every key understood or one clear error.

A file with one lane is flat; one with several has a `[[lane]]` table each:

    title = "..."                       title = "..."
    isl = 30000                         [[lane]]
    osl = 500                           name = "decode"
    concurrency = 64                    isl = 512
    requests = 256                      ...

Every key is described in docs/workloads.md.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from longbench_sched.errors import UsageError, WorkloadError
from longbench_sched.plan import Sampling
from longbench_sched.slo import SLO_METRICS, Slo
from longbench_sched.workload import catalogue, strict
from longbench_sched.workload.arrivals import ArrivalProcess, Burst, Constant, Gamma, Poisson, RateStage
from longbench_sched.workload.lengths import read_lengths
from longbench_sched.workload.overrides import MAX_CV, MIN_CV, Overrides, apply
from longbench_sched.workload.prompt import SOURCES
from longbench_sched.workload.shape import (
    DEFAULT_IDS,
    ONLY_LANE,
    ClosedLoad,
    ConcurrencyStage,
    LaneSpec,
    Load,
    OpenLoad,
    Workload,
)
from longbench_sched.workload.strict import Table

MAX_BYTES = 1 << 20
MAX_ID = 1 << 31
_OPEN_KEYS = ("rate", "every", "arrivals", "cv", "burst_size", "max_in_flight")
_LOAD_KEYS = (*_OPEN_KEYS, "concurrency")
_IN_LANE = dict.fromkeys(
    (
        *("isl", "osl", "concurrency", "arrivals", "rate", "every", "cv", "burst_size", "stage", "requests", "duration"),
        *("max_requests", "max_in_flight", "shared_prefix", "priority"),
    ),
    "this workload has lanes; move the key into the [[lane]] that it is for.",
)
_IN_TOP = dict.fromkeys(
    ("title", "warmups", "slo", "prompts", "sampling"),
    "this belongs to the workload, not to one lane; move it above the first [[lane]].",
)


def load_workload(name_or_path: str, overrides: Overrides | None = None) -> Workload:
    """The workload of a file or of the catalogue, with the flags applied. Raises WorkloadError, UsageError."""
    found = catalogue.find_workload(name_or_path)
    workload = read_workload(_text_of(found.path), found.name, str(found.shown), found.path.parent)
    if found.note:
        workload = replace(workload, notes=(*workload.notes, found.note))
    return apply(workload, overrides or Overrides())


def read_workload(text: str, name: str, file: str, folder: Path) -> Workload:
    """Read the text of a workload file; `folder` is where the paths in it start. Raises WorkloadError naming file and key."""
    try:
        data = tomllib.loads(text)
        strict.refuse_secrets(data)
        strict.refuse_huge_numbers(data)
    except RecursionError:
        raise WorkloadError(f"{file}: tables or lists are nested too deep for a workload. Write it flat.") from None
    except ValueError as error:  # also of a number with more digits than Python reads
        raise WorkloadError(f"{file}: this is not TOML: {error}.") from None
    except UsageError as error:
        raise WorkloadError(f"{file}: {error}") from None
    try:
        return replace(_read(Table(data), name, folder), text=text, file=file)
    except UsageError as error:
        raise WorkloadError(f"{file}: {error}") from None


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise WorkloadError(f"{path}: more than {MAX_BYTES} bytes are no workload file. Give the path of a TOML file.")
        return raw.decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read ({error.strerror}). Check the path and its permissions.") from None
    except UnicodeDecodeError:
        raise WorkloadError(f"{path}: this is not UTF-8 text, which TOML must be. Save it as UTF-8.") from None


def _read(table: Table, name: str, folder: Path) -> Workload:
    title = table.take("title", strict.text, name)
    warmups = table.take("warmups", strict.whole(0), -1)
    prompts, id_range = _read_prompts(table, folder)
    slo = _read_slo(table.table("slo"))
    sampling = _read_sampling(table.table("sampling"))
    lane_tables = table.tables("lane")
    if lane_tables:
        shared_s = table.take("duration", strict.duration_s, 0.0) or None
        table.close(_IN_LANE)
        lanes = tuple(_read_lane(lane, shared_s) for lane in lane_tables)
    else:
        lanes = (_read_lane(table, None, name=ONLY_LANE),)
    names = [lane.name for lane in lanes]
    if len(set(names)) != len(names):
        raise UsageError(f"lane: two lanes are named {next(n for n in names if names.count(n) > 1)!r}. Give each its own name.")
    return Workload(
        name=name,
        title=title,
        lanes=lanes,
        prompts=prompts,
        id_range=id_range,
        warmups=None if warmups < 0 else warmups,
        slo=slo,
        sampling=sampling,
    )


def _read_lane(table: Table, shared_s: float | None, name: str | None = None) -> LaneSpec:
    is_nested = name is None
    lane_name = name or table.take("name", strict.text, "")
    if not lane_name:
        table.fail("name", 'a lane needs a name, for example name = "prefill".')
    isl = table.take("isl", read_lengths, None)
    osl = table.take("osl", read_lengths, None)
    for key, value in (("isl", isl), ("osl", osl)):
        if value is None:
            table.fail(
                key, f"missing: how many tokens {'go in' if key == 'isl' else 'come out'}. Write for example {key} = 1000."
            )
    assert isl is not None
    assert osl is not None
    requests = table.take("requests", strict.whole(1), 0) or None
    duration_s = table.take("duration", strict.duration_s, 0.0) or None
    max_requests = table.take("max_requests", strict.whole(1), 0) or None
    shared_prefix = table.take("shared_prefix", strict.whole(0), 0)
    priority = table.take("priority", strict.whole(-strict.MAX_WHOLE), 0)
    load = _read_load(table)
    table.close(_IN_TOP if is_nested else None)
    lane = LaneSpec(lane_name, isl, osl, load, requests, duration_s, max_requests, shared_prefix, priority)
    return _check_end(table, lane, shared_s)


def _check_end(table: Table, lane: LaneSpec, shared_s: float | None) -> LaneSpec:
    """A lane must end: by its requests, its duration, its stages, or the duration that all lanes share."""
    parts = [stage.duration_s for stage in lane.load.stages]
    lasts_s = math.fsum(p for p in parts if p is not None) if parts and None not in parts else None
    if lane.duration_s is None and lane.requests is None:
        if lasts_s is None and shared_s is None:
            table.fail("requests", 'missing: nothing says when to stop. Give requests = 256, or duration = "60s".')
        lane = replace(lane, duration_s=lasts_s or shared_s)
    if isinstance(lane.load, OpenLoad) and not lane.load.stages and lane.requests is None:
        table.fail("requests", "missing: a burst of all requests at once needs their number.")
    if lane.max_requests is not None and (lane.requests is not None or isinstance(lane.load, OpenLoad)):
        table.fail("max_requests", "this bounds a closed loop that is limited by duration alone; use requests.")
    return lane


def _read_load(table: Table) -> Load:
    stages = table.tables("stage")
    is_closed = "concurrency" in table or any("concurrency" in stage for stage in stages)
    open_keys = [key for key in _OPEN_KEYS if key in table]
    if is_closed and (open_keys or any("rate" in stage for stage in stages)):
        other = open_keys[0] if open_keys else "stage.rate"
        table.fail(other, "concurrency makes a closed loop and this key an open one; keep one of the two.")
    if is_closed:
        load: Load = _read_closed(table, stages)
    elif open_keys or stages:
        load = _read_open(table, stages)
    else:
        table.fail_if_misspelt(_LOAD_KEYS)
        table.fail(
            "concurrency", 'missing: say how load is offered: concurrency = 8 (closed loop) or rate = "1/s" (open loop).'
        )
    for key in _LOAD_KEYS:
        table.take(key, lambda value, _: value, None)  # known everywhere, so that a misspelt one is recognised
    return load


def _read_closed(table: Table, stages: list[Table]) -> ClosedLoad:
    if not stages:
        return ClosedLoad((ConcurrencyStage(table.take("concurrency", strict.whole(1), 1)),))
    if "concurrency" in table:
        table.fail("concurrency", "the stages say how many are in flight; take this key out.")
    read: list[ConcurrencyStage] = []
    for i, stage in enumerate(stages):
        concurrency = stage.take("concurrency", strict.whole(1), 0)
        if not concurrency:
            stage.fail("concurrency", "missing: each stage of a closed loop says how many requests are in flight.")
        read.append(ConcurrencyStage(concurrency, _stage_duration(stage, i == len(stages) - 1)))
    return ClosedLoad(tuple(read))


def _read_open(table: Table, stages: list[Table]) -> OpenLoad:
    has_every = "every" in table
    named = table.take("arrivals", strict.choice("constant", "poisson", "gamma", "burst"), "")
    rate = table.take("rate", strict.rate_per_s, 0.0)
    every_s = table.take("every", strict.duration_s, 0.0)
    cv = table.take("cv", strict.number(0), 0.0)
    size = table.take("burst_size", strict.whole(1), 0)
    cap = table.take("max_in_flight", strict.whole(1), 0) or None
    name = named or ("burst" if size else "gamma" if cv else "constant" if has_every else "poisson")
    if (rate or stages) and has_every:
        table.fail("every", "a rate (or stages) and a gap are both given; keep one of them.")
    if cv and name != "gamma":
        table.fail("cv", f'{name} arrivals have no cv to set. Write arrivals = "gamma", or take cv out.')
    if cv > MAX_CV:
        table.fail("cv", f"{cv:g} is more than {MAX_CV:g}, where one gap holds nearly the whole run. Give less.")
    if 0 < cv < MIN_CV:
        table.fail("cv", f'{cv:g} is next to none. Write arrivals = "constant" for equal gaps, and take cv out.')
    if size and name != "burst":
        table.fail("burst_size", f'{name} arrivals have no bursts. Write arrivals = "burst", or take burst_size out.')
    if name == "burst":
        return _read_burst(table, stages, rate, every_s, size, cap)
    processes: dict[str, ArrivalProcess] = {"constant": Constant(), "poisson": Poisson(), "gamma": Gamma(cv or 1.0)}
    if name == "gamma" and not cv:
        table.fail("cv", "missing: gamma arrivals need the coefficient of variation of the gaps, for example cv = 2.")
    if stages:
        if rate:
            table.fail("rate", "the stages say the rate; take this key out.")
        return OpenLoad(processes[name], _read_rates(stages), cap)
    if not rate and not every_s:
        table.fail("rate", f'missing: {name} arrivals need a rate = "1/s" (or every = "5s").')
    return OpenLoad(processes[name], (RateStage(rate or 1 / every_s),), cap)


def _read_burst(table: Table, stages: list[Table], rate: float, every_s: float, size: int, cap: int | None) -> OpenLoad:
    if stages or rate:
        table.fail("stage" if stages else "rate", 'bursts are set by burst_size = 8 and every = "10s"; take this key out.')
    if bool(size) != bool(every_s):
        table.fail(
            "every" if size else "burst_size",
            "missing: repeated bursts need burst_size and every; a single burst of all requests needs neither.",
        )
    return OpenLoad(Burst(size), (RateStage(size / every_s),), cap) if size else OpenLoad(Burst(), (), cap)


def _read_rates(stages: list[Table]) -> tuple[RateStage, ...]:
    read: list[RateStage] = []
    for i, stage in enumerate(stages):
        rate = stage.take("rate", strict.rate_per_s, 0.0)
        if not rate:
            stage.fail("rate", "missing: each stage of an open loop says its rate.")
        read.append(RateStage(rate, _stage_duration(stage, i == len(stages) - 1)))
    return tuple(read)


def _stage_duration(stage: Table, is_last: bool) -> float | None:
    duration_s = stage.take("duration", strict.duration_s, 0.0) or None
    stage.close()
    if duration_s is None and not is_last:
        stage.fail("duration", "missing: every stage but the last says how long it lasts.")
    return duration_s


def _read_prompts(table: Table, folder: Path) -> tuple[str, tuple[int, int]]:
    """`prompts = "stdlib"`, or a table with the range of token ids."""
    low, high = DEFAULT_IDS
    if isinstance(table.peek("prompts"), dict):
        inner = table.table("prompts")
        assert inner is not None
        source = inner.take("source", strict.text, "ids")
        low = inner.take("min_id", strict.whole(0), low)
        high = inner.take("max_id", strict.whole(1), high - 1) + 1
        inner.close()
        if high - low < 16:
            inner.fail("max_id", f"ids {low}..{high - 1} are too few for prompts that differ. Widen the range.")
        if high > MAX_ID:
            inner.fail("max_id", f"{high - 1} is no token id of any vocabulary. Give less than {MAX_ID}.")
    else:
        source = table.take("prompts", strict.text, "synthetic")
    return source if source in SOURCES else str(folder / source), (low, high)


def _read_slo(table: Table | None) -> Slo | None:
    """Limits in milliseconds (`ttft = 3000`), or texts with a unit (`ttft = "3s"`)."""
    if table is None:
        return None
    limits = {f"{metric}_s": table.take(metric, _limit_s, 0.0) for metric in SLO_METRICS}
    table.close()
    return Slo(**{key: limit for key, limit in limits.items() if limit})


def _limit_s(value: Any, path: str) -> float:
    if isinstance(value, str):
        return strict.duration_s(value, path)
    return strict.number(0)(value, path) / 1e3


def _read_sampling(table: Table | None) -> Sampling:
    if table is None:
        return Sampling()
    default = Sampling()
    temperature = table.take("temperature", strict.number(0, is_open=False), default.temperature)
    top_p = table.take("top_p", strict.number(0), default.top_p)
    ignore_eos = table.take("ignore_eos", strict.flag, default.ignore_eos)
    seed = table.take("seed", strict.whole(0), -1)
    table.close()
    if top_p > 1:
        table.fail("top_p", f"{top_p:g} is above 1. Give a share between 0 and 1.")
    return Sampling(temperature, top_p, ignore_eos, None if seed < 0 else seed)


__all__ = ["Overrides", "Workload", "load_workload", "read_workload"]
