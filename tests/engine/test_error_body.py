"""Error bodies: every shape that servers use, read into one, and made safe to show."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longbench_sched.engine.error_body import ServerError, clean, read_error, read_error_body


@pytest.mark.parametrize(
    ("body", "error"),
    [
        pytest.param(
            {"error": {"message": "too long", "type": "BadRequestError", "param": "input_tokens", "code": 400}},
            ServerError("too long", "BadRequestError", 400), id="vLLM",
        ),
        pytest.param(
            {"object": "error", "message": "too long", "type": "BadRequestError", "param": None, "code": 400},
            ServerError("too long", "BadRequestError", 400), id="SGLang over HTTP, trtllm-serve",
        ),
        pytest.param(
            {"error": {"object": "error", "message": "full", "type": "SERVICE_UNAVAILABLE", "param": None, "code": 503}},
            ServerError("full", "SERVICE_UNAVAILABLE", 503), id="SGLang in a stream",
        ),
        pytest.param(
            {"error": {"message": "bad", "type": "invalid_request_error", "code": 400, "retryable": False}},
            ServerError("bad", "invalid_request_error", 400), id="SGLang /generate",
        ),
        pytest.param(
            {"message": "Model not found", "type": "Not Found", "code": 404},
            ServerError("Model not found", "Not Found", 404), id="Dynamo",
        ),
        pytest.param(
            {"error": {"code": 400, "message": "exceeds", "type": "exceed_context_size_error", "n_ctx": 8192}},
            ServerError("exceeds", "exceed_context_size_error", 400), id="llama.cpp",
        ),
        pytest.param({"error": "1 validation error"}, ServerError("1 validation error"), id="trtllm-serve schema, Triton"),
        pytest.param({"detail": "Not Found"}, ServerError("Not Found"), id="FastAPI"),
        pytest.param(
            {"detail": [{"loc": ["body", "max_tokens"], "msg": "not an int"}, {"msg": "also"}]},
            ServerError("body.max_tokens: not an int; also"), id="FastAPI validation",
        ),
        pytest.param({"error": {"message": "x", "type": None, "code": "429"}}, ServerError("x", None, 429), id="code as text"),
        pytest.param({"error": {"message": "x", "code": "rate_limit"}}, ServerError("x"), id="code that is a word"),
        pytest.param({"error": {"reason": "x"}}, ServerError('{"reason":"x"}'), id="an object without a message"),
        pytest.param({"error": True}, ServerError("true"), id="an error that says nothing"),
        pytest.param({"error": {"a": 2**64}}, ServerError('{"a":18446744073709551616}'), id="a number over 64 bits"),
        pytest.param({"error": {"a": "\ud83d"}}, ServerError('{"a":"\ud83d"}'), id="half a surrogate pair"),
        pytest.param({"error": {"a": float("nan")}}, ServerError('{"a":NaN}'), id="not a number"),
        pytest.param(
            {"error": json.loads("[" * 300 + "]" * 300)}, ServerError("[" * 300 + "]" * 300), id="nested 300 deep"
        ),
    ],
)  # fmt: skip
def test_every_shape_is_read(body: object, error: ServerError) -> None:
    assert read_error(body) == error


@pytest.mark.parametrize("body", [{}, {"choices": []}, {"error": None}, {"detail": []}, {"message": ""}, [], "error", None, 5])
def test_what_is_no_error_is_none(body: object) -> None:
    assert read_error(body) is None


def test_the_detail_names_type_and_message_once() -> None:
    assert ServerError("boom", "InternalServerError").detail == "InternalServerError: boom"
    assert ServerError("ValueError: boom", "ValueError").detail == "ValueError: boom"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b2Jgone", "gone"),
        ("a\r\n\tb\x00c", "a b c"),
        ("safe\u202egnp", "safe gnp"),
        ("ünï 中", "ünï 中"),
        (b"\xff\xfeok", "��ok"),
        ("\ud83d", "?"),
    ],
)
def test_nothing_a_terminal_obeys_is_kept(text: str | bytes, shown: str) -> None:
    assert clean(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("x" * 500, "x" * 500),
        ("x" * 501, "x" * 497 + "…"),  # the ellipsis takes 3 bytes
        ("中" * 400, "中" * 165 + "…"),  # 165 x 3 = 495; one more would be 498 + 3
        ("é" * 300, "é" * 248 + "…"),
    ],
)
def test_at_most_500_bytes_are_kept(text: str, shown: str) -> None:
    assert clean(text) == shown
    assert len(shown.encode()) <= 500


@given(st.text() | st.binary())
def test_cleaned_text_is_short_printable_utf8(text: str | bytes) -> None:
    shown = clean(text)
    assert len(shown.encode()) <= 500
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in shown)


def test_a_body_that_is_no_json_is_quoted() -> None:
    assert read_error_body(b"<html>\n502") == "<html> 502"
    assert read_error_body(b'{"error":{"message":"no"}}') == "no"
    assert read_error_body(b'{"odd":1}') == '{"odd":1}'
