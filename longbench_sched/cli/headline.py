"""`headline`: the main workload under each scheduler of the embedded engine, in one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """
Examples:

  longbench-sched headline

  longbench-sched headline --num-prompts 64 --export headline.md
"""

WORKLOAD = "30k-500-c64"
# TensorRT-LLM starts without chunked prefill and then refuses a prompt that is longer than its token budget, 8192.
SCHEDULERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("vllm", ()),
    ("sglang", ()),
    ("trtllm", ("enable_chunked_prefill=true",)),
)


def headline(
    num_prompts: Annotated[int, typer.Option("--num-prompts", help="Measured requests for each scheduler.")] = 128,
    time_scale: Annotated[
        float, typer.Option("--time-scale", min=0.01, max=1000, help="Clock compressed so many times.")
    ] = 6.0,
    output_dir: Annotated[str, typer.Option("--output-dir", help="Folder for the runs and the comparison.")] = "results",
    export: Annotated[
        list[str] | None,
        typer.Option(
            "--export",
            help="Where the comparison goes, as for `run`. Default: headline.md, .csv and (extra: plots) .html in that folder.",
        ),
    ] = None,
) -> int:
    """What does the main workload look like under each scheduler? Runs it on the embedded engine, without a GPU."""
    from longbench_sched.cli import output
    from longbench_sched.cli.conclude import conclude, telling_what_is_stored
    from longbench_sched.cli.embedded import Settings, measure_embedded
    from longbench_sched.cli.exports import open_exports
    from longbench_sched.cli.measure import Measured, Order, Timing
    from longbench_sched.report.drawing import is_available
    from longbench_sched.store.atomic import check_writable
    from longbench_sched.workload.spec import Overrides, load_workload

    folder = Path(output_dir)
    check_writable(folder / "headline")
    order = Order(load_workload(WORKLOAD, Overrides(num_prompts=num_prompts)), seed=0, folder=folder, timing=Timing())
    suffixes = ("md", "csv", "html") if is_available() else ("md", "csv")
    with open_exports(export or [str(folder / f"headline.{suffix}") for suffix in suffixes]) as exports:
        measured: list[Measured] = []
        for number, (engine, knobs) in enumerate(SCHEDULERS, 1):
            with_knobs = f", with {' '.join(knobs)} (its default refuses a 30K prompt)" if knobs else ""
            output.say(f"{number}/{len(SCHEDULERS)} {engine}: {WORKLOAD}, {num_prompts} requests{with_knobs}")
            settings = Settings(engine=engine, knobs=knobs, time_scale=time_scale)
            with telling_what_is_stored(measured):
                measured.append(measure_embedded(order, settings))
            if measured[-1].run.meta.interrupted is not None:
                break
        return conclude(measured, exports)
