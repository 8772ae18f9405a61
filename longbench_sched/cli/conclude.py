"""The end of a run: the page, the exports, and what the exit code says about it."""

from __future__ import annotations

from collections.abc import Sequence
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
    """Print and export runs; returns the exit code. Raises StoreError, after all else, for a run that could not be stored."""
    summaries = [summarize(one.run, with_curves=shows_curves(exports)) for one in measured]
    files = _files([str(one.path) for one in measured], exports)
    if not uses_stdout([export.name for export in exports]):
        pages.print_page(summaries, files, steps)
    pages.write_exports(summaries, exports, steps=steps)
    codes = [verdict(summary, min_success=min_success, strict=strict) for summary in summaries]
    failures = [one.failure for one in measured if one.failure is not None]
    if failures:
        raise StoreError(failures[0])
    return next((code for code in codes if code != EXIT_OK), EXIT_OK)


def _files(stored: Sequence[str], exports: Sequence[Export]) -> dict[str, str]:
    """Label -> path of all that is written."""
    files = {"Stored" if len(stored) == 1 else f"Stored {place}": path for place, path in enumerate(stored, 1)}
    return files | {export.format.name.capitalize(): export.name for export in exports if export.file is not None}


def verdict(summary: Summary, *, min_success: float, strict: bool) -> int:
    """The exit code, with a line on stderr where it is not 0."""
    if summary.meta.interrupted is not None:
        output.say(f"Interrupted by {summary.meta.interrupted}: what was measured is stored.")
        return EXIT_TERMINATED if summary.meta.interrupted == "SIGTERM" else EXIT_INTERRUPTED
    outcomes = summary.outcomes
    if success_share(outcomes) < min_success or outcomes.ok == 0:
        output.say(
            f"Error: {outcomes.ok}/{outcomes.attempted} ok, fewer than --min-success {min_success:g}. "
            "The reasons are in the page above; the run is stored."
        )
        return EXIT_NOT_MEASURED
    if strict and "isl-mismatch" in summary.marks:
        output.say("Error: --strict: the server counted other prompt lengths than planned (isl-mismatch). The run is stored.")
        return EXIT_NOT_MEASURED
    return EXIT_OK


def success_share(outcomes: Outcomes) -> float:
    """Share of the attempted requests that succeeded; 0 of none."""
    return outcomes.ok / outcomes.attempted if outcomes.attempted else 0.0


def check_share(min_success: float) -> None:
    """Raise UsageError unless it is a share."""
    if not 0 <= min_success <= 1:
        raise UsageError(f"--min-success {min_success:g} is not a share. Give a number from 0 to 1, for example 0.95.")
