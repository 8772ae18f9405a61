"""A grid of simulated runs, over all cores: every combination of the values of a few knobs.

A knob is a flag of the engine by its own name (`chunked_prefill_size`), a word of the load (`concurrency`, `isl`) or of the
setting (`engine`, `gpu`, `model`, `seed`, `draft_method`). Every cell is checked before the first one runs: a grid of an hour
must not end in a mistyped flag. A cell that turns out to be impossible is reported and costs no other.
"""

from __future__ import annotations

import itertools
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from longbench_sched.errors import ClientLimitError, LongbenchError, UsageError
from longbench_sched.experiment.virtual_run import Origin, Setting, make_engine, plan_virtual, read_setting, simulate
from longbench_sched.metrics.stat import Summary
from longbench_sched.metrics.summary import summarize
from longbench_sched.quantity import count
from longbench_sched.sim.calibration import Calibration
from longbench_sched.sim.draft_knobs import DRAFT_KNOBS, read_drafts
from longbench_sched.sim.models import Model, find_model
from longbench_sched.sim.pools import POOL_KNOBS
from longbench_sched.store.parquet import write_run
from longbench_sched.workload.overrides import Overrides
from longbench_sched.workload.shape import Workload
from longbench_sched.workload.spec import load_workload

MAX_CELLS = 10_000
_SETTING_KNOBS = ("engine", "gpu", "model", "seed", *POOL_KNOBS, *DRAFT_KNOBS)
_LOAD_KNOBS = tuple(item.name for item in fields(Overrides) if item.name not in ("slo", "prompts", "cv"))


@dataclass(frozen=True, slots=True)
class Axis:
    """One knob and the values it takes."""

    knob: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Base:
    """What is the same in every cell, unless a knob says otherwise."""

    workload: str  # name or path
    overrides: Overrides
    seed: int
    engine: str
    gpu: str
    model: str
    flags: tuple[str, ...]  # the engine's own
    calibration: Calibration | None = None
    read_model: Callable[[str], Model] = find_model
    drafts: Mapping[str, str] = field(default_factory=dict)  # words of `DRAFT_KNOBS`
    pools: Mapping[str, str] = field(default_factory=dict)  # words of `POOL_KNOBS`


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the grid."""

    workload: Workload
    seed: int
    setting: Setting

    @property
    def label(self) -> str:
        """`chunked_prefill_size=2048 concurrency=64`."""
        return label_of(self.setting.cell)


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a cell: a summary of the stored run, or why there is none."""

    place: int
    summary: Summary | None
    failure: LongbenchError | None = None


def label_of(knobs: Mapping[str, str]) -> str:
    """The knobs of a cell in one line."""
    return " ".join(f"{knob}={value}" for knob, value in knobs.items())


def read_axis(text: str) -> Axis:
    """Read `chunked_prefill_size=2048,8192`. Raises UsageError."""
    knob, equals, values = text.partition("=")
    knob = knob.strip().removeprefix("--").replace("-", "_")
    listed = tuple(value.strip() for value in values.split(","))
    if not (equals and knob and all(listed)):
        raise UsageError(f"--sweep {text!r} is not KNOB=V1,V2. Write for example --sweep chunked_prefill_size=2048,8192.")
    if len(set(listed)) < len(listed):
        raise UsageError(f"--sweep {text!r} names a value twice.")
    return Axis(knob, listed)


def make_cells(base: Base, axes: Sequence[Axis]) -> list[Cell]:
    """Every combination, the last axis fastest. Raises UsageError, WorkloadError for the first cell that cannot be."""
    if twice := [axis.knob for axis, other in itertools.combinations(axes, 2) if axis.knob == other.knob]:
        raise UsageError(f"--sweep {twice[0]} was given twice. Put all its values into one.")
    n = 1
    for axis in axes:
        n *= len(axis.values)
    if n > MAX_CELLS:
        raise UsageError(f"--sweep: {n} cells are more than {MAX_CELLS}. Give fewer values.")
    grid = itertools.product(*(axis.values for axis in axes))
    return [_cell(base, dict(zip([axis.knob for axis in axes], values, strict=True))) for values in grid]


def _cell(base: Base, knobs: Mapping[str, str]) -> Cell:
    load: dict[str, Any] = {knob: _load_value(knob, value) for knob, value in knobs.items() if knob in _LOAD_KNOBS}
    place = {knob: value for knob, value in knobs.items() if knob in _SETTING_KNOBS}
    flags = [f"--{knob}={value}" for knob, value in knobs.items() if knob not in load and knob not in place]
    seed = count(place.pop("seed"), "--sweep seed") if "seed" in place else base.seed
    engine, gpu, model = (place.get(name, default) for name, default in _defaults(base))
    shape = base.read_model(model)
    pools = {**base.pools, **{knob: knobs[knob] for knob in POOL_KNOBS if knob in knobs}}
    setting = read_setting(engine, gpu, _name(model, shape), [*base.flags, *flags], pools, shape)
    wish = read_drafts({**base.drafts, **{knob: knobs[knob] for knob in DRAFT_KNOBS if knob in knobs}}, base.read_model)
    setting = replace(setting, calibration=base.calibration, wish=wish, cell=knobs)
    make_engine(setting)
    return Cell(load_workload(base.workload, replace(base.overrides, **load)), seed, setting)


def _name(given: str, shape: Model) -> str:
    """A model is called as it was asked for; a file's path is nobody's name."""
    return shape.name if "/" in given or given.endswith(".json") else given


def _defaults(base: Base) -> tuple[tuple[str, str], ...]:
    return (("engine", base.engine), ("gpu", base.gpu), ("model", base.model))


def _load_value(knob: str, value: str) -> str | int | float:
    """As the flag of that name would have read it."""
    if knob == "burstiness":
        try:
            return float(value)
        except ValueError:
            raise UsageError(f"--sweep {knob}: {value!r} is not a number.") from None
    return value if knob in ("isl", "osl", "request_rate", "duration") else count(value, f"--sweep {knob}")


def run_cells(
    cells: Sequence[Cell],
    places: Sequence[tuple[Origin, Path]],
    n_workers: int,
    on_done: Callable[[Done], None] = lambda done: None,
) -> list[Done]:
    """Simulate and store every cell, `n_workers` at a time; what became of them, in the order of the cells."""
    jobs = [(place, cell, *where) for place, (cell, where) in enumerate(zip(cells, places, strict=True))]
    results: list[Done] = []
    with _finished(jobs, min(n_workers, len(jobs))) as finished:
        for done in finished:
            results.append(done)
            on_done(done)
    return sorted(results, key=lambda done: done.place)


_Job = tuple[int, Cell, Origin, Path]


@contextmanager
def _finished(jobs: Sequence[_Job], n_workers: int) -> Iterator[Iterator[Done]]:
    """The cells as they end, in this process if one worker is enough."""
    if n_workers <= 1:
        yield (_run_cell(*job) for job in jobs)
        return
    others = set(multiprocessing.active_children())
    # Not forked: the parent has threads of its own.
    pool = ProcessPoolExecutor(n_workers, multiprocessing.get_context("spawn"), _leave_signals)
    try:
        futures: list[Future[Done]] = [pool.submit(_run_cell, *job) for job in jobs]
        yield (future.result() for future in as_completed(futures))
    except BrokenProcessPool:
        raise ClientLimitError(
            "a worker process was killed, perhaps for lack of memory. What was finished is stored. "
            "Give fewer --workers, or shorter runs."
        ) from None
    except BaseException:
        # Ctrl-C: the cells under way would take as long as they take, and files appear whole or not at all.
        for worker in set(multiprocessing.active_children()) - others:
            worker.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _leave_signals() -> None:
    """Ctrl-C is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run_cell(place: int, cell: Cell, origin: Origin, path: Path) -> Done:
    try:
        done = simulate(plan_virtual(cell.workload, cell.seed), cell.setting, origin)
        write_run(done.run, path)
    except LongbenchError as error:
        return Done(place, None, type(error)(f"{cell.label}: {error}"))
    return Done(place, summarize(done.run))
