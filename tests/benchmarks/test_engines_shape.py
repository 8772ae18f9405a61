"""The shape of a stall: predictions are simulated, what is seen is scripted here, token by token."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest

from benchmarks.engines.__main__ import CASES
from benchmarks.engines.stall_shape import N_DECODES, Shape, judge, predict, watch
from longbench_sched.record import Decoded, Status, StreamRecord, TokenSource
from longbench_sched.run import ClientHealth, RecordTable, Run, RunMeta

MS = 1_000_000
CHUNKED = Shape(4, 3, False)
STANDSTILL = Shape(1, 0, True)


def record(row: int, lane: str, sent_ms: float, at_ms: Sequence[float], tokens: Sequence[int] | None = None) -> StreamRecord:
    tokens = tokens or [1] * len(at_ms)
    return StreamRecord(
        request_id=f"r{row}",
        index=row,
        lane=lane,
        phase="measured",
        isl=8000 if lane == "prefill" else 128,
        osl=sum(tokens),
        due_ns=0,
        slot_ns=0,
        sent_ns=round(sent_ms * MS),
        end_ns=round(at_ms[-1] * MS),
        http_status=200,
        decoded=Decoded(
            status=Status.OK,
            chunk_at_ns=array("q", [round(at * MS) for at in at_ms]),
            chunk_tokens=array("i", tokens),
            chunk_lateness_ns=array("q", [0] * len(at_ms)),
            output_tokens=sum(tokens),
            output_token_source=TokenSource.USAGE,
        ),
    )


def run_of(records: Sequence[StreamRecord]) -> Run:
    meta = RunMeta(
        run_id="r",
        started_at="2026-11-30T00:00:00.000+00:00",
        wall_anchor_ns=0,
        mono_anchor_ns=0,
        measured_from_ns=0,
        measured_to_ns=10,
        workload="joined",
        workload_text="",
        seed=0,
        digest="",
        plan={},
        target={},
        engine_facts={},
        host={},
        versions={},
        client=ClientHealth(clock="user", cpu_s=0, wall_s=1),
    )
    return Run(meta, RecordTable.from_records(records))


def steady(from_ms: float, n: int) -> list[float]:
    """Tokens at a usual gap of 10 ms."""
    return [from_ms + 10 * i for i in range(n)]


def joined(decode_ms: Sequence[float], first_ms: float, tokens: Sequence[int] | None = None) -> Run:
    """Three decodes with the same stamps, and a long prompt sent at 1000 ms."""
    decodes = [record(row, "decode", 0, [at + 0.3 * row for at in decode_ms], tokens) for row in range(N_DECODES)]
    return run_of([*decodes, record(9, "prefill", 1000, [first_ms, first_ms + 10])])


# The last token before the prompt is computed comes at 1020 ms.
BY_CHUNKS = [*steady(20, 101), 1520, 2120, 2920, *steady(3820, 50)]
AT_ONCE = [*steady(20, 101), *steady(3830, 50)]


@pytest.mark.parametrize("case", CASES)
def test_the_simulator_predicts_chunks_for_vllm_and_a_standstill_for_sglang(case: str) -> None:
    expected = {"vllm": CHUNKED, "sglang": STANDSTILL, "sglang-mixed": CHUNKED}
    assert predict(CASES[case].engine, CASES[case].flags) == expected[case]


def test_a_prediction_follows_the_budget() -> None:
    assert predict("vllm", ("--max-num-batched-tokens", "4096")) == Shape(2, 1, False)


def test_decodes_that_get_a_token_with_each_chunk() -> None:
    assert watch(joined(BY_CHUNKS, 3820)) == [CHUNKED] * 3
    assert judge(CHUNKED, watch(joined(BY_CHUNKS, 3821))) is None


def test_decodes_that_stand_still_until_the_prompt_is_done() -> None:
    assert watch(joined(AT_ONCE, 3820)) == [STANDSTILL] * 3
    assert judge(STANDSTILL, watch(joined(AT_ONCE, 3820))) is None


def test_one_engine_is_not_taken_for_the_other() -> None:
    said = judge(CHUNKED, watch(joined(AT_ONCE, 3820)))
    assert said == "3 of 3 decodes saw: 1 stall, no token between, then the prompt's first token before theirs"
    assert judge(STANDSTILL, watch(joined(BY_CHUNKS, 3820))) is not None


def test_tokens_are_counted_where_an_event_holds_several() -> None:
    tokens = [1] * len(BY_CHUNKS)
    tokens[102] = 2
    assert watch(joined(BY_CHUNKS, 3820, tokens))[0] == Shape(4, 4, False)


def test_decode_steps_between_chunks_are_seen() -> None:
    at_ms = [*steady(20, 101), *steady(1520, 5), 2120, 2920, *steady(3820, 50)]
    assert watch(joined(at_ms, 3820))[0] == Shape(4, 7, False)


def test_a_step_whose_tokens_are_sent_one_by_one_is_one_step() -> None:
    assert watch(joined(BY_CHUNKS, 3845))[0] == CHUNKED


def test_a_hiccup_of_the_machine_is_no_chunk() -> None:
    at_ms = [*steady(20, 80), *steady(870, 16), *BY_CHUNKS[101:]]  # 60 ms, before the prompt was sent
    at_ms[95] = 1069  # and once it was
    assert watch(joined(at_ms, 3820))[0] == CHUNKED


def test_decodes_that_ended_before_are_missed() -> None:
    run = run_of([record(0, "decode", 0, steady(20, 50)), record(9, "prefill", 1000, [3820, 3830])])
    assert watch(run) == []
    assert judge(CHUNKED, watch(run)) == "0 of 3 decodes ran from before the long prompt until after its first token"


def test_without_a_long_prompt_nothing_is_seen() -> None:
    assert watch(run_of([record(0, "decode", 0, steady(20, 50))])) == []
