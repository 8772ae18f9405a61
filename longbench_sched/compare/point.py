"""RunPoint: what a comparison needs of a run, and nothing else.

A point is plain data: run-level figures by window, what tells whether two runs may be compared, and where the run stood among
others. A baseline is a file of points, so it stays small and readable when it is kept in git for years.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from longbench_sched.compare.figure import ERROR_RATE, counts_of, values_of, within_of
from longbench_sched.errors import StoreError
from longbench_sched.metrics.stat import Section, Summary
from longbench_sched.run import RunMeta
from longbench_sched.store.json_types import fields_of
from longbench_sched.workload.overrides import Overrides

if TYPE_CHECKING:
    from longbench_sched.metrics.curves import Ecdf

WHOLE, STEADY = "whole", "steady"
# Knobs of a sweep that change what is sent, not the engine.
_LOAD_KNOBS = frozenset(item.name for item in fields(Overrides)) | {"seed"}


@dataclass(frozen=True, slots=True)
class RunPoint:
    """A run as a point among others."""

    run_id: str
    started_at: str
    workload: str
    schedule: str  # digest of lengths, due times and loops: equal if the same load was offered
    engine: str
    target: str  # its name in an experiment, else engine and version
    cell: str  # which load: the workload, with what a sweep changed
    params: Mapping[str, float]  # concurrency, isl, osl, rate: what a trend is drawn over
    experiment: str | None
    block: int | None  # runs of one block were measured back to back, with the same lengths and due times
    simulated: bool
    complete: bool
    marks: tuple[str, ...]
    facts: Mapping[str, Any]  # of the engine
    machine: Mapping[str, Any]  # that measured
    attempted: int
    ok: int
    isl_mean: float | None  # as the server counted
    osl_mean: float | None  # as they came
    osl_share: float | None  # of what was asked
    cached_share: float | None  # of prompt tokens
    shared_prefix: int  # tokens that prompts were meant to share
    tokens_per_chunk: float | None  # the most frequent number
    duration_s: float  # of the measured phase, engine time
    gpus: int | None
    dollars_per_hour: float | None  # for all of them
    values: Mapping[str, Mapping[str, float]]  # window -> figure -> value
    within: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict)
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    time_scale: float | None = None  # of the engine's clock; None in a baseline that does not tell, as below
    is_virtual: bool | None = None  # measured in virtual time, with no client and no network
    slo: Mapping[str, float] | None = None  # limits in s that goodput was judged by; None in a baseline that does not tell
    ecdfs: Mapping[str, Ecdf] = field(default_factory=dict)  # of a run that was summarised with curves, for charts

    def value(self, key: str, window: str) -> float | None:
        """A figure of this run, if it is defined in that window."""
        if key == ERROR_RATE:
            return 1 - self.ok / self.attempted if self.attempted else None
        return self.values.get(window, {}).get(key)

    @property
    def has_steady(self) -> bool:
        """Whether a part of the run had its load in flight for long enough."""
        return STEADY in self.values

    @property
    def lanes(self) -> list[str]:
        """Windows of single lanes, if the load had several."""
        return sorted(name for name in self.values if name.startswith("lane "))


def point_of(summary: Summary) -> RunPoint:
    """The point of a summarised run."""
    meta, outcomes = summary.meta, summary.outcomes
    place = meta.experiment
    sections: dict[str, Section] = {WHOLE: summary.whole}
    if summary.steady is not None:
        sections[STEADY] = summary.steady
    sections |= {f"lane {name}": section for name, section in summary.lanes.items()}
    facts = {name: value for name, value in meta.engine_facts.items() if isinstance(value, int | float | str | bool)}
    return RunPoint(
        run_id=meta.run_id,
        started_at=meta.started_at,
        workload=meta.workload,
        schedule=str(_extra(meta).get("schedule_digest") or _extra(meta).get("load_digest") or meta.digest),
        engine=str(meta.target.get("engine") or "?"),
        target=target_name(meta),
        cell=cell_name(meta),
        params=_params(meta),
        experiment=str(place["id"]) if place.get("id") else None,
        block=int(place["block"]) if place.get("block") is not None else None,
        simulated=meta.simulated,
        complete=meta.complete,
        marks=summary.marks,
        facts=facts,
        machine=dict(meta.host),
        attempted=outcomes.attempted,
        ok=outcomes.ok,
        isl_mean=_mean(summary.facts.get("isl"), "server"),
        osl_mean=_mean(summary.facts.get("osl"), "realised"),
        osl_share=_number(summary.facts.get("osl"), "share"),
        cached_share=_number(summary.facts.get("cache"), "share"),
        shared_prefix=int(meta.plan.get("shared_prefix_tokens") or 0),
        tokens_per_chunk=_number(summary.facts.get("packing"), "mode"),
        duration_s=summary.whole.to_s - summary.whole.from_s,
        gpus=gpus_of(meta),
        dollars_per_hour=_number(place, "dollars_per_hour"),
        values={name: values_of(section) for name, section in sections.items()},
        within={name: within_of(section) for name, section in sections.items()},
        counts={name: counts_of(section) for name, section in sections.items()},
        time_scale=meta.time_scale,
        is_virtual=meta.clock == "virtual",
        slo=dict(meta.slo),
        ecdfs=summary.curves.ecdfs if summary.curves is not None else {},
    )


def target_name(meta: RunMeta) -> str:
    """What was measured: its name in an experiment, else engine, version, and what a sweep set in it."""
    if meta.experiment.get("target"):
        return str(meta.experiment["target"])
    engine, version = meta.target.get("engine") or "?", meta.engine_facts.get("version")
    knobs = meta.target.get("cell")
    settings = [f"{k}={v}" for k, v in knobs.items() if k not in _LOAD_KNOBS] if isinstance(knobs, Mapping) else []
    return " ".join([f"{engine} {version}" if version else str(engine), *settings])


def cell_name(meta: RunMeta) -> str:
    """Which load: its name in an experiment, else the workload with what flags changed in it.

    The changes stand as comments below the workload's text; limits of goodput change no load.
    """
    if meta.experiment.get("cell"):
        return str(meta.experiment["cell"])
    _, _, changes = meta.workload_text.partition("# From the command line:\n")
    flags = [line.removeprefix("# --").partition(" ") for line in changes.splitlines() if line.startswith("# --")]
    return " ".join(
        [
            meta.workload,
            *(f"{name.replace('-', '_')}={value}" for name, _, value in flags if name not in ("goodput", "prompts")),
        ]
    )


def encode_point(point: RunPoint) -> dict[str, Any]:
    """Plain data, for JSON. Intervals inside the run are left out, since they judge nothing, and what is only drawn."""
    plain = asdict(point)
    del plain["within"], plain["ecdfs"]
    return plain


def decode_point(plain: Mapping[str, Any], where: str) -> RunPoint:
    """Read a point back; fields that a later version added are ignored. Raises StoreError."""
    read = {name: value for name, value in plain.items() if name not in ("ecdfs", "within")}
    try:
        known = fields_of(RunPoint, read)
        return RunPoint(**{**known, "marks": tuple(known["marks"])})
    except (TypeError, KeyError) as error:
        raise StoreError(
            f"{where} is damaged: a run in it lacks a field, or has a wrong one ({error}). Restore it from a copy."
        ) from None


def common_window(points: Sequence[RunPoint]) -> str:
    """The steady window where every run has one, else the whole run: one and the same for all that is compared."""
    return STEADY if points and all(point.has_steady for point in points) else WHOLE


def _extra(meta: RunMeta) -> Mapping[str, Any]:
    extra = meta.plan.get("extra")
    return extra if isinstance(extra, Mapping) else {}


def _params(meta: RunMeta) -> dict[str, float]:
    """What a sweep may have changed: nominal lengths and the load, and whatever the experiment says of the cell."""
    params: dict[str, float] = {}
    for name in ("isl", "osl"):
        length = meta.plan.get(name)
        if isinstance(length, Mapping) and length.get("nominal_mean") is not None:
            params[name] = float(length["nominal_mean"])
    lanes = [lane for lane in meta.plan.get("lanes") or () if isinstance(lane, Mapping)]
    if len(lanes) == 1:
        for name, theirs in (("concurrency", "concurrency"), ("request_rate", "rate_per_s")):
            if lanes[0].get(theirs) is not None:
                params[name] = float(lanes[0][theirs])
    given = meta.experiment.get("params")
    if isinstance(given, Mapping):
        params |= {str(name): float(value) for name, value in given.items() if isinstance(value, int | float)}
    return params


def gpus_of(meta: RunMeta) -> int | None:
    """As the experiment or the simulator says, else the product of the engine's parallel sizes, if it tells them."""
    stated = meta.experiment.get("gpus", meta.engine_facts.get("gpus"))
    if isinstance(stated, int):
        return stated
    sizes = [meta.engine_facts.get(name) for name in ("tensor_parallel", "pipeline_parallel", "data_parallel")]
    known = [size for size in sizes if isinstance(size, int) and size > 0]
    if not known:
        return None
    product = 1
    for size in known:
        product *= size
    return product


def _mean(lengths: object, key: str) -> float | None:
    return _number(lengths.get(key), "mean") if isinstance(lengths, Mapping) else None


def _number(values: object, key: str) -> float | None:
    value = values.get(key) if isinstance(values, Mapping) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
