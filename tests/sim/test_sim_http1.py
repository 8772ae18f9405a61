"""Requests from bytes, however they are cut; limits; heads of answers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longbench_sched.sim.http1 import MAX_BODY_BYTES, HttpMessage, ProtocolError, RequestReader, head

FIXED = b"POST /v1/completions?x=1&y=a%20b HTTP/1.1\r\nHost: h\r\nX-Request-ID: r7\r\nContent-Length: 11\r\n\r\nhello\r\n\r\nab"
CHUNKED = (
    b"POST /p HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;ext=1\r\n\r\n0\r\n\r\r\n0\r\nTrailer: t\r\n\r\n"
)
GET = b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n"


def read_all(pieces: list[bytes]) -> list[HttpMessage]:
    reader = RequestReader()
    found = []
    for piece in pieces:
        reader.feed(piece)
        while (message := reader.next()) is not None:
            found.append(message)
    assert reader.is_idle
    return found


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted({c % len(data) for c in cuts}), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@given(st.lists(st.integers(0, 10_000), max_size=12))
def test_requests_are_the_same_however_the_bytes_are_cut(cuts: list[int]) -> None:
    first, second, third = read_all(cut(FIXED + CHUNKED + GET, cuts))
    assert (first.method, first.path, first.query) == ("POST", "/v1/completions", {"x": "1", "y": "a b"})
    assert first.body == b"hello\r\n\r\nab"
    assert first.headers["x-request-id"] == "r7"
    assert first.keep_alive
    assert second.body == b"hello\r\n0\r\n\r"
    assert (third.method, third.path, third.body, third.keep_alive) == ("GET", "/health", b"", False)


def test_http_1_0_closes_unless_asked_to_stay() -> None:
    (plain,) = read_all([b"GET / HTTP/1.0\r\n\r\n"])
    (kept,) = read_all([b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"])
    assert (plain.keep_alive, kept.keep_alive) == (False, True)


def test_a_body_of_64_mib_is_taken_and_one_byte_more_is_not() -> None:
    reader = RequestReader()
    reader.feed(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % MAX_BODY_BYTES)
    assert reader.next() is None
    piece = bytes(1 << 20)
    for _ in range(64):
        reader.feed(piece)
    message = reader.next()
    assert message is not None
    assert len(message.body) == 64 << 20
    reader.feed(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1))
    with pytest.raises(ProtocolError) as caught:
        reader.next()
    assert caught.value.status == 413


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"HELLO\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nspace : x\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcde", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4000001\r\n", 413),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0" * 2000, 400),
        (b"GET / HTTP/1.1\r\nA: " + b"a" * (64 << 10), 431),
    ],
)
def test_what_is_no_request_is_refused(data: bytes, status: int) -> None:
    reader = RequestReader()
    reader.feed(data)
    with pytest.raises(ProtocolError) as caught:
        reader.next()
    assert caught.value.status == status


def test_a_client_that_waits_to_be_asked_for_its_body_is_noticed() -> None:
    reader = RequestReader()
    reader.feed(b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    assert reader.next() is None
    assert reader.wants_continue


def test_heads_of_whole_and_streamed_answers() -> None:
    assert head(404, {"a": "b"}, 2, "application/json") == (
        b"HTTP/1.1 404 Not Found\r\na: b\r\ncontent-length: 2\r\ncontent-type: application/json\r\n\r\n"
    )
    assert head(200, {}, None, "text/event-stream") == (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
