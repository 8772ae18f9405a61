"""vLLM's scheduler on cases small enough to work out by hand. A plan is [(request, tokens, start, kind), ...] a step."""

from __future__ import annotations

import pytest
from checked_engine import Arrival, drive, vllm

from longbench_sched.errors import UsageError
from longbench_sched.sim.engine import build_engine
from longbench_sched.sim.hardware import GPUS
from longbench_sched.sim.models import MODELS
from longbench_sched.sim.policy.vllm_v1 import VllmV1Options

P, D = "prefill", "decode"


def test_a_prompt_takes_what_is_left_of_the_budget_and_decodes_ride_along() -> None:
    story = drive(vllm(max_num_batched_tokens=8), [Arrival(0, 10, 3), Arrival(0, 5, 3)])
    assert story.plans == [
        [(0, 8, 0, P)],
        [(0, 2, 8, P), (1, 5, 0, P)],
        [(0, 1, 10, D), (1, 1, 5, D)],
        [(0, 1, 11, D), (1, 1, 6, D)],
    ]


def test_out_of_blocks_the_last_admitted_starts_again_at_the_head_of_the_queue() -> None:
    """6 blocks of 4. After three steps request 0 needs its fourth block; request 1 holds three and gives them up."""
    engine = vllm(24, block_size=4, max_num_batched_tokens=32, enable_prefix_caching=False)
    story = drive(engine, [Arrival(0, 10, 6), Arrival(0, 8, 6)])
    assert story.plans == [
        [(0, 10, 0, P), (1, 8, 0, P)],
        [(0, 1, 10, D), (1, 1, 8, D)],
        [(0, 1, 11, D), (1, 1, 9, D)],
        [(0, 1, 12, D)],
        [(0, 1, 13, D)],
        [(0, 1, 14, D)],
        [(1, 11, 0, P)],  # prompt and the three tokens it had
        [(1, 1, 11, D)],
        [(1, 1, 12, D)],
    ]
    assert story.preempted == [1]
    assert story.admitted == [0, 1, 1]


def test_what_a_preempted_request_had_computed_is_found_again() -> None:
    """As before; when 1 comes back its first two blocks are still where they were, and 3 of 11 tokens are computed."""
    story = drive(vllm(24, block_size=4, max_num_batched_tokens=32), [Arrival(0, 10, 6), Arrival(0, 8, 6)])
    assert story.plans[6] == [(1, 3, 8, P)]


@pytest.mark.parametrize(("is_reserving", "third_step"), [(True, [(0, 1, 12, D)]), (False, [(1, 5, 0, P), (0, 1, 12, D)])])
def test_a_prompt_is_admitted_only_if_all_of_it_fits(is_reserving: bool, third_step: list) -> None:
    """6 blocks of 4: after request 0's decode two are free; request 1 needs three for its 12 tokens, two for a chunk of 5."""
    engine = vllm(24, block_size=4, max_num_batched_tokens=6, scheduler_reserve_full_isl=is_reserving)
    story = drive(engine, [Arrival(0, 12, 2), Arrival(0, 12, 2)])
    assert story.plans[:3] == [[(0, 6, 0, P)], [(0, 6, 6, P)], third_step]


def test_the_long_prefill_threshold_spares_a_lone_request() -> None:
    flags = {"max_num_batched_tokens": 16, "long_prefill_token_threshold": 4}
    assert drive(vllm(**flags), [Arrival(0, 10, 1)]).plans == [[(0, 10, 0, P)]]
    together = drive(vllm(**flags), [Arrival(0, 10, 1), Arrival(0, 10, 1)])
    assert together.plans[0] == [(0, 4, 0, P), (1, 4, 0, P)]


def test_without_chunking_a_prompt_waits_for_a_step_that_holds_it() -> None:
    engine = vllm(max_num_batched_tokens=16, enable_chunked_prefill=False, max_model_len=16)
    story = drive(engine, [Arrival(0, 10, 2), Arrival(0, 12, 1)])
    assert story.plans[:2] == [[(0, 10, 0, P)], [(1, 12, 0, P), (0, 1, 10, D)]]


def test_no_more_run_than_max_num_seqs() -> None:
    story = drive(vllm(max_num_batched_tokens=64, max_num_seqs=2), [Arrival(0, 4, 2)] * 3)
    assert story.plans[0] == [(0, 4, 0, P), (1, 4, 0, P)]
    assert story.plans[2] == [(2, 4, 0, P)]


def test_an_interval_counts_steps_from_the_last_prefill() -> None:
    """0.33.0: 0 is prefilled in the first step, so 1 and 2, which come after it, wait for the fourth, with 0 decoding."""
    work = [Arrival(0, 10, 6), Arrival(0.0001, 4, 1)]
    story = drive(vllm(prefill_schedule_interval=3, max_num_batched_tokens=32), work)
    assert [line[0] for line in story.plans[1]] == [0]
    assert [line[0] for line in story.plans[2]] == [0]
    assert story.plans[3] == [(1, 4, 0, P), (0, 1, 12, D)]


def test_an_interval_counts_steps_of_the_wave_in_0_32() -> None:
    """There step 3 is the next multiple as well, but a prompt that comes in step 2 waits only until then."""
    work = [Arrival(0, 10, 8), Arrival(0.0001, 4, 3), Arrival(0.02, 4, 1)]
    story = drive(vllm(prefill_schedule_interval=3, max_num_batched_tokens=32, release="0.32.0"), work)
    assert all(i % 3 == 0 for i, plan in enumerate(story.plans) if any(line[3] == P for line in plan))


@pytest.mark.parametrize(
    ("flags", "threshold"),
    [
        ({"max_num_partial_prefills": 4}, 5242),
        ({"max_num_partial_prefills": 4, "long_prefill_token_threshold": 2048}, 2048),
        ({"max_num_partial_prefills": 4, "max_model_len": 128_000}, 5120),
        ({"max_num_partial_prefills": 1}, 0),
        ({}, 0),
    ],
    ids=str,
)
def test_c10_four_percent_of_the_context_only_with_several_partial_prefills(flags: dict, threshold: int) -> None:
    options = VllmV1Options(release="0.10.0", **flags).resolved(GPUS["H100"], 131_072)
    assert options.long_prefill_token_threshold == threshold


def test_c10_the_rule_and_its_knob_are_gone() -> None:
    with pytest.raises(UsageError, match=r"does not exist in vLLM 0.33.0"):
        VllmV1Options(max_num_partial_prefills=4).resolved(GPUS["H100"], 131_072)
    assert VllmV1Options().resolved(GPUS["H100"], 131_072).max_num_batched_tokens == 8192


@pytest.mark.parametrize(
    ("gpu", "flags", "tokens", "seqs"),
    [
        ("H100", {"is_offline": True}, 16_384, 1024),
        ("A100", {"is_offline": True}, 8192, 256),
        ("B200", {"is_offline": True}, 16_384, 1024),
        ("H100", {"performance_mode": "throughput"}, 16_384, 2048),
        ("H100", {"max_num_seqs": 4, "max_model_len": 1024}, 4096, 4),
    ],
    ids=str,
)
def test_defaults_go_by_entry_point_and_mode_too(gpu: str, flags: dict, tokens: int, seqs: int) -> None:
    options = VllmV1Options(**flags).resolved(GPUS[gpu], 131_072)
    assert (options.max_num_batched_tokens, options.max_num_seqs) == (tokens, seqs)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 2048}, "could never run"),
        ({"speculative_method": "wizard", "num_speculative_tokens": 2}, "wizard"),
        ({"release": "0.1.0"}, "Known: 0.33.0"),
        ({"max_num_scheduled_tokens": 9000}, r"max_num_scheduled_tokens \(9000\) is above max_num_batched_tokens \(8192\)"),
    ],
)
def test_flags_that_make_no_sense_are_refused(flags: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        VllmV1Options(**flags).resolved(GPUS["H200"], 32_768)


@pytest.mark.parametrize(
    ("gpu", "tokens", "seqs"),
    [("H200", 8192, 1024), ("H100", 8192, 1024), ("A100", 2048, 256), ("B200", 16384, 1024), ("MI300X", 16384, 1024)],
)
def test_defaults_go_by_gpu_memory(gpu: str, tokens: int, seqs: int) -> None:
    options = VllmV1Options().resolved(GPUS[gpu], 131_072)
    assert (options.max_num_batched_tokens, options.max_num_seqs) == (tokens, seqs)


def test_more_places_than_tokens_make_no_sense() -> None:
    options = VllmV1Options(max_num_batched_tokens=100).resolved(GPUS["H200"], 32_768)
    assert options.max_num_seqs == 100


def test_without_chunking_the_budget_grows_to_the_context() -> None:
    assert VllmV1Options(enable_chunked_prefill=False).resolved(GPUS["H200"], 32_768).max_num_batched_tokens == 32_768


NGRAM, EAGLE3, DRAFT = (
    {"speculative_method": method, "num_speculative_tokens": 3} for method in ("ngram", "eagle3", "draft_model")
)


@pytest.mark.parametrize(
    ("flags", "is_ahead"),
    [
        ({}, True),
        ({"async_scheduling": False}, False),
        (EAGLE3, True),
        (EAGLE3 | {"async_scheduling": False}, False),
        (DRAFT, True),
        (NGRAM, False),
        (NGRAM | {"num_speculative_tokens": 0, "async_scheduling": True}, True),
        (NGRAM | {"speculative_method": "medusa"}, False),
        ({"release": "0.32.0"} | NGRAM, False),
        ({"release": "0.10.0"}, False),
        ({"release": "0.10.0", "async_scheduling": True}, True),
        ({"release": "0.10.0"} | EAGLE3, False),
    ],
    ids=str,
)
def test_a_step_is_planned_ahead_by_default_where_speculation_allows_it(flags: dict, is_ahead: bool) -> None:
    engine = build_engine("vllm", GPUS["H200"], MODELS["Llama-3.1-8B"], VllmV1Options(**flags))
    assert engine.options.async_scheduling is is_ahead
    assert engine.state.is_ahead is is_ahead
    assert engine.cost.calibration.is_host_overlapped is is_ahead


@pytest.mark.parametrize("flags", [NGRAM, NGRAM | {"speculative_method": "medusa"}, {"release": "0.10.0"} | EAGLE3], ids=str)
def test_asked_for_beside_such_speculation_it_does_not_start(flags: dict) -> None:
    with pytest.raises(UsageError, match=r"does not start with --async-scheduling and \w+ speculation together\.\n  Leave"):
        VllmV1Options(async_scheduling=True, **flags).resolved(GPUS["H200"], 131_072)
