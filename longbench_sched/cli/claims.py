"""`claims`: what is said about long-context scheduling, and what the model says of it."""

from __future__ import annotations

from typing import Annotated

import typer

EXAMPLES = """
Examples:

  longbench-sched claims

  longbench-sched claims C11 --explain

  longbench-sched claims C05 C17 --figures

  longbench-sched claims --table prefill-decode --table speculation

  longbench-sched claims --export claims.md --export claims.json
"""


def claims(
    ids: Annotated[list[str] | None, typer.Argument(help="Claims by id, C01 to C24. Default: all.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Below each line: the claim, its source, what is right.")] = False,
    figures: Annotated[bool, typer.Option("--figures", help="Also the tables behind each answer.")] = False,
    table: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            help="A table without a claim: prefill-decode, static-waste, chunk-size, speculation, disaggregation, or all.",
        ),
    ] = None,
    export: Annotated[
        list[str] | None, typer.Option("--export", help="Also write everything to .md or .json; - is stdout; repeatable.")
    ] = None,
) -> int:
    """Which published claims about long-context scheduling hold? Runs the experiment of each on the simulated engine."""
    from longbench_sched.cli import claiming, pages
    from longbench_sched.cli.exports import open_exports, uses_stdout
    from longbench_sched.errors import EXIT_OK

    wanted = claiming.read_wish(ids or [], table or [])
    with open_exports(claiming.check_exports(export or [])) as exports:
        result = claiming.answer(wanted)
        if not uses_stdout(export or []):
            claiming.show(result, explain=explain, figures=figures)
        with pages.saying_written(exports):
            claiming.write(result, exports)
    return EXIT_OK
