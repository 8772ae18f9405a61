r"""Where an answer ends: heads, chunks, lengths and the end of the connection, however the bytes are cut."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scripted_server import chunk, chunked

from longbench_sched.load.framing import (
    MAX_HEAD_BYTES,
    MAX_SIZE_LINE_BYTES,
    MAX_TRAILER_BYTES,
    WALK_EVERY_BYTES,
    BodyEnd,
    Dechunker,
    FramingError,
    ResponseHead,
    parse_head,
)

OK_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def _head(raw: bytes) -> ResponseHead:
    found = parse_head(raw)
    assert found is not None
    assert found[1] == len(raw)
    return found[0]


CHUNKED = _head(OK_CHUNKED)


def _find_in_pieces(head: ResponseHead, pieces: Sequence[bytes]) -> tuple[int, int] | None:
    """Feed pieces until the end is found: (pieces that it took, position of the end)."""
    body_end, raw = BodyEnd(head), bytearray()
    for n, piece in enumerate(pieces, 1):
        raw += piece
        if (end := body_end.find(raw)) is not None:
            return n, end
    return None


def _cut_at(data: bytes, places: Sequence[int]) -> list[bytes]:
    """The data in pieces, none of them empty."""
    edges = [0, *sorted({p for p in places if 0 < p < len(data)}), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def _halves(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    for at in range(1, len(data)):
        yield data[:at], data[at:]


# Heads.


def test_a_head_gives_status_headers_and_the_position_after_it() -> None:
    raw = b"HTTP/1.1 429 Too Many\r\nRetry-After:  3 \r\nX-A: 1\r\nx-a: 2\r\nContent-Length: 2\r\n\r\nno"
    found = parse_head(raw)
    assert found is not None
    head, end = found
    assert (head.status, raw[end:]) == (429, b"no")
    assert head.headers == {"retry-after": "3", "x-a": "1, 2", "content-length": "2"}
    assert (head.length, head.chunked, head.to_eof, head.keep_alive) == (2, False, False, True)


@pytest.mark.parametrize(
    ("raw", "length", "is_chunked", "is_to_eof", "keep_alive"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", 10, False, False, True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 0, False, False, True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n", 5, False, False, True),
        (b"HTTP/1.1 200\r\ntransfer-ENCODING: Chunked\r\n\r\n", None, True, False, True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", None, True, False, True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: Close\r\n\r\n", None, True, False, False),
        (b"HTTP/1.1 200 OK\r\n\r\n", None, False, True, False),
        (b"HTTP/1.0 200 OK\r\n\r\n", None, False, True, False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\n", 4, False, False, False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\nConnection: keep-alive\r\n\r\n", 4, False, False, True),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\n", None, False, True, False),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 0, False, False, True),
        (b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", 0, False, False, True),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n", 0, False, False, True),
    ],
    ids=[
        "length", "length-0", "same-length-twice", "chunked", "chunked-wins-over-length", "connection-close", "to-eof",
        "http-1.0-to-eof", "http-1.0-length", "http-1.0-keep-alive", "http-1.0-keep-alive-to-eof", "204", "204-chunked", "304",
    ],
)  # fmt: skip
def test_what_frames_a_body(raw: bytes, length: int | None, is_chunked: bool, is_to_eof: bool, keep_alive: bool) -> None:
    head = _head(raw)
    assert (head.length, head.chunked, head.to_eof, head.keep_alive) == (length, is_chunked, is_to_eof, keep_alive)


def test_interim_answers_before_the_answer_are_skipped() -> None:
    raw = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    assert parse_head(raw) is None
    assert _head(raw + OK_CHUNKED).status == 200


@pytest.mark.parametrize("raw", [OK_CHUNKED, b"HTTP/1.1 100 Continue\r\n\r\n" + OK_CHUNKED], ids=["plain", "after-100"])
def test_a_head_split_at_any_byte_is_not_complete_before_its_last_byte(raw: bytes) -> None:
    for first, _ in _halves(raw):
        assert parse_head(first) is None
    assert _head(raw) == CHUNKED


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x16\x03\x01\x00\xa5",
        b"ICY 200 OK\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 \xb2\xb2\xb2 OK\r\n\r\n",
        b"HTTP/1.1 000 OK\r\n\r\n",
        b"HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded: line\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length : 3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3, 4\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: +3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1_0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_what_is_no_answer_is_refused(raw: bytes) -> None:
    with pytest.raises(FramingError) as caught:
        parse_head(raw)
    assert not caught.value.too_large


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * MAX_HEAD_BYTES,
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * (MAX_HEAD_BYTES // 25 + 1),
    ],
    ids=["unfinished", "finished", "interim-answers-without-end"],
)
def test_a_head_over_64_kib_is_too_large(raw: bytes) -> None:
    with pytest.raises(FramingError) as caught:
        parse_head(raw)
    assert caught.value.too_large


# Chunked bodies.


def test_an_event_that_ends_in_the_bytes_of_a_last_chunk_does_not_end_the_body() -> None:
    """Each piece ends in `0 CRLF CRLF`: the first two are content and the start of a chunk."""
    first = chunk(b"data: 0\r\n\r\n")
    unfinished = b"20\r\ndata: 0\r\n\r\n"  # 0x20 bytes are promised, 11 have come
    rest = b"." * (0x20 - 11) + b"\r\n"
    pieces = [first, unfinished, rest, b"0\r\n\r\n"]
    assert _find_in_pieces(CHUNKED, pieces) == (4, sum(map(len, pieces)))


def test_a_done_marker_or_a_usage_chunk_does_not_end_the_body() -> None:
    assert _find_in_pieces(CHUNKED, [chunk(b"data: [DONE]\n\n"), chunk(b"data: [DONE]\r\n\r\n")]) is None


def test_a_body_split_at_any_byte_ends_with_its_last_byte() -> None:
    """Size lines, the CRLF after a chunk and the last chunk are all cut once."""
    body = chunked(b"data: a\n\n", b"0\r\n\r\n", b"x" * 300, b"\r\n\r\n")
    for halves in _halves(body):
        assert _find_in_pieces(CHUNKED, halves) == (2, len(body))


@pytest.mark.parametrize(
    ("body", "content"),
    [
        (b"0\r\n\r\n", b""),
        (b"5;name=value;q=\"a;b\"\r\nhello\r\n0;last\r\n\r\n", b"hello"),
        (b"5 \r\nhello\r\n0\r\n\r\n", b"hello"),
        (b"0005\r\nhello\r\n00000\r\n\r\n", b"hello"),
        (b"A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n", b"0123456789" * 2),
        (b"5\r\nhello\r\n0\r\nX-A: 1\r\nX-B: 2\r\n\r\n", b"hello"),
    ],
    ids=["empty", "extensions", "space-after-size", "leading-zeros", "hex-of-either-case", "trailers"],
)  # fmt: skip
def test_forms_of_chunks(body: bytes, content: bytes) -> None:
    for pieces in [(body,), *_halves(body), [bytes([b]) for b in body]]:
        assert _find_in_pieces(CHUNKED, pieces) == (len(pieces), len(body))
        dechunker = Dechunker()
        assert b"".join(map(dechunker.feed, pieces)) == content


def test_bytes_after_the_body_are_not_part_of_it() -> None:
    body = chunked(b"hello")
    assert _find_in_pieces(CHUNKED, [body + b"HTTP/1.1 200 OK\r\n\r\n"]) == (1, len(body))
    for trailers in ((), (("X", "1"),)):
        whole = chunked(b"hello", trailers=trailers)
        for first, second in _halves(whole + b"junk"):
            n_reads = 1 if len(first) >= len(whole) else 2
            assert _find_in_pieces(CHUNKED, [first, second]) == (n_reads, len(whole)), (first, second)
    dechunker = Dechunker()
    assert dechunker.feed(body + b"5\r\nextra\r\n") + dechunker.feed(b"5\r\nextra\r\n") == b"hello"


@pytest.mark.parametrize(
    "body",
    [
        b"xyz\r\nhello\r\n\r\n",
        b"0x5\r\nhello\r\n\r\n",
        b"+5\r\nhello\r\n\r\n",
        b"1_0\r\n0123456789abcdef\r\n\r\n",
        b"-1\r\nhello\r\n\r\n",
        b"\r\nhello\r\n\r\n",
        b";ext\r\nhello\r\n\r\n",
        b"1000000000000000\r\nhello\r\n\r\n",
        b"4\r\nhello\r\n\r\n",
        b"5\r\nhelloXY\r\n\r\n",
        b"5\r\nhello\n\r\n\r\n",
    ],
    ids=[
        "no-hex", "0x", "plus", "underscore", "negative", "empty", "only-extension", "over-60-bit", "longer-than-it-says",
        "no-crlf-after", "lf-after",
    ],
)  # fmt: skip
def test_broken_chunks_are_refused_by_both_readers(body: bytes) -> None:
    with pytest.raises(FramingError) as caught:
        BodyEnd(CHUNKED).find(bytearray(body))
    assert not caught.value.too_large
    with pytest.raises(FramingError):
        Dechunker().feed(body)
    with pytest.raises(FramingError):
        Dechunker().feed(body[:-2])


@pytest.mark.parametrize("is_finished", [True, False], ids=["finished", "unfinished"])
def test_a_size_line_over_1_kib_is_too_large(is_finished: bool) -> None:
    line = b"5;" + b"e" * MAX_SIZE_LINE_BYTES + (b"\r\nhello\r\n\r\n" if is_finished else b"")
    for read in (lambda: BodyEnd(CHUNKED).check(bytearray(line)), lambda: Dechunker().feed(line)):
        with pytest.raises(FramingError) as caught:
            read()
        assert caught.value.too_large


def test_trailers_over_64_kib_are_too_large() -> None:
    raw = bytearray(b"0\r\n" + b"X: 1\r\n" * (MAX_TRAILER_BYTES // 6 + 2))
    with pytest.raises(FramingError) as caught:
        BodyEnd(CHUNKED).find(raw)
    assert caught.value.too_large


def test_broken_framing_is_noticed_within_64_kib_though_nothing_ends_in_an_empty_line() -> None:
    pieces = [b"this is no chunk"] * (WALK_EVERY_BYTES // 16)
    assert _find_in_pieces(CHUNKED, pieces[:-1]) is None
    with pytest.raises(FramingError):
        _find_in_pieces(CHUNKED, pieces)


# Other bodies.


def test_a_length_ends_the_body_whatever_it_holds() -> None:
    head = _head(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n")
    assert _find_in_pieces(head, [b"0\r\n\r\n", b"0\r\n\r\n", b"."]) == (3, 11)
    assert _find_in_pieces(head, [b"0\r\n\r\n0\r\n\r\n.HTTP"]) == (1, 11)


def test_length_0_ends_at_once() -> None:
    assert _find_in_pieces(_head(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), [b""]) == (1, 0)


def test_a_body_to_the_end_of_the_connection_is_never_over_by_its_bytes() -> None:
    assert _find_in_pieces(_head(b"HTTP/1.0 200 OK\r\n\r\n"), [b"data: [DONE]\n\n", b"0\r\n\r\n"]) is None


# Laws.

CONTENT = st.binary(max_size=40) | st.sampled_from([b"0\r\n\r\n", b"\r\n\r\n", b"\r\n", b"data: x\n\n", b"x" * 70_000])
BODIES = st.builds(
    lambda pieces, trailers: (chunked(*(p for p in pieces if p), trailers=[("X-T", "v")] * trailers), b"".join(pieces)),
    st.lists(CONTENT, max_size=8),
    st.integers(0, 2),
)
CUTS = st.lists(st.integers(0, 1 << 18), max_size=30)


@given(BODIES, CUTS)
@example((chunked(b"x" * 70_000), b"x" * 70_000), [70_012])  # between the last size line and its empty line
def test_the_end_and_the_content_do_not_depend_on_the_cut(body: tuple[bytes, bytes], cuts: list[int]) -> None:
    raw, content = body
    pieces = _cut_at(raw, [c % (len(raw) + 1) for c in cuts])
    assert _find_in_pieces(CHUNKED, pieces) == (len(pieces), len(raw))
    dechunker = Dechunker()
    assert b"".join(map(dechunker.feed, pieces)) == content


@given(BODIES, CUTS, st.lists(st.booleans(), max_size=31))
@example((chunked(b"x" * 70_000), b"x" * 70_000), [70_012], [True])
@example((chunked(b"x" * 70_000, trailers=[("X", "1")]), b"x" * 70_000), [70_012, 70_018], [True, True])
def test_the_end_does_not_depend_on_what_was_removed_in_front(
    body: tuple[bytes, bytes], cuts: list[int], removals: list[bool]
) -> None:
    raw, _ = body
    body_end, held, removed = BodyEnd(CHUNKED), bytearray(), 0
    pieces = _cut_at(raw, [c % (len(raw) + 1) for c in cuts])
    for i, piece in enumerate(pieces):
        held += piece
        end = body_end.find(held)
        assert (end is not None) == (i == len(pieces) - 1)
        if end is not None:
            assert removed + end == len(raw)
        elif i < len(removals) and removals[i]:
            n = body_end.walked
            del held[:n]
            body_end.cut(n)
            removed += n


JUNK = st.lists(st.sampled_from([b"\r\n\r\n", b"0\r\n\r\n", b"\r\n", b"\r", b"HTTP/1.1 200 OK\r\n\r\n"]), max_size=3)


@given(BODIES, JUNK, CUTS, st.lists(st.booleans(), max_size=31))
@example((chunked(b"x"), b"x"), [b"\r\n\r\n"], [7], [True])  # the empty line, and another behind it in the same read
def test_what_follows_the_body_does_not_move_its_end(
    body: tuple[bytes, bytes], junk: list[bytes], cuts: list[int], removals: list[bool]
) -> None:
    """The read that brings the last byte of the body says so, whatever else it brings and whatever was removed before."""
    raw = body[0] + b"".join(junk)
    body_end, held, n_read, removed = BodyEnd(CHUNKED), bytearray(), 0, 0
    for i, piece in enumerate(_cut_at(raw, [c % (len(raw) + 1) for c in cuts])):
        held += piece
        n_read += len(piece)
        end = body_end.find(held)
        assert (end is not None) == (n_read >= len(body[0]))
        if end is not None:
            assert removed + end == len(body[0])
            return
        if i < len(removals) and removals[i]:
            n = body_end.walked
            del held[:n]
            body_end.cut(n)
            removed += n


@given(st.binary(max_size=60), CUTS)
def test_a_length_framed_body_can_be_cut_anywhere(content: bytes, cuts: list[int]) -> None:
    head = _head(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content))
    body_end, held, removed = BodyEnd(head), bytearray(), 0
    end = body_end.find(held)
    for piece in _cut_at(content, cuts) if content else []:
        assert end is None
        held += piece
        end = body_end.find(held)
        if end is None:
            removed += len(held)
            body_end.cut(len(held))
            held.clear()
    assert end is not None
    assert removed + end == len(content)


@given(st.binary(max_size=80))
def test_no_bytes_crash_the_readers(raw: bytes) -> None:
    """Whatever comes is an answer, not one yet, or refused."""
    for read in (lambda: parse_head(raw), lambda: BodyEnd(CHUNKED).check(bytearray(raw)), lambda: Dechunker().feed(raw)):
        with contextlib.suppress(FramingError):
            read()
