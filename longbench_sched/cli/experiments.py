"""`run` with several targets, loads or repeats: from flags or a file to the last page.

Everything that can be wrong with any cell is found before the first one is measured: a night must not end in a mistyped flag.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from longbench_sched.cli import output, pages
from longbench_sched.cli.conclude import check_share, success_share, verdict
from longbench_sched.cli.embedded import Settings, check_embedded, engine_flags, measure_embedded, split_knobs
from longbench_sched.cli.engine_flags import one_of, read_api_key, read_target
from longbench_sched.cli.exports import Export, open_exports, shows_curves
from longbench_sched.cli.measure import Measured, Order, Place, Timing, measure
from longbench_sched.cli.model_flag import read_model
from longbench_sched.cli.provenance import versions
from longbench_sched.cli.run_flags import check_engine_flags, read_overrides, read_timing, refuse_idle
from longbench_sched.compare.comparison import Side, compare
from longbench_sched.compare.point import point_of
from longbench_sched.engine import find_engine
from longbench_sched.errors import (
    EXIT_INCONCLUSIVE,
    EXIT_INTERRUPTED,
    EXIT_NOT_MEASURED,
    EXIT_OK,
    EXIT_TERMINATED,
    NotComparableError,
    StoreError,
    UsageError,
    WorkloadError,
)
from longbench_sched.experiment import matrix
from longbench_sched.experiment.conduct import Made, Result, Turn, conduct, open_cells
from longbench_sched.experiment.deadline import DeadlinePassed, deadline
from longbench_sched.experiment.matrix import Experiment, LoadSpec, TargetSpec, read_experiment, read_target_flag
from longbench_sched.experiment.order import Cell, make_cells
from longbench_sched.experiment.resume import ENDING, Ledger, read_ledger
from longbench_sched.experiment.virtual_run import Origin, Setting, make_engine, plan_virtual, read_setting, simulate
from longbench_sched.metrics.stat import Summary
from longbench_sched.metrics.summary import summarize
from longbench_sched.quantity import compact, duration_s
from longbench_sched.report import COMPARISON_FORMATS, FORMATS
from longbench_sched.report.page import build_page
from longbench_sched.report.repeats import repeats_table
from longbench_sched.report.versus import build_comparison, seconds_text
from longbench_sched.run import Run
from longbench_sched.sim.draft_knobs import DRAFT_KNOBS, check_drafts, read_drafts
from longbench_sched.sim.pools import POOL_KNOBS
from longbench_sched.store import catalogue, schema
from longbench_sched.store.atomic import check_writable
from longbench_sched.store.parquet import write_run
from longbench_sched.workload.overrides import Overrides
from longbench_sched.workload.shape import Workload
from longbench_sched.workload.spec import load_workload

_NOT_STORED = frozenset({"header", "export", "resume", "dry_run", "output_dir"})  # headers may hold secrets
_ENGINE_FLAGS = ("engine", "base_url", "model", "api", "count", "api_key_env", "gpu", "sim_model", "sim_set", "time_scale")


def is_experiment(given: Mapping[str, Any]) -> bool:
    """Whether these flags of `run` ask for more than one run."""
    several = given["target"] or given["num_runs"] is not None or given["dry_run"] or given["resume"] is not None
    return bool(several) or _experiment_text(given["workload"]) is not None


def run_experiment(given: Mapping[str, Any]) -> int:
    """Run what is not finished yet, and print what came of all; returns the exit code. Raises LongbenchError."""
    folder = Path(given["output_dir"])
    if given["resume"] is not None:
        refuse_idle(
            given, set(given) - _NOT_STORED, "--resume goes on as the experiment began. Leave it out, or begin another."
        )
        ledger = read_ledger(given["resume"], folder)
        given = {**ledger.flags, **{name: given[name] for name in _NOT_STORED}}
    else:
        experiment = make_experiment(given)
        flags = {name: value for name, value in given.items() if name not in _NOT_STORED}
        ledger = Ledger(new_id(experiment, folder), folder, experiment, flags)
    maker = CellMaker.of(given, ledger)
    cells = make_cells(ledger.experiment)
    if given["dry_run"]:
        output.emit("\n".join(_plan_lines(ledger, cells, maker)))
        return EXIT_OK
    check_writable(folder / "probe")
    formats = FORMATS if len(ledger.experiment.targets) == 1 else COMPARISON_FORMATS
    with open_exports(given["export"] or [], formats) as exports:
        if not ledger.path.exists():
            ledger.create()
        try:
            with ledger.held():
                output.say(opening(ledger, cells))
                results = conduct(cells, ledger, maker, now_s=time.monotonic, pause=time.sleep, on_end=say_end)
            return _conclude(ledger, cells, results, exports, given)
        except KeyboardInterrupt as interrupt:
            raise type(interrupt)(_what_there_is(ledger, cells)) from None


def _what_there_is(ledger: Ledger, cells: Sequence[Cell]) -> str:
    """For an interrupt: which runs are stored, and how to see them or to go on."""
    n = sum(ledger.finished(cell.key) is not None for cell in cells)
    shown = f" To see them: `longbench-sched show {shlex.quote(f'{ledger.folder}/{ledger.id}')}`." if n else ""
    go_on = f" To go on: {_resume_command(ledger)}." if n < len(cells) else ""
    return f"{n} of {len(cells)} runs are stored in {ledger.folder}.{shown}{go_on}"


def _resume_command(ledger: Ledger) -> str:
    elsewhere = [] if ledger.folder == catalogue.DEFAULT_FOLDER else ["--output-dir", str(ledger.folder)]
    return f"`{shlex.join(['longbench-sched', 'run', '--resume', ledger.id, *elsewhere])}`"


def make_experiment(given: Mapping[str, Any]) -> Experiment:
    """The experiment of a file or of flags, with the flags that change it applied. Raises UsageError, WorkloadError."""
    name = given["workload"]
    text = _experiment_text(name)
    if text is not None:
        refuse_idle(
            given, {*_ENGINE_FLAGS, "target"}, f"{name} says which engines are measured. Leave it out, or change the file."
        )
        experiment = read_experiment(text, Path(name).stem, name)
    else:
        experiment = _experiment_of_flags(given)
    changes: dict[str, Any] = {}
    if given["num_runs"] is not None:
        changes["repeats"] = given["num_runs"]
    if given["seed"] is not None:
        changes["seed"] = given["seed"]
    if given["order"] is not None:
        changes["order"] = one_of(given["order"], ("abba", "random"), "--order")
    if given["cool_down"] is not None:
        changes["cool_down_s"] = duration_s(given["cool_down"], "--cool-down")
    if given["deadline"] is not None:
        changes["deadline_s"] = duration_s(given["deadline"], "--deadline")
        if changes["deadline_s"] <= 0:
            raise UsageError("--deadline: give a duration above 0, for example 20m.")
    return matrix.checked(replace(experiment, **changes))


def _experiment_of_flags(given: Mapping[str, Any]) -> Experiment:
    name = given["workload"]
    if name is None:
        raise UsageError("which workload? Name one (`workloads` lists them), or give an experiment's file.")
    if given["target"]:
        refuse_idle(
            given, _ENGINE_FLAGS, "--target says which engines are measured. Write it there: name=URL,engine=vllm,gpus=2."
        )
        targets = tuple(read_target_flag(text) for text in given["target"])
    else:
        targets = (_single_target(given),)
    is_simulated = any(target.kind == "simulated" for target in targets)
    return Experiment(
        name=targets[0].engine if len(targets) == 1 else "compare",
        title=name,
        targets=targets,
        loads=(LoadSpec(name),),
        repeats=1 if given["num_runs"] is None and len(targets) == 1 else matrix.DEFAULT_REPEATS,
        vary="schedule" if is_simulated else "content",
        cool_down_s=0.0 if is_simulated else matrix.DEFAULT_COOL_DOWN_S,
    )


def _single_target(given: Mapping[str, Any]) -> TargetSpec:
    check_engine_flags(given)
    engine, base_url = given["engine"], given["base_url"]
    if base_url is not None and engine is None:
        raise UsageError("--base-url needs --engine: vllm, sglang, trtllm, triton or openai says how to talk to it.")
    return TargetSpec(
        name=engine or "vllm",
        engine=engine or "vllm",
        kind="embedded" if base_url is None else "url",
        base_url=base_url,
        model=given["sim_model"] if base_url is None else given["model"],
        api=given["api"],
        count=given["count"],
        api_key_env=given["api_key_env"],
        gpu=given["gpu"],
        knobs=tuple(given["sim_set"] or ()),
        time_scale=given["time_scale"],
    )


def _experiment_text(name: str | None) -> str | None:
    """The text of an experiment's file; None if the name means something else."""
    if name is None or not name.endswith(".toml") or not os.path.isfile(name):
        return None
    try:
        text = Path(name).read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return None  # the reader of workloads says what is wrong
    return text if matrix.is_experiment(text) else None


def new_id(experiment: Experiment, folder: Path) -> str:
    """An id that no experiment and no run in the folder has."""
    loads = experiment.loads
    what = loads[0].label if len(loads) == 1 else f"{len(loads)} loads"

    def is_taken(name: str) -> bool:
        return (folder / f"{name}{ENDING}").exists() or any(folder.glob(f"{name}.*"))

    return catalogue.make_run_id(datetime.now(UTC), experiment.name, what, is_taken)


@dataclass(frozen=True, slots=True)
class CellMaker:
    """Makes one run of an experiment, on whatever kind of target."""

    ledger: Ledger
    overrides: Overrides
    timing: Timing
    tokenizer: Path | None
    headers: tuple[str, ...]
    min_success: float
    workloads: dict[str, Workload]  # by the label of the load

    @classmethod
    def of(cls, given: Mapping[str, Any], ledger: Ledger) -> CellMaker:
        """Read all that the cells need, and check all that can be checked. Raises LongbenchError."""
        check_share(given["min_success"])
        overrides = read_overrides(given)
        experiment = ledger.experiment
        maker = cls(
            ledger=ledger,
            overrides=overrides,
            timing=read_timing(given),
            tokenizer=None if given["tokenizer"] is None else Path(given["tokenizer"]),
            headers=tuple(given["header"] or ()),
            min_success=given["min_success"],
            workloads={},
        )
        for load in experiment.loads:
            with named(f"load {load.label}", len(experiment.loads)):
                maker.workloads[load.label] = load_workload(load.use, load.applied(overrides))
        for target in experiment.targets:
            with named(f"target {target.name}", len(experiment.targets)):
                maker.check(target)
        return maker

    def check(self, target: TargetSpec) -> None:
        """Raise UsageError for a target that could never be measured."""
        find_engine(target.engine)
        if target.kind == "url":
            self._target(target)
            return
        if target.kind == "simulated":
            setting = self._setting(target)
            check_drafts(setting.wish, setting.options)
            make_engine(setting)
            return
        check_embedded(self._settings(target))

    def __call__(self, turn: Turn) -> Made:
        """Make one run. Raises LongbenchError if it cannot be made."""
        output.say(_turn_text(turn, self.ledger.experiment))
        cell = turn.cell
        try:
            measured = self._simulate(turn) if cell.target.kind == "simulated" else self._measure(turn)
        except DeadlinePassed:
            return Made(is_complete=False, detail=self._too_late())
        if measured.failure is not None:
            raise StoreError(measured.failure)
        summary = summarize(measured.run)
        interrupted = summary.meta.interrupted
        if interrupted in ("SIGINT", "SIGTERM"):
            return Made(is_complete=False, stops=True, detail=interrupted)
        if interrupted is not None:
            return Made(is_complete=False, detail=self._too_late())
        if not summary.outcomes.ok:
            reasons = ", ".join(f"{reason.reason} x {reason.n}" for reason in summary.outcomes.reasons[:3])
            return Made(is_complete=False, detail=f"no request succeeded ({reasons})")
        return Made(is_complete=True)

    def _too_late(self) -> str:
        return f"its deadline of {seconds_text(self.ledger.experiment.deadline_s)} passed"

    def _measure(self, turn: Turn) -> Measured:
        cell = turn.cell
        again = f" attempt {turn.attempt}" if turn.attempt > 1 else ""
        place = Place(
            run_id=turn.run_id,
            content=cell.content + again,
            repeat=cell.repeat,
            facts=cell.facts(self.ledger.id),
            deadline_s=self.ledger.experiment.deadline_s,
        )
        order = Order(self.workloads[cell.load.label], cell.seed, self.ledger.folder, self.timing, self.tokenizer, place)
        target = cell.target
        if target.kind == "url":
            return measure(order, self._target(target))
        return measure_embedded(order, self._settings(target), api=target.api, count=target.count)

    def _simulate(self, turn: Turn) -> Measured:
        cell, target = turn.cell, turn.cell.target
        setting = self._setting(target)
        with deadline(self.ledger.experiment.deadline_s):
            plan = plan_virtual(self.workloads[cell.load.label], cell.seed)
            run = simulate(plan, setting, Origin(turn.run_id, datetime.now(UTC), versions())).run
        run = Run(replace(run.meta, experiment=cell.facts(self.ledger.id)), run.table)
        path = self.ledger.folder / f"{turn.run_id}{schema.ENDING}"
        write_run(run, path)
        return Measured(run, path)

    def _setting(self, target: TargetSpec) -> Setting:
        """Of a simulated target, which may be pools of engines."""
        pools, own = split_knobs(target.knobs, POOL_KNOBS)
        drafts, own = split_knobs(own, DRAFT_KNOBS)
        setting = read_setting(target.engine, target.gpu, self._model(target), engine_flags(own), pools)
        return replace(setting, wish=read_drafts(drafts, read_model))

    def _settings(self, target: TargetSpec) -> Settings:
        return Settings(target.engine, target.gpu, self._model(target), target.knobs, target.time_scale)

    def _target(self, target: TargetSpec) -> Any:
        assert target.base_url is not None
        return read_target(
            engine=target.engine,
            base_url=target.base_url,
            model=target.model,
            api=target.api,
            count=target.count,
            headers=self.headers,
            api_key=read_api_key(target.api_key_env, os.environ),
        )

    @staticmethod
    def _model(target: TargetSpec) -> str:
        return target.model or Settings().model


@contextmanager
def named(what: str, n: int) -> Iterator[None]:
    """Errors of the block say which of `n` they are about, where there are several. Raises what the block raises."""
    try:
        yield
    except (UsageError, WorkloadError) as error:
        if n == 1:
            raise
        raise type(error)(f"{what}: {error}") from None


def opening(ledger: Ledger, cells: Sequence[Cell]) -> str:
    """One line: how many runs, of what."""
    experiment = ledger.experiment
    left = open_cells(cells, ledger)
    n = f"{len(left)} of {len(cells)} runs left" if len(left) < len(cells) else f"{len(cells)} runs"
    targets = ", ".join(target.name for target in experiment.targets)
    loads = f"{len(experiment.loads)} load{'s' if len(experiment.loads) > 1 else ''}"
    return f"{ledger.id}: {n} · {targets} · {loads} · order {experiment.order}"


def _turn_text(turn: Turn, experiment: Experiment) -> str:
    cell = turn.cell
    left = "" if turn.left_s is None else f" · about {seconds_text(turn.left_s)} left".replace("\u00a0", " ")
    again = f", attempt {turn.attempt}" if turn.attempt > 1 else ""
    block = f"block {cell.block + 1} of {experiment.repeats}"
    return f"{turn.number}/{turn.total} {cell.target.name} · {cell.load.label} · {block}{again}{left}"


def say_end(result: Result) -> None:
    """Name a cell that failed."""
    if result.how == "failed":
        first, *_ = str(result.error or result.detail).splitlines()
        output.explain(f"  failed: {first.rstrip('.')}. The other runs go on.")


def _plan_lines(ledger: Ledger, cells: Sequence[Cell], maker: CellMaker) -> list[str]:
    """What would be run, in order; lengths and due times are those that would be sent."""
    experiment = ledger.experiment
    plans = {}
    for cell in cells:
        key = (cell.load.label, cell.seed)
        if key not in plans:
            plans[key] = plan_virtual(maker.workloads[cell.load.label], cell.seed)
    names = max(len(target.name) for target in experiment.targets)
    n_in = n_out = 0
    lines = [
        f"targets {len(experiment.targets)} x loads {len(experiment.loads)} x blocks {experiment.repeats} = {len(cells)} runs, "
        f"order {experiment.order}, blocks differ in {experiment.vary}"
    ]
    for number, cell in enumerate(cells, 1):
        plan = plans[cell.load.label, cell.seed]
        tokens_in, tokens_out = (sum(values) for values in zip(*((r.isl, r.osl) for r in plan.requests), strict=True))
        n_in, n_out = n_in + tokens_in, n_out + tokens_out
        digest = plan.extra["schedule_digest"][:6]
        done = "  finished" if ledger.finished(cell.key) else ""
        what = f"{cell.load.label} · {len(plan.requests)} requests · schedule {digest}{done}"
        lines.append(f"{number:>4}  block {cell.block + 1}  {cell.target.name:<{names}}  {what}")
    lines.append(f"{compact(n_in)} tokens in, {compact(n_out)} out. Nothing was sent.")
    return lines


def _conclude(
    ledger: Ledger, cells: Sequence[Cell], results: Sequence[Result], exports: Sequence[Export], given: Mapping[str, Any]
) -> int:
    """Print and export all runs that there are; returns the exit code."""
    finished = [(cell, run_id) for cell in cells if (run_id := ledger.finished(cell.key)) is not None]
    by_target = {target.name: [] for target in ledger.experiment.targets}  # type: dict[str, list[Summary]]
    for cell, run_id in finished:
        path = ledger.folder / f"{run_id}{schema.ENDING}"
        by_target[cell.target.name].append(summarize(catalogue.read_stored(path), with_curves=shows_curves(exports)))
    code = _print(by_target, exports)
    failed = [result for result in results if result.how == "failed"]
    missing = len(cells) - len(finished)
    output.say(f"Stored {len(finished)} runs: {ledger.folder}/{ledger.id}.*{schema.ENDING}")
    if missing:
        output.explain(f"{missing} of {len(cells)} runs are missing. To run them: {_resume_command(ledger)}")
    if stops := [result.detail for result in results if result.how == "interrupted"]:
        return EXIT_TERMINATED if "SIGTERM" in stops else EXIT_INTERRUPTED
    if failed or missing:
        return EXIT_NOT_MEASURED
    summaries = [summary for found in by_target.values() for summary in found]
    for summary in summaries:
        if success_share(summary.outcomes) < given["min_success"] or given["strict"]:
            worst = verdict(summary, min_success=given["min_success"], strict=given["strict"])
            code = code if worst == EXIT_OK else worst
    return code


def _print(by_target: Mapping[str, Sequence[Summary]], exports: Sequence[Export]) -> int:
    """A comparison of several targets, else the runs side by side; returns the exit code of saying it."""
    summaries = [summary for found in by_target.values() for summary in found]
    sides = [Side(name, tuple(map(point_of, found))) for name, found in by_target.items() if found]
    if len(sides) > 1:
        try:
            comparison = compare(sides[0], sides[1:])
        except NotComparableError as error:
            output.explain(f"Error: {error}")
            pages.say_page(build_page(summaries), exports)
            return EXIT_INCONCLUSIVE
        pages.say_page(build_comparison(comparison), exports)
        return EXIT_OK if comparison.is_comparable else EXIT_INCONCLUSIVE
    page = build_page(summaries)
    tables = [repeats_table(side.within(cell)) for side in sides for cell in side.cells()]
    pages.say_page(replace(page, blocks=(*(table for table in tables if table is not None), *page.blocks)), exports)
    return EXIT_OK
