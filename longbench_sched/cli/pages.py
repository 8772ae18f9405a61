"""Stored runs -> summaries -> what is printed and exported: one page for the terminal and for every file."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from longbench_sched.cli import output
from longbench_sched.cli.exports import Export, uses_stdout, write_each

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
    from longbench_sched.store.catalogue import read_stored

    slo = Slo.parse(goodput) if goodput else None
    stored = (read_stored(path, with_lateness=False) for path in paths_of(names, folder))
    return [summarize(run, slo, with_curves=with_curves) for run in stored]


class _Picture(NamedTuple):
    """A chart, drawn."""

    name: str
    caption: str
    data: bytes


def paths_of(names: Sequence[str], folder: str) -> list[Path]:
    """The run files of names; `latest` is one run here, which is what a page is about. Raises StoreError."""
    from longbench_sched.store.catalogue import LATEST, find_run, find_runs

    found = (find_runs(name, Path(folder)) if name != LATEST else [find_run(name, Path(folder))] for name in names)
    return [path for paths in found for path in paths]


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

    with saying_written(exports):
        try:
            if not uses_stdout([export.name for export in exports]):
                columns, colour = output.columns(sys.stdout), output.wants_colour(sys.stdout)
                output.emit(terminal.render(page, columns=columns, colour=colour))
        finally:  # a stdout that is full costs no file
            write_each(exports, lambda export: export.write(export.format.render(page)))


def write_exports(
    summaries: Sequence[Summary], exports: Sequence[Export], steps: StepTable | None = None, charts: str | None = None
) -> None:
    """Write the page to every opened place in its format; with charts (svg, png) beside Markdown. Raises StoreError."""
    if not exports:
        return
    page = _page(summaries, None, steps)
    drawn = [] if charts is None else _draw(summaries, charts)

    def write(export: Export) -> None:
        if drawn and export.format.name == "markdown" and export.file is not None:
            _write_illustrated(page, export, drawn)
        else:
            export.write(export.format.render(page))

    write_each(exports, write)


@contextmanager
def saying_written(exports: Sequence[Export]) -> Iterator[None]:
    """At the end of the block say which files were written, in one line, also where some could not be."""
    try:
        yield
    finally:
        names = [export.name for export in exports if export.is_written]
        names += [str(path) for export in exports for path in export.beside]
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
    from longbench_sched.store.catalogue import read_stored

    forms = {suffix: form for suffix, form in FORMATS.items() if form.name in ("markdown", "text", "html")}
    with open_exports(exports, forms) as opened:
        runs = [read_stored(path, with_lateness=False) for path in paths_of(names, folder)]
        converted = [convert(run, tool) for run in runs]
        say_page(build_foreign([summarize(run) for run in runs], converted), opened)
    return EXIT_OK


def _draw(summaries: Sequence[Summary], form: str) -> list[_Picture]:
    from longbench_sched.report.charts import charts
    from longbench_sched.report.drawing import to_png, to_svg

    return [
        _Picture(f"{chart.name}.{form}", chart.caption, to_png(chart.spec) if form == "png" else to_svg(chart.spec).encode())
        for chart in charts(summaries)
    ]


def _write_illustrated(page: Page, export: Export, drawn: Sequence[_Picture]) -> None:
    """Write Markdown that shows the charts at its end, and the charts beside it."""
    from longbench_sched.report import markdown
    from longbench_sched.store.atomic import write_atomically

    path = Path(export.name)
    shown = []
    for picture in drawn:
        beside = path.with_name(f"{path.stem}-{picture.name}")
        write_atomically(beside, partial(_put, picture.data))
        export.beside.append(beside)
        shown.append((picture.caption, beside.name))
    export.write(markdown.render(page, shown))


def _put(data: bytes, file: BinaryIO) -> None:
    file.write(data)
