"""Our events under the definitions of other tools: one hand-made run whose figures are worked out for each of them."""

from __future__ import annotations

import pytest
from handmade import failed, row, run_of

from longbench_sched.errors import UsageError
from longbench_sched.metrics.conventions import TOOLS, Foreign, convert
from longbench_sched.record import Reason
from longbench_sched.run import Run


def example(api: str = "completions", *, finish_apart: bool = False) -> Run:
    """Two answers of 5 tokens, and a failure that ends last.

    a: sent 0, events at 100, 140, 160 ms with 2, 2, 1 tokens; the answer ends at 170 ms.
    b: sent 50, events at 250 ... 290 ms, 10 ms apart, 1 token each; the answer ends at 300 ms.
    failed: sent 100, ends at 500 ms.
    """
    a = row(0.0, [100.0, 140.0, 160.0], tokens=[2, 2, 1], end=170.0, isl=10)
    b = row(50.0, [250.0, 260.0, 270.0, 280.0, 290.0], index=1, end=300.0, isl=30)
    if finish_apart:
        assert a.end_ns is not None
        a.decoded.finish_ns = a.end_ns - 4_000_000  # at 166 ms
    return run_of([a, b, failed(Reason.RESET, sent=100.0, end=500.0, index=2)], target={"engine": "vllm", "api": api})


def figures(run: Run, tool: str) -> dict[str, Foreign]:
    return {figure.name: figure for figure in convert(run, tool).figures}


def test_vllm_takes_one_token_from_the_first_chunk_and_raw_gaps_for_itl() -> None:
    found = figures(example(), "vllm")
    assert found["TTFT"].mean == pytest.approx((0.1 + 0.2) / 2)
    assert found["TPOT"].mean == pytest.approx((0.060 / 4 + 0.040 / 4) / 2)
    assert found["ITL"].mean == pytest.approx((0.040 + 0.020 + 4 * 0.010) / 6)
    assert (found["ITL"].n, found["ITL"].p50) == (6, pytest.approx(0.010))
    assert found["E2EL"].mean == pytest.approx((0.160 + 0.240) / 2)
    # 0.5 s from the first send to the end of the failure.
    assert found["Request throughput (req/s)"].mean == pytest.approx(2 / 0.5)
    assert found["Output token throughput (tok/s)"].mean == pytest.approx(10 / 0.5)
    assert found["Total token throughput (tok/s)"].mean == pytest.approx(50 / 0.5)


def test_vllm_counts_a_finish_reason_that_comes_by_itself_as_a_gap() -> None:
    found = figures(example(finish_apart=True), "vllm")
    assert found["ITL"].n == 7
    assert found["E2EL"].mean == pytest.approx((0.166 + 0.240) / 2)
    assert found["TPOT"].mean == pytest.approx((0.066 / 4 + 0.040 / 4) / 2)


def test_sglang_goes_to_the_end_of_the_answer_and_spreads_gaps_on_generate_only() -> None:
    found = figures(example("generate"), "sglang")
    assert found["E2E Latency"].mean == pytest.approx((0.170 + 0.250) / 2)
    assert found["TPOT"].mean == pytest.approx((0.070 / 4 + 0.050 / 4) / 2)
    # a: 40 ms for two tokens, 20 ms for one; b: four of 10 ms.
    assert (found["ITL"].n, found["ITL"].mean) == (7, pytest.approx((0.040 + 0.020 + 0.040) / 7))
    assert found["Concurrency"].mean == pytest.approx((0.170 + 0.250) / 0.5)
    raw = figures(example(), "sglang")["ITL"]
    assert (raw.n, raw.mean) == (6, pytest.approx(0.100 / 6))


def test_guidellm_has_the_first_token_in_its_tpot() -> None:
    found = figures(example(), "guidellm")
    assert found["Time Per Output Token"].mean == pytest.approx((0.160 / 5 + 0.240 / 5) / 2)
    assert found["Inter Token Latency"].mean == pytest.approx((0.060 / 4 + 0.040 / 4) / 2)
    assert found["Request Latency"].mean == pytest.approx((0.170 + 0.250) / 2)


def test_aiperf_calls_tpot_itl_and_the_gap_between_chunks_icl() -> None:
    found = figures(example(), "aiperf")
    assert found["Time to Second Token"].mean == pytest.approx((0.040 + 0.010) / 2)
    assert found["Inter Token Latency"].mean == pytest.approx((0.015 + 0.010) / 2)
    assert found["Inter Chunk Latency"].n == 6
    assert found["Output Token Throughput Per User"].mean == pytest.approx((1 / 0.015 + 1 / 0.010) / 2)
    assert found["Request Latency"].mean == pytest.approx((0.160 + 0.240) / 2)
    assert found["Output Token Throughput"].mean == pytest.approx(20.0)


def test_vllm_begins_a_chat_with_its_role_event() -> None:
    chat = row(0.0, [100.0, 110.0], first_byte=40.0, end=120.0)
    run = run_of([chat], target={"engine": "vllm", "api": "chat"})
    found = figures(run, "vllm")
    assert (found["TTFT"].mean, found["E2EL"].mean) == (pytest.approx(0.040), pytest.approx(0.110))
    assert (found["ITL"].n, found["ITL"].mean) == (2, pytest.approx((0.060 + 0.010) / 2))
    assert found["TPOT"].mean == pytest.approx(0.070)
    assert figures(run, "guidellm")["Time to First Token"].mean == pytest.approx(0.100)


@pytest.mark.parametrize(("tool", "n"), [("vllm", 1), ("sglang", 1), ("guidellm", 2), ("aiperf", 2)])
def test_answers_with_comments_are_failures_to_tools_that_cannot_read_them(tool: str, n: int) -> None:
    commented = row(0.0, [100.0, 110.0], end=120.0)
    commented.decoded.n_comments = 1
    converted = convert(run_of([commented, row(0.0, [100.0, 110.0], index=1, end=120.0)]), tool)
    assert converted.figures[0].n == n
    assert any("SSE comments" in note for note in converted.notes) == (n == 1)


@pytest.mark.parametrize(
    ("tool", "api", "n"),
    [
        ("vllm", "completions", 2), ("vllm", "chat", 2), ("sglang", "completions", 1), ("sglang", "chat", 2),
        ("sglang", "generate", 2), ("guidellm", "chat", 1), ("aiperf", "chat", 2),
    ],
)  # fmt: skip
def test_an_error_inside_the_stream_is_no_failure_to_some_tools(tool: str, api: str, n: int) -> None:
    broke = failed(Reason.IN_BAND_ERROR, sent=0.0, chunks=[100.0, 110.0], end=120.0, index=1, http_status=200)
    run = run_of([row(0.0, [100.0, 110.0], end=120.0), broke], target={"engine": "vllm", "api": api})
    converted = convert(run, tool)
    assert converted.figures[0].n == n
    assert any("successes to the tool" in note for note in converted.notes) == (n == 2)


def test_an_answer_that_is_only_an_error_is_a_failure_to_vllm_and_a_ttft_of_0_to_sglang() -> None:
    error = failed(Reason.IN_BAND_ERROR, sent=0.0, end=20.0, first_byte=20.0, index=1, http_status=200)
    run = run_of([row(0.0, [100.0, 110.0], first_byte=100.0, end=120.0), error], target={"engine": "vllm", "api": "chat"})
    assert (figures(run, "vllm")["TTFT"].n, figures(run, "vllm")["TTFT"].mean) == (1, pytest.approx(0.100))
    assert (figures(run, "sglang")["TTFT"].n, figures(run, "sglang")["TTFT"].mean) == (2, pytest.approx(0.050))
    assert figures(run, "aiperf")["Time to First Token"].n == 1


def test_sglang_takes_the_tokens_that_were_asked_for_where_it_asks_for_no_count() -> None:
    run = run_of([row(0.0, [100.0, 140.0], end=150.0, osl=6, isl=10, prompt=14)])
    found = figures(run, "sglang")
    assert found["TPOT"].mean == pytest.approx(0.050 / 5)
    assert found["Total token throughput (tok/s)"].mean == pytest.approx(16 / 0.150)


def test_guidellm_weighs_answers_by_their_tokens_and_takes_values_that_there_are() -> None:
    short, long = row(0.0, [100.0, 110.0], end=110.0), row(0.0, [100.0, 200.0], tokens=[1, 5], index=1, end=200.0)
    found = figures(run_of([short, long]), "guidellm")
    assert (found["Inter Token Latency"].n, found["Inter Token Latency"].mean) == (6, pytest.approx((0.010 + 5 * 0.020) / 6))
    assert found["Inter Token Latency"].p50 == pytest.approx(0.020)
    assert found["Time Per Output Token"].mean == pytest.approx((0.110 + 0.200) / 8)
    assert found["Request Latency"].p50 == pytest.approx(0.110)


def test_aiperf_gives_an_answer_in_a_single_chunk_an_itl_of_0() -> None:
    found = figures(run_of([row(0.0, [100.0], tokens=[5], end=110.0)]), "aiperf")
    assert (found["Inter Token Latency"].n, found["Inter Token Latency"].mean) == (1, 0.0)
    assert found["Output Token Throughput Per User"].n == 0


def test_an_answer_of_one_token_has_no_time_per_token_anywhere() -> None:
    run = run_of([row(0.0, [100.0], end=110.0)])
    for tool, name in (
        ("vllm", "TPOT"),
        ("sglang", "TPOT"),
        ("guidellm", "Inter Token Latency"),
        ("aiperf", "Inter Token Latency"),
    ):
        assert figures(run, tool)[name].mean is None
    assert figures(run, "guidellm")["Time Per Output Token"].mean == pytest.approx(0.1)


@pytest.mark.parametrize("tool", TOOLS)
def test_what_is_not_known_is_absent(tool: str) -> None:
    converted = convert(run_of([row(0.0, [100.0, 200.0], tokens=None, output=None)]), tool)
    assert any("no token count" in note for note in converted.notes)
    nothing = convert(run_of([failed(Reason.RESET, sent=0.0, end=5.0)]), tool)
    assert all(figure.p50 is None for figure in nothing.figures)


def test_a_tool_that_is_not_known_is_answered_with_those_that_are() -> None:
    with pytest.raises(UsageError, match="Known: vllm, sglang, guidellm, aiperf"):
        convert(example(), "wrk")
