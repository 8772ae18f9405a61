"""Server-sent events: what is cut out of the bytes, whatever pieces they come in."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longbench_sched.engine.sse import EventSplitter


def _split(pieces: list[bytes]) -> tuple[list[tuple[bytes, bytes]], int, bool]:
    splitter = EventSplitter()
    events = [event for piece in pieces for event in splitter.feed(piece)]
    return events, splitter.n_comments, splitter.is_unfinished


def _cut(body: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted({i % (len(body) + 1) for i in at}), len(body)]
    return [body[a:b] for a, b in pairwise(edges)]


@pytest.mark.parametrize(
    ("body", "payloads"),
    [
        pytest.param(b"data: a\n\ndata: b\n\n", [b"a", b"b"], id="LF"),
        pytest.param(b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"], id="CRLF"),
        pytest.param(b"data: a\r\rdata: b\r\r", [b"a", b"b"], id="CR"),
        pytest.param(b"data: a\r\n\ndata: b\n\r\n", [b"a", b"b"], id="mixed line ends"),
        pytest.param(b"data:a\n\n", [b"a"], id="no space after the colon"),
        pytest.param(b"data: {} \n\n", [b"{}"], id="space before the line end"),
        pytest.param(b"data: a\ndata: b\n\n", [b"a\nb"], id="two data lines are one event"),
        pytest.param(b"data\ndata: b\n\n", [b"b"], id="data without a colon is an empty line"),
        pytest.param(b"\n\n\ndata: a\n\n\n\n", [b"a"], id="blank events are nothing"),
        pytest.param(b"id: 7\nretry: 10\nx: y\ndata: a\n\n", [b"a"], id="other fields are passed over"),
        pytest.param(b"id: 7\n\n", [], id="an event without data is nothing"),
        pytest.param(b"data: a: b\n\n", [b"a: b"], id="only the first colon divides"),
        pytest.param(b"\xef\xbb\xbfdata: a\n\n", [b"a"], id="byte order mark"),
        pytest.param(b"database: a\n\n", [], id="a field that only begins like data"),
        pytest.param(b"data: 0\r\n\r\ndata: a\n\n", [b"0", b"a"], id="an event that looks like the last chunk"),
    ],
)
def test_events_are_cut_as_the_standard_says(body: bytes, payloads: list[bytes]) -> None:
    assert [payload for payload, _ in _split([body])[0]] == payloads
    assert [payload for payload, _ in _split([bytes([byte]) for byte in body])[0]] == payloads


def test_b04_comments_are_counted_and_not_parsed() -> None:
    body = b":\n\n: keep-alive\n\n:\r\ndata: a\n: in an event\n\n"
    assert _split([body]) == ([(b"a", b"")], 4, False)


def test_the_name_of_an_event_ends_with_it() -> None:
    body = b"event: sglext_ids\ndata: a\n\ndata: b\n\nevent: gone\n\ndata: c\n\n"
    assert _split([body])[0] == [(b"a", b"sglext_ids"), (b"b", b""), (b"c", b"")]


@pytest.mark.parametrize(
    ("tail", "is_unfinished"),
    [(b"", False), (b"data: b", True), (b"data: b\n", True), (b"da", True), (b": keep", False), (b": keep\n", False)],
)
def test_an_event_that_the_body_leaves_unfinished_is_dropped(tail: bytes, is_unfinished: bool) -> None:
    assert _split([b"data: a\n\n" + tail]) == ([(b"a", b"")], int(tail == b": keep\n"), is_unfinished)


@pytest.mark.parametrize("size", [131_073, 524_289, 300_000, 5_000_000])
def test_b01_b02_lines_of_any_length_come_in_small_pieces(size: int) -> None:
    body = b"data: " + b"x" * (size - 6) + b"\n\n"
    events, _, _ = _split([body[i : i + 1448] for i in range(0, len(body), 1448)])
    assert [len(payload) for payload, _ in events] == [size - 6]


def test_a_split_character_stays_whole() -> None:
    """B-03: E4 | B8 AD is U+4E2D."""
    assert _split([b"data: \xe4", b"\xb8\xad\n\n"])[0] == [("中".encode(), b"")]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"data: ok\n\ndata: " + b"x" * 40 + b"\n\n", id="one long data line"),
        pytest.param(b"data: ok\n\n" + b"data: 12345\n" * 5 + b"\n", id="many data lines of one event"),
        pytest.param(b"data: ok\n\n:" + b"x" * 40 + b"\n\n", id="a long comment"),
        pytest.param(b"data: ok\n\n" + b"x" * 40, id="a line without an end"),
    ],
)
def test_an_event_over_the_bound_ends_the_reading(body: bytes) -> None:
    for pieces in ([body], [bytes([byte]) for byte in body]):
        splitter = EventSplitter(max_bytes=32)
        events = [event for piece in pieces for event in splitter.feed(piece)]
        assert splitter.too_large  # at once, not when the line or the event ends
        events += splitter.feed(b"\n\ndata: more\n\n")
        assert events == [(b"ok", b"")]


_LINES = st.lists(
    st.sampled_from(
        [
            b"data: {}",
            b"data:x",
            b"data",
            b": c",
            b":",
            b"event: e",
            b"id: 1",
            b"",
            b"",
            b"",
            b"\xef\xbb\xbf",
            "data: é中".encode(),
        ]
    ),
    max_size=12,
)


@given(
    lines=_LINES,
    ends=st.lists(st.sampled_from([b"\n", b"\r\n", b"\r"]), min_size=12, max_size=12),
    at=st.lists(st.integers(0, 400)),
)
def test_the_cut_never_changes_what_is_read(lines: list[bytes], ends: list[bytes], at: list[int]) -> None:
    body = b"".join(line + end for line, end in zip(lines, ends, strict=False))
    assert _split(_cut(body, at)) == _split([body])


def test_idle_says_that_a_new_event_begins() -> None:
    splitter = EventSplitter()
    assert not splitter.idle  # a byte order mark may come
    splitter.feed(b"\xef")
    assert not splitter.idle  # and has begun
    splitter.feed(b"\xbb\xbf")
    states = []
    for piece in (b"data: a\n\n", b"data: b", b"\n", b"\n", b"event: e\n", b"\n", b"data: c\r\n\r", b"\n", b": c\n"):
        splitter.feed(piece)
        states.append(splitter.idle)
    assert states == [True, False, False, True, False, True, False, True, True]
