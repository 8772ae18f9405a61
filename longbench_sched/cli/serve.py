"""`serve`: an engine made of arithmetic, behind real HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from longbench_sched.cli import draft_flags

ENGINE = "Which engine"
ADDRESS = "Where it answers"
FAULTS = "Faults"
CONTEXT_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}
EXAMPLES = """
Examples:

  longbench-sched serve --engine sglang --port 8001 --chunked-prefill-size 2048

  longbench-sched serve --engine vllm --fault cut:every=10,after=5 --fault 5xx:p=0.02
"""


def serve(
    context: typer.Context,
    engine: Annotated[
        str,
        typer.Option(
            help="Whose scheduler and dialect to play: vllm, sglang, trtllm, or another that `simulate` knows.",
            rich_help_panel=ENGINE,
        ),
    ] = "vllm",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 lets the system choose.", rich_help_panel=ADDRESS)
    ] = 8000,
    model: Annotated[
        str,
        typer.Option(help="Model whose shape prices a step: a name, or the config.json of any other.", rich_help_panel=ENGINE),
    ] = "Qwen2.5-Coder-7B-Instruct",
    gpu: Annotated[
        str,
        typer.Option(help="GPU whose figures price a step: A100, H100, H200, H20, B200, MI300X.", rich_help_panel=ENGINE),
    ] = "H200",
    calibration: Annotated[
        str,
        typer.Option(
            help="Fitted parameters: a file of `calibrate`, or a set by name (sglang-0.4.2, vllm-0.7.2).",
            rich_help_panel=ENGINE,
        ),
    ] = "prediction",
    time_scale: Annotated[
        float,
        typer.Option(help="Engine seconds per wall second: 6 makes a run six times as short.", rich_help_panel=ENGINE),
    ] = 1.0,
    served_model_name: Annotated[
        str | None, typer.Option(help="Name under which the model is served, if not --model.", rich_help_panel=ADDRESS)
    ] = None,
    draft_method: draft_flags.DraftMethod = None,
    draft_model: draft_flags.DraftModel = None,
    draft_window: draft_flags.DraftWindow = None,
    draft_layer_share: draft_flags.DraftLayerShare = None,
    acceptance_rate: draft_flags.AcceptanceRate = None,
    acceptance_length: draft_flags.AcceptanceLength = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            help="Do something wrong, to test a client: stall, cut, 5xx, slow, malformed; cut:every=10,after=5 or cut:p=0.1.",
            rich_help_panel=FAULTS,
        ),
    ] = None,
    fault_seed: Annotated[int, typer.Option(help="Another draw of the requests that p=... hits.", rich_help_panel=FAULTS)] = 0,
    is_child: Annotated[bool, typer.Option("--is-child", hidden=True)] = False,
    dies_with_parent: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Which answers would this engine give, and when? Serves a simulated engine over HTTP, without a GPU.

    Further flags are the engine's own, by its own names: --max-num-batched-tokens, --chunked-prefill-size,
    --enable_chunked_prefill.
    """
    from longbench_sched.cli.calibrations import read_calibration
    from longbench_sched.cli.model_flag import read_model
    from longbench_sched.sim.draft_knobs import check_drafts, read_drafts
    from longbench_sched.sim.faults import read_fault
    from longbench_sched.sim.flags import read_flags
    from longbench_sched.sim.server import ServerOptions
    from longbench_sched.sim.server import serve as run_server

    if dies_with_parent is not None:
        from longbench_sched.launch.process import die_with_parent

        die_with_parent(dies_with_parent)
    shape, options = read_model(model), read_flags(engine, context.args)
    words = draft_flags.draft_words(
        draft_method, draft_model, draft_window, draft_layer_share, acceptance_rate, acceptance_length
    )
    wish = read_drafts(words, read_model)
    check_drafts(wish, options)
    run_server(
        ServerOptions(
            engine=engine,
            port=port,
            model=shape.name if model.endswith(".json") else model,
            shape=shape,
            calibration=read_calibration(calibration),
            gpu=gpu,
            time_scale=time_scale,
            served_model=served_model_name,
            options=options,
            wish=wish,
            is_child=is_child,
            faults=tuple(read_fault(text) for text in fault or []),
            fault_seed=fault_seed,
        )
    )
