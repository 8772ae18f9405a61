"""Two pools: the laws of their hand-over, transfer times by hand, and when they pay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from checked_engine import H200, QWEN, paged, sglang, trtllm, vllm
from hypothesis import given, settings
from hypothesis import strategies as st

from longbench_sched.errors import UsageError
from longbench_sched.sim.cost import StepCost
from longbench_sched.sim.deployment import deploy
from longbench_sched.sim.disaggregation import DisaggregatedEngine, Passage
from longbench_sched.sim.engine import Engine, build_engine
from longbench_sched.sim.flags import read_flags
from longbench_sched.sim.goodput import Limits, goodput_per_s, poisson_arrivals, serve_side_by_side
from longbench_sched.sim.layout import Layout
from longbench_sched.sim.models import MODELS
from longbench_sched.sim.policy.orca import Orca, OrcaOptions
from longbench_sched.sim.policy.sarathi import Sarathi, SarathiOptions
from longbench_sched.sim.policy.vllm_v0 import VllmV0, VllmV0Options
from longbench_sched.sim.pools import PRESETS, Disaggregation, Link, Pools, exposed_transfer_s, read_pools
from longbench_sched.sim.replay import Arrival, Served, replay

KV = 57_344  # bytes a token
DEEPSEEK = MODELS["DeepSeek-V3.1"]


MAKERS: dict[str, Callable[[int], Engine]] = {
    "vllm": vllm,
    "vllm, asynchronous": lambda kv: vllm(kv, async_scheduling=True),
    "vllm-v0": lambda kv: paged("vllm-v0", VllmV0, VllmV0Options(), kv),
    "sglang": sglang,
    "trtllm": lambda kv: trtllm(kv, max_num_tokens=32_768),
    "orca": lambda kv: paged("orca", Orca, OrcaOptions(), kv),
    "sarathi": lambda kv: paged("sarathi", Sarathi, SarathiOptions(), kv),
}


def pools(
    plan: Disaggregation,
    n_prefill: int = 1,
    n_decode: int = 1,
    kv_tokens: int = 1 << 20,
    make: Callable[[int], Engine] = vllm,
    prefill_kv_tokens: int | None = None,
) -> DisaggregatedEngine:
    prefillers = [make(prefill_kv_tokens or kv_tokens) for _ in range(n_prefill)]
    return DisaggregatedEngine(plan, prefillers, [make(kv_tokens) for _ in range(n_decode)])


def passages_of(engine: DisaggregatedEngine, arrivals: Sequence[Arrival]) -> tuple[list[Passage], list[Served]]:
    """Serve them; what became of each, in the order of arrival."""
    seen: list[Passage] = []
    engine.on_land = seen.append
    served = replay(engine, arrivals)
    return sorted(seen, key=lambda passage: passage.sequence.id), served


load = st.lists(
    st.builds(Arrival, at_s=st.floats(0, 0.5), isl=st.integers(1, 20_000), osl=st.integers(1, 12)), min_size=1, max_size=10
).map(lambda arrivals: sorted(arrivals, key=lambda one: one.at_s))
WAYS = {**PRESETS, "streamed": Disaggregation(Link(1e9)), "all at once": Disaggregation(Link(1e9), is_streamed=False)}


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=40)
@given(
    arrivals=load,
    n_prefill=st.integers(1, 2),
    n_decode=st.integers(1, 2),
    kv_tokens=st.integers(21_000, 70_000),
    name=st.sampled_from(sorted(MAKERS)),
)
def test_the_laws_of_the_hand_over(
    way: str, arrivals: list[Arrival], n_prefill: int, n_decode: int, kv_tokens: int, name: str
) -> None:
    engine = pools(WAYS[way], n_prefill, n_decode, kv_tokens, MAKERS[name])
    passages, served = passages_of(engine, arrivals)
    assert len(passages) == len(arrivals), "nothing is lost"
    for passage, arrival, one in zip(passages, arrivals, served, strict=True):
        assert passage.sent_bytes == arrival.isl * KV, "PD-3: tokens x bytes a token"
        assert passage.freed_s > passage.prefill_ended_s, "PD-4: blocks stay until the transfer is over"
        assert passage.arrived_s >= passage.freed_s
        assert arrival.osl == 1 or passage.decode_began_s >= passage.arrived_s, "PD-2: no decode before the last byte"
        assert len(one.token_at_s) == arrival.osl, "every token exactly once"
        assert one.token_at_s == sorted(one.token_at_s)
        assert arrival.at_s <= passage.prefill_began_s < passage.prefill_ended_s < one.token_at_s[0] == passage.arrived_s
        assert passage.sequence.n_preemptions == 0, "what is reserved to completion is never evicted"
    for each in (*engine.prefillers, *engine.decoders):
        assert each.state.kv.free == each.state.kv.total
    assert sum(each.counters.generated_tokens for each in engine.prefillers) == len(arrivals)
    assert sum(each.counters.generated_tokens for each in engine.decoders) == sum(one.osl - 1 for one in arrivals)
    assert engine.counters.generated_tokens == sum(one.osl for one in arrivals)
    assert engine.counters.prompt_tokens == sum(one.isl for one in arrivals)
    assert (engine.n_waiting, engine.n_running) == (0, 0)


def test_pd1_a_decode_on_a_prefill_engine_is_never_seen() -> None:
    """A prefill engine is asked for one token, so its steps hold chunks only; a decode engine computes no prompt."""
    engine = pools(PRESETS["dynamo-like"])
    _, served = passages_of(engine, [Arrival(0.0, 9000, 50), Arrival(0.01, 9000, 50)])
    prefill, decode = engine.prefillers[0].counters, engine.decoders[0].counters
    assert (prefill.generated_tokens, decode.generated_tokens) == (2, 98)
    assert (prefill.prefill_tokens, decode.prefill_tokens) == (18_000, 0)
    assert [len(one.token_at_s) for one in served] == [50, 50]


def test_no_more_decode_at_once_than_the_engine_has_places() -> None:
    """Two places: the third request's cache is there, and it waits for the end of the first."""
    engine = pools(PRESETS["mooncake-like"], make=lambda kv: vllm(kv, max_num_seqs=2))
    passages, served = passages_of(engine, [Arrival(0.0, 100, 300), Arrival(0.0, 100, 300), Arrival(0.0, 100, 3)])
    third = passages[2]
    assert third.arrived_s < third.decode_began_s == pytest.approx(served[0].token_at_s[-1])
    assert served[2].token_at_s[0] == third.arrived_s


def test_a_link_for_every_gpu() -> None:
    """Tensor parallelism on both sides: twice the links, half the bytes for each."""
    engines = [build_engine("vllm", H200, QWEN, read_flags("vllm", (f"-tp={n}",))) for n in (1, 1, 2, 2)]
    plan = Disaggregation(Link(1e9, setup_s=0.0), is_streamed=False)
    one, two = (
        passages_of(DisaggregatedEngine(plan, [engines[i]], [engines[i + 1]]), [Arrival(0.0, 7000, 2)])[0][0] for i in (0, 2)
    )
    assert one.arrived_s - one.prefill_ended_s == pytest.approx(7000 * KV / 0.7e9)
    assert two.arrived_s - two.prefill_ended_s == pytest.approx(7000 * KV / 1.4e9)
    assert two.sent_bytes == one.sent_bytes


def test_copies_of_the_same_kv_are_sent_over_as_many_links_and_no_faster() -> None:
    """Every GPU has the whole latent vector of MLA, 70,272 bytes, and sends it; in two stages each has half of it."""
    prefiller, decoder = (build_engine("sglang", H200, DEEPSEEK, read_flags("sglang", ("--tp-size=8",))) for _ in range(2))
    plan = Disaggregation(Link(1e9, setup_s=0.0), is_streamed=False)
    (one,), _ = passages_of(DisaggregatedEngine(plan, [prefiller], [decoder]), [Arrival(0.0, 7000, 2)])
    assert one.arrived_s - one.prefill_ended_s == pytest.approx(7000 * 70_272 / 0.7e9)
    assert [layout.kv_parts(DEEPSEEK) for layout in (Layout(8), Layout(4, 2))] == [1, 2]


def test_between_pools_that_are_split_differently_bytes_are_sliced_anew() -> None:
    """Two GPUs to four: the two links of the smaller side carry a tenth more; through a store each side has its own."""
    engines = [build_engine("vllm", H200, QWEN, read_flags("vllm", (f"-tp={n}",))) for n in (2, 4, 2, 4)]
    plan = Disaggregation(Link(1e9, setup_s=0.0), is_streamed=False)
    (one,), _ = passages_of(DisaggregatedEngine(plan, [engines[0]], [engines[1]]), [Arrival(0.0, 7000, 2)])
    assert one.arrived_s - one.prefill_ended_s == pytest.approx(1.1 * 7000 * KV / 1.4e9)
    stored = DisaggregatedEngine(replace(plan, through_store=True), [engines[2]], [engines[3]])
    (one,), _ = passages_of(stored, [Arrival(0.0, 7000, 2)])
    assert one.arrived_s - one.prefill_ended_s == pytest.approx(1.1 * 7000 * KV * (1 / 1.4e9 + 1 / 2.8e9))


@pytest.mark.parametrize("way", PRESETS)
@settings(max_examples=40)
@given(arrivals=load, after=st.lists(st.floats(0, 1.5), min_size=1, max_size=5), kv_tokens=st.integers(21_000, 70_000))
def test_whoever_leaves_gives_everything_back_wherever_it_is(
    way: str, arrivals: list[Arrival], after: list[float], kv_tokens: int
) -> None:
    """Some are dropped at any moment: in a queue, in prefill, on the link, in the store, decoding."""
    engine = pools(PRESETS[way], kv_tokens=kv_tokens)
    sequences = [engine.submit(one.isl, one.osl, 0.0) for one in arrivals]
    drops = sorted(zip(after, sequences, strict=False), key=lambda drop: drop[0])
    now_s = 0.0
    while (step_s := engine.begin(now_s)) is not None:
        if drops and drops[0][0] < now_s + step_s:
            at_s, sequence = drops.pop(0)
            now_s = max(now_s, at_s)
            engine.abort(sequence)
            continue
        now_s += step_s
        engine.end(now_s)
    assert all(one.finish in ("abort", "length") for one in sequences)
    for each in (*engine.prefillers, *engine.decoders):
        assert each.state.kv.free == each.state.kv.total
        assert not each.state.running
        assert not each.state.waiting
    assert all(decoder.reserved == 0 for decoder in engine._decoders)
    assert all(prefiller.queued_tokens == 0 for prefiller in engine._pool)


@pytest.mark.parametrize(
    ("name", "flags", "said"),
    [
        ("vllm", ("-pp=2",), "pipeline stages are not played with prefill and decode apart"),
        ("trtllm", ("--num-speculative-tokens=2",), "speculation is not played with prefill and decode apart"),
        ("static", ("--batch-size=2",), "static batching"),
    ],
)
def test_what_is_not_played_apart_is_refused(name: str, flags: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        deploy(Pools(), lambda: build_engine(name, H200, QWEN, read_flags(name, flags)))


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ({}, None),
        ({"disaggregation": "none"}, None),
        ({"disaggregation": "none", "decode_engines": "2"}, Pools("none", 1, 2)),
        ({"disaggregation": "Dynamo-like"}, Pools("dynamo-like", 1, 1)),
        ({"disaggregation": "mooncake-like", "prefill_engines": "3", "decode_engines": "2"}, Pools("mooncake-like", 3, 2)),
        ({"disaggregation": "dynamo-like", "prefill_flags": "-tp 2"}, Pools("dynamo-like", 1, 1, "-tp 2")),
        ({"disaggregation": "none", "prefill_flags": "-tp 2"}, None),
    ],
)
def test_pools_are_read_from_words(words: dict[str, str], found: Pools | None) -> None:
    assert read_pools(words) == found


def test_limits_of_the_queue_are_refused_with_pools() -> None:
    options = read_flags("vllm", ["--max-num-queued-reqs", "4"])
    with pytest.raises(UsageError, match="limits of the queue"):
        deploy(Pools(), lambda: build_engine("vllm", H200, QWEN, options))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"disaggregation": "dynamo"}, r"no way of disaggregation named 'dynamo'.*\n.*dynamo-like"),
        ({"decode_engines": "2"}, "--decode-engines is of prefill and decode apart"),
        ({"decode_flags": "-tp 2"}, "--decode-flags is of prefill and decode apart"),
        ({"disaggregation": "dynamo-like", "prefill_flags": "-tp '2"}, "--prefill-flags .*No closing quotation"),
        ({"disaggregation": "dynamo-like", "prefill_engines": "0"}, "--prefill-engines: 0 engines"),
        ({"disaggregation": "dynamo-like", "prefill_engines": "two"}, "--prefill-engines"),
    ],
)
def test_words_that_are_no_pools_are_refused(words: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_pools(words)


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
        (passage,), _ = passages_of(pools(Disaggregation(link)), [Arrival(0.0, 30_000, 5)])
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
    (passage,), (one,) = passages_of(engine, [Arrival(0.0, 30_000, 5)])
    assert passage.arrived_s - passage.prefill_ended_s == pytest.approx(30_000 * KV / 35e9)
    assert one.ttft_s == passage.arrived_s, "TTFT is prefill and transfer"


def test_a_full_decode_pool_holds_prefills_back_unless_there_is_a_store() -> None:
    """Room for one request at a time: allocated first, the second prefill waits for the end of the first request."""
    arrivals = [Arrival(0.0, 20_000, 400), Arrival(0.0, 20_000, 400)]
    (held, held_served), (stored, stored_served) = (
        passages_of(pools(PRESETS[name], kv_tokens=30_000, prefill_kv_tokens=1 << 20), arrivals)
        for name in ("dynamo-like", "mooncake-like")
    )
    assert held[1].prefill_began_s == pytest.approx(held_served[0].token_at_s[-1])
    assert stored[1].prefill_began_s < stored_served[0].token_at_s[0]
    assert stored[1].arrived_s > stored_served[0].token_at_s[-1], "it is loaded when there is room"


def test_a_prefill_engine_whose_blocks_are_still_being_sent_waits() -> None:
    """Back-pressure of a slow link: memory for one prompt, so the second prefill waits for the first transfer."""
    engine = pools(Disaggregation(Link(1e9, setup_s=0.0), is_streamed=False), prefill_kv_tokens=32_768)
    (first, second), _ = passages_of(engine, [Arrival(0.0, 20_000, 2), Arrival(0.0, 20_000, 2)])
    assert second.prefill_began_s == first.freed_s == pytest.approx(first.prefill_ended_s + 20_000 * KV / 0.7e9)


def test_decodes_are_not_disturbed_by_the_prompts_of_others() -> None:
    """Co-located, a gap is a chunk long; in pools of their own it is a decode step long."""
    arrivals = [Arrival(0.05 * i, 30_000, 100) for i in range(6)]
    apart = replay(pools(PRESETS["dynamo-like"]), arrivals)
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
        return replay(pools(PRESETS["dynamo-like"]), poisson_arrivals(rate, 60, 8000, 60, 1))

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
