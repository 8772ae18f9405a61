"""`run`: measures one workload against one engine, or a whole experiment; stores every request, and prints the page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from longbench_sched.cli import load_flags, result_flags
from longbench_sched.cli.result_flags import RESULT

ENGINE = "Which engine"
EMBEDDED = "The embedded engine (where no --base-url is given)"
TIMED = "How it is timed"
LIMITS = "How long to wait"
SEVERAL = "Several runs"

EXAMPLES = """
Examples:

  longbench-sched run smoke

  longbench-sched run smoke --engine sglang --time-scale 6 --export smoke.md --export smoke.csv

  longbench-sched run 30k-500-c64 --engine vllm --base-url http://127.0.0.1:8000 --model NAME

  longbench-sched run 30k-500-r1 --engine vllm --base-url http://gpu7:8000/v1 --goodput ttft:15000 tpot:50

  longbench-sched run 30k-500-c64 --num-runs 5 --target a=http://gpu7:8000,engine=vllm --target b=http://gpu8:30000,engine=sglang

  longbench-sched run chunks.toml --dry-run

  longbench-sched run --resume latest

Exit code: 0 fine, 2 wrong usage or file, 3 the targets are not comparable, 4 could not measure, 130 interrupted, 143
terminated. What was measured is stored in every case.
"""


def run(
    workload: Annotated[
        str | None,
        typer.Argument(help="A workload by name (see `workloads`), or the path of a TOML file: a workload, or an experiment."),
    ] = None,
    isl: load_flags.Isl = None,
    osl: load_flags.Osl = None,
    concurrency: load_flags.Concurrency = None,
    request_rate: load_flags.RequestRate = None,
    burstiness: load_flags.Burstiness = None,
    max_concurrency: load_flags.MaxConcurrency = None,
    num_prompts: load_flags.NumPrompts = None,
    duration: load_flags.Duration = None,
    num_warmups: load_flags.NumWarmups = None,
    seed: load_flags.SeedOfAny = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            "--prompts",
            help="What prompts say: synthetic, prose, stdlib, ids, a file or folder. Default: the workload's.",
            rich_help_panel=load_flags.LOAD,
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer", help="A local tokenizer.json (or its folder) for exact lengths.", rich_help_panel=load_flags.LOAD
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            help="vllm, sglang, trtllm, triton or openai. Embedded: the first three, vllm by default.",
            rich_help_panel=ENGINE,
        ),
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option("--base-url", help="Where it listens, with or without /v1. Without it: embedded.", rich_help_panel=ENGINE),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Name it is served under. Default: the first listed.", rich_help_panel=ENGINE)
    ] = None,
    api: Annotated[
        str | None, typer.Option("--api", help="completions (default), chat or generate.", rich_help_panel=ENGINE)
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", help="NAME:VALUE to send; repeatable, not stored.", rich_help_panel=ENGINE)
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option("--api-key-env", help="Variable that holds the key. Default: OPENAI_API_KEY.", rich_help_panel=ENGINE),
    ] = None,
    ca_file: Annotated[
        str | None, typer.Option("--ca-file", help="Trust this certificate (PEM) for https.", rich_help_panel=ENGINE)
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Do not check the certificate at all.", rich_help_panel=ENGINE)
    ] = False,
    proxy_from_env: Annotated[
        bool, typer.Option("--proxy-from-env", help="Go through HTTP_PROXY/HTTPS_PROXY, else ignored.", rich_help_panel=ENGINE)
    ] = False,
    gpu: Annotated[str, typer.Option("--gpu", help="Simulated GPU.", rich_help_panel=EMBEDDED)] = "H200",
    sim_model: Annotated[
        str, typer.Option("--sim-model", help="Simulated model.", rich_help_panel=EMBEDDED)
    ] = "Qwen2.5-Coder-7B-Instruct",
    sim_set: Annotated[
        list[str] | None,
        typer.Option("--sim-set", help="Scheduler setting KNOB=VALUE; repeatable.", rich_help_panel=EMBEDDED),
    ] = None,
    time_scale: Annotated[
        float,
        typer.Option(
            "--time-scale",
            min=0.01,
            max=1000,
            help="Clock compressed so many times; reports are in engine time.",
            rich_help_panel=EMBEDDED,
        ),
    ] = 1.0,
    transport: Annotated[
        str, typer.Option("--transport", help="wire (stamps first, parses later) or http (proxies).", rich_help_panel=TIMED)
    ] = "wire",
    timestamps: Annotated[
        str, typer.Option("--timestamps", help="Whose stamps: kernel, user, or auto (kernel if it can).", rich_help_panel=TIMED)
    ] = "auto",
    count: Annotated[
        str, typer.Option("--count", help="Token counts in every chunk (full) or at the end (final).", rich_help_panel=TIMED)
    ] = "full",
    no_preflight: Annotated[
        bool, typer.Option("--no-preflight", help="Skip the check requests; limits are then not known.", rich_help_panel=TIMED)
    ] = False,
    timeout_connect: Annotated[
        str, typer.Option("--timeout-connect", help="To open a connection.", rich_help_panel=LIMITS)
    ] = "10s",
    timeout_first_token: Annotated[
        str, typer.Option("--timeout-first-token", help="From sending to the first token.", rich_help_panel=LIMITS)
    ] = "30m",
    timeout_idle: Annotated[
        str, typer.Option("--timeout-idle", help="Between bytes once tokens flow.", rich_help_panel=LIMITS)
    ] = "120s",
    timeout_total: Annotated[
        str | None, typer.Option("--timeout-total", help="For a whole request. Default: no limit.", rich_help_panel=LIMITS)
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            help="NAME=URL,engine=ENGINE: one of several engines to compare; repeatable. URL may be embedded or simulated.",
            rich_help_panel=SEVERAL,
        ),
    ] = None,
    num_runs: Annotated[
        int | None,
        typer.Option(
            "--num-runs",
            min=1,
            help="Repeats of each, in interleaved blocks; judge by 5 or more. Default: 1; 5 with several --target.",
            rich_help_panel=SEVERAL,
        ),
    ] = None,
    order: Annotated[
        str | None,
        typer.Option("--order", help="Of the targets in a block: abba (default) or random.", rich_help_panel=SEVERAL),
    ] = None,
    cool_down: Annotated[
        str | None, typer.Option("--cool-down", help="Pause between runs. Default: 5s.", rich_help_panel=SEVERAL)
    ] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", help="After which a run is ended. Default: 1h.", rich_help_panel=SEVERAL)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be run, in which order.", rich_help_panel=SEVERAL)
    ] = False,
    resume: Annotated[
        str | None,
        typer.Option("--resume", help="Go on with an experiment (id or latest): finished runs stay.", rich_help_panel=SEVERAL),
    ] = None,
    output_dir: result_flags.OutputDir = "results",
    export: result_flags.Export = None,
    goodput: result_flags.Goodput = None,
    min_success: Annotated[
        float,
        typer.Option("--min-success", help="Exit 4 where a smaller share succeeded.", rich_help_panel=RESULT),
    ] = 0.95,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Exit 4 where the server counted other prompt lengths.", rich_help_panel=RESULT),
    ] = False,
    keep_text: Annotated[
        bool, typer.Option("--keep-text", help="Store the generated text as well.", rich_help_panel=RESULT)
    ] = False,
) -> int:
    """How fast does this engine serve this workload? Measures, stores every request, prints the numbers."""
    given = dict(locals())
    from longbench_sched.cli import embedded
    from longbench_sched.cli.conclude import check_share, conclude
    from longbench_sched.cli.engine_flags import read_api_key, read_target
    from longbench_sched.cli.experiments import is_experiment, run_experiment
    from longbench_sched.cli.exports import open_exports
    from longbench_sched.cli.measure import Order, measure
    from longbench_sched.cli.run_flags import check_engine_flags, read_overrides, read_timing, refuse_idle
    from longbench_sched.errors import UsageError
    from longbench_sched.store.atomic import check_writable
    from longbench_sched.workload.spec import load_workload

    if is_experiment(given):
        return run_experiment(given)
    if workload is None:
        raise UsageError("which workload? Name one (`workloads` lists them), give a TOML file, or --resume an experiment.")
    refuse_idle(
        given, ("order", "cool_down", "deadline"), "that is for several runs, and this is one. Add --num-runs or --target."
    )
    check_engine_flags(given)
    wanted = Order(
        workload=load_workload(workload, read_overrides(given)),
        seed=seed or 0,
        folder=Path(output_dir),
        timing=read_timing(given),
        tokenizer=None if tokenizer is None else Path(tokenizer),
    )
    check_share(min_success)
    check_writable(wanted.folder / "probe")  # makes the folder, which the exports may be meant for
    with open_exports(export or []) as exports:
        if base_url is None:
            settings = embedded.Settings(engine or "vllm", gpu, sim_model, tuple(sim_set or ()), time_scale)
            measured = embedded.measure_embedded(wanted, settings, api=api, count=count)
        else:
            if engine is None:
                raise UsageError("--base-url needs --engine: vllm, sglang, trtllm, triton or openai says how to talk to it.")
            engine_target = read_target(
                engine=engine,
                base_url=base_url,
                model=model,
                api=api,
                count=count,
                headers=header or [],
                api_key=read_api_key(api_key_env, os.environ),
            )
            measured = measure(wanted, engine_target)
        return conclude([measured], exports, min_success=min_success, strict=strict)
