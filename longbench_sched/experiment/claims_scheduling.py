"""Claims on batching and chunking: C01 to C10."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from random import Random

from longbench_sched.experiment.claims import Answer, Cell, Claim, Finding, Grid
from longbench_sched.sim.bill import StepLoad
from longbench_sched.sim.calibration import Calibration
from longbench_sched.sim.cost import Parallel, StepCost
from longbench_sched.sim.engine import Engine, build_engine
from longbench_sched.sim.flags import read_flags
from longbench_sched.sim.hardware import GPUS
from longbench_sched.sim.models import MODELS, Model
from longbench_sched.sim.policy.vllm_v1 import VllmV1Options
from longbench_sched.sim.replay import Arrival, replay
from longbench_sched.sim.step import StepPlan

H200 = GPUS["H200"]
QWEN = MODELS["Qwen2.5-Coder-7B"]
MILLION = 1_000_000


def build(engine: str, *flags: str, gpu: str = "H200", model: Model = QWEN, calibration: Calibration | None = None) -> Engine:
    """An idle engine with an engine's own flags."""
    return build_engine(engine, GPUS[gpu], model, read_flags(engine, flags), calibration or Calibration())


# -- C01, C02: static batches


def wasted_share(osl: Sequence[int]) -> float:
    """Decode slots of a static batch in which nothing is generated: 1 - sum / (n max)."""
    return 1 - sum(osl) / (len(osl) * max(osl))


def counted_waste(osl: Sequence[int]) -> float:
    """The same, counted over the steps of the static scheduler; the prefill gives every request its first token."""
    used = slots = len(osl)

    def look(plan: StepPlan, at_s: float, step_s: float) -> None:
        nonlocal used, slots
        if not plan.chunks:
            used += len(plan.decodes)
            slots += len(plan.decodes) + plan.padding

    replay(build("static", f"--batch-size={len(osl)}"), [Arrival(0.0, 128, one) for one in osl], look)
    return 1 - used / slots


def wasted_slots_grid() -> Grid:
    """Wasted slots by how output lengths differ."""
    n = 64
    cases = {
        "all alike": [100] * n,
        "evenly spread, 1..2x": [100 + round(100 * i / (n - 1)) for i in range(n)],
        "evenly spread, 1..10x": [100 + round(900 * i / (n - 1)) for i in range(n)],
        "half 1x, half 10x": [100] * (n // 2) + [1000] * (n // 2),
        "one 10x among 63": [100] * (n - 1) + [1000],
    }
    rows = tuple((name, wasted_share(osl), counted_waste(osl)) for name, osl in cases.items())
    return Grid("Wasted slots of a static batch of 64 (simulated)", ("output lengths", "closed form", "counted"), rows)


def _c01(claim: Claim) -> Answer:
    grid = wasted_slots_grid()
    even, one = float(str(grid.rows[2][2])), float(str(grid.rows[4][2]))
    return Answer(
        "90 %", f"{even:.0%}..{one:.0%}", "partly", deviation=even / claim.published["wasted_share"] - 1, grids=(grid,)
    )


def varied_lengths(mean: int, variation: float, n: int, seed: int) -> list[int]:
    """Output lengths, log-normal with that mean and coefficient of variation; all equal at 0."""
    if variation == 0:
        return [mean] * n
    sigma = math.sqrt(math.log(1 + variation**2))
    rng = Random(seed)
    return [max(1, round(rng.lognormvariate(math.log(mean) - sigma**2 / 2, sigma))) for _ in range(n)]


def _c02(claim: Claim) -> Answer:
    batch = 32
    rows: list[tuple[Cell, ...]] = []
    for variation in (0.0, 0.25, 0.5, 1.0, 1.5, 2.0):
        arrivals = [Arrival(0.0, 512, osl) for osl in varied_lengths(200, variation, 8 * batch, seed=1)]
        static_s, orca_s, vllm_s = (
            max(one.token_at_s[-1] for one in replay(engine, arrivals))
            for engine in (
                build("static", f"--batch-size={batch}"),
                build("orca", f"--max-batch-size={batch}"),
                build("vllm", f"--max-num-seqs={batch}"),
            )
        )
        rows.append((variation, static_s / orca_s, static_s / vllm_s))
    grid = Grid(
        "Throughput over that of static batching: 32 slots, 512 in, 200 out on average (simulated)",
        ("variation of output length", "Orca", "vLLM V1"),
        tuple(rows),
        ("All requests are there from the start; at another load the ratio is another.",),
    )
    ratios = [float(str(row[1])) for row in rows]
    return Answer("2..7 x", f"{ratios[0]:.1f}..{ratios[-1]:.1f} x", "partly", grids=(grid,))


# -- C03 to C05: what a prefill costs


def _c03(claim: Claim) -> Answer:
    cost = StepCost(H200, QWEN)
    cuts = ((4096,), (1024, 3072), (2048, 2048), (1024,) * 4)
    rows: list[tuple[Cell, ...]] = []
    for lengths in cuts:
        bill = cost.bill(StepLoad(chunks=tuple((n, 0, False) for n in lengths)))
        by = {part.name: part.seconds for part in bill.parts}
        alone = sum(cost.prefill_attention_s(n, 0) for n in lengths)
        rows.append((" + ".join(map(str, lengths)), by["linear"] * 1e3, by["prefill attention"] * 1e3, alone * 1e3))
    grid = Grid("One step of 4096 tokens", ("prompts", "linear ms", "attention ms", "each alone ms"), tuple(rows))
    assert len({row[1] for row in rows}) == 1, "linear time depends on the total alone"
    return Answer("-", "additive", "holds", grids=(grid,))


def whole_prefill_s(cost: StepCost, isl: int, chunk: int) -> float:
    """A prompt alone, chunk by chunk."""
    return sum(
        cost.price(StepLoad(chunks=((min(chunk, isl - start), start, start + chunk >= isl),))) for start in range(0, isl, chunk)
    )


def _c04(claim: Claim) -> Answer:
    rows: list[tuple[Cell, ...]] = []
    for name in ("Qwen2.5-Coder-7B", "Llama-3.1-8B", "Llama-3.1-70B"):
        for tp in (1, 8):
            cost = StepCost(H200, MODELS[name], parallel=Parallel(tp))
            lengths = (8192, 32_768, 131_072, MILLION)
            rows.append((name, tp, *(whole_prefill_s(cost, n, 8192) for n in lengths), cost.decode_s(1, 131_072) * 1e3))
    crossover = "Attention equals linear work at W / (L H d) tokens: " + ", ".join(
        f"{name} {round(_crossover(MODELS[name]) / 1000)}K" for name in ("Qwen2.5-Coder-7B", "Llama-3.1-8B", "Llama-3.1-70B")
    )
    grid = Grid(
        "Prefill alone on H200, seconds, and a decode step at 128K",
        ("model", "TP", "8K", "32K", "128K", "1M", "decode ms"), tuple(rows), (crossover,),
    )  # fmt: skip
    alone, eight = (float(str(row[5])) for row in rows[:2])
    return Answer("tens of s", f"{alone:.0f} s", "partly", grids=(grid,), notes=(f"On 8 GPUs {eight:.0f} s.",))


def _crossover(model: Model) -> float:
    """Prompt length at which attention and linear layers do the same work: 2 N W = L x flop_per_pair N^2 / 2."""
    return 4 * model.linear_weights() / (model.layers * model.attention.flop_per_pair())


def _c05(claim: Claim) -> Answer:
    cost = StepCost(H200, QWEN)
    decodes = 32
    rows: list[tuple[Cell, ...]] = []
    for chunk in (256, 512, 2048, 8192, 32_768, 131_072):
        start = MILLION // chunk * chunk - chunk
        step_s = cost.price(StepLoad(((chunk, start, False),), decodes, decodes, decodes * 4096))
        rows.append((chunk, step_s, "yes" if step_s <= 1 else "no"))
    grid = Grid(
        "The last chunk of a 1M prompt beside 32 decodes: the gap between their tokens",
        ("chunk", "gap s", "within 1 s"),
        tuple(rows),
    )
    return Answer("128K chunk", f"{float(str(rows[-1][1])):.0f} s gap", "fails", grids=(grid,))


# -- C06 to C08: chunks beside decodes


def stalls(engine: Engine, n_decodes: int, prompt: int) -> tuple[int, float, int]:
    """A long prompt joins decodes: steps without a running decode, the longest gap of a decode, steps with a chunk."""
    missed = chunks = 0

    def look(plan: StepPlan, at_s: float, step_s: float) -> None:
        nonlocal missed, chunks
        long_chunk = any(chunk.sequence.isl == prompt for chunk in plan.chunks)
        chunks += long_chunk
        missed += long_chunk and len(plan.decodes) + len(plan.verifies) < n_decodes

    arrivals = [Arrival(0.0, 500, 400) for _ in range(n_decodes)] + [Arrival(1.0, prompt, 2)]
    served = replay(engine, arrivals, look)
    return missed, max(one.longest_gap_s for one in served[:n_decodes]), chunks


def _c06(claim: Claim) -> Answer:
    rows: list[tuple[Cell, ...]] = []
    for label, engine in (
        ("vLLM V1", build("vllm")),
        ("SGLang", build("sglang")),
        ("SGLang, mixed chunk", build("sglang", "--enable-mixed-chunk")),
        ("TensorRT-LLM, chunked context", build("trtllm", "--enable-chunked-prefill")),
    ):
        missed, gap_s, chunks = stalls(engine, 8, 30_000)
        rows.append((label, chunks, missed, gap_s * 1e3))
    grid = Grid(
        "A prompt of 30K joins 8 decodes",
        ("engine", "its steps", "without decodes", "longest gap ms"),
        tuple(rows),
    )
    return Answer("every step", "by engine", "partly", grids=(grid,))


CHUNKS = (256, 512, 1024, 2048, 4096, 8192, 16_384)


def _c07(claim: Claim) -> Answer:
    slow_host = Calibration().with_values("assumed", host_step_s=2e-3, host_per_layer_s=0.0, is_host_overlapped=False)
    costs = {"host beside the GPU": StepCost(H200, QWEN), "host 2 ms a step": StepCost(H200, QWEN, slow_host)}
    whole = {name: whole_prefill_s(cost, 30_000, 30_000) for name, cost in costs.items()}
    # Kernels reach less with short chunks; constant efficiency shows what the schedule alone costs.
    rows = tuple(
        (chunk, *(whole_prefill_s(cost, 30_000, chunk) / whole[name] for name, cost in costs.items())) for chunk in CHUNKS
    )
    grid = Grid("TTFT of a 30K prompt alone, over that of one step", ("chunk", *costs), rows)
    return Answer("1.1 x", f"{rows[5][1]:.2f}..{rows[0][2]:.2f} x", "partly", grids=(grid,))


def _c08(claim: Claim) -> Answer:
    rows: list[tuple[Cell, ...]] = []
    for name, gpu in GPUS.items():
        cost = StepCost(gpu, QWEN)
        best = max(n / cost.linear_s(n) for n in (4096, 8192, 16_384))
        enough = next(n for n in (2**i for i in range(5, 15)) if n / cost.linear_s(n) >= 0.9 * best)
        fits = [n for n in (2**i for i in range(6, 15)) if _mixed_s(cost, n) <= 0.05]
        rows.append((name, enough, max(fits, default=None)))
    grid = Grid(
        "Qwen2.5-Coder-7B: from 90 % of peak linear throughput to a TBT of 50 ms beside 32 decodes of 4K",
        ("GPU", "enough", "largest within 50 ms"), tuple(rows),
    )  # fmt: skip
    h200 = next(row for row in rows if row[0] == "H200")
    return Answer("thousands", f"{h200[1]} enough", "fails", grids=(grid,))


def _mixed_s(cost: StepCost, chunk: int) -> float:
    return cost.price(StepLoad(((chunk, 8192, False),), 32, 32, 32 * 4096))


# -- C09, C10: what the engine's own resolver says


def largest_chunk(engine: Engine, isl: int) -> int:
    """The longest piece in which the engine computes a prompt."""
    longest = 0

    def look(plan: StepPlan, at_s: float, step_s: float) -> None:
        nonlocal longest
        longest = max(longest, *(chunk.n_tokens for chunk in plan.chunks), 0)

    replay(engine, [Arrival(0.0, isl, 2)], look)
    return longest


def _c09(claim: Claim) -> Answer:
    rows: list[tuple[Cell, ...]] = []
    for engine, model in (
        ("vllm-v0", QWEN),
        ("vllm-v0", MODELS["Llama-3.1-8B"]),
        ("vllm", QWEN),
        ("vllm", MODELS["Llama-3.1-8B"]),
    ):
        chunk = largest_chunk(build(engine, model=model), 30_000)
        rows.append((engine, model.name, model.context, chunk, "whole" if chunk == 30_000 else "in chunks"))
    grid = Grid(
        "A prompt of 30K under each engine's defaults, H200",
        ("engine", "model", "context", "largest chunk", "it runs"),
        tuple(rows),
    )
    whole = [row for row in rows if row[4] == "whole"]
    return Answer("always", "V1 only" if whole else "always", "partly" if whole else "holds", grids=(grid,))


def _c10(claim: Claim) -> Answer:
    rows: list[tuple[Cell, ...]] = []
    for name, gpu in GPUS.items():
        options = VllmV1Options().resolved(gpu, 131_072)
        rows.append((name, options.long_prefill_token_threshold, options.max_num_batched_tokens))
    grid = Grid("vLLM V1 at 128K of context, API server", ("GPU", "threshold", "max_num_batched_tokens"), tuple(rows))
    finding: Finding = "fails" if all(row[1] == 0 for row in rows) else "holds"
    threshold = f"{rows[0][1]} (off)"
    return Answer("5120", threshold, finding, grids=(grid,), notes=(f"int(0.04 x 131072) = {int(0.04 * 131_072)}.",))


EXPERIMENTS: Mapping[str, Callable[[Claim], Answer]] = {
    "C01": _c01,
    "C02": _c02,
    "C03": _c03,
    "C04": _c04,
    "C05": _c05,
    "C06": _c06,
    "C07": _c07,
    "C08": _c08,
    "C09": _c09,
    "C10": _c10,
}
