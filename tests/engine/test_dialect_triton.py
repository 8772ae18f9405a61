"""Triton's generate_stream: counts that may be totals or not, and an end without any mark."""

from __future__ import annotations

import pytest
from engine_events import decode, ms, sse, triton_text

from longbench_sched.record import Ending, Reason, Status


@pytest.mark.parametrize(
    ("counts", "osl", "tokens"),
    [
        pytest.param([1, 1, 1, 1], 4, [1, 1, 1, 1], id="one each"),
        pytest.param([1, 2, 3, 4], 4, [1, 1, 1, 1], id="totals"),
        pytest.param([1, 3, 4], 4, [1, 2, 1], id="totals with speculation"),
        pytest.param([1, 3, 4], 8, [1, 3, 4], id="the asked length decides: these are counts of one event"),
        pytest.param([1, 3, 4], 500, [1, 2, 1], id="cut short: what always rises is taken for totals"),
        pytest.param([2, 1, 3], 500, [2, 1, 3], id="what falls is no total"),
        pytest.param([1, 1, 2], 500, [1, 1, 2], id="what stands still is no total"),
        pytest.param([4], 4, [4], id="one event says nothing"),
    ],
)
def test_running_totals_are_told_from_counts_of_one_event(counts: list[int], osl: int, tokens: list[int]) -> None:
    script = [(10 * i, triton_text("x", n, 24)) for i, n in enumerate(counts)]
    decoded = decode("triton", script, osl=osl, ignore_eos=False)
    assert decoded.chunk_tokens.tolist() == tokens
    assert (decoded.status, decoded.output_tokens, decoded.prompt_tokens) == (Status.OK, sum(tokens), 24)


def test_a_last_event_with_text_stays_though_its_total_stands_still() -> None:
    script = [(1, triton_text("a", 1)), (2, triton_text("b", 2)), (3, triton_text("c", 2))]
    assert decode("triton", script).chunk_tokens.tolist() == [1, 1, 0]


def test_a_tensor_of_one_element_may_be_a_list() -> None:
    event = {"text_output": ["a"], "num_output_tokens": [1], "num_input_tokens": [24], "cum_log_probs": 0.0}
    decoded = decode("triton", [(1, sse(event))], osl=1)
    assert (decoded.status, decoded.output_tokens, decoded.prompt_tokens) == (Status.OK, 1, 24)


def test_the_end_of_the_body_is_the_end_of_the_answer() -> None:
    script = [(1, triton_text("a", 1)), (2, triton_text("b", 1))]
    decoded = decode("triton", script, osl=2)
    assert (decoded.status, decoded.finish_reason, decoded.finish_ns, decoded.marks) == (Status.OK, None, None, [])
    assert decode("triton", script, osl=2, ending=Ending.EOF).reason is Reason.CUT


def test_an_error_event_after_tokens_fails() -> None:
    decoded = decode("triton", [(1, triton_text("a", 1)), (2, sse({"error": "queue limit exceeded"}))])
    assert (decoded.reason, decoded.detail, decoded.chunk_at_ns.tolist()) == (
        Reason.IN_BAND_ERROR,
        "queue limit exceeded",
        [ms(1)],
    )
