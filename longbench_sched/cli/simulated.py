"""Simulated runs as commands make them: an id, a progress line, a file in the folder; a whole grid of them at once."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from longbench_sched.cli import output, pages
from longbench_sched.cli.conclude import MIN_SUCCESS, how_to_see, how_to_write, verdict
from longbench_sched.cli.exports import Export, uses_stdout
from longbench_sched.cli.measure import Measured
from longbench_sched.cli.progress import ProgressLine
from longbench_sched.cli.provenance import versions
from longbench_sched.cli.traces import check_trace
from longbench_sched.errors import EXIT_OK, StoreError
from longbench_sched.experiment.sweep import Cell, Done, run_cells
from longbench_sched.experiment.virtual_run import Origin, Simulated, plan_virtual, simulate, step_facts
from longbench_sched.load.execute import Progress
from longbench_sched.quantity import significant
from longbench_sched.sim.trace import StepTracer
from longbench_sched.steps import StepTable
from longbench_sched.store import catalogue, schema
from longbench_sched.store.atomic import check_writable
from longbench_sched.store.parquet import write_run
from longbench_sched.store.trace import write_steps


def simulate_one(cell: Cell, folder: Path, trace: Path | None = None) -> tuple[Measured, StepTable | None]:
    """Simulate one run and store it, and its steps if asked to. Raises LongbenchError."""
    check_writable(folder / "probe")
    if trace is not None:
        check_trace(trace, folder)
    plan = plan_virtual(cell.workload, cell.seed)
    ((origin, path),) = _places([cell], folder)
    tracer = None if trace is None else StepTracer()
    with ProgressLine() as line:
        done = simulate(
            plan, cell.setting, origin, observer=tracer, trace=None if trace is None else trace.name, on_progress=line.update
        )
    output.say(_cost_text(done))
    steps = None if tracer is None else tracer.table(step_facts(done.run.meta))
    try:
        write_run(done.run, path)
        if steps is not None and trace is not None:
            write_steps(steps, trace)
    except StoreError as error:
        return Measured(done.run, path, str(error)), steps
    return Measured(done.run, path), steps


def simulate_sweep(cells: Sequence[Cell], folder: Path, exports: Sequence[Export], workers: int | None) -> int:
    """Simulate, store and show every cell; returns the exit code. Raises the first failure, after all else.

    An interrupt tells which cells are stored: KeyboardInterrupt with words.
    """
    check_writable(folder / "probe")
    places = _places(cells, folder)
    try:
        return _sweep(cells, places, folder, exports, workers or _cores())
    except KeyboardInterrupt as interrupt:
        raise type(interrupt)(_what_there_is(cells, [path for _, path in places], folder, exports)) from None


def _sweep(
    cells: Sequence[Cell], places: Sequence[tuple[Origin, Path]], folder: Path, exports: Sequence[Export], n_workers: int
) -> int:
    with ProgressLine() as line:
        done = run_cells(cells, places, n_workers, _count(line, len(cells), min(n_workers, len(cells))))
    summaries = [one.summary for one in done if one.summary is not None]
    if summaries and not uses_stdout([export.name for export in exports]):
        pages.print_page(summaries, {"Stored": f"{len(summaries)} runs in {folder}"})
    pages.write_exports(summaries, exports)
    failures = [one.failure for one in done if one.failure is not None]
    if failures:
        for failure in failures[1:]:
            output.say(f"Error: {failure}")
        raise failures[0]
    codes = [verdict(summary, min_success=MIN_SUCCESS, strict=False) for summary in summaries]
    return next((code for code in codes if code != EXIT_OK), EXIT_OK)


def _what_there_is(cells: Sequence[Cell], paths: Sequence[Path], folder: Path, exports: Sequence[Export]) -> str:
    """For an interrupt: how many cells are stored, and how to see them or to simulate the others."""
    stored = [path for path in paths if path.exists()]
    names = _names(stored, folder)
    missing = [cell.setting.cell for cell, path in zip(cells, paths, strict=True) if not path.exists()]
    lines = [f"{len(stored)} of {len(cells)} cells are stored in {folder}.{how_to_see(names, len(stored))}"]
    if missing:
        values = {knob: dict.fromkeys(cell[knob] for cell in missing) for knob in missing[0]}
        sweep = shlex.join(word for knob, some in values.items() for word in ("--sweep", f"{knob}={','.join(some)}"))
        lines.append(f"To simulate the others: the same command with `{sweep}`.")
    return "\n  ".join([*lines, *how_to_write(exports, names)])


def _names(paths: Sequence[Path], folder: Path) -> list[str]:
    """The runs as `show` takes them: a pattern, where it means these and no others."""
    stem = os.path.commonprefix([path.stem for path in paths])  # noqa: RUF071  # by letters is what is meant
    is_exact = len(paths) > 1 and set(folder.glob(f"{stem}*")) == set(paths)
    return [str(folder / f"{stem}*")] if is_exact else [str(path) for path in paths]


def _count(line: ProgressLine, n_cells: int, n_workers: int) -> Callable[[Done], None]:
    """Counts cells as a run counts requests."""
    finished: list[Done] = []

    def on_done(done: Done) -> None:
        finished.append(done)
        n = len(finished)
        n_ok = sum(one.failure is None for one in finished)
        line.update(Progress("measured", n_cells, n, n, n_ok, min(n_workers, n_cells - n), None, 0.0, None))

    return on_done


def _places(cells: Sequence[Cell], folder: Path) -> list[tuple[Origin, Path]]:
    """An id for each run, told apart by the knobs of its cell, and where it is stored."""
    now, found, taken = datetime.now(UTC), versions(), set[str]()
    places = []
    for cell in cells:
        name = " ".join([cell.workload.name, *([cell.label] if cell.label else [])])
        run_id = catalogue.make_run_id(
            now, cell.setting.engine, name, lambda one: one in taken or catalogue.is_taken(folder, one)
        )
        taken.add(run_id)
        places.append((Origin(run_id, now, found), folder / f"{run_id}{schema.ENDING}"))
    return places


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _cost_text(done: Simulated) -> str:
    meta = done.run.meta
    span_s = (meta.measured_to_ns - meta.measured_from_ns) / 1e9
    return f"  {significant(span_s)} s of load, {done.n_steps} steps, simulated in {significant(done.cpu_s)} s"
