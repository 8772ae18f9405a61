"""Flags that name an engine are refused with a remedy; secrets stay out of what is shown."""

from __future__ import annotations

from typing import Any

import pytest

from longbench_sched.cli import engine_flags
from longbench_sched.errors import UsageError
from longbench_sched.target import Target


@pytest.mark.parametrize("line", ["X-Team: a\r\nHost: evil", "X-Team: a\nb", "X-T\ream: a", "X: \0"])
def test_a_line_break_in_a_header_is_refused(line: str) -> None:
    with pytest.raises(UsageError, match="refused"):
        engine_flags.read_headers([line])


@pytest.mark.parametrize("line", ["X-Team", "", ": a", "X Team: a", "X\u00dc: a", "Content(1): a"])
def test_a_header_needs_a_name_that_http_allows(line: str) -> None:
    with pytest.raises(UsageError, match="NAME:VALUE"):
        engine_flags.read_headers([line])


def test_a_header_value_is_not_repeated_in_an_error() -> None:
    with pytest.raises(UsageError) as caught:
        engine_flags.read_headers(["Authorization: secret-\u4e2d"])
    assert "secret" not in str(caught.value)


def test_headers_are_split_at_the_first_colon() -> None:
    assert engine_flags.read_headers(["X-Team: a", "X-Url:http://h:1"]) == (("X-Team", "a"), ("X-Url", "http://h:1"))


def test_the_key_comes_from_the_variable_asked_for() -> None:
    environ = {"OPENAI_API_KEY": "one", "OTHER": "two"}
    assert engine_flags.read_api_key(None, environ) == "one"
    assert engine_flags.read_api_key("OTHER", environ) == "two"
    assert engine_flags.read_api_key(None, {}) is None
    with pytest.raises(UsageError, match="MISSING: that variable is not set"):
        engine_flags.read_api_key("MISSING", environ)


def test_a_key_with_a_line_break_is_refused_and_not_shown() -> None:
    with pytest.raises(UsageError) as caught:
        engine_flags.read_api_key(None, {"OPENAI_API_KEY": "secret\nX: y"})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"engine": "vlm"}, "no engine named 'vlm'. Known: vllm, sglang, trtllm, triton, openai."),
        ({"engine": "vllm", "api": "generate"}, "--engine vllm has no --api generate. Known: completions, chat."),
        ({"engine": "vllm", "api": "complete"}, "--api 'complete' is not known. Known: completions, chat, generate."),
        ({"engine": "vllm", "count": "some"}, "--count 'some' is not known. Known: full, final."),
        ({"engine": "vllm", "base_url": "gpu7:8000"}, "is not an http:// or https:// address"),
        ({"engine": "vllm", "model": "caf\udce9"}, r"--model 'caf\udce9' is not UTF-8 text"),
        ({"engine": "vllm", "base_url": "http://a/\udce9"}, r"--base-url 'http://a/\udce9' is not UTF-8 text"),
    ],
    ids=["engine", "api-of-another-engine", "api", "count", "base-url", "model-not-text", "base-url-not-text"],
)
def test_a_target_that_does_not_exist_is_refused_with_what_does(flags: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(**flags)
    assert message in str(caught.value)


def test_a_model_of_letters_that_the_locale_lacks_is_taken_by_its_bytes() -> None:
    assert read(engine="vllm", model="caf\udcc3\udca9").model == "café"  # as Python reads UTF-8 in the locale C


def test_triton_speaks_generate_and_the_others_completions_by_default() -> None:
    assert [read(engine=name).api for name in ("vllm", "sglang", "trtllm", "openai", "triton")] == [
        "completions", "completions", "completions", "completions", "generate",
    ]  # fmt: skip


def read(**flags: str) -> Target:
    """A target from flags, the rest as by default."""
    given: dict[str, Any] = {"base_url": "http://127.0.0.1:8000", "model": None, "api": None, "count": "full"} | flags
    return engine_flags.read_target(**given, headers=[], api_key=None)
