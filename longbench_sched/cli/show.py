"""`show`: prints stored runs again, several of them in one table."""

from __future__ import annotations

from typing import Annotated

import typer

EXAMPLES = """
Examples:

  longbench-sched show latest

  longbench-sched show results/2026-11-30T1012-vllm-smoke.parquet --goodput ttft:1000

  longbench-sched show RUN RUN RUN
"""


def show(
    runs: Annotated[list[str], typer.Argument(help="Runs: ids, paths, a target of an experiment, a folder, `latest`.")],
    results: Annotated[str, typer.Option("--output-dir", help="Folder where runs are looked up by name.")] = "results",
    goodput: Annotated[
        list[str] | None, typer.Option("--goodput", help="Other limits, in ms, than the run had: ttft:3000 tpot:50.")
    ] = None,
    trace: Annotated[str | None, typer.Option("--trace", help="The run's step trace, if it does not lie beside it.")] = None,
) -> int:
    """What did this run measure? Prints it again from the stored file; recovers a run that was killed."""
    from longbench_sched.cli import pages, traces
    from longbench_sched.errors import EXIT_OK

    names = [str(path) for path in pages.paths_of(runs, results)]
    pages.print_page(pages.summaries_of(names, results, goodput), steps=traces.steps_of(names, results, trace))
    return EXIT_OK
