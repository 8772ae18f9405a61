"""`headline`: the main workload under each scheduler of the embedded engine, in one table."""

from __future__ import annotations

from typing import Annotated

import typer

EXAMPLES = """
Examples:

  longbench-sched headline

  longbench-sched headline --num-prompts 64 --export headline.md
"""

WORKLOAD = "30k-500-c64"


def headline(
    num_prompts: Annotated[int, typer.Option("--num-prompts", help="Measured requests for each scheduler.")] = 128,
    time_scale: Annotated[float, typer.Option("--time-scale", help="Clock compressed so many times.")] = 6.0,
    output_dir: Annotated[str, typer.Option("--output-dir", help="Folder for the runs and the comparison.")] = "results",
    export: Annotated[
        list[str] | None,
        typer.Option("--export", help="Where the comparison goes. Default: headline.md and headline.csv in the folder."),
    ] = None,
) -> int:
    """What does the main workload look like under each scheduler? Runs it on the embedded engine, without a GPU."""
    raise NotImplementedError
