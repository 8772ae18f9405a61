"""`simulate`: a workload against the embedded engine in virtual time: an hour of load in seconds, without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longbench_sched.cli import load_flags

ENGINE = "Which engine"
RESULT = "What becomes of the result"
CONTEXT_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}

EXAMPLES = """
Examples:

  longbench-sched simulate 30k-500-c64 --engine sglang --gpu H200 --model Qwen2.5-Coder-7B

  longbench-sched simulate 30k-500-c64 --engine vllm --max-num-batched-tokens 2048 --export chunks.md

Flags that are not listed here are the engine's own, in its own spelling. The run is stored like a measured one: `show` and
`report` read it.
"""


def simulate(
    context: typer.Context,
    workload: load_flags.Workload,
    isl: load_flags.Isl = None,
    osl: load_flags.Osl = None,
    concurrency: load_flags.Concurrency = None,
    request_rate: load_flags.RequestRate = None,
    burstiness: load_flags.Burstiness = None,
    max_concurrency: load_flags.MaxConcurrency = None,
    num_prompts: load_flags.NumPrompts = None,
    duration: load_flags.Duration = None,
    num_warmups: load_flags.NumWarmups = None,
    seed: load_flags.Seed = 0,
    engine: Annotated[
        str, typer.Option("--engine", help="Whose scheduler: vllm, sglang or trtllm.", rich_help_panel=ENGINE)
    ] = "vllm",
    gpu: Annotated[
        str,
        typer.Option("--gpu", help="GPU whose figures price a step: A100, H100, H200, H20, ...", rich_help_panel=ENGINE),
    ] = "H200",
    model: Annotated[
        str, typer.Option("--model", help="Model whose shape prices a step.", rich_help_panel=ENGINE)
    ] = "Qwen2.5-Coder-7B-Instruct",
    output_dir: Annotated[
        str, typer.Option("--output-dir", help="Folder for <run_id>.parquet.", rich_help_panel=RESULT)
    ] = "results",
    export: Annotated[
        list[str] | None,
        typer.Option(
            "--export", help="Also write .md .csv .json .parquet .txt; - is stdout; repeatable.", rich_help_panel=RESULT
        ),
    ] = None,
    goodput: Annotated[
        list[str] | None,
        typer.Option("--goodput", help="Limits in ms that a good request meets: ttft:3000 tpot:50.", rich_help_panel=RESULT),
    ] = None,
) -> int:
    """What would this scheduler do with this workload? Simulates it in virtual time and stores the run."""
    from longbench_sched.cli import simulated
    from longbench_sched.cli.conclude import conclude
    from longbench_sched.cli.exports import open_exports
    from longbench_sched.errors import UsageError
    from longbench_sched.experiment.virtual_run import Setting
    from longbench_sched.sim.flags import read_flags
    from longbench_sched.slo import Slo
    from longbench_sched.workload.spec import Overrides, load_workload

    if workload.startswith("-"):
        raise UsageError(f"the workload comes first, then the engine's own flags such as {workload}. See: simulate --help")
    overrides = Overrides(
        isl=isl,
        osl=osl,
        concurrency=concurrency,
        num_prompts=num_prompts,
        request_rate=request_rate,
        burstiness=burstiness,
        max_concurrency=max_concurrency,
        duration=duration,
        num_warmups=num_warmups,
        slo=Slo.parse(goodput) if goodput else None,
    )
    order = simulated.Order(load_workload(workload, overrides), seed, Path(output_dir))
    setting = Setting(engine, gpu, model, read_flags(engine, context.args))
    with open_exports(export or []) as exports:
        return conclude([simulated.simulate_one(order, setting)], exports)
