"""Stored runs -> summaries -> what is printed and exported: one page for the terminal and for every file."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from longbench_sched.cli import output
from longbench_sched.cli.exports import Export, uses_stdout

if TYPE_CHECKING:
    from longbench_sched.metrics.stat import Summary
    from longbench_sched.report.layout import Page
    from longbench_sched.steps import StepTable


def summaries_of(
    names: Sequence[str], folder: str, goodput: Sequence[str] | None, *, with_curves: bool = False
) -> list[Summary]:
    """Read and summarise stored runs. Raises StoreError for one that is missing or damaged."""
    from longbench_sched.metrics.summary import summarize
    from longbench_sched.slo import Slo
    from longbench_sched.store.catalogue import find_run, read_stored

    slo = Slo.parse(goodput) if goodput else None
    stored = (read_stored(find_run(name, Path(folder)), with_lateness=False) for name in names)
    return [summarize(run, slo, with_curves=with_curves) for run in stored]


def print_page(summaries: Sequence[Summary], files: Mapping[str, str] | None = None, steps: StepTable | None = None) -> None:
    """Print the page for people; with the step trace of the run, if it is one simulated run that has one."""
    from longbench_sched.report import terminal

    columns, colour = output.columns(sys.stdout), output.wants_colour(sys.stdout)
    output.emit(terminal.render(_page(summaries, files, steps), columns=columns, colour=colour))


def _page(summaries: Sequence[Summary], files: Mapping[str, str] | None, steps: StepTable | None) -> Page:
    from longbench_sched.report.page import build_page
    from longbench_sched.report.steps import with_steps

    page = build_page(summaries, files)
    return page if steps is None else with_steps(page, steps)


def say_page(page: Page, exports: Sequence[Export]) -> None:
    """Print a page that was built and write it to every opened place. Raises StoreError, UsageError."""
    from longbench_sched.report import terminal

    if not uses_stdout([export.name for export in exports]):
        columns, colour = output.columns(sys.stdout), output.wants_colour(sys.stdout)
        output.emit(terminal.render(page, columns=columns, colour=colour))
    for export in exports:
        export.write(export.format.render(page))
    say_written(exports)


def write_exports(
    summaries: Sequence[Summary],
    exports: Sequence[Export],
    files: Mapping[str, str] | None = None,
    steps: StepTable | None = None,
) -> None:
    """Write the page to every opened place in its format. Raises StoreError."""
    if not exports:
        return
    page = _page(summaries, files, steps)
    for export in exports:
        export.write(export.format.render(page))


def say_written(exports: Sequence[Export], more: Sequence[Path] = ()) -> None:
    """Say which files were written, in one line; none of it is the result."""
    names = [export.name for export in exports if export.file is not None] + [str(path) for path in more]
    if names:
        output.say(f"  Written  {', '.join(names)}")


def report_as(tool: str, names: Sequence[str], folder: str, exports: Sequence[str]) -> int:
    """Print or write stored runs under another tool's definitions. Raises StoreError, UsageError."""
    from longbench_sched.cli.exports import open_exports
    from longbench_sched.errors import EXIT_OK
    from longbench_sched.metrics.conventions import convert
    from longbench_sched.metrics.summary import summarize
    from longbench_sched.report import FORMATS
    from longbench_sched.report.foreign import build_foreign
    from longbench_sched.store.catalogue import find_run, read_stored

    forms = {suffix: form for suffix, form in FORMATS.items() if form.name in ("markdown", "text", "html")}
    with open_exports(exports, forms) as opened:
        runs = [read_stored(find_run(name, Path(folder)), with_lateness=False) for name in names]
        converted = [convert(run, tool) for run in runs]
        say_page(build_foreign([summarize(run) for run in runs], converted), opened)
    return EXIT_OK


def write_charts(summaries: Sequence[Summary], exports: Sequence[Export], form: str) -> list[Path]:
    """Draw the charts beside each exported Markdown, and show them at its end. The pictures; raises StoreError, UsageError."""
    from longbench_sched.report import markdown
    from longbench_sched.report.charts import charts
    from longbench_sched.report.drawing import to_png, to_svg
    from longbench_sched.store.atomic import write_atomically

    drawn = [(chart, to_png(chart.spec) if form == "png" else to_svg(chart.spec).encode()) for chart in charts(summaries)]
    written: list[Path] = []
    for export in exports:
        if export.format.name != "markdown" or export.file is None:
            continue
        path, pictures = Path(export.name), []
        for chart, data in drawn:
            name = f"{path.stem}-{chart.name}.{form}"
            write_atomically(path.with_name(name), partial(_put, data))
            written.append(path.with_name(name))
            pictures.append((chart.caption, name))
        export.write(markdown.render(_page(summaries, None, None), pictures))
    return written


def _put(data: bytes, file: BinaryIO) -> None:
    file.write(data)
