"""`compare`: two or more sets of stored runs, with intervals, like with like."""

from __future__ import annotations

from typing import Annotated

import typer

EXAMPLES = """
Examples:

  longbench-sched compare vllm-8k sglang-32k

  longbench-sched compare 2026-11-30T1012-chunks --export chunks.md --export chunks.csv

  longbench-sched compare vllm-8k sglang-32k --export compared.html

  longbench-sched compare results/old results/new --metric ttft_p99 --metric itl_p99

A side is a target of an experiment, a run id or its beginning, a file, a folder, a pattern, a baseline, or several joined by
commas.

Exit code: 0 compared, 2 wrong usage or file, 3 not comparable.
"""


def compare(
    runs: Annotated[
        list[str], typer.Argument(help="Sets of runs: BASE CANDIDATE..., or one experiment: its first target is the base.")
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", help="Figures instead of the usual ones: ttft_p99, goodput, ...; repeatable."),
    ] = None,
    window: Annotated[
        str | None, typer.Option("--window", help="whole or steady. Default: steady where every run has one.")
    ] = None,
    limit: Annotated[
        float, typer.Option("--limit", min=1.0, help="Over a sweep, name the first step worse by more than this factor.")
    ] = 1.2,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Show runs that are not like with like; nothing is then called better.")
    ] = False,
    goodput: Annotated[
        list[str] | None, typer.Option("--goodput", help="Other limits, in ms, than the runs had: ttft:3000 tpot:50.")
    ] = None,
    export: Annotated[
        list[str] | None,
        typer.Option("--export", help="Also write .html (with charts) .md .csv .json .txt; - is stdout; repeatable."),
    ] = None,
    results: Annotated[str, typer.Option("--output-dir", help="Folder where runs are looked up by name.")] = "results",
) -> int:
    """Which of these is faster, by how much, and how sure is that? Compares sets of runs, like with like."""
    from pathlib import Path

    from longbench_sched.cli import pages
    from longbench_sched.cli.engine_flags import one_of
    from longbench_sched.cli.exports import open_exports, shows_curves
    from longbench_sched.cli.selection import select_sides
    from longbench_sched.compare.comparison import Wish
    from longbench_sched.compare.comparison import compare as compare_sides
    from longbench_sched.compare.figure import DEFAULT, find_figure
    from longbench_sched.errors import EXIT_INCONCLUSIVE, EXIT_OK, UsageError
    from longbench_sched.report import COMPARISON_FORMATS
    from longbench_sched.report.versus import build_comparison
    from longbench_sched.slo import Slo

    figures = tuple(dict.fromkeys(find_figure(key).key for key in metric)) if metric else DEFAULT
    if window is not None:
        one_of(window, ("whole", "steady"), "--window")
    with open_exports(export or [], COMPARISON_FORMATS) as exports:
        limits = Slo.parse(goodput) if goodput else None
        sides = select_sides(runs, Path(results), limits, with_curves=shows_curves(exports))
        if len(sides) < 2:
            raise UsageError(
                "compare needs a base and a candidate. Name two sets of runs, or an experiment with several targets."
            )
        comparison = compare_sides(sides[0], sides[1:], Wish(figures, window, anyway))
        pages.say_page(build_comparison(comparison, limit), exports)
        return EXIT_OK if comparison.is_comparable else EXIT_INCONCLUSIVE
