"""SGLang's scheduler on cases small enough to work out by hand."""

from __future__ import annotations

import pytest
from checked_engine import Arrival, drive, sglang

from longbench_sched.errors import UsageError
from longbench_sched.sim.content import prompt_content
from longbench_sched.sim.hardware import GPUS
from longbench_sched.sim.policy.sglang import Sglang042Options, SglangOptions

P, D = "prefill", "decode"


def test_decodes_stand_still_while_a_prompt_is_prefilled() -> None:
    """SG-4: the gap in request 0's tokens is the whole backlog, three chunks here, not one."""
    story = drive(sglang(chunked_prefill_size=8), [Arrival(0, 4, 4), Arrival(0.0001, 20, 2)])
    assert story.plans == [
        [(0, 4, 0, P)],
        [(1, 8, 0, P)],
        [(1, 8, 8, P)],
        [(1, 4, 16, P)],
        [(0, 1, 4, D), (1, 1, 20, D)],
        [(0, 1, 5, D)],
        [(0, 1, 6, D)],
    ]
    first, second = story.tokens_at[0][:2]
    assert second - first > story.ends_s[1] - story.ends_s[0]


@pytest.mark.parametrize(("flags", "slots"), [({}, [0, 0, 1, 0, 0]), ({"disable_overlap_schedule": True}, [0] * 5)])
def test_with_overlap_the_slot_of_who_has_just_ended_computes_once_more_for_nothing(flags: dict, slots: list[int]) -> None:
    """Two prompts in one step, then decodes; the first ends with its second token, and that is read a step late."""
    padding: list[int] = []
    story = drive(sglang(**flags), [Arrival(0, 4, 2), Arrival(0, 4, 5)], lambda plan, _: padding.append(plan.padding))
    assert [len(plan) for plan in story.plans] == [2, 2, 1, 1, 1]
    assert padding == slots
    assert [len(tokens) for tokens in story.tokens_at.values()] == [2, 5]


def test_nobody_who_ended_is_in_a_batch_that_only_prefills() -> None:
    padding: list[tuple[int, int]] = []
    drive(
        sglang(),
        [Arrival(0, 4, 2), Arrival(0, 4, 9), Arrival(0.0001, 30, 2)],
        lambda plan, _: padding.append((len(plan.chunks), plan.padding)),
    )
    assert all(n_slots == 0 for n_chunks, n_slots in padding if n_chunks)
    assert sum(n_slots for _, n_slots in padding) > 0


def test_the_prompt_in_progress_goes_first_and_the_next_takes_the_rest_of_the_chunk() -> None:
    story = drive(sglang(chunked_prefill_size=8), [Arrival(0, 4, 1), Arrival(0, 20, 1), Arrival(0, 6, 1)])
    assert story.plans == [
        [(0, 4, 0, P), (1, 4, 0, P)],
        [(1, 8, 4, P)],
        [(1, 8, 12, P)],
        [(2, 6, 0, P)],
    ]


def test_with_mixed_chunk_decodes_ride_along_and_cost_a_token_of_the_chunk() -> None:
    engine = sglang(chunked_prefill_size=8, enable_mixed_chunk=True)
    story = drive(engine, [Arrival(0, 4, 5), Arrival(0.0001, 20, 1)])
    assert story.plans[1:4] == [
        [(1, 7, 0, P), (0, 1, 4, D)],
        [(1, 7, 7, P), (0, 1, 5, D)],
        [(1, 6, 14, P), (0, 1, 6, D)],
    ]


def test_without_chunking_a_prompt_above_max_prefill_tokens_runs_alone() -> None:
    """SG-3: the one exception."""
    engine = sglang(chunked_prefill_size=-1, max_prefill_tokens=10)
    story = drive(engine, [Arrival(0, 30, 1), Arrival(0, 4, 1), Arrival(0, 5, 1)])
    assert story.plans == [[(0, 30, 0, P)], [(1, 4, 0, P), (2, 5, 0, P)]]


def test_out_of_memory_the_one_with_the_least_output_is_retracted_to_the_end() -> None:
    """30 tokens of KV. Together they fill it after 7 decodes; 1 goes, is prefilled again (8 + 8), and ends."""
    engine = sglang(30, schedule_conservativeness=0.1)
    story = drive(engine, [Arrival(0, 8, 10, to_length=False), Arrival(0, 8, 10, to_length=False)])
    assert story.plans[:2] == [[(0, 8, 0, P)], [(1, 8, 0, P)]]
    assert story.plans[2:9] == [[(0, 1, 8 + i, D), (1, 1, 8 + i, D)] for i in range(7)]
    assert story.plans[9:] == [
        [(0, 1, 15, D)],
        [(0, 1, 16, D)],
        [(1, 16, 0, P)],
        [(1, 1, 16, D)],
    ]
    assert story.preempted == [1]


def test_after_a_retraction_the_ratio_rises() -> None:
    """(8 generated + 20) / 10 wanted is above 1: all that is still wanted is reserved."""
    engine = sglang(30, schedule_conservativeness=0.1)
    ratios = []
    drive(
        engine,
        [Arrival(0, 8, 10, to_length=False), Arrival(0, 8, 10, to_length=False)],
        lambda plan, state: ratios.append(state.note.ratio),
    )
    assert ratios[0] == pytest.approx(0.07)
    assert ratios[9] == 1.0


def test_a_request_that_ignores_eos_is_reserved_in_full() -> None:
    """20 tokens of KV, 0 needs up to 12 more: 1 (need 4 + 2 + 1) waits unless only 0.7 of that is kept free."""
    arrivals = [Arrival(0, 4, 10), Arrival(0.0001, 4, 2, to_length=False)]
    honest = drive(sglang(20), arrivals)
    assert honest.plans[1] == [(0, 1, 4, D)]
    hopeful = drive(sglang(20), [Arrival(0, 4, 10, to_length=False), arrivals[1]])
    assert hopeful.plans[1] == [(1, 4, 0, P)]


@pytest.mark.parametrize(("gpu", "chunk"), [("A100", 8192), ("H200", 8192), ("B200", 8192)])
def test_in_0_4_two_sizes_are_enough(gpu: str, chunk: int) -> None:
    options = Sglang042Options().resolved(GPUS[gpu], 32_768)
    assert (options.chunked_prefill_size, options.schedule_policy, options.mem_fraction_static) == (chunk, "lpm", 0.88)


@pytest.mark.parametrize(("kind", "admitted"), [(Sglang042Options, 2), (SglangOptions, 1)], ids=["0.4.2", "0.5.23"])
def test_in_0_4_a_prompt_needs_no_page_beyond_its_tokens(kind: type[SglangOptions], admitted: int) -> None:
    """100 tokens of KV. 0 takes 10 and keeps 10, so 1 (70 + 9) is below the 80 left; with a page each it is not below 79."""
    story = drive(sglang(100, kind), [Arrival(0, 10, 10), Arrival(0, 70, 9)])
    assert len(story.plans[0]) == admitted


@pytest.mark.parametrize(("isl", "admitted"), [(40, 2), (41, 1)])
def test_in_0_4_prompts_of_max_prefill_tokens_together_are_one_batch(isl: int, admitted: int) -> None:
    """Chunked or not: a prompt above what 60 tokens leave of 100 waits, one that fits exactly does not."""
    story = drive(sglang(kind=Sglang042Options, max_prefill_tokens=100), [Arrival(0, 60, 2), Arrival(0, isl, 2)])
    assert len(story.plans[0]) == admitted


def test_in_0_4_a_retracted_request_asks_for_all_of_its_output_again() -> None:
    """21 tokens of KV. 2 and 0 are retracted; 2 is back first and holds 11. 0 lacks one token, but asks for 7 + 4: it waits."""
    engine = sglang(21, Sglang042Options, schedule_conservativeness=0.1)
    story = drive(engine, [Arrival(0, 4, 4), Arrival(0, 3, 4), Arrival(0, 8, 5)])
    assert story.preempted == [2, 0]
    assert story.plans[5:] == [[(2, 11, 0, P)], [(2, 1, 11, D)], [(0, 7, 0, P)]]


@pytest.mark.parametrize(("kv_tokens", "admitted"), [(101, 2), (100, 1)])
def test_in_0_4_without_a_cache_one_that_ignores_eos_needs_room_at_the_ends_to_come(kv_tokens: int, admitted: int) -> None:
    """After 40 for 0, 101 leave 61 for the 40 of 1: at the end of 0, in 10 steps, 21 less 2 x 10 are left. Of 100, none are.

    With a cache 1 would ask for 40 + 30 of the 51 that 0 leaves.
    """
    flags = {"disable_radix_cache": True}
    arrivals = [Arrival(0, 40, 10), Arrival(0, 40, 30)]
    story = drive(sglang(kv_tokens, Sglang042Options, **flags), arrivals)
    assert len(story.plans[0]) == admitted
    assert story.preempted == []
    assert len(drive(sglang(kv_tokens, Sglang042Options), arrivals).plans[0]) == 1


def test_in_0_4_a_prompt_in_progress_takes_its_chunk_of_what_is_reserved_for_others_too() -> None:
    """In step 5, 80 of 124 tokens are held and 0.7 x (15 + 26 + 5) = 32.2 reserved: 0.5.23 would compute 11, not 16."""
    flags = {"disable_radix_cache": True, "chunked_prefill_size": 16}
    work = [Arrival(0, 19, 16), Arrival(0, 18, 27), Arrival(0, 21, 6), Arrival(0, 40, 4)]
    story = drive(sglang(124, Sglang042Options, **flags), work)
    assert story.plans[3:7] == [[(2, 10, 11, P), (3, 6, 0, P)], [(3, 16, 6, P)], [(3, 16, 22, P)], [(3, 2, 38, P)]]


def test_in_0_4_eagle_turns_chunks_tree_and_overlap_off() -> None:
    options = Sglang042Options(speculative_algorithm="EAGLE").resolved(GPUS["H200"], 32_768)
    assert (options.chunked_prefill_size, options.disable_radix_cache, options.disable_overlap_schedule) == (-1, True, True)
    steps = options.speculative_num_steps, options.speculative_eagle_topk, options.speculative_num_draft_tokens
    assert steps == (5, 8, 64)


@pytest.mark.parametrize("drafter", ["EAGLE3", "NEXTN", "NGRAM"])
def test_in_0_4_there_is_eagle_alone(drafter: str) -> None:
    with pytest.raises(UsageError, match=f"{drafter} does not exist in SGLang 0.4.2"):
        Sglang042Options(speculative_algorithm=drafter).resolved(GPUS["H200"], 32_768)


@pytest.mark.parametrize("flags", [{"chunked_prefill_size": 2048}, {"enable_mixed_chunk": True}], ids=str)
def test_in_0_4_eagle_with_chunks_is_refused_and_says_why(flags: dict) -> None:
    with pytest.raises(UsageError, match="turns chunked prefill, radix cache and overlap off"):
        Sglang042Options(speculative_algorithm="EAGLE", **flags).resolved(GPUS["H200"], 32_768)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"enable_mixed_chunk": True, "speculative_algorithm": "EAGLE3"}, "speculation turns it off"),
        ({"enable_mixed_chunk": True, "chunked_prefill_size": -1}, "needs chunked prefill"),
        ({"chunked_prefill_size": 100, "page_size": 64}, "multiple of --page-size"),
    ],
    ids=str,
)
def test_flags_that_make_no_sense_are_refused(flags: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SglangOptions(**flags).resolved(GPUS["H200"], 32_768)


def test_a_long_queue_is_served_first_come_first_served_even_under_lpm() -> None:
    """128 requests are ordered by what they find, 129 are not."""
    for n, expected in ((128, 127), (129, 0)):
        engine = sglang(schedule_policy="lpm", chunked_prefill_size=64, max_running_requests=1)
        first = engine.submit(100, 1, 0.0, content=prompt_content(0, 100, group=0, prefix_tokens=100))
        now_s = 0.0
        while first.finish is None:
            now_s += engine.begin(now_s)
            engine.end(now_s)
        for _ in range(1, n):
            engine.submit(50, 1, now_s)
        last = engine.submit(120, 1, now_s, content=prompt_content(n, 120, group=0, prefix_tokens=100))
        engine.begin(now_s)
        assert (engine.step.chunks[0].sequence is last) == (expected != 0), n


def test_speculation_has_48_places_unless_more_are_asked_for() -> None:
    options = SglangOptions(speculative_algorithm="EAGLE3").resolved(GPUS["H200"], 32_768)
    assert options.max_running(1 << 20) == 48
    asked = SglangOptions(speculative_algorithm="EAGLE3", max_running_requests=200).resolved(GPUS["H200"], 32_768)
    assert asked.max_running(1 << 20) == 200


@pytest.mark.parametrize(("gpu", "chunk"), [("A100", 8192), ("H200", 8192), ("B200", 16384), ("MI300X", 16384)])
def test_the_chunk_goes_by_gpu_memory(gpu: str, chunk: int) -> None:
    assert SglangOptions().resolved(GPUS[gpu], 32_768).chunked_prefill_size == chunk


@pytest.mark.parametrize(
    ("kv_tokens", "context", "places"),
    [(1000, 32_768, 500), (2_000_000, 32_768, 4096), (2_000_000, 262_144, 3906), (500_000, 131_072, 2048)],
)
def test_places_go_by_kv_memory(kv_tokens: int, context: int, places: int) -> None:
    assert SglangOptions(context_length=context).max_running(kv_tokens) == places
