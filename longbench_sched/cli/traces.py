"""Step traces as commands find, draw and store them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from longbench_sched.cli import output
from longbench_sched.errors import StoreError, UsageError
from longbench_sched.quantity import duration_s
from longbench_sched.store.atomic import check_writable, write_atomically
from longbench_sched.store.catalogue import find_run, read_stored
from longbench_sched.store.trace import ENDING, find_steps, read_steps

if TYPE_CHECKING:
    from longbench_sched.report.timeline import View
    from longbench_sched.run import Run
    from longbench_sched.steps import StepTable


def check_trace(path: Path, folder: Path) -> None:
    """Raises UsageError for a name that would be taken for a run, StoreError for a place that cannot be written."""
    if path.resolve().parent == folder.resolve() and not path.name.endswith(ENDING):
        raise UsageError(
            f"--trace {path}: in the folder of the runs a trace must not look like one. Let its name end in {ENDING}."
        )
    check_writable(path)


def steps_of(names: Sequence[str], folder: str, trace: str | None) -> StepTable | None:
    """The steps of one run: from the file that was named, else from beside it. Raises StoreError, UsageError."""
    if len(names) != 1:
        if trace is not None:
            raise UsageError("--trace belongs to one run. Name one run, or leave it out.")
        return None
    path = find_run(names[0], Path(folder))
    meta = read_stored(path).meta
    if trace is None:
        found = find_steps(path, meta)
        return None if found is None else read_steps(found)
    steps = read_steps(Path(trace))
    if steps.facts.run_id != meta.run_id:
        raise UsageError(f"--trace {trace} is of the run {steps.facts.run_id}, not of {meta.run_id}.")
    return steps


def write_timeline(path: Path, steps: StepTable | None, run: Run, view: View) -> None:
    """Draw the steps. Raises UsageError for a run without steps, StoreError."""
    from longbench_sched.report import timeline

    if steps is None:
        raise UsageError(
            f"--timeline: there is no step trace of {run.meta.run_id}. Simulate with --trace steps.parquet; "
            "a measured engine does not tell its steps."
        )
    if view.from_s is not None and view.from_s >= (lasts_s := timeline.length_s(steps)):
        raise UsageError(f"--from {view.from_s:g}s lies after the last step, at {lasts_s:.4g} s. Give an earlier one.")
    picture = timeline.draw(steps, run, view).encode()

    def write(file: BinaryIO) -> None:
        file.write(picture)

    write_atomically(path, write)
    output.say(f"  Timeline  {path}")


def read_view(from_text: str | None, to_text: str | None) -> View:
    """The part of the run to draw. Raises UsageError."""
    from longbench_sched.report.timeline import View

    from_s = None if from_text is None else duration_s(from_text, "--from")
    to_s = None if to_text is None else duration_s(to_text, "--to")
    if from_s is not None and to_s is not None and from_s >= to_s:
        raise UsageError(f"--from {from_text} is not before --to {to_text}.")
    return View(from_s, to_s)


def check_timeline(path: Path) -> None:
    """Raises UsageError for another format, StoreError for a place that cannot be written."""
    if path.suffix.lower() != ".svg":
        raise UsageError(f"--timeline {path}: the picture is SVG. Let the name end in .svg.")
    try:
        check_writable(path)
    except StoreError as error:
        raise StoreError(f"--timeline: {error}") from None
