"""Tables that no single claim asks for: what bounds a step, what a chunk costs, when speculation and separate pools pay."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from longbench_sched.experiment.claims import Cell, Grid
from longbench_sched.experiment.claims_parallel import pd_grid
from longbench_sched.experiment.claims_scheduling import H200, QWEN, build, stalls, wasted_slots_grid
from longbench_sched.experiment.claims_speculation import speculation_by_context
from longbench_sched.sim.bill import StepLoad
from longbench_sched.sim.cost import StepCost
from longbench_sched.sim.replay import Arrival, replay


def prefill_and_decode() -> Grid:
    """What bounds a step, by context and batch."""
    cost = StepCost(H200, QWEN)
    rows: list[tuple[Cell, ...]] = []
    for kind, loads in (
        ("prefill", [(n, start, StepLoad(((n, start, True),))) for n in (128, 512, 2048, 8192) for start in (0, 24_576)]),
        ("decode", [(n, ctx, StepLoad((), n, n, n * ctx)) for n in (1, 16, 64, 256, 512) for ctx in (1024, 30_000)]),
        ("mixed", [(n, 8192, StepLoad(((n, 8192, False),), 32, 32, 32 * 8192)) for n in (256, 2048, 8192)]),
    ):
        for size, context, load in loads:
            bill = cost.bill(load)
            use = (bill.compute_utilisation, bill.bandwidth_utilisation)
            rows.append((kind, size, context, bill.seconds * 1e3, bill.arithmetic_intensity, *use, bill.bound))
    ridge = H200.bf16_flops / H200.bandwidth
    return Grid(
        "What bounds a step: Qwen2.5-Coder-7B on H200",
        ("step", "size", "context", "ms", "FLOP/byte", "compute", "bandwidth", "bound"),
        tuple(rows),
        (
            "Size is tokens of the chunk, in decode requests; compute and bandwidth are shares of the peak used. "
            f"Ridge of the GPU: {ridge:.0f} FLOP a byte.",
        ),
    )


def chunk_size() -> Grid:
    """The largest gap of running decodes, and the TTFT of the prompt that causes it, by chunk size."""
    rows: list[tuple[Cell, ...]] = []
    for chunk in (512, 1024, 2048, 4096, 8192, 16_384, 32_768):
        for label, flags in (("vllm", f"--max-num-batched-tokens={chunk}"), ("sglang", f"--chunked-prefill-size={chunk}")):
            _, gap_s, _ = stalls(build(label, flags), 8, 30_000)
            alone = replay(build(label, flags), [Arrival(0.0, 30_000, 2)])[0].ttft_s
            arrivals = [Arrival(0.0, 500, 400) for _ in range(8)] + [Arrival(1.0, 30_000, 2)]
            joined = replay(build(label, flags), arrivals)[-1].ttft_s
            rows.append((label, chunk, gap_s * 1e3, alone * 1e3, joined * 1e3))
    return Grid(
        "Chunk size: a prompt of 30K joins 8 decodes (Qwen2.5-Coder-7B, H200)",
        ("engine", "chunk", "longest gap ms", "TTFT alone ms", "joining ms"),
        tuple(rows),
        ("SGLang runs prompts first and alone: its gap is the whole prefill whatever the chunk.",),
    )


TABLES: Mapping[str, Callable[[], Grid]] = {
    "prefill-decode": prefill_and_decode,
    "static-waste": wasted_slots_grid,
    "chunk-size": chunk_size,
    "speculation": speculation_by_context,
    "disaggregation": pd_grid,
}
