"""One run from end to end: the rooms joined. Workload -> plan -> load -> journal and Parquet.

The order is that of growing cost: whatever can be wrong with the workload, the folder or the flags is found before the engine
is asked, and whatever the engine says against the plan before the first measured request.
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from longbench_sched.cli import engine_answers, output
from longbench_sched.cli.progress import ProgressLine, standing_line
from longbench_sched.cli.provenance import host_facts, versions
from longbench_sched.cli.signals import signals_held
from longbench_sched.engine import make_dialect
from longbench_sched.engine.dialect import Dialect
from longbench_sched.engine.marks import ISL_MISMATCH, is_isl_mismatch
from longbench_sched.errors import StoreError
from longbench_sched.experiment.watchdog import Watchdog
from longbench_sched.load.execute import LoadOptions, LoadResult, Progress, execute
from longbench_sched.load.probe import Preflight, ProbeOptions, check_context, read_prefix_hits
from longbench_sched.load.rehearsal import choose_request, rehearse
from longbench_sched.load.timeouts import Timeouts
from longbench_sched.plan import Plan, compressed
from longbench_sched.record import StreamRecord
from longbench_sched.run import ClientHealth, RecordTable, Run, RunMeta, plan_facts
from longbench_sched.store import catalogue, journal, schema
from longbench_sched.store.atomic import check_writable
from longbench_sched.store.parquet import write_run
from longbench_sched.target import Target
from longbench_sched.workload.build import build_plan
from longbench_sched.workload.shape import Workload


@dataclass(frozen=True, slots=True)
class Timing:
    """How a run is sent and timed."""

    transport: Literal["wire", "http"] = "wire"
    timestamps: Literal["kernel", "user", "auto"] = "auto"
    timeouts: Timeouts = field(default_factory=Timeouts)
    ca_file: Path | None = None
    insecure: bool = False
    proxy_from_env: bool = False
    keep_text: bool = False
    has_preflight: bool = True


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run stands in an experiment, and what follows from that."""

    run_id: str
    content: str  # what its prompts are derived from, beside seed, repeat and index
    repeat: int
    facts: Mapping[str, Any]  # for RunMeta.experiment
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """All that decides one run but the engine's address."""

    workload: Workload
    seed: int
    folder: Path
    timing: Timing
    tokenizer: Path | None = None
    place: Place | None = None  # among other runs; None: a run by itself


@dataclass(frozen=True, slots=True)
class Measured:
    """A run and where it lies: its Parquet file; or what was written instead where that could not be (see `failure`)."""

    run: Run
    path: Path
    failure: str | None = None


def measure(order: Order, target: Target) -> Measured:
    """Measure one workload against one engine and store the run. Raises LongbenchError."""
    check_writable(order.folder / "probe")
    timing = order.timing
    dialect = make_dialect(target.engine, target.api, target.count)
    options = engine_answers.probe_options(
        target,
        ca_file=timing.ca_file,
        insecure=timing.insecure,
        proxy_from_env=timing.proxy_from_env,
        connect_s=timing.timeouts.connect_s,
    )
    preflight = engine_answers.ask_engine(target, options, must_answer=timing.has_preflight)
    with engine_answers.prompt_maker(target, dialect, preflight, options, order.workload.prompts, order.tokenizer) as prompts:
        place = order.place
        cell, repeat = (None, 0) if place is None else (place.content, place.repeat)
        plan = build_plan(order.workload, order.seed, prompts, cell=cell, repeat=repeat)
    preflight = _rehearsed(order, target, dialect, plan, preflight, options)
    run_id = place.run_id if place is not None else _new_run_id(order.folder, target.engine, plan.workload)
    meta = _meta_before(run_id, order, target, dialect, plan, preflight)
    with journal.Journal(order.folder / f"{run_id}{journal.ENDING}", meta) as log:
        recorder = _Recorder(log, meta, 0 if target.api != "chat" else preflight.template_overhead)
        hits_before = read_prefix_hits(target, options)
        try:
            result = _send(order, target, dialect, plan, preflight, run_id, recorder, log)
        except KeyboardInterrupt as interrupt:  # just before, or just after, signals were the load's
            if not log.has_requests:
                raise
            see = shlex.join(["longbench-sched", "show", str(log.path)])
            raise type(interrupt)(f"What was measured is in {log.path}. To see it: `{see}`.") from None
        with signals_held():
            lateness_ms = engine_answers.server_lateness_ms(target, preflight, options)
            meta = engine_answers.with_prefix_hits(meta, hits_before, target, options)
            meta = replace(meta, marks=recorder.run_marks)
            run = Run(_meta_after(meta, result, lateness_ms), recorder.table())
            return store(run, order.folder / f"{run_id}{schema.ENDING}", log)


def _new_run_id(folder: Path, engine: str, workload: str) -> str:
    return catalogue.make_run_id(datetime.now(UTC), engine, workload, lambda name: catalogue.is_taken(folder, name))


def store(run: Run, path: Path, log: journal.Journal) -> Measured:
    """Write the run; the journal goes when its records are safe. A full disk costs neither the page nor the records.

    Where neither the file nor the journal could be written whole, the run goes into the system's temporary folder.
    """
    log.note_meta(run.meta)
    try:
        write_run(run, path)
    except StoreError as error:
        log.close()
        if log.failure is None:
            return Measured(run, log.path, f"{error}\n`show {log.path}` reads it from its journal.")
        return _store_elsewhere(run, path.name, log, str(error))
    if log.failure is not None:
        output.explain(f"Warning: {log.failure.rstrip('.')}. The run itself is stored.")
    log.remove()
    return Measured(run, path)


def _store_elsewhere(run: Run, name: str, log: journal.Journal, failure: str) -> Measured:
    place: Path | None = None
    try:
        place = Path(tempfile.mkdtemp(prefix="longbench-sched-")) / name
        write_run(run, place)
    except (StoreError, OSError):
        if place is not None:
            shutil.rmtree(place.parent, ignore_errors=True)
        return Measured(run, log.path, f"{failure}\nIts journal ended early, so only a part of the run is stored: {log.path}.")
    log.remove()
    return Measured(run, place, f"{failure}\nThe run is stored as {place} instead: move it before that folder is emptied.")


def _rehearsed(
    order: Order, target: Target, dialect: Dialect, plan: Plan, preflight: Preflight, options: ProbeOptions
) -> Preflight:
    """Hold the plan against the engine's context, and send one request ahead. Raises TargetError if the plan cannot work."""
    if not order.timing.has_preflight:
        return preflight  # also of use where a server says too small a context
    longest = max(plan.requests, key=lambda request: request.isl + request.osl)
    check_context(preflight, target.engine, longest.isl, longest.osl)
    request = choose_request(plan)
    with standing_line(f"  preflight: one request, {request.isl} tokens in, {request.osl} out"):
        learned = rehearse(
            preflight,
            target,
            dialect,
            [request],
            timeouts=order.timing.timeouts,
            ca_file=options.ca_file,
            insecure=options.insecure,
            proxy=options.proxy,
        )
    check_context(learned, target.engine, longest.isl, longest.osl)  # again: in chat the template takes its part
    return learned


def _send(
    order: Order,
    target: Target,
    dialect: Dialect,
    plan: Plan,
    preflight: Preflight,
    run_id: str,
    recorder: _Recorder,
    log: journal.Journal,
) -> LoadResult:
    timing = order.timing
    options = LoadOptions(
        run_id=run_id,
        model=preflight.model,
        transport=timing.transport,
        timestamps=timing.timestamps,
        timeouts=timing.timeouts,
        ca_file=timing.ca_file,
        insecure=timing.insecure,
        proxy_from_env=timing.proxy_from_env,
        keep_text=timing.keep_text,
        deadline_s=None if order.place is None else order.place.deadline_s,
    )
    with ProgressLine() as line:

        def on_progress(progress: Progress) -> None:
            line.update(progress)
            recorder.note_start(progress)
            recorder.watch(progress)

        return execute(
            compressed(plan, preflight.time_scale), target, dialect, options, recorder.take, on_progress, recorder.note_sent
        )


class _Recorder:
    """Takes finished requests: into the journal at once, and together for the file at the end."""

    def __init__(self, log: journal.Journal, meta: RunMeta, template_tokens: int | None) -> None:
        self._log = log
        self._meta = meta
        self._template_tokens = template_tokens  # None: a chat template of unknown length, so no row can be judged alone
        self._knows_start = False
        self._watchdog = Watchdog()
        self.records: list[StreamRecord] = []
        self.run_marks: tuple[str, ...] = ()

    def take(self, record: StreamRecord) -> None:
        """One finished request."""
        template = self._template_tokens
        if template is not None and is_isl_mismatch(record.isl + template, record.decoded.prompt_tokens):
            record.decoded.marks.append(ISL_MISMATCH)
            if record.phase == "measured":
                self.run_marks = (ISL_MISMATCH,)
        self.records.append(record)
        self._log.append(record)
        self._watchdog.ended(record.request_id)

    def table(self) -> RecordTable:
        """All that was taken, as columns; the records themselves are let go, so that memory never holds both for long."""
        records, self.records = self.records, []
        return RecordTable.from_records(records)

    def note_sent(self, record: StreamRecord) -> None:
        """One request that is on its way."""
        self._log.note_sent(record)
        self._watchdog.sent(record.request_id)

    def watch(self, progress: Progress) -> None:
        """Name the requests in flight if nothing has moved for long."""
        warning = self._watchdog.look(time.monotonic(), (progress.phase, progress.sent, progress.done))
        if warning is not None:
            output.explain(warning)

    def note_start(self, progress: Progress) -> None:
        """Tell the journal when the measured phase began, as soon as that is known: due times count from there."""
        if self._knows_start or progress.phase == "warmup" or progress.elapsed_s <= 0:
            return
        self._knows_start = True
        self._log.note_meta(replace(self._meta, measured_from_ns=time.monotonic_ns() - round(progress.elapsed_s * 1e9)))


def _meta_before(run_id: str, order: Order, target: Target, dialect: Dialect, plan: Plan, preflight: Preflight) -> RunMeta:
    """What is known before the first request: the journal begins with it, in case nothing else follows."""
    wall_ns, mono_ns = time.time_ns(), time.monotonic_ns()
    return RunMeta(
        run_id=run_id,
        started_at=datetime.fromtimestamp(wall_ns / 1e9, UTC).isoformat(timespec="milliseconds"),
        wall_anchor_ns=wall_ns,
        mono_anchor_ns=mono_ns,
        measured_from_ns=mono_ns,
        measured_to_ns=mono_ns,
        workload=plan.workload,
        workload_text=plan.workload_text,
        seed=plan.seed,
        digest=plan.digest,
        plan=plan_facts(plan),
        target=_target_facts(order, target, dialect, preflight),
        engine_facts=engine_answers.engine_facts(preflight),
        host=host_facts(),
        versions=versions(),
        client=ClientHealth(clock="user", cpu_s=0.0, wall_s=0.0),
        time_scale=preflight.time_scale,
        simulated=preflight.is_simulated,
        preflight=preflight.findings,
        slo=plan.slo.limits() if plan.slo is not None else {},
        experiment={} if order.place is None else dict(order.place.facts),
    )


def _target_facts(order: Order, target: Target, dialect: Dialect, preflight: Preflight) -> dict[str, Any]:
    timing = order.timing
    return {
        "engine": target.engine,
        "api": target.api,
        "base_url": target.endpoint.url,
        "model": preflight.model,
        "count": target.count,
        "headers": [name for name, _ in target.headers],
        "has_api_key": target.api_key is not None,
        "transport": timing.transport,
        "timestamps": timing.timestamps,
        "timeouts": timing.timeouts.facts(),
        "proxy": None,
        "tls": None if target.endpoint.scheme == "http" else "unchecked" if timing.insecure else "checked",
        "ca_file": timing.ca_file is not None,
        "sent_options": dict(dialect.sent_options(order.workload.sampling)),
    }


def _meta_after(meta: RunMeta, result: LoadResult, lateness_ms: float | None) -> RunMeta:
    is_complete = result.interrupted is None
    return replace(
        meta,
        wall_anchor_ns=result.wall_anchor_ns,
        mono_anchor_ns=result.mono_anchor_ns,
        measured_from_ns=result.measured_from_ns,
        measured_to_ns=result.measured_to_ns,
        target={**meta.target, "transport": result.transport, "proxy": result.proxy},
        client=replace(result.client, server_lateness_p99_ms=lateness_ms),
        clock=result.clock,
        complete=is_complete,
        interrupted=result.interrupted,
        marks=tuple(dict.fromkeys([*meta.marks, *result.marks, *(() if is_complete else ("interrupted", "incomplete"))])),
    )
