"""`report`: writes stored runs as files that others read: HTML, Markdown, CSV, JSON, tidy Parquet, a picture of the steps."""

from __future__ import annotations

from typing import Annotated

import typer

EXAMPLES = """
Examples:

  longbench-sched report latest --export out.md --export out.csv --export out.json

  longbench-sched report RUN RUN --export -

  longbench-sched report latest --export out.html

  longbench-sched report latest --export out.md --charts svg

  longbench-sched report latest --as vllm

  longbench-sched report latest --timeline steps.svg --from 10s --to 14s
"""


def report(
    runs: Annotated[list[str], typer.Argument(help="Runs: ids, paths, a target of an experiment, a folder, `latest`.")],
    export: Annotated[
        list[str] | None,
        typer.Option(
            "--export",
            help=".html .md .csv .tidy.csv .json .parquet .txt; - is stdout; repeatable. Default: Markdown on stdout.",
        ),
    ] = None,
    charts: Annotated[
        str | None, typer.Option("--charts", help="svg or png: draw the charts beside each Markdown file as well.")
    ] = None,
    as_tool: Annotated[
        str | None,
        typer.Option("--as", help="Under another tool's definitions: vllm, sglang, guidellm, aiperf (md, txt, html)."),
    ] = None,
    results: Annotated[str, typer.Option("--output-dir", help="Folder where runs are looked up by name.")] = "results",
    goodput: Annotated[
        list[str] | None, typer.Option("--goodput", help="Other limits, in ms, than the run had: ttft:3000 tpot:50.")
    ] = None,
    trace: Annotated[str | None, typer.Option("--trace", help="The run's step trace, if it does not lie beside it.")] = None,
    timeline: Annotated[
        str | None, typer.Option("--timeline", help="Draw the steps of a simulated run: a file that ends in .svg.")
    ] = None,
    from_text: Annotated[
        str | None, typer.Option("--from", help="Where the picture begins: 10s from the start of the measured phase.")
    ] = None,
    to_text: Annotated[str | None, typer.Option("--to", help="Where the picture ends.")] = None,
) -> int:
    """How do I hand this result on? Writes stored runs as HTML with charts, Markdown, CSV, JSON or a tidy Parquet table."""
    from pathlib import Path

    from longbench_sched.cli import pages, traces
    from longbench_sched.cli.exports import STDOUT, check_charts, open_exports, shows_curves
    from longbench_sched.errors import EXIT_OK, UsageError
    from longbench_sched.store.catalogue import read_stored

    if charts is not None:
        check_charts(charts, export or [])
    if as_tool is not None:
        given = {"--charts": charts, "--goodput": goodput, "--trace": trace, "--timeline": timeline}
        given |= {"--from": from_text, "--to": to_text}
        if idle := [flag for flag, value in given.items() if value]:
            raise UsageError(f"{', '.join(idle)}: a page under another tool's definitions has none. Leave it out, or --as.")
        return pages.report_as(as_tool, runs, results, export or [])
    view = traces.read_view(from_text, to_text)
    if timeline is None and (from_text or to_text):
        raise UsageError("--from and --to say which part is drawn. Give --timeline FILE.svg as well.")
    if timeline is not None:
        traces.check_timeline(Path(timeline))
    names = [str(path) for path in pages.paths_of(runs, results)]
    with open_exports(export or ([STDOUT] if timeline is None else [])) as opened:
        steps = traces.steps_of(names, results, trace)
        if timeline is not None:
            traces.write_timeline(Path(timeline), steps, read_stored(Path(names[0])), view)
        if opened:
            summaries = pages.summaries_of(names, results, goodput, with_curves=shows_curves(opened) or charts is not None)
            with pages.saying_written(opened):
                pages.write_exports(summaries, opened, steps=steps, charts=charts)
    return EXIT_OK
