"""One exchange: scripted (bytes, stamp) reads through the framing and a real dialect give exact instants.

Stamps are in ms on a monotonic clock that begins at 0; CLOCK_REALTIME is ahead of it by WALL.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
import scripted_server as scripted
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import COMMENT, DONE, ROLE, chat_token, chunk, chunked, stream_events, stream_head, token, usage

from longbench_sched.engine import make_dialect
from longbench_sched.load.exchange import Exchange
from longbench_sched.load.stamps import RealtimeOffset
from longbench_sched.plan import Request
from longbench_sched.record import Ending, Reason, Status, StreamRecord
from longbench_sched.target import Api

MS = 1_000_000
WALL = 1_700_000_000_000_000_000
SENT = 1 * MS
LAST = b"0\r\n\r\n"


@dataclass(frozen=True)
class Read:
    """What one read brought: the kernel got it at `at_ms`, it was read `late_ms` after that."""

    data: bytes
    at_ms: float
    late_ms: float = 0.5
    has_stamp: bool = True


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def _new(loop: asyncio.AbstractEventLoop, api: Api = "completions", osl: int = 3) -> Exchange:
    request = Request(0, "measured", 0, "x", 4, osl)
    dialect = make_dialect("vllm", api)
    over = loop.create_future()
    offset = RealtimeOffset([(0, WALL), (10**15, WALL)])
    exchange = Exchange(
        request, "run-r0", "main", b"POST", lambda: dialect.decoder(request, keep_text=True), offset, 0, 0, over
    )
    exchange.sent_ns = exchange.body_sent_ns = SENT
    return exchange


def _take(exchange: Exchange, *reads: Read) -> bool:
    """Feed the reads; whether the last one said that the answer is over (no other may)."""
    is_over = False
    for read in reads:
        assert not is_over, "the answer was over before its last read"
        at_ns = round(read.at_ms * MS)
        is_over = exchange.take(read.data, WALL + at_ns if read.has_stamp else 0, at_ns + round(read.late_ms * MS))
    return is_over


def _ms(values: Sequence[int | None]) -> list[float | None]:
    return [None if v is None else v / MS for v in values]


# Stamps.


def test_b03_a_character_split_over_two_reads_counts_from_the_completing_read(loop: asyncio.AbstractEventLoop) -> None:
    exchange = _new(loop, osl=1)
    event = chunk(token("中", "length"))
    at = event.index("中".encode()) + 1
    assert _take(
        exchange,
        Read(stream_head() + event[:at], 100),
        Read(event[at:], 150),
        Read(chunk(usage(4, 1)) + chunk(DONE) + LAST, 151),
    )
    record = exchange.record()
    assert (record.status, record.decoded.text) == (Status.OK, "中")
    assert _ms(record.decoded.chunk_at_ns) == [150]
    assert _ms([record.header_ns, record.decoded.first_byte_ns, record.end_ns]) == [100, 100, 151]


def test_a32_comments_and_the_role_are_first_byte_only(loop: asyncio.AbstractEventLoop) -> None:
    """Keep-alives from 15 ms on, each second; the role at 16 ms; the first text at 9000 ms."""
    exchange = _new(loop, "chat", osl=2)
    comments = [Read(chunk(COMMENT), 15 + 1000 * i) for i in range(9)]
    first, *others = comments
    assert _take(
        exchange,
        Read(stream_head(), 14),
        first,
        Read(chunk(ROLE), 16),
        *others,
        Read(chunk(chat_token("a")), 9000),
        Read(chunk(chat_token("b", "length")), 9020),
        Read(chunk(usage(4, 2)) + chunk(DONE) + LAST, 9021),
    )
    record = exchange.record()
    assert (record.status, record.decoded.n_comments) == (Status.OK, 9)
    assert _ms([record.decoded.first_byte_ns]) == [15]
    assert _ms(record.decoded.chunk_at_ns) == [9000, 9020]


def test_events_of_one_read_share_its_stamp_and_are_counted(loop: asyncio.AbstractEventLoop) -> None:
    exchange = _new(loop, osl=4)
    a, b, c, d, end, done = (chunk(e) for e in stream_events(4))
    assert _take(exchange, Read(stream_head() + a + b + c, 10), Read(d, 30), Read(end + done + LAST, 31))
    record = exchange.record()
    assert _ms(record.decoded.chunk_at_ns) == [10, 10, 10, 30]
    assert record.decoded.n_shared_reads == 2
    assert list(record.decoded.chunk_tokens) == [1, 1, 1, 1]


def test_lateness_is_the_read_after_the_kernel(loop: asyncio.AbstractEventLoop) -> None:
    exchange = _new(loop)
    a, b, c, end, done = (chunk(e) for e in stream_events(3))
    _take(exchange, Read(stream_head() + a, 10, 3), Read(b, 20, 0), Read(c + end + done + LAST, 30, 7))
    record = exchange.record()
    assert _ms(record.decoded.chunk_lateness_ns) == [3, 0, 7]
    assert (record.clock, record.decoded.marks) == ("kernel", [])


def test_without_kernel_stamps_the_read_counts(loop: asyncio.AbstractEventLoop) -> None:
    exchange = _new(loop, osl=1)
    _take(exchange, Read(stream_head() + chunked(*stream_events(1)), 10, 3, has_stamp=False))
    record = exchange.record()
    assert (_ms(record.decoded.chunk_at_ns), record.clock) == ([13], "user")
    assert _ms([record.header_ns, record.end_ns]) == [13, 13]


def test_a_missing_kernel_stamp_among_others_is_marked(loop: asyncio.AbstractEventLoop) -> None:
    exchange = _new(loop, osl=2)
    a, b, *rest = (chunk(e) for e in stream_events(2))
    _take(exchange, Read(stream_head() + a, 10), Read(b, 20, 4, has_stamp=False), Read(b"".join(rest) + LAST, 30))
    record = exchange.record()
    assert _ms(record.decoded.chunk_at_ns) == [10, 24]
    assert (record.clock, record.decoded.marks) == ("mixed", ["user-stamps"])


@pytest.mark.parametrize("at", range(1, len(stream_head())))
def test_a_head_split_at_any_byte_is_stamped_when_complete(loop: asyncio.AbstractEventLoop, at: int) -> None:
    exchange = _new(loop, osl=1)
    head = stream_head()
    assert _take(exchange, Read(head[:at], 5), Read(head[at:], 6), Read(chunked(*stream_events(1)), 7))
    record = exchange.record()
    assert (record.status, _ms([record.header_ns, *record.decoded.chunk_at_ns])) == (Status.OK, [6, 7])


# Ends.


def test_the_place_is_free_at_the_stamp_of_the_last_read(loop: asyncio.AbstractEventLoop) -> None:
    exchange = _new(loop)
    _take(exchange, Read(scripted.ok_stream(3), 40, late_ms=9))
    assert exchange.ended_ns == 40 * MS
    assert exchange.record().end_ns == 40 * MS


@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [
        (scripted.head(204), Status.FAILED, Reason.HTTP_STATUS),
        (scripted.head(200, ("Content-Length", "0")), Status.FAILED, Reason.EMPTY_STREAM),
        (stream_head() + LAST, Status.FAILED, Reason.EMPTY_STREAM),
        (stream_head() + chunked(DONE), Status.FAILED, Reason.EMPTY_STREAM),
        (scripted.not_found(), Status.FAILED, Reason.HTTP_STATUS),
        (scripted.head(100) + scripted.ok_stream(3), Status.OK, None),
    ],
    ids=["204", "length-0", "no-chunk", "a28-only-done", "404", "100-before"],
)
@pytest.mark.parametrize("is_bytewise", [False, True], ids=["one-read", "bytewise"])
def test_answers_that_end_by_their_framing(
    loop: asyncio.AbstractEventLoop, answer: bytes, status: Status, reason: Reason | None, is_bytewise: bool
) -> None:
    exchange = _new(loop)
    pieces = [answer[i : i + 1] for i in range(len(answer))] if is_bytewise else [answer]
    assert _take(exchange, *(Read(piece, i) for i, piece in enumerate(pieces)))
    record = exchange.record()
    assert (record.status, record.decoded.reason, exchange.ending) == (status, reason, Ending.COMPLETE)
    assert exchange.keeps_connection
    assert record.end_ns == (len(pieces) - 1) * MS


def test_a_body_to_the_end_of_the_connection_is_complete_then(loop: asyncio.AbstractEventLoop) -> None:
    exchange = _new(loop)
    head = scripted.head(200, ("Content-Type", "text/event-stream"), version="1.0")
    assert not _take(exchange, Read(head + b"".join(stream_events(3)), 10))
    exchange.end_at_eof()
    assert (exchange.record().status, exchange.keeps_connection) == (Status.OK, False)


@pytest.mark.parametrize(
    ("came", "reason"),
    [
        (b"", Reason.RESET),
        (b"HTTP/1.1 200 OK\r\nConte", Reason.RESET),
        (stream_head() + chunk(token()), Reason.CUT),
        (stream_head() + chunked(*stream_events(3))[:-2], Reason.CUT),
        (scripted.head(200, ("Content-Type", "text/event-stream"), ("Content-Length", "9999")) + token(), Reason.CUT),
        (scripted.head(200, ("Content-Type", "text/event-stream"), version="1.0") + token(), Reason.CUT),
    ],
    ids=["nothing", "in-the-head", "in-the-chunks", "in-the-last-chunk", "under-the-length", "to-eof-without-done"],
)
def test_a_connection_that_ends_too_early_is_no_success(loop: asyncio.AbstractEventLoop, came: bytes, reason: Reason) -> None:
    exchange = _new(loop)
    if came:
        assert not _take(exchange, Read(came, 10))
    exchange.end_at_eof()
    record = exchange.record()
    assert (record.status, record.decoded.reason) == (Status.FAILED, reason)


@pytest.mark.parametrize("extra", [b"HTTP/1.1 200 OK\r\n\r\n", b"junk"])
def test_bytes_after_the_end_are_dropped_and_the_connection_is_not_used_again(
    loop: asyncio.AbstractEventLoop, extra: bytes
) -> None:
    exchange = _new(loop)
    assert _take(exchange, Read(scripted.ok_stream(3) + extra, 10))
    assert (exchange.ending, exchange.has_leftover, exchange.keeps_connection) == (Ending.COMPLETE, True, False)
    record = exchange.record()
    assert (record.status, record.end_ns) == (Status.OK, 10 * MS)
    assert record.n_body_bytes == sum(map(len, stream_events(3)))


def test_an_answer_before_the_body_was_sent_does_not_keep_the_connection(loop: asyncio.AbstractEventLoop) -> None:
    exchange = _new(loop)
    exchange.body_sent_ns = None
    assert _take(exchange, Read(scripted.json_answer({"error": "too long"}, 413), 10))
    assert not exchange.keeps_connection
    assert (exchange.record().http_status, exchange.record().decoded.reason) == (413, Reason.HTTP_STATUS)


def test_connection_close_is_obeyed(loop: asyncio.AbstractEventLoop) -> None:
    exchange = _new(loop)
    assert _take(exchange, Read(stream_head(200, ("Connection", "close")) + chunked(*stream_events(3)), 10))
    assert not exchange.keeps_connection


@pytest.mark.parametrize(
    ("reads", "reason"),
    [
        ([b"SSH-2.0-OpenSSH\r\n"], Reason.MALFORMED),
        ([b"HTTP/1.1 200 OK\r\nX: " + b"a" * 40_000, b"a" * 40_000], Reason.TOO_LARGE),
        ([stream_head() + b"xyz\r\n\r\n"], Reason.MALFORMED),
        ([stream_head() + b"5;" + b"e" * 66_000], Reason.TOO_LARGE),
        ([scripted.head(200, ("Transfer-Encoding", "gzip, chunked"))], Reason.MALFORMED),
    ],
    ids=["no-http", "head-over-64-kib", "no-chunk-size", "size-line-over-1-kib", "gzip"],
)
def test_broken_answers_end_at_once_with_their_reason(
    loop: asyncio.AbstractEventLoop, reads: list[bytes], reason: Reason
) -> None:
    exchange = _new(loop)
    assert _take(exchange, *(Read(data, i) for i, data in enumerate(reads)))
    record = exchange.record()
    assert (record.status, record.decoded.reason) == (Status.FAILED, reason)
    assert record.decoded.detail
    assert not exchange.keeps_connection
    assert record.end_ns is not None


def test_broken_chunks_that_a_cut_hid_are_still_malformed(loop: asyncio.AbstractEventLoop) -> None:
    """Nothing ended in an empty line, so the framing was not looked at while the stream ran."""
    exchange = _new(loop)
    assert not _take(exchange, Read(stream_head() + chunk(token()) + b"no size\r\n", 10))
    exchange.end_at_eof()
    record = exchange.record()
    assert (record.status, record.decoded.reason) == (Status.FAILED, Reason.MALFORMED)
    assert len(record.decoded.chunk_at_ns) == 1


def test_a_stream_given_up_keeps_what_had_come(loop: asyncio.AbstractEventLoop) -> None:
    exchange = _new(loop)
    a, b, *_ = (chunk(e) for e in stream_events(3))
    _take(exchange, Read(stream_head() + a, 10), Read(b[:-2], 20))
    exchange.ending, exchange.end_ns = Ending.TIMEOUT_IDLE, 99 * MS
    record = exchange.record()
    assert (record.status, record.decoded.reason) == (Status.TIMEOUT, Reason.TIMEOUT_IDLE)
    assert _ms(record.decoded.chunk_at_ns) == [10, 20]  # the event was whole, its chunk was not
    assert record.end_ns == 99 * MS


def test_a_second_attempt_keeps_the_clock_of_the_first(loop: asyncio.AbstractEventLoop) -> None:
    exchange = _new(loop, osl=1)
    exchange.end_at_eof()
    assert exchange.is_untouched
    exchange.restart(loop.create_future())
    exchange.body_sent_ns = 7 * MS
    assert _take(exchange, Read(scripted.ok_stream(1), 30))
    record = exchange.record()
    assert (record.status, record.sent_ns, record.body_sent_ns, record.end_ns) == (Status.OK, SENT, 7 * MS, 30 * MS)
    assert record.decoded.marks == ["retried"]


def test_a_request_that_was_never_sent_ends_where_its_place_was_free(loop: asyncio.AbstractEventLoop) -> None:
    exchange = _new(loop)
    exchange.sent_ns = exchange.body_sent_ns = None
    exchange.ending = Ending.REFUSED
    record = exchange.record()
    assert (record.sent_ns, record.header_ns, record.http_status, record.decoded.reason) == (
        None,
        None,
        None,
        Reason.CONNECT_REFUSED,
    )


# Decoding in slices, early, and from the spool.

N = 40
ANSWER = stream_head() + chunked(*stream_events(N), b": " + b"c" * 70_000 + b"\n\n", COMMENT)


def _reads(answer: bytes, cuts: Sequence[int]) -> list[Read]:
    edges = [0, *sorted({c % len(answer) for c in cuts} - {0}), len(answer)]
    return [Read(answer[a:b], 10 + i, 0.25 * (i % 3)) for i, (a, b) in enumerate(pairwise(edges))]


EVERY_97 = range(0, len(ANSWER), 97)


def _plain(loop: asyncio.AbstractEventLoop, reads: Sequence[Read]) -> StreamRecord:
    exchange = _new(loop, osl=N)
    assert _take(exchange, *reads)
    return exchange.record()


def test_slices_give_the_same_record_as_one_go(loop: asyncio.AbstractEventLoop) -> None:
    reads = _reads(ANSWER, EVERY_97)
    exchange = _new(loop, osl=N)
    assert _take(exchange, *reads)
    n_slices = 1
    while not exchange.step(0):  # a slice that is over as soon as it has begun
        n_slices += 1
    assert n_slices > 10
    assert exchange.step(0)
    assert exchange.record() == _plain(loop, reads)


def test_a_record_is_made_once(loop: asyncio.AbstractEventLoop) -> None:
    exchange = _new(loop)
    _take(exchange, Read(scripted.ok_stream(3), 10))
    first = exchange.record()
    assert exchange.n_undecoded_bytes == 0
    assert exchange.step(0)
    assert exchange.record().decoded is first.decoded


def test_a_deadline_decodes_what_has_come_and_changes_nothing(loop: asyncio.AbstractEventLoop) -> None:
    reads = _reads(ANSWER, EVERY_97)
    exchange = _new(loop, osl=N)
    for i, read in enumerate(reads):
        assert _take(exchange, read) == (i == len(reads) - 1)
        if i % 7 == 0:
            n = exchange.decode_available()
            assert exchange.has_token == (n > 0)
    assert exchange.record() == _plain(loop, reads)


def test_only_tokens_meet_the_first_token_deadline(loop: asyncio.AbstractEventLoop) -> None:
    exchange = _new(loop, "chat")
    seen = []
    for i, data in enumerate([stream_head(), chunk(COMMENT), chunk(ROLE), chunk(chat_token("a")), chunk(chat_token("b"))]):
        _take(exchange, Read(data, i))
        seen.append(exchange.decode_available())
    assert seen == [0, 0, 0, 1, 2]


def test_a_deadline_finds_broken_framing_that_waits_unseen(loop: asyncio.AbstractEventLoop) -> None:
    exchange = _new(loop)
    assert not _take(exchange, Read(stream_head() + b"no size\r\n", 10))
    assert (exchange.decode_available(), exchange.ending) == (0, Ending.MALFORMED)


@pytest.mark.parametrize(
    "answer",
    [
        ANSWER,
        scripted.head(200, ("Content-Type", "text/event-stream"), ("Content-Length", str(sum(map(len, stream_events(N))))))
        + b"".join(stream_events(N)),
    ],
    ids=["chunked", "length"],
)
@pytest.mark.parametrize("decodes_between", [False, True])
def test_the_spool_changes_nothing(loop: asyncio.AbstractEventLoop, answer: bytes, decodes_between: bool) -> None:
    reads = _reads(answer, range(0, len(answer), 97))
    exchange = _new(loop, osl=N)
    moved = 0
    with tempfile.TemporaryFile() as file:
        file.write(b"of another stream")
        for i, read in enumerate(reads):
            _take(exchange, read)
            moved += exchange.spool(file)
            if decodes_between and i % 5 == 0:
                exchange.decode_available()
        assert moved > len(answer) // 2
        assert exchange.record() == _plain(loop, reads)


@given(st.lists(st.integers(0, len(ANSWER)), max_size=60), st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)))
def test_cuts_spools_and_early_looks_never_change_what_was_said(cuts: list[int], spools: set[int], looks: set[int]) -> None:
    loop = asyncio.new_event_loop()
    reads = _reads(ANSWER, cuts)
    exchange = _new(loop, osl=N)
    with tempfile.TemporaryFile() as file:
        for i, read in enumerate(reads):
            assert _take(exchange, read) == (i == len(reads) - 1)
            if i in looks:
                exchange.decode_available()
            if i in spools:
                exchange.spool(file)
        record = exchange.record()
    assert record == _plain(loop, reads)
    loop.close()
    assert (record.status, len(record.decoded.chunk_at_ns), record.decoded.n_comments) == (Status.OK, N, 2)
    assert record.decoded.text == "".join(f" t{i}" for i in range(N))
    # Each event counts from the read that completed its chunk's data.
    edges = [0]
    for read in reads:
        edges.append(edges[-1] + len(read.data))
    ends = [ANSWER.index(event) + len(event) for event in stream_events(N)[:N]]
    completing = [next(i for i, edge in enumerate(edges[1:]) if edge >= end) for end in ends]
    assert _ms(record.decoded.chunk_at_ns) == [10 + i for i in completing]
