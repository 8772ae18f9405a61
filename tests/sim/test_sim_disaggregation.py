"""Two pools: the laws of their hand-over, transfer times by hand, and when they pay."""

from __future__ import annotations

from dataclasses import replace

import pytest
from checked_engine import H200, QWEN, sglang, vllm
from hypothesis import given, settings
from hypothesis import strategies as st

from longbench_sched.sim.cost import StepCost
from longbench_sched.sim.disaggregation import (
    PRESETS,
    DisaggregatedEngine,
    Disaggregation,
    Limits,
    Link,
    Passage,
    exposed_transfer_s,
    goodput_per_s,
    poisson_arrivals,
    serve_side_by_side,
)
from longbench_sched.sim.replay import Arrival, Served, replay

KV = 57_344  # bytes a token


def pools(plan: Disaggregation, n_prefill: int = 1, n_decode: int = 1, kv_tokens: int = 1 << 20, **more) -> DisaggregatedEngine:
    return DisaggregatedEngine(
        plan, [vllm(kv_tokens) for _ in range(n_prefill)], StepCost(H200, QWEN), n_decode, kv_tokens, **more
    )


load = st.lists(
    st.builds(Arrival, at_s=st.floats(0, 0.5), isl=st.integers(1, 20_000), osl=st.integers(1, 12)), min_size=1, max_size=10
).map(lambda arrivals: sorted(arrivals, key=lambda one: one.at_s))
WAYS = {**PRESETS, "streamed": Disaggregation(Link(1e9)), "all at once": Disaggregation(Link(1e9), is_streamed=False)}


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=40, deadline=None)
@given(arrivals=load, n_prefill=st.integers(1, 2), n_decode=st.integers(1, 2), kv_tokens=st.integers(21_000, 70_000))
def test_the_laws_of_the_hand_over(way: str, arrivals: list[Arrival], n_prefill: int, n_decode: int, kv_tokens: int) -> None:
    plan = WAYS[way]
    decoding: list[tuple[int, list[Passage]]] = []

    def on_decode(index: int, running, now_s: float) -> None:
        assert sum(one.held_tokens for one in running) <= kv_tokens
        assert all(one.arrived_s >= 0 for one in running), "PD-2: its cache is there"
        decoding.append((index, list(running)))

    engine = pools(plan, n_prefill, n_decode, kv_tokens, on_decode=on_decode)
    passages = engine.run(arrivals)
    for passage, arrival in zip(passages, arrivals, strict=True):
        assert passage.sent_bytes == arrival.isl * KV, "PD-3: tokens x bytes a token"
        assert passage.freed_s > passage.prefill_ended_s, "PD-4: blocks stay until the transfer is over"
        assert passage.arrived_s >= passage.freed_s
        assert arrival.osl == 1 or passage.decode_began_s >= passage.arrived_s, "PD-2: no decode before the last byte"
        assert len(passage.served.token_at_s) == arrival.osl, "nothing is lost"
        assert passage.served.token_at_s == sorted(passage.served.token_at_s)
        assert arrival.at_s <= passage.prefill_began_s < passage.prefill_ended_s
    for prefiller in engine.prefillers:
        assert prefiller.state.kv.free == prefiller.state.kv.total
        assert prefiller.counters.generated_tokens == sum(
            p.prefiller >= 0 and engine.prefillers[p.prefiller] is prefiller for p in passages
        )
    first_starts = [passage.prefill_began_s for passage in passages if passage.prefiller == 0]
    assert first_starts == sorted(first_starts), "first come, first served"


def test_pd1_a_decode_on_a_prefill_engine_is_never_seen() -> None:
    """The engine is asked for one token, so a step of it holds chunks only; the check stands in the loop itself."""
    engine = pools(PRESETS["dynamo-like"])
    passages = engine.run([Arrival(0.0, 9000, 50), Arrival(0.01, 9000, 50)])
    prefill = engine.prefillers[0].counters
    assert prefill.generated_tokens == 2
    assert prefill.prefill_tokens == 18_000
    assert [len(one.served.token_at_s) for one in passages] == [50, 50]


@pytest.mark.parametrize(
    ("n_bytes", "bandwidth", "milliseconds"),
    [
        pytest.param(30_000 * 57_344, 40e9, 43, id="30K Qwen2.5-7B, 1.72 GB"),
        pytest.param(131_072 * 70_272, 40e9, 230, id="128K DeepSeek, 9.2 GB"),
        pytest.param(131_072 * 192_512, 40e9, 631, id="128K Qwen3-235B, 25 GB"),
    ],
)
def test_a_transfer_takes_its_bytes_over_the_link(n_bytes: int, bandwidth: float, milliseconds: float) -> None:
    assert Link(bandwidth, eff=1.0, setup_s=0.0).seconds(n_bytes) * 1e3 == pytest.approx(milliseconds, rel=0.01)


def test_links_share_a_transfer_and_slicing_anew_costs_a_tenth() -> None:
    link = Link(50e9, n_links=4, eff=0.8, setup_s=0.001)
    assert link.seconds(1.6e9) == pytest.approx(0.011)
    assert replace(link, reslice=1.1).seconds(1.6e9) == pytest.approx(0.012)


def test_of_a_streamed_transfer_only_the_last_chunk_shows() -> None:
    """30K tokens in chunks of 8192 over 35 GB/s: the last 5424 tokens take 8.9 ms; on a slow link the rest queues up."""
    for bandwidth in (50e9, 1e9):
        link = Link(bandwidth, setup_s=0.0)
        engine = pools(Disaggregation(link))
        (passage,) = engine.run([Arrival(0.0, 30_000, 5)])
        shown_s = passage.arrived_s - passage.prefill_ended_s
        last_chunk = (30_000 - 3 * 8192) * KV
        prefill_s = passage.prefill_ended_s - passage.prefill_began_s
        closed_form = exposed_transfer_s(link, 30_000 * KV, last_chunk, prefill_s)
        # The formula lets the transfer begin with the prefill; it cannot begin before the first chunk is computed.
        first_chunk_s = StepCost(H200, QWEN)(_chunk(8192))
        assert closed_form - 1e-9 <= shown_s <= closed_form + first_chunk_s + 1e-9
        if bandwidth == 50e9:
            assert shown_s == pytest.approx(last_chunk / 35e9)


def _chunk(n: int):
    engine = vllm()
    engine.submit(30_000, 1, 0.0)
    engine.begin(0.0)
    assert engine.step is not None
    assert engine.step.chunks[0].n_tokens == n
    return engine.step


def test_all_at_once_the_whole_transfer_shows() -> None:
    engine = pools(Disaggregation(Link(eff=0.7, setup_s=0.0), is_streamed=False))
    (passage,) = engine.run([Arrival(0.0, 30_000, 5)])
    assert passage.arrived_s - passage.prefill_ended_s == pytest.approx(30_000 * KV / 35e9)
    assert passage.served.ttft_s == pytest.approx(passage.arrived_s)


def test_a_full_decode_pool_holds_prefills_back_unless_there_is_a_store() -> None:
    """Room for one request at a time: allocated first, the second prefill waits for the end of the first request."""
    arrivals = [Arrival(0.0, 20_000, 400), Arrival(0.0, 20_000, 400)]
    held, stored = (
        DisaggregatedEngine(PRESETS[name], [vllm()], StepCost(H200, QWEN), 1, 30_000).run(arrivals)
        for name in ("dynamo-like", "mooncake-like")
    )
    assert held[1].prefill_began_s == pytest.approx(held[0].served.token_at_s[-1])
    assert stored[1].prefill_began_s < stored[0].served.token_at_s[0]
    assert stored[1].arrived_s > stored[0].served.token_at_s[-1], "it is loaded when there is room"


def test_a_prefill_engine_whose_blocks_are_still_being_sent_waits() -> None:
    """Back-pressure of a slow link: memory for one prompt, so the second prefill waits for the first transfer."""
    engine = DisaggregatedEngine(
        Disaggregation(Link(1e9, setup_s=0.0), is_streamed=False), [vllm(32_768)], StepCost(H200, QWEN), 1, 1 << 20
    )
    first, second = engine.run([Arrival(0.0, 20_000, 2), Arrival(0.0, 20_000, 2)])
    assert second.prefill_began_s == first.freed_s == pytest.approx(first.prefill_ended_s + 20_000 * KV / 0.7e9)


def test_decodes_are_not_disturbed_by_the_prompts_of_others() -> None:
    """Co-located, a gap is a chunk long; in pools of their own it is a decode step long."""
    arrivals = [Arrival(0.05 * i, 30_000, 100) for i in range(6)]
    apart = [passage.served for passage in pools(PRESETS["dynamo-like"]).run(arrivals)]
    together = replay(vllm(), arrivals)
    decode_gap = StepCost(H200, QWEN).decode_s(6, 6 * 30_100)
    assert max(one.longest_gap_s for one in apart) <= decode_gap
    assert max(one.longest_gap_s for one in together) > 5 * decode_gap


def test_goodput_is_the_rate_at_which_nine_in_ten_keep_the_limits() -> None:
    """A server whose TTFT is its rate in seconds, to the last bit of the bisection."""

    def serve(rate: float) -> list[Served]:
        return [Served(Arrival(0.0, 1, 2), [rate, rate]) for _ in range(10)]

    assert goodput_per_s(serve, Limits(ttft_s=3.0, tpot_s=1.0), 8.0) == pytest.approx(3.0, abs=8 / 2**9)
    assert goodput_per_s(serve, Limits(ttft_s=-1.0, tpot_s=1.0), 8.0) == 0


def test_rates_stretch_the_same_gaps() -> None:
    slow, fast = poisson_arrivals(1.0, 9, 10, 2, seed=3), poisson_arrivals(4.0, 9, 10, 2, seed=3)
    assert [one.at_s for one in slow] == pytest.approx([4 * one.at_s for one in fast])
    assert slow[0].at_s == 0.0


def test_disaggregation_pays_where_tpot_is_tight_and_not_where_it_is_loose() -> None:
    """Two GPUs, 8K prompts: a mixed step at full budget takes 0.16 s, so a TPOT of 12 ms asks for pools of their own."""

    def apart(rate: float) -> list[Served]:
        return [one.served for one in pools(PRESETS["dynamo-like"]).run(poisson_arrivals(rate, 60, 8000, 60, 1))]

    def together(rate: float) -> list[Served]:
        return serve_side_by_side([vllm(), vllm()], poisson_arrivals(rate, 60, 8000, 60, 1))

    tight, loose = Limits(2.0, 0.012), Limits(2.0, 0.2)
    assert goodput_per_s(apart, tight, 16.0, steps=6) > 1.3 * goodput_per_s(together, tight, 16.0, steps=6)
    assert goodput_per_s(apart, loose, 16.0, steps=6) < goodput_per_s(together, loose, 16.0, steps=6)


def test_a_replay_is_what_the_engine_does_step_by_step() -> None:
    """SGLang, one prompt of 100 tokens and two outputs: a prefill, then a decode."""
    engine = sglang()
    steps: list[tuple[float, float]] = []
    (one,) = replay(engine, [Arrival(1.5, 100, 2)], lambda plan, at_s, step_s: steps.append((at_s, step_s)))
    assert steps[0][0] == 1.5
    assert one.token_at_s == pytest.approx([1.5 + steps[0][1], 1.5 + steps[0][1] + steps[1][1]])
    assert one.ttft_s == pytest.approx(steps[0][1])
    assert one.tpot_s == one.longest_gap_s == pytest.approx(steps[1][1])
