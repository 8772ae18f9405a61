"""`simulate`: a workload against the embedded engine in virtual time: an hour of load in seconds, without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longbench_sched.cli import draft_flags, load_flags, result_flags
from longbench_sched.cli.result_flags import RESULT

ENGINE = "Which engine"
CONTEXT_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}

EXAMPLES = """
Examples:

  longbench-sched simulate 30k-500-c64 --engine sglang --gpu H200 --model Qwen2.5-Coder-7B

  longbench-sched simulate 30k-500-c64 --engine vllm --max-num-batched-tokens 2048 --export chunks.md

  longbench-sched simulate 30k-500-c64 --engine sglang --pp-size 4 --enable-dynamic-chunking

  longbench-sched simulate 30k-500-r1 --engine vllm -tp 2 --disaggregation dynamo-like --prefill-engines 3 --decode-engines 1

  longbench-sched simulate 30k-500-r1 --engine sglang --trace steps.parquet

  longbench-sched simulate 30k-500-r1 --engine sglang --sweep chunked_prefill_size=2048,8192,32768 --sweep request_rate=0.5,1

  longbench-sched simulate 30k-500-r1 --engine sglang --speculative-algorithm STANDALONE --draft-method self

Flags that are not listed here are the engine's own, in its own spelling, those of its parallel sizes among them
(--tensor-parallel-size, --tp-size, -tp; --pipeline-parallel-size, --pp-size, -pp). The run is stored like a measured one:
`show` and `report` read it.
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
        str,
        typer.Option(
            "--engine",
            help="Whose scheduler: vllm, vllm-v0, sglang, sglang-0.4, trtllm, static, orca, sarathi or fastgen.",
            rich_help_panel=ENGINE,
        ),
    ] = "vllm",
    gpu: Annotated[
        str,
        typer.Option("--gpu", help="GPU whose figures price a step: A100, H100, H200, H20, ...", rich_help_panel=ENGINE),
    ] = "H200",
    model: Annotated[
        str, typer.Option("--model", help="Model whose shape prices a step: a name, or a config.json.", rich_help_panel=ENGINE)
    ] = "Qwen2.5-Coder-7B-Instruct",
    draft_method: draft_flags.DraftMethod = None,
    draft_model: draft_flags.DraftModel = None,
    draft_window: draft_flags.DraftWindow = None,
    draft_layer_share: draft_flags.DraftLayerShare = None,
    acceptance_rate: draft_flags.AcceptanceRate = None,
    acceptance_length: draft_flags.AcceptanceLength = None,
    disaggregation: Annotated[
        str | None,
        typer.Option(
            "--disaggregation",
            help="Prefill and decode on engines of their own, and how KV goes from one to the other: mooncake-like (streamed "
            "through a store) or dynamo-like (decode memory first, then at once). SGLang calls the two kinds of engine "
            "--disaggregation-mode prefill and decode, Dynamo prefill and decode workers. none: as many engines that do both.",
            rich_help_panel=ENGINE,
        ),
    ] = None,
    prefill_engines: Annotated[
        int | None,
        typer.Option(min=1, help="Engines that prefill, each on its own GPUs. Default: 1.", rich_help_panel=ENGINE),
    ] = None,
    decode_engines: Annotated[
        int | None,
        typer.Option(min=1, help="Engines that decode, each on its own GPUs. Default: 1.", rich_help_panel=ENGINE),
    ] = None,
    prefill_flags: Annotated[
        str | None,
        typer.Option(help="The engine's own flags for prefill engines alone: '-tp 2'.", rich_help_panel=ENGINE),
    ] = None,
    decode_flags: Annotated[str | None, typer.Option(help="The same for decode engines alone.", rich_help_panel=ENGINE)] = None,
    calibration: Annotated[
        str | None,
        typer.Option("--calibration", help="Fitted parameters: a file of `calibrate`, or a known set.", rich_help_panel=ENGINE),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep",
            help="KNOB=V1,V2: a run for each value; repeat for a grid. Knobs: the engine's flags, concurrency, isl, gpu, ...",
            rich_help_panel=RESULT,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="Processes for a sweep. Default: one a core.", rich_help_panel=RESULT),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            "--trace",
            help="Also store every step, of every pipeline stage and engine: steps.parquet. `report --timeline` draws them.",
            rich_help_panel=RESULT,
        ),
    ] = None,
    output_dir: result_flags.OutputDir = "results",
    export: result_flags.Export = None,
    goodput: result_flags.Goodput = None,
) -> int:
    """What would this scheduler do with this workload? Simulates it in virtual time and stores the run."""
    from longbench_sched.cli import simulated
    from longbench_sched.cli.calibrations import read_calibration
    from longbench_sched.cli.conclude import conclude
    from longbench_sched.cli.exports import open_exports
    from longbench_sched.cli.model_flag import read_model
    from longbench_sched.errors import UsageError
    from longbench_sched.experiment.sweep import Base, make_cells, read_axis
    from longbench_sched.sim.draft_knobs import check_drafts
    from longbench_sched.sim.pools import POOL_KNOBS
    from longbench_sched.slo import Slo
    from longbench_sched.workload.overrides import Overrides

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
    given_pools = (disaggregation, prefill_engines, decode_engines, prefill_flags, decode_flags)
    base = Base(
        workload=workload,
        overrides=overrides,
        seed=seed,
        engine=engine,
        gpu=gpu,
        model=model,
        flags=tuple(context.args),
        calibration=None if calibration is None else read_calibration(calibration),
        read_model=read_model,
        drafts=draft_flags.draft_words(
            draft_method, draft_model, draft_window, draft_layer_share, acceptance_rate, acceptance_length
        ),
        pools={knob: str(value) for knob, value in zip(POOL_KNOBS, given_pools, strict=True) if value is not None},
    )
    if trace is not None and sweep:
        raise UsageError("--trace is of one run. Leave out --sweep, or trace the one cell that matters.")
    cells = make_cells(base, [read_axis(text) for text in sweep or []])
    if not sweep:  # a cell of a sweep may well go without
        check_drafts(cells[0].setting.wish, cells[0].setting.options)
    with open_exports(export or []) as exports:
        if not sweep:
            measured, steps = simulated.simulate_one(cells[0], Path(output_dir), None if trace is None else Path(trace))
            return conclude([measured], exports, steps=steps)
        return simulated.simulate_sweep(cells, Path(output_dir), exports, workers)
