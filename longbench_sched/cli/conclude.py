"""The end of a run: the page, the exports, and what the exit code says about it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from longbench_sched.cli import output, pages
from longbench_sched.cli.exports import Export, shows_curves, uses_stdout
from longbench_sched.errors import EXIT_INTERRUPTED, EXIT_NOT_MEASURED, EXIT_OK, EXIT_TERMINATED, StoreError, UsageError
from longbench_sched.metrics.summary import summarize

MIN_SUCCESS = 0.95

if TYPE_CHECKING:
    from longbench_sched.cli.measure import Measured
    from longbench_sched.metrics.stat import Outcomes, Summary
    from longbench_sched.steps import StepTable


def conclude(
    measured: Sequence[Measured],
    exports: Sequence[Export],
    *,
    min_success: float = MIN_SUCCESS,
    strict: bool = False,
    steps: StepTable | None = None,
) -> int:
    """Print and export runs; returns the exit code. Raises StoreError, after all else, for what could not be written.

    An interrupt tells where the runs are: KeyboardInterrupt with words.
    """
    with telling_what_is_stored(measured, exports):
        return _conclude(measured, exports, min_success, strict, steps)


@contextmanager
def telling_what_is_stored(measured: Sequence[Measured], exports: Sequence[Export] = ()) -> Iterator[None]:
    """An interrupt of the block gets words: which runs there are by then, and how to see them. Raises KeyboardInterrupt."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        paths = [str(one.path) for one in measured if one.path.exists()]
        if not paths:
            raise
        what = "The run is" if len(paths) == 1 else f"{len(paths)} runs are"
        words = [f"{what} stored: {', '.join(paths)}.{how_to_see(paths, len(paths))}", *how_to_write(exports, paths)]
        raise type(interrupt)("\n  ".join([*words, *(one.failure for one in measured if one.failure)])) from None


def how_to_see(names: Sequence[str], n_runs: int) -> str:
    """A sentence with the command that shows so many runs by these names; nothing for none."""
    return f" To see {'it' if n_runs == 1 else 'them'}: {_command('show', names)}." if n_runs else ""


def how_to_write(exports: Sequence[Export], names: Sequence[str]) -> list[str]:
    """A sentence with the command that writes the exports that are not yet there, of runs by these names."""
    missing = [export.name for export in exports if export.file is not None and not export.is_written]
    if not (missing and names):
        return []
    flags = [word for name in missing for word in ("--export", name)]
    return [f"To write {', '.join(missing)}: {_command('report', [*names, *flags])}."]


def _command(name: str, words: Sequence[str]) -> str:
    return f"`{shlex.join(['longbench-sched', name, *words])}`"


def _conclude(
    measured: Sequence[Measured], exports: Sequence[Export], min_success: float, strict: bool, steps: StepTable | None
) -> int:
    summaries = [summarize(one.run, with_curves=shows_curves(exports)) for one in measured]
    files = _files([str(one.path) for one in measured], exports)
    failures = [one.failure for one in measured if one.failure is not None]
    with _noting(failures):
        if not uses_stdout([export.name for export in exports]):
            pages.print_page(summaries, files, steps)
    with _noting(failures):
        pages.write_exports(summaries, exports, steps)
    codes = [verdict(summary, min_success=min_success, strict=strict) for summary in summaries]
    if failures:
        raise StoreError("\n".join(failures))
    return next((code for code in codes if code != EXIT_OK), EXIT_OK)


@contextmanager
def _noting(failures: list[str]) -> Iterator[None]:
    """What cannot be written in the block is said at the end: it costs nothing else."""
    try:
        yield
    except StoreError as error:
        failures.append(str(error))


def _files(stored: Sequence[str], exports: Sequence[Export]) -> dict[str, str]:
    """Label -> path of all that is written."""
    files = {"Stored" if len(stored) == 1 else f"Stored {place}": path for place, path in enumerate(stored, 1)}
    for export in exports:
        if export.file is not None:
            label = export.format.name.capitalize()
            files[label] = f"{files[label]}, {export.name}" if label in files else export.name
    return files


def verdict(summary: Summary, *, min_success: float, strict: bool) -> int:
    """The exit code, with a line on stderr where it is not 0."""
    if summary.meta.interrupted is not None:
        output.explain(f"Interrupted by {summary.meta.interrupted}: what was measured is stored.")
        return EXIT_TERMINATED if summary.meta.interrupted == "SIGTERM" else EXIT_INTERRUPTED
    outcomes = summary.outcomes
    if success_share(outcomes) < min_success or outcomes.ok == 0:
        output.explain(
            f"Error: {outcomes.ok}/{outcomes.attempted} ok, fewer than --min-success {min_success:g}. "
            "The reasons are in the page above; the run is stored."
        )
        return EXIT_NOT_MEASURED
    if strict and "isl-mismatch" in summary.marks:
        output.explain(
            "Error: --strict: the server counted other prompt lengths than planned (isl-mismatch). The run is stored."
        )
        return EXIT_NOT_MEASURED
    return EXIT_OK


def success_share(outcomes: Outcomes) -> float:
    """Share of the attempted requests that succeeded; 0 of none."""
    return outcomes.ok / outcomes.attempted if outcomes.attempted else 0.0


def check_share(min_success: float) -> None:
    """Raise UsageError unless it is a share."""
    if not 0 <= min_success <= 1:
        raise UsageError(f"--min-success {min_success:g} is not a share. Give a number from 0 to 1, for example 0.95.")
