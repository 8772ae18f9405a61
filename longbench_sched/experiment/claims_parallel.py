"""Claims on pipelines and on prefill and decode apart: C13, C14, C23."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from longbench_sched.experiment.claims import Answer, Cell, Claim, Finding, FittedValue, Grid
from longbench_sched.experiment.claims_scheduling import H200, QWEN, build, whole_prefill_s
from longbench_sched.sim.calibration import CALIBRATIONS
from longbench_sched.sim.cost import Parallel, StepCost
from longbench_sched.sim.disaggregation import DisaggregatedEngine
from longbench_sched.sim.goodput import Limits, goodput_per_s, poisson_arrivals, serve_side_by_side
from longbench_sched.sim.hardware import GPUS
from longbench_sched.sim.layout import split_layers
from longbench_sched.sim.models import MODELS, quantized
from longbench_sched.sim.pipeline import (
    DynamicChunking,
    Pipeline,
    PrefillTime,
    chunk_price,
    fit_quadratic,
    hand_off_s_per_token,
    time_prefill,
)
from longbench_sched.sim.pools import PRESETS
from longbench_sched.sim.replay import Served, replay

N128 = 131_072
LINK = 50e9  # bytes/s between nodes: 400 Gb/s
H20_CALIBRATION = CALIBRATIONS["sglang-h20"]


def prefill_128k(model: str, tp: int, stages: int, chunk: int, smoothing: float) -> PrefillTime:
    """TTFT of one prompt of 128K on H20, fp8 weights."""
    cost = StepCost(GPUS["H20"], quantized(MODELS[model], weights="fp8"), H20_CALIBRATION, Parallel(tp))
    pipeline = Pipeline(
        split_layers(cost.model.layers, stages), hand_off_s_per_token=hand_off_s_per_token(cost.model.hidden, LINK)
    )
    fit = fit_quadratic(chunk_price(cost), chunk)
    assert fit is not None, "a profile of an attention layer bends"
    return time_prefill(cost, N128, pipeline, DynamicChunking(chunk, fit, smoothing).chunks(N128))


def _rows(model: str, tp: int, cases: tuple[tuple[int, int, float, float | None], ...]) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = []
    for stages, chunk, smoothing, published_s in cases:
        time = prefill_128k(model, tp, stages, chunk, smoothing)
        kind = f"dynamic, {smoothing:g}" if smoothing else "fixed"
        deviation = None if published_s is None else time.seconds / published_s - 1
        rows.append((stages, chunk, kind, len(time.chunks), time.seconds, published_s, deviation, time.efficiency))
    return rows


_COLUMNS = ("stages", "chunk", "kind", "chunks", "TTFT s", "published", "deviation", "efficiency")
_PARAMETERS = (
    FittedValue("attention_eff", 0.90, "chosen for this row and kept for the other model (H20 kernels reach 0.85-0.93)"),
    FittedValue("gemm_eff", 0.60, "chosen for this row and kept for the other model"),
)


def _c13(claim: Claim) -> Answer:
    pp1, pp4 = claim.published["pp1_s"], claim.published["pp4_s"]
    rows = _rows("DeepSeek-V3.1", 8, ((1, 4096, 0.0, pp1), (2, 4096, 0.0, None), (4, 4096, 0.0, pp4), (4, 12_288, 0.65, pp4)))
    grid = Grid("DeepSeek-V3.1, fp8, 128K, H20, TP8", _COLUMNS, tuple(rows))
    found = float(str(rows[2][4]))
    # Two numbers, two efficiencies: agreement here is a fit; that the other model agrees (C14) is not.
    return Answer(
        f"{pp4:g} s",
        "-",
        "holds" if abs(found / pp4 - 1) <= 0.15 else "fails",
        f"{found:.1f} s",
        found / pp4 - 1,
        (grid,),
        _PARAMETERS,
    )


def _c14(claim: Claim) -> Answer:
    published = claim.published["pp8_s"]
    rows = _rows("Qwen3-235B-A22B", 4, ((1, 6144, 0.0, None), (8, 6144, 0.0, published), (8, 18_432, 0.8, published)))
    grid = Grid("Qwen3-235B-A22B, fp8, 128K, H20, TP4", _COLUMNS, tuple(rows))
    found = float(str(rows[2][4]))
    finding: Finding = "holds" if abs(found / published - 1) <= 0.15 else "fails"
    notes = ("Predicted with the two efficiencies of C13.",)
    return Answer(f"{published:g} s", f"{found:.1f} s", finding, None, found / published - 1, (grid,), notes=notes)


# -- C23


def goodput_apart_and_together(tpots_s: Sequence[float], isl: int, osl: int, n: int = 80) -> list[tuple[float, float]]:
    """Requests a second and GPU with TTFT <= 2 s and each of these TPOTs: two pools of one GPU, and two that do both."""

    @cache
    def apart(rate: float) -> list[Served]:
        pools = DisaggregatedEngine(PRESETS["dynamo-like"], [build("vllm")], [build("vllm")])
        return replay(pools, poisson_arrivals(rate, n, isl, osl, seed=1))

    @cache
    def together(rate: float) -> list[Served]:
        return serve_side_by_side([build("vllm"), build("vllm")], poisson_arrivals(rate, n, isl, osl, seed=1))

    highest = 2.5 / whole_prefill_s(StepCost(H200, QWEN), isl, 8192)
    limits = [Limits(2.0, tpot_s) for tpot_s in tpots_s]
    return [
        (goodput_per_s(apart, one, highest, steps=6) / 2, goodput_per_s(together, one, highest, steps=6) / 2) for one in limits
    ]


@cache
def pd_grid() -> Grid:
    """Goodput of two pools against two co-located engines, by how tight TPOT is."""
    rows: list[tuple[Cell, ...]] = []
    tpots_s = (0.010, 0.015, 0.020, 0.050)
    for isl, osl in ((8000, 200), (8000, 60)):
        for tpot_s, (apart, together) in zip(tpots_s, goodput_apart_and_together(tpots_s, isl, osl), strict=True):
            rows.append((isl, osl, tpot_s * 1e3, apart, together, apart / together if together else None))
    return Grid(
        "Goodput a GPU (requests/s with TTFT <= 2 s): 1 prefill + 1 decode against 2 co-located (vLLM V1, H200)",
        ("in", "out", "TPOT <= ms", "apart", "together", "ratio"),
        tuple(rows),
        ("80 requests: a short run, so that queues are not yet at rest near the limit.",),
    )


def _c23(claim: Claim) -> Answer:
    link = PRESETS["dynamo-like"].link
    sizes = tuple(
        (name, n, MODELS[name].kv_bytes_per_token() * n / 1e9, link.seconds(MODELS[name].kv_bytes_per_token() * n) * 1e3)
        for name, n in (("Qwen2.5-Coder-7B", 30_000), ("DeepSeek-V3.1", N128), ("Qwen3-235B-A22B", N128))
    )
    transfer = Grid("KV sent from prefill to decode, one 400 Gb/s link at 0.7", ("model", "prompt", "GB", "ms"), sizes)
    goodput = pd_grid()
    ratios = [float(str(row[5])) for row in goodput.rows if row[5] is not None]
    return Answer("-", f"{min(ratios):.1f}..{max(ratios):.1f} x", "partly", grids=(transfer, goodput))


EXPERIMENTS: Mapping[str, Callable[[Claim], Answer]] = {"C13": _c13, "C14": _c14, "C23": _c23}
