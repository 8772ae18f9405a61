"""Flags that say what is sent, for every command that sends something."""

from __future__ import annotations

from typing import Annotated

import typer

LOAD = "What is sent"

Workload = Annotated[str, typer.Argument(help="A workload by name (see `workloads`) or the path of a TOML file.")]
Isl = Annotated[
    str | None,
    typer.Option("--isl", help="Prompt tokens instead of the workload's: 30000, 30k, 128Ki.", rich_help_panel=LOAD),
]
Osl = Annotated[str | None, typer.Option("--osl", help="Output tokens instead of the workload's.", rich_help_panel=LOAD)]
Concurrency = Annotated[
    int | None, typer.Option("--concurrency", help="Closed loop: so many in flight, always.", rich_help_panel=LOAD)
]
RequestRate = Annotated[
    str | None,
    typer.Option("--request-rate", help="Open loop: so many a second (1, 2.5/s, 30/min).", rich_help_panel=LOAD),
]
Burstiness = Annotated[
    float | None,
    typer.Option("--burstiness", help="Open loop: gamma shape; 1 is Poisson, less is burstier.", rich_help_panel=LOAD),
]
MaxConcurrency = Annotated[
    int | None,
    typer.Option("--max-concurrency", help="Open loop: hold sends back above so many in flight.", rich_help_panel=LOAD),
]
NumPrompts = Annotated[
    int | None,
    typer.Option("--num-prompts", help="Measured requests instead of the workload's.", rich_help_panel=LOAD),
]
Duration = Annotated[
    str | None, typer.Option("--duration", help="Send for so long (60s, 5m) instead of a number.", rich_help_panel=LOAD)
]
NumWarmups = Annotated[
    int | None,
    typer.Option("--num-warmups", help="Requests before the measured ones, never counted.", rich_help_panel=LOAD),
]
Seed = Annotated[int, typer.Option("--seed", help="Another draw of lengths, times and prompts.", rich_help_panel=LOAD)]
SeedOfAny = Annotated[  # None where none was given: an experiment's file has one of its own
    int | None,
    typer.Option("--seed", help="Another draw of lengths, times and prompts.", show_default="0", rich_help_panel=LOAD),
]
