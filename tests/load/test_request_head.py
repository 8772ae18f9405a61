"""Head lines, credentials and TLS contexts, without a socket."""

from __future__ import annotations

import errno
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
import scripted_server as scripted
from hypothesis import given
from hypothesis import strategies as st

from longbench_sched import __version__
from longbench_sched.engine.dialect import HttpRequest
from longbench_sched.errors import UsageError
from longbench_sched.load.request_head import common_lines, encode_head, head_lines, os_words, request_path, ssl_context
from longbench_sched.target import Endpoint, Target

BODY = b'{"a":1}'
HTTP_REQUEST = HttpRequest(
    "POST", "/v1/completions", (("Content-Type", "application/json"), ("Accept", "text/event-stream")), BODY
)


def make_target(url: str = "http://gpu7:8000", **fields: Any) -> Target:
    return Target(engine="vllm", endpoint=Endpoint.parse(url), model="m", **fields)


def test_the_lines_of_a_plain_request() -> None:
    assert head_lines(make_target(), HTTP_REQUEST, "run7-r0") == [
        ("Host", "gpu7:8000"),
        ("User-Agent", f"longbench-sched/{__version__}"),
        ("Accept", "text/event-stream"),
        ("Accept-Encoding", "identity"),
        ("Content-Type", "application/json"),
        ("Content-Length", "7"),
        ("X-Request-Id", "run7-r0"),
    ]


def test_the_head_as_bytes() -> None:
    assert encode_head("POST", "/p", [("Host", "a"), ("X-B", "c")]) == b"POST /p HTTP/1.1\r\nHost: a\r\nX-B: c\r\n\r\n"


@pytest.mark.parametrize(
    ("url", "host", "path"),
    [
        ("http://gpu7", "gpu7", "/v1/completions"),
        ("http://gpu7:8000/v1", "gpu7:8000", "/v1/completions"),
        ("https://gw/team/a/v1/", "gw", "/team/a/v1/completions"),
        ("http://[::1]:8000", "[::1]:8000", "/v1/completions"),
    ],
)
def test_host_and_path_follow_the_base_url(url: str, host: str, path: str) -> None:
    target = make_target(url)
    assert (dict(common_lines(target))["Host"], request_path(target, HTTP_REQUEST)) == (host, path)


@pytest.mark.parametrize(
    ("url", "api_key", "expected"),
    [
        ("http://h", None, None),
        ("http://h", "key", "Bearer key"),
        ("http://u:p%3A@h", None, "Basic dTpwOg=="),  # u:p:
        ("http://u:p%3A@h", "key", "Basic dTpwOg=="),
    ],
    ids=["none", "key", "url", "url-wins"],
)
def test_credentials(url: str, api_key: str | None, expected: str | None) -> None:
    assert dict(common_lines(make_target(url, api_key=api_key))).get("Authorization") == expected


def test_a_users_header_wins_over_ours_and_over_the_dialects() -> None:
    target = make_target(
        headers=(("authorization", "Token x"), ("accept", "*/*"), ("content-type", "application/x")), api_key="k"
    )
    lines = head_lines(target, HTTP_REQUEST, "id")
    lower = {name.lower(): value for name, value in lines}
    assert (lower["authorization"], lower["accept"], lower["content-type"]) == ("Token x", "*/*", "application/x")
    assert len(lower) == len(lines)


def test_a_users_header_may_be_given_twice() -> None:
    lines = common_lines(make_target(headers=(("X-A", "1"), ("X-A", "2"))))
    assert [value for name, value in lines if name == "X-A"] == ["1", "2"]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("X-A", "a\r\nX-B: c", "line break"),
        ("X-A", "a\nb", "line break"),
        ("X-A", "a\0", "line break"),
        ("X-A\r\nX-B", "a", "no name"),
        ("X A", "a", "no name"),
        ("", "a", "no name"),
        ("X-A", "\u20ac", "cannot carry"),
        ("Content-Length", "1", "set by this tool"),
        ("transfer-encoding", "chunked", "set by this tool"),
        ("X-REQUEST-ID", "1", "set by this tool"),
        ("Accept-Encoding", "gzip", "set by this tool"),
    ],
)
def test_a_header_that_cannot_be_sent_is_refused(name: str, value: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        common_lines(make_target(headers=((name, value),)))


def test_c09_the_value_of_a_refused_header_is_not_shown() -> None:
    with pytest.raises(UsageError) as error:
        common_lines(make_target(headers=(("X-Key", "s3cret\r\n"),)))
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize("key", ["a\r\nX: y", "schlüssel", "a\tb"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(UsageError) as error:
        common_lines(make_target(api_key=key))
    assert key not in str(error.value)


@given(name=st.text(max_size=20), value=st.text(max_size=40))
def test_no_header_begins_another(name: str, value: str) -> None:
    try:
        lines = head_lines(make_target(headers=((name, value),)), HTTP_REQUEST, "id")
    except UsageError:
        return
    head = encode_head("POST", "/", lines)
    assert head.count(b"\r\n") == len(lines) + 2
    assert head.count(b"\n") == head.count(b"\r") == len(lines) + 2


def test_tls_is_checked_unless_told_otherwise() -> None:
    assert ssl_context().verify_mode is ssl.CERT_REQUIRED
    assert ssl_context().check_hostname
    assert ssl_context(scripted.CA_FILE).verify_mode is ssl.CERT_REQUIRED
    insecure = ssl_context(insecure=True)
    assert (insecure.verify_mode, insecure.check_hostname) == (ssl.CERT_NONE, False)


def test_a_ca_file_is_trusted_alone() -> None:
    assert [dict(pair[0] for pair in cert["subject"]) for cert in ssl_context(scripted.CA_FILE).get_ca_certs()] == [
        {"commonName": "longbench-sched test CA"}
    ]


def test_a_ca_file_and_insecure_contradict_each_other() -> None:
    with pytest.raises(UsageError, match="contradict"):
        ssl_context(scripted.CA_FILE, insecure=True)


def test_a_ca_file_that_is_missing_is_named() -> None:
    with pytest.raises(UsageError, match=r"--ca-file 'no/such.pem' cannot be used: No such file"):
        ssl_context(Path("no/such.pem"))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 9)"), "connection refused"),
        (socket.gaierror(-2, "Name or service not known"), "name or service not known"),
        (OSError("Multiple exceptions:\n  a"), "multiple exceptions: a"),
        (RuntimeError(), "RuntimeError"),
    ],
    ids=["errno", "name", "text", "empty"],
)
def test_errors_of_the_system_in_a_few_words(error: BaseException, words: str) -> None:
    assert os_words(error) == words
