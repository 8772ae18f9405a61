"""SGLang's own /generate: cumulative or incremental, and the ways it says no."""

from __future__ import annotations

import pytest
from engine_events import DONE, decode, ms, sglang_generate, sglang_text, sglang_usage, sse, usage, vllm_usage

from longbench_sched.engine.sglang import join_texts
from longbench_sched.record import Reason, Status


def test_events_that_were_skipped_leave_their_tokens_to_the_next() -> None:
    """A server whose reader lags sends only the newest of the cumulative events."""
    last = {"type": "length", "length": 9}
    script = [
        (1, sglang_generate("a", [1], 1)),
        (2, sglang_generate("abcdef", [1] * 6, 6)),
        (3, sglang_generate("x", [1] * 9, 9, last)),
    ]
    decoded = decode("sglang", [*script, (4, DONE)], api="generate", osl=9)
    assert decoded.chunk_tokens.tolist() == [1, 5, 3]
    assert (decoded.status, decoded.output_tokens, decoded.cached_tokens, decoded.reasoning_tokens) == (Status.OK, 9, 23, 0)


def test_an_event_without_new_tokens_is_no_token_event() -> None:
    script = [(1, sglang_generate("a", [1], 1)), (2, sglang_generate("a", [1], 1, {"type": "stop", "matched": 2})), (3, DONE)]
    decoded = decode("sglang", script, api="generate", osl=1)
    assert (decoded.chunk_at_ns.tolist(), decoded.finish_ns, decoded.finish_reason) == ([ms(1)], ms(2), "stop")


def test_output_without_a_tokenizer_has_counts_and_no_text() -> None:
    meta = {"finish_reason": {"type": "length", "length": 2}, "prompt_tokens": 24, "completion_tokens": 2, "cached_tokens": 0}
    decoded = decode("sglang", [(1, sse({"output_ids": [8, 9], "meta_info": meta})), (2, DONE)], api="generate", osl=2)
    assert (decoded.status, decoded.output_tokens, decoded.answer_at_ns) == (Status.OK, 2, None)


def test_a_full_queue_is_a_bad_finish_with_its_words() -> None:
    finish = {"type": "abort", "message": "The request queue is full.", "status_code": 503, "err_type": None}
    decoded = decode("sglang", [(1, sglang_generate("", [], 0, finish)), (2, DONE)], api="generate")
    assert (decoded.status, decoded.reason, decoded.error_code) == (Status.FAILED, Reason.BAD_FINISH, 503)
    assert decoded.detail == "The request queue is full."


def test_an_abort_that_repeats_the_last_token_adds_none() -> None:
    finish = {"type": "abort", "message": "gone"}
    script = [
        (1, sglang_generate("a", [8], 1)),
        (2, sglang_generate("b", [9], 2)),
        (3, sglang_generate("ab", [9], 2, finish)),
        (4, DONE),
    ]
    decoded = decode("sglang", script, api="generate")
    assert (decoded.reason, decoded.chunk_tokens.tolist(), decoded.output_tokens) == (Reason.BAD_FINISH, [1, 1], 2)


def test_bad_input_comes_as_an_event_of_a_200() -> None:
    error = {"error": {"message": "too long", "type": "invalid_request_error", "code": 400, "retryable": False}}
    decoded = decode("sglang", [(1, sse(error) + DONE)], api="generate")
    assert (decoded.reason, decoded.error_code, decoded.detail) == (
        Reason.IN_BAND_ERROR,
        400,
        "invalid_request_error: too long",
    )


def test_a_finish_reason_may_be_a_plain_word() -> None:
    decoded = decode("sglang", [(1, sglang_generate("a", [8], 1, "length")), (2, DONE)], api="generate", osl=1)
    assert (decoded.status, decoded.finish_reason) == (Status.OK, "length")


@pytest.mark.parametrize("usage_after", [True, False])
def test_a_full_queue_on_the_openai_route_comes_as_an_event_of_a_200(usage_after: bool) -> None:
    error = {
        "object": "error",
        "message": "The request queue is full.",
        "type": "SERVICE_UNAVAILABLE",
        "param": None,
        "code": 503,
    }
    tail = (sglang_usage(24, 0) if usage_after else b"") + DONE
    decoded = decode("sglang", [(1, sse({"error": error})), (2, tail)])
    assert (decoded.reason, decoded.error_code) == (Reason.IN_BAND_ERROR, 503)
    assert decoded.detail == "SERVICE_UNAVAILABLE: The request queue is full."


def test_an_sglext_event_is_passed_over() -> None:
    extension = sse({"id": "1", "object": "text_completion", "choices": [], "sglext": {"cached_tokens_details": {"device": 3}}})
    named = b"event: sglext_ids\n" + sse({"output_ids": [8]})
    script = [(1, sglang_text("a", "length", 1)), (2, extension + named + sse({"choices": [], "usage": usage(24, 1)}) + DONE)]
    decoded = decode("sglang", script, osl=1)
    assert (decoded.status, len(decoded.chunk_at_ns), decoded.output_tokens, decoded.marks) == (Status.OK, 1, 1, [])


def test_a_usage_event_without_choices_at_all_is_read() -> None:
    decoded = decode(
        "sglang", [(1, sglang_text("a", "length")), (2, sse({"usage": usage(24, 1)}) + vllm_usage(24, 1) + DONE)], osl=1
    )
    assert (decoded.status, decoded.output_tokens) == (Status.OK, 1)


@pytest.mark.parametrize(
    ("texts", "joined"),
    [([], ""), (["a"], "a"), (["a", "ab", "abc"], "abc"), (["a", "b", "c"], "abc"), (["a", "ab", "c"], "aabc")],
)
def test_texts_are_joined_or_the_last_holds_all(texts: list[str], joined: str) -> None:
    assert join_texts(texts) == joined
