"""`calibrate`: parameters of the simulated engine, fitted to what was measured."""

from __future__ import annotations

from typing import Annotated

import typer

CONTEXT_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}
EXAMPLES = """
Examples:

  longbench-sched calibrate latest --gpu H200 --model Qwen2.5-Coder-7B --output mine.json

  longbench-sched calibrate PROMPT-ALONE BATCH-64 DECODE-ALONE --gpu H100 --max-num-batched-tokens 8192

  longbench-sched calibrate published.json --fit attention_eff --set is_host_overlapped=false

Three runs tell most: one long prompt alone (attention_eff), decodes of a large batch (kv_bandwidth_eff), one decode alone
(host_step_s). A published row is a small JSON file: docs/fidelity.md shows one. Flags not listed here are the engine's own.
"""


def calibrate(
    context: typer.Context,
    runs: Annotated[list[str], typer.Argument(help="Stored runs (ids, paths, `latest`) or published rows (.json).")],
    fit: Annotated[
        str,
        typer.Option(
            "--fit",
            help="Parameters to fit, with commas between them. Default: attention_eff, kv_bandwidth_eff, host_step_s.",
            show_default=False,
        ),
    ] = "attention_eff,kv_bandwidth_eff,host_step_s",
    engine: Annotated[str | None, typer.Option("--engine", help="Whose scheduler, if not the run's engine.")] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="GPU the runs were measured on; a simulated run knows its own.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Model, if not the run's.")] = None,
    calibration: Annotated[
        str, typer.Option("--calibration", help="Where the fit begins: a file, or a set by name.")
    ] = "prediction",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE: a parameter held at a value; repeatable.")
    ] = None,
    output_dir: Annotated[str, typer.Option("--output-dir", help="Folder where runs are looked up by name.")] = "results",
    output: Annotated[str, typer.Option("--output", help="The calibration file to write.")] = "calibration.json",
) -> int:
    """Which parameters make the simulator agree with what was measured? Fits them, and says how well it agrees then."""
    from pathlib import Path

    from longbench_sched.cli import fitting
    from longbench_sched.cli.calibrations import read_calibration, with_settings
    from longbench_sched.errors import EXIT_OK
    from longbench_sched.store.atomic import check_writable

    check_writable(Path(output))
    start = with_settings(read_calibration(calibration), settings or [])
    given = fitting.Given(engine, gpu, model, tuple(context.args))
    found = fitting.fit_runs(runs, output_dir, given, [name.strip() for name in fit.split(",") if name.strip()], start)
    fitting.store(found, Path(output))
    fitting.show(found, output)
    return EXIT_OK
