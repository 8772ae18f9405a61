"""`import`: takes results of other tools in, so that they are shown and compared like runs of our own."""

from __future__ import annotations

from typing import Annotated

import typer

EXAMPLES = """
Examples:

  longbench-sched import vllm-result.json

  longbench-sched import sglang-result.jsonl --output-dir results --export imported.md

  longbench-sched import artifacts/profile_export.jsonl
"""


def import_results(
    files: Annotated[
        list[str],
        typer.Argument(help="JSON of vllm bench serve, JSONL of SGLang bench_serving or of AIPerf (profile_export.jsonl)."),
    ],
    output_dir: Annotated[str, typer.Option("--output-dir", help="Folder for the runs.")] = "results",
    export: Annotated[
        list[str] | None,
        typer.Option("--export", help="Also write .html .md .csv .tidy.csv .json .parquet .txt; - is stdout; repeatable."),
    ] = None,
    goodput: Annotated[
        list[str] | None, typer.Option("--goodput", help="Limits in ms that a good request meets: ttft:3000 tpot:50.")
    ] = None,
) -> int:
    """How do results of another tool look here? Reads what vLLM's and SGLang's clients and AIPerf wrote, request by request."""
    import os
    from dataclasses import replace
    from datetime import UTC, datetime
    from pathlib import Path

    from longbench_sched.cli import output, pages
    from longbench_sched.cli.exports import open_exports, shows_curves, uses_stdout
    from longbench_sched.errors import EXIT_OK
    from longbench_sched.metrics.summary import summarize
    from longbench_sched.run import Run
    from longbench_sched.slo import Slo
    from longbench_sched.store.catalogue import is_taken, make_run_id
    from longbench_sched.store.foreign import read_foreign
    from longbench_sched.store.parquet import write_run

    folder, summaries = Path(output_dir), []
    limits = Slo.parse(goodput).limits() if goodput else {}
    with open_exports(export or []) as exports:
        for name in files:
            written = datetime.fromtimestamp(Path(name).stat().st_mtime, UTC) if os.path.isfile(name) else datetime.now(UTC)
            for run in read_foreign(Path(name)):
                engine, workload = str(run.meta.target["engine"]), run.meta.workload
                run_id = make_run_id(written, engine, workload, lambda taken: is_taken(folder, taken))
                stored = Run(replace(run.meta, run_id=run_id, slo=limits), run.table)
                write_run(stored, folder / f"{run_id}.parquet")
                output.say(f"Stored {folder / run_id}.parquet")
                summaries.append(summarize(stored, with_curves=shows_curves(exports)))
        if not uses_stdout(export or []):
            pages.print_page(summaries)
        with pages.saying_written(exports):
            pages.write_exports(summaries, exports)
    return EXIT_OK
