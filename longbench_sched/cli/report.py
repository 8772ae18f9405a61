"""`report`: writes stored runs as files that others read: Markdown, CSV, JSON, tidy Parquet."""

from __future__ import annotations

from typing import Annotated

import typer

EXAMPLES = """
Examples:

  longbench-sched report latest --export out.md --export out.csv --export out.json

  longbench-sched report RUN RUN --export -
"""


def report(
    runs: Annotated[list[str], typer.Argument(help="Paths, run ids (or their beginnings), or `latest`.")],
    export: Annotated[
        list[str] | None,
        typer.Option("--export", help=".md .csv .json .parquet .txt; - is stdout; repeatable. Default: Markdown on stdout."),
    ] = None,
    results: Annotated[str, typer.Option("--output-dir", help="Folder where runs are looked up by id.")] = "results",
    goodput: Annotated[
        list[str] | None, typer.Option("--goodput", help="Other limits, in ms, than the run had: ttft:3000 tpot:50.")
    ] = None,
) -> int:
    """How do I hand this result on? Writes stored runs as Markdown, CSV, JSON or a tidy Parquet table."""
    from longbench_sched.cli import pages
    from longbench_sched.cli.exports import STDOUT, open_exports
    from longbench_sched.errors import EXIT_OK

    with open_exports(export or [STDOUT]) as opened:
        pages.write_exports(pages.summaries_of(runs, results, goodput), opened)
    return EXIT_OK
