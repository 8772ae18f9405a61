"""`power`: what a wanted precision costs, said from a pilot."""

from __future__ import annotations

from typing import Annotated

import typer

EXAMPLES = """
Examples:

  longbench-sched power latest --precision 3%

  longbench-sched power vllm-8k --precision 5% --metric ttft_p99
"""


def power(
    pilot: Annotated[str, typer.Argument(help="Pilot runs of one target: an experiment's target, ids, a folder, `latest`.")],
    precision: Annotated[str, typer.Option("--precision", help="Half width of the 95 % interval that you want: 3%.")] = "5%",
    metric: Annotated[
        list[str] | None, typer.Option("--metric", help="Figures instead of the usual ones: ttft_p99, ...; repeatable.")
    ] = None,
    goodput: Annotated[
        list[str] | None, typer.Option("--goodput", help="Other limits, in ms, than the runs had: ttft:3000 tpot:50.")
    ] = None,
    export: Annotated[list[str] | None, typer.Option("--export", help="Also write .md .txt; - is stdout; repeatable.")] = None,
    results: Annotated[str, typer.Option("--output-dir", help="Folder where runs are looked up by name.")] = "results",
) -> int:
    """How many repeats and requests do I need for a wanted precision? Says it, and how long they take, from a pilot."""
    from pathlib import Path

    from longbench_sched.cli import pages
    from longbench_sched.cli.exports import open_exports
    from longbench_sched.cli.selection import select_side
    from longbench_sched.compare.figure import find_figure
    from longbench_sched.compare.policy import read_share
    from longbench_sched.errors import EXIT_OK, UsageError
    from longbench_sched.report import TEXT_FORMATS
    from longbench_sched.report.needs import DEFAULT, build_needs
    from longbench_sched.slo import Slo

    try:
        share = read_share(float(precision), "--precision")  # 0.03 as a number has it in a policy
    except ValueError:
        share = read_share(precision, "--precision")
    if not 0 < share < 1:
        raise UsageError(f"--precision {precision}: give a share above 0 and below 1, for example 3%.")
    figures = tuple(dict.fromkeys(find_figure(key).key for key in metric)) if metric else DEFAULT
    limits = Slo.parse(goodput) if goodput else None
    with open_exports(export or [], TEXT_FORMATS) as exports:
        pages.say_page(build_needs(select_side(pilot, Path(results), limits), figures, share), exports)
    return EXIT_OK
