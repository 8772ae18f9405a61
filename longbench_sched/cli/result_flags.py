"""Flags that say what becomes of the result, for every command that makes runs."""

from __future__ import annotations

from typing import Annotated

import typer

RESULT = "What becomes of the result"

OutputDir = Annotated[str, typer.Option("--output-dir", help="Folder for <run_id>.parquet.", rich_help_panel=RESULT)]
Export = Annotated[
    list[str] | None,
    typer.Option(
        "--export",
        help="Also write .html .md .csv .tidy.csv .json .parquet .txt; - is stdout; repeatable.",
        rich_help_panel=RESULT,
    ),
]
Goodput = Annotated[
    list[str] | None,
    typer.Option("--goodput", help="Limits in ms that a good request meets: ttft:3000 tpot:50.", rich_help_panel=RESULT),
]
