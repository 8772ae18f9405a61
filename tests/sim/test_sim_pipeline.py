"""Pipeline-parallel prefill against closed forms, hand-made cases and two published rows."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longbench_sched.sim.calibration import CALIBRATIONS
from longbench_sched.sim.cost import Parallel, StepCost
from longbench_sched.sim.hardware import GPUS
from longbench_sched.sim.layout import split_layers
from longbench_sched.sim.models import MODELS, quantized
from longbench_sched.sim.pipeline import (
    DynamicChunking,
    Pipeline,
    Quadratic,
    balanced_makespan_s,
    bubble_s,
    chunk_price,
    fit_quadratic,
    fixed_chunks,
    hand_off_s_per_token,
    optimal_fixed_chunk,
    time_prefill,
)

CURVE = Quadratic(a=1e-9, b=2e-5, c=3e-3)
N128 = 131_072

times = st.lists(st.floats(0.001, 5), min_size=1, max_size=12)


@given(times, st.integers(1, 8), st.floats(0, 0.1), st.floats(0, 0.1))
def test_pp4_the_makespan_of_equal_stages_is_the_closed_form(
    whole_s: list[float], stages: int, overhead: float, p2p: float
) -> None:
    pipeline = Pipeline((4,) * stages, overhead, hand_off_s=p2p)
    assert pipeline.makespan_s(whole_s, [1] * len(whole_s)) == pytest.approx(
        balanced_makespan_s(whole_s, stages, overhead, p2p)
    )


def test_a_flow_shop_by_hand() -> None:
    """Stages of 1/4 and 3/4; chunks of 4 and 8 s: 1 + 3 = 4, then stage 1 is free and takes 6: 10. Hand-off of 0.5 s: 10.5."""
    assert Pipeline((1, 3), 0.0).makespan_s([4.0, 8.0], [1, 1]) == 10.0
    assert Pipeline((1, 3), 0.0, hand_off_s=0.5).makespan_s([4.0, 8.0], [1, 1]) == 10.5


@given(times, st.lists(st.integers(1, 20), min_size=1, max_size=6))
def test_no_pipeline_is_faster_than_its_slowest_stage_or_its_longest_chunk(whole_s: list[float], layers: list[int]) -> None:
    """The slowest stage does all its work, after the first chunk has come down to it and before the last has gone on."""
    shares = [n / sum(layers) for n in layers]
    slowest = max(range(len(layers)), key=lambda stage: shares[stage])
    around_s = whole_s[0] * sum(shares[:slowest]) + whole_s[-1] * sum(shares[slowest + 1 :])
    seconds = Pipeline(tuple(layers), 0.0).makespan_s(whole_s, [1] * len(whole_s))
    assert seconds >= shares[slowest] * sum(whole_s) + around_s - 1e-9
    assert seconds >= max(whole_s) - 1e-9
    assert seconds <= sum(whole_s) + 1e-9, "and none is slower than one stage"


@given(st.integers(1, 200_000), st.integers(64, 20_000))
def test_fixed_chunks_are_the_whole_prompt(isl: int, chunk: int) -> None:
    sizes = fixed_chunks(isl, chunk)
    assert sum(sizes) == isl
    assert all(size == chunk for size in sizes[:-1])


@given(st.integers(1, 200_000), st.integers(512, 20_000), st.floats(0, 1))
def test_dynamic_chunks_are_the_whole_prompt_on_their_grid_and_within_their_bounds(isl: int, chunk: int, s: float) -> None:
    sizes = DynamicChunking(chunk, CURVE, s).chunks(isl)
    assert sum(sizes) == isl
    for size in sizes[1:-1]:
        assert size % 64 == 0
        assert chunk // 4 - 64 <= size <= max(chunk, 64)


def test_without_smoothing_chunks_stay_as_they_are() -> None:
    assert DynamicChunking(4096, CURVE, 0.0).chunks(20_000) == fixed_chunks(20_000, 4096)


def test_pp3_strictly_dynamic_chunks_take_equal_times() -> None:
    """All but the last and those on the floor of C / 4, to within one step of the grid of 64 tokens."""
    chunking = DynamicChunking(8192, CURVE, 1.0)
    sizes = chunking.chunks(N128)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    target = CURVE.chunk_s(8192, 0)
    checked = 0
    for size, start in list(zip(sizes, starts, strict=True))[1:-1]:
        if size == 8192 // 4:
            continue
        checked += 1
        assert CURVE.chunk_s(size, start) <= target
        assert CURVE.chunk_s(size + 64, start) > target
    assert checked > 5


def test_a_chunk_solves_its_equation_by_hand() -> None:
    """a = 1, b = 0, C = 128: T = 16384; after 128 tokens x = -128 + sqrt(128^2 + 16384) = 53.02, so the grid gives 64."""
    assert DynamicChunking(128, Quadratic(1.0, 0.0, 0.0), 1.0).next_chunk(128) == 64
    big = DynamicChunking(128 * 64, Quadratic(1.0, 0.0, 0.0), 1.0).next_chunk(128 * 64)
    assert big == int(128 * 64 * (math.sqrt(2) - 1)) // 64 * 64


def test_the_context_leaves_headroom_and_the_budget_caps() -> None:
    assert DynamicChunking(4096, CURVE, 0.0, context=10_000).next_chunk(8192) == 10_000 - 8192 - 100
    assert DynamicChunking(4096, CURVE, 0.0, max_prefill_tokens=16384).next_chunk(0) == 4096


@given(st.floats(1e-10, 1e-8), st.floats(1e-6, 1e-4), st.floats(0, 1e-2))
def test_the_profile_finds_an_exact_quadratic(a: float, b: float, c: float) -> None:
    fit = fit_quadratic(lambda tokens, start: Quadratic(a, b, c).chunk_s(tokens, start), 8192)
    assert fit is not None
    assert (fit.a, fit.b) == pytest.approx((a, b), rel=1e-4)


def test_a_profile_that_does_not_bend_or_is_too_short_gives_no_fit() -> None:
    assert fit_quadratic(lambda tokens, start: 1e-5 * tokens - 1e-10 * tokens**2, 8192) is None
    assert fit_quadratic(lambda tokens, start: float(tokens**2), 6) is None


def test_the_bubble_of_fixed_chunks_grows_with_the_prompt() -> None:
    """The textbook's (S - 1) / (S - 1 + M) falls with more chunks; the bubble in seconds rises with the prompt."""
    bubbles = [bubble_s([CURVE.chunk_s(4096, start) for start in range(0, n, 4096)], 4) for n in (16_384, 65_536, N128)]
    assert bubbles == sorted(bubbles)
    assert bubbles[-1] > 3 * bubbles[0]


def test_the_best_fixed_chunk_is_where_the_formula_says() -> None:
    fit = Quadratic(2e-9, 3e-5, 0.0)
    best = optimal_fixed_chunk(N128, fit, 4, 5e-3)

    def makespan(chunk: int) -> float:
        sizes = fixed_chunks(N128, chunk)
        whole_s = [fit.chunk_s(n, i * chunk) for i, n in enumerate(sizes)]
        return balanced_makespan_s(whole_s, 4, 5e-3)

    # Chunks that divide the prompt, so that no short rest blurs the comparison.
    sizes = [2**i for i in range(8, 15)]
    fastest = min(sizes, key=makespan)
    assert fastest / 1.5 < best < fastest * 1.5


@pytest.mark.parametrize(
    ("layers", "stages", "split"), [(61, 4, (15, 15, 15, 16)), (94, 8, (11, 11) + (12,) * 6), (28, 1, (28,))]
)
def test_layers_are_split_as_evenly_as_it_goes(layers: int, stages: int, split: tuple[int, ...]) -> None:
    assert split_layers(layers, stages) == split
    assert sum(split) == layers


# -- two published rows, with two efficiencies for both models: attention 0.90 of bf16, fp8 products 0.60


def h20(model: str, tp: int) -> StepCost:
    return StepCost(GPUS["H20"], quantized(MODELS[model], weights="fp8"), CALIBRATIONS["sglang-h20"], Parallel(tp))


def ttft(cost: StepCost, stages: int, chunk: int, smoothing: float = 0.0) -> float:
    pipeline = Pipeline(
        split_layers(cost.model.layers, stages), hand_off_s_per_token=hand_off_s_per_token(cost.model.hidden, 50e9)
    )
    fit = fit_quadratic(chunk_price(cost), chunk)
    assert fit is not None
    return time_prefill(cost, N128, pipeline, DynamicChunking(chunk, fit, smoothing).chunks(N128)).seconds


@pytest.mark.parametrize(
    ("stages", "chunk", "smoothing", "published_s", "tolerance"),
    [
        pytest.param(1, 4096, 0.0, 48.5, 0.10, id="PP1"),
        pytest.param(4, 4096, 0.0, 15.5, 0.15, id="PP4, fixed 4096"),
        pytest.param(4, 12288, 0.65, 15.5, 0.15, id="PP4, dynamic 12288"),
    ],
)
def test_c13_deepseek_at_128k_on_h20(stages: int, chunk: int, smoothing: float, published_s: float, tolerance: float) -> None:
    assert ttft(h20("DeepSeek-V3.1", 8), stages, chunk, smoothing) == pytest.approx(published_s, rel=tolerance)


@pytest.mark.parametrize(("chunk", "smoothing"), [(6144, 0.0), (18432, 0.8)])
def test_c14_qwen3_at_128k_over_32_h20(chunk: int, smoothing: float) -> None:
    assert ttft(h20("Qwen3-235B-A22B", 4), 8, chunk, smoothing) == pytest.approx(10.54, rel=0.15)


def test_more_stages_are_faster_and_less_efficient() -> None:
    cost = h20("DeepSeek-V3.1", 8)
    seconds = [ttft(cost, stages, 4096) for stages in (1, 2, 4)]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] / (4 * seconds[2]) < seconds[0] / (2 * seconds[1]) < 1
