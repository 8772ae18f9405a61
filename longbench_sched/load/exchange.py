"""Exchange: one request on the wire. Stamped while it runs, decoded when it is over.

On the timed path `take` appends bytes and two numbers, and asks the framing whether the body is over. Everything that looks
into the bytes (`step`, `decode_available`) runs later, or when a deadline of this very stream has passed.
"""

from __future__ import annotations

import asyncio
import os
import time
from array import array
from collections.abc import Callable
from typing import BinaryIO, Protocol

from longbench_sched.engine.dialect import StreamDecoder
from longbench_sched.engine.marks import RETRIED, USER_STAMPS
from longbench_sched.load.framing import BodyEnd, Dechunker, FramingError, ResponseHead, parse_head
from longbench_sched.load.stamps import NO_LATENESS, RealtimeOffset
from longbench_sched.plan import Request
from longbench_sched.record import Decoded, Ending, Status, StreamRecord

SMALL_BYTES = 1 << 20
PIECES_A_LOOK = 16  # pieces decoded between two looks at the clock: about 0.1 ms


class Sent(Protocol):
    """A request on its way, over either transport."""

    request: Request
    request_id: str
    lane: str
    due_ns: int
    slot_ns: int
    sent_ns: int | None
    body_sent_ns: int | None
    n_body_bytes: int

    @property
    def http_status(self) -> int | None:
        """Of the answer, once its head has come."""
        ...


def open_record(exchange: Sent) -> StreamRecord:
    """What is known of a request while its stream is open: that it was sent. It is lost if nothing follows."""
    request = exchange.request
    return StreamRecord(
        request_id=exchange.request_id,
        index=request.index,
        phase=request.phase,
        lane=exchange.lane,
        due_ns=exchange.due_ns,
        slot_ns=exchange.slot_ns,
        isl=request.isl,
        osl=request.osl,
        sent_ns=exchange.sent_ns,
        body_sent_ns=exchange.body_sent_ns,
        http_status=exchange.http_status,
        decoded=Decoded(status=Status.LOST),
        n_body_bytes=exchange.n_body_bytes,
    )


class Closable(Protocol):
    """The connection that carries an exchange."""

    exchange: Exchange | None

    def close(self) -> None:
        """Close it now."""
        ...


class Exchange:
    """One request and the bytes of its answer, as they came."""

    __slots__ = (
        "_at_ns", "_base", "_body_end", "_dechunker", "_decoded", "_decoder", "_head", "_head_kernel_ns",
        "_head_read_ns", "_kernel_ns", "_lateness_ns", "_n_decoded", "_new_decoder", "_offset", "_piece_ends", "_raw",
        "_read_ns", "_segments", "_spool", "_started", "body_sent_ns", "connection", "detail", "due_ns", "end_ns",
        "ending", "has_leftover", "has_token", "is_retried", "lane", "last_read_ns", "message", "n_body_bytes", "over",
        "request", "request_id", "sent_ns", "slot_ns",
    )  # fmt: skip

    def __init__(
        self,
        request: Request,
        request_id: str,
        lane: str,
        message: bytes | memoryview,
        new_decoder: Callable[[], StreamDecoder],
        offset: RealtimeOffset,
        due_ns: int,
        slot_ns: int,
        over: asyncio.Future[None],
    ) -> None:
        self.request = request
        self.request_id = request_id
        self.lane = lane
        self.message: bytes | memoryview = message
        self.due_ns = due_ns
        self.slot_ns = slot_ns
        self.sent_ns: int | None = None
        self.body_sent_ns: int | None = None
        self.last_read_ns: int | None = None
        self.end_ns: int | None = None  # set when given up; else the stamp of the last piece
        self.ending: Ending | None = None
        self.detail: str | None = None
        self.connection: Closable | None = None
        self.has_token = False  # known to have come; found out only when a deadline has passed
        self.is_retried = False
        self.has_leftover = False  # bytes after the end of the body
        self.n_body_bytes = 0
        self.over = over
        self._offset = offset
        self._head: ResponseHead | None = None
        self._head_kernel_ns = 0
        self._head_read_ns = 0
        self._body_end: BodyEnd | None = None
        self._raw = bytearray()  # of the body, transfer coding and all, from stream position _base on
        self._base = 0
        self._piece_ends = array("q")  # stream position after each read
        self._kernel_ns = array("q")  # CLOCK_REALTIME; 0: no stamp
        self._read_ns = array("q")
        self._at_ns: list[int] = []  # the instants of the first pieces, worked out when they are decoded
        self._lateness_ns: list[int] = []
        self._spool: BinaryIO | None = None
        self._segments: list[tuple[int, int, int]] = []  # (stream position, position in the spool, bytes)
        self._new_decoder = new_decoder  # made when it is needed: not while others are being sent
        self._decoder: StreamDecoder | None = None
        self._dechunker: Dechunker | None = None
        self._n_decoded = 0
        self._started = False
        self._decoded: Decoded | None = None

    # The timed path.

    def take(self, data: bytes, kernel_ns: int, read_ns: int) -> bool:
        """Take what one read brought; True if the answer is over (see `ending`)."""
        raw = self._raw
        raw += data
        self.last_read_ns = read_ns
        try:
            if self._body_end is None:
                if not self._take_head(kernel_ns, read_ns):
                    return False
                if not raw and not self._head_says_empty():
                    return False
            self._piece_ends.append(self._base + len(raw))
            self._kernel_ns.append(kernel_ns)
            self._read_ns.append(read_ns)
            assert self._body_end is not None
            end = self._body_end.find(raw)
        except FramingError as error:
            self.ending = Ending.TOO_LARGE if error.too_large else Ending.MALFORMED
            self.detail = str(error)
            return True
        if end is None:
            return False
        if end < len(raw):
            self._drop_leftover(end)
        self.ending = Ending.COMPLETE
        return True

    def _take_head(self, kernel_ns: int, read_ns: int) -> bool:
        found = parse_head(self._raw)
        if found is None:
            return False
        self._head, end = found
        del self._raw[:end]
        self._head_kernel_ns = kernel_ns
        self._head_read_ns = read_ns
        self._body_end = BodyEnd(self._head)
        return True

    def _head_says_empty(self) -> bool:
        return self._head is not None and self._head.length == 0

    def _drop_leftover(self, end: int) -> None:
        """Forget what came after the body."""
        self.has_leftover = True
        del self._raw[end:]
        end += self._base
        n_pieces = len(self._piece_ends)
        while n_pieces > 1 and self._piece_ends[n_pieces - 2] >= end:
            n_pieces -= 1
        for column in (self._piece_ends, self._kernel_ns, self._read_ns):
            del column[n_pieces:]
        self._piece_ends[-1] = end

    @property
    def http_status(self) -> int | None:
        """Of the answer, once its head has come."""
        return None if self._head is None else self._head.status

    @property
    def is_untouched(self) -> bool:
        """Not one byte of an answer has come."""
        return self.last_read_ns is None

    @property
    def keeps_connection(self) -> bool:
        """The connection can carry another request."""
        return (
            self.ending is Ending.COMPLETE
            and self._head is not None
            and self._head.keep_alive
            and not self.has_leftover
            and self.body_sent_ns is not None
        )

    def end_at_eof(self) -> None:
        """The peer has closed: the end of a body that lasts until then, else a cut."""
        self._check_framing()
        if self.ending is None:
            self.ending = Ending.COMPLETE if self._head is not None and self._head.to_eof else Ending.EOF

    def _check_framing(self) -> None:
        """End as malformed if the framing is broken where `take` has not looked yet."""
        if self._body_end is None:
            return
        try:
            self._body_end.check(self._raw)
        except FramingError as error:
            self.ending = Ending.TOO_LARGE if error.too_large else Ending.MALFORMED
            self.detail = str(error)

    def restart(self, over: asyncio.Future[None]) -> None:
        """Make ready for a second attempt; the clock stays that of the first."""
        self.is_retried = True
        self.connection = None
        self.body_sent_ns = None
        self.ending = None
        self.detail = None
        self.end_ns = None
        self.over = over

    # Memory.

    @property
    def n_undecoded_bytes(self) -> int:
        """Bytes held in memory."""
        return len(self._raw)

    def spool(self, file: BinaryIO) -> int:
        """Move what has been read, up to what the framing still needs, into a file; the number of bytes moved."""
        if self._body_end is None:
            return 0
        is_all_free = self.ending is not None or not self._body_end.chunked
        limit = self._base + (len(self._raw) if is_all_free else self._body_end.walked)
        n_bytes = 0
        for end in reversed(self._piece_ends):
            if end <= limit:
                n_bytes = end - self._base
                break
        if n_bytes <= 0:
            return 0
        at = file.seek(0, os.SEEK_END)
        file.write(memoryview(self._raw)[:n_bytes])
        file.flush()
        self._spool = file
        self._segments.append((self._base, at, n_bytes))
        self._drop_front(n_bytes)
        return n_bytes

    def _drop_front(self, n_bytes: int) -> None:
        del self._raw[:n_bytes]
        self._base += n_bytes
        if self._body_end is not None and self.ending is None:
            self._body_end.cut(n_bytes)

    def _bytes_between(self, start: int, end: int) -> bytes:
        if start >= self._base:
            return bytes(self._raw[start - self._base : end - self._base])
        assert self._spool is not None
        parts = [
            os.pread(
                self._spool.fileno(), min(end, position + n_bytes) - max(start, position), at + max(start, position) - position
            )
            for position, at, n_bytes in self._segments
            if position < end and start < position + n_bytes
        ]
        return b"".join([*parts, bytes(self._raw[: max(0, end - self._base)])])

    # Off the timed path.

    @property
    def ended_ns(self) -> int:
        """When the answer ended, by the best stamp there is."""
        if self.end_ns is None:
            if self.ending is Ending.COMPLETE and self._read_ns:
                self.end_ns = self._offset.instant_ns(self._kernel_ns[-1], self._read_ns[-1])
            else:
                self.end_ns = self.last_read_ns if self.last_read_ns is not None else self.slot_ns
        return self.end_ns

    def decode_available(self) -> int:
        """Decode what has come so far; the number of token-bearing events in it. For a deadline that has passed.

        If its framing turns out to be broken, `ending` says so.
        """
        if self.ending is None:
            self._check_framing()
        self._decode(None)
        n_token_events = self._the_decoder().n_token_events
        self.has_token = n_token_events > 0
        return n_token_events

    def step(self, until_ns: int) -> bool:
        """Decode until that instant; True when `record` costs nothing more."""
        return self._decoded is not None or self._decode(until_ns)

    def _decode(self, until_ns: int | None) -> bool:
        """Feed the decoder; True if all that has come is decoded."""
        decoder, dechunker = self._the_decoder(), self._dechunker
        if not self._started and self._head is not None:
            self._started = True
            decoder.start(self._head.status, self._head.headers)
            if self._head.chunked:
                dechunker = self._dechunker = Dechunker()
        ends, clock_ns = self._piece_ends, time.monotonic_ns
        n_pieces = len(ends)
        piece = self._n_decoded
        if len(self._at_ns) < n_pieces:
            at, lateness = self._offset.monotonic_ns(self._kernel_ns[piece:], self._read_ns[piece:])
            self._at_ns[piece:], self._lateness_ns[piece:] = at, lateness
        start = ends[piece - 1] if piece else 0
        # Bytes are cheaper to cut up than a bytearray; not worth a copy of much at each of many steps.
        raw, base = (self._bytes_between(start, ends[-1]), start) if self._is_small(start) else (None, 0)
        at_ns, lateness_ns, n_body_bytes = self._at_ns, self._lateness_ns, 0
        try:
            while piece < n_pieces:
                if until_ns is not None and not piece % PIECES_A_LOOK and clock_ns() >= until_ns and piece > self._n_decoded:
                    break
                end = ends[piece]
                data = self._bytes_between(start, end) if raw is None or start < base else raw[start - base : end - base]
                if dechunker is not None:
                    data = dechunker.feed(data)
                if data:
                    n_body_bytes += len(data)
                    decoder.feed(data, at_ns[piece], lateness_ns[piece])
                start = end
                piece += 1
        except FramingError as error:
            if error.content:
                decoder.feed(error.content, self._at_ns[piece], self._lateness_ns[piece])
            if self.ending in (None, Ending.COMPLETE, Ending.EOF):
                self.ending = Ending.TOO_LARGE if error.too_large else Ending.MALFORMED
                self.detail = str(error)
            piece = n_pieces
        self.n_body_bytes += n_body_bytes
        self._n_decoded = piece
        return piece >= n_pieces

    def _is_small(self, start: int) -> bool:
        """Whether what is left to decode of an ended stream may be copied at once."""
        return self.ending is not None and bool(self._piece_ends) and self._piece_ends[-1] - start <= SMALL_BYTES

    def _the_decoder(self) -> StreamDecoder:
        if self._decoder is None:
            self._decoder = self._new_decoder()
        return self._decoder

    def record(self) -> StreamRecord:
        """The record of this exchange, finished."""
        self._decode(None)
        clock = self._clock()
        if self._decoded is None:
            self._decoded = self._the_decoder().finish(self.ending or Ending.CANCELLED, self.detail)
            if self.is_retried:
                self._decoded.marks.append(RETRIED)
            if clock == "mixed":
                self._decoded.marks.append(USER_STAMPS)
        header_ns = None
        if self._head is not None:
            header_ns = self._offset.instant_ns(self._head_kernel_ns, self._head_read_ns)
        record = open_record(self)
        record.decoded = self._decoded
        # The end was put on the clock before the pieces were, alone: it may lie some ns before the last of them.
        last_ns = self._decoded.chunk_at_ns[-1] if self._decoded.chunk_at_ns else self.ended_ns
        record.header_ns, record.end_ns, record.clock = header_ns, max(self.ended_ns, last_ns), clock
        self._release()
        return record

    def _clock(self) -> str:
        """Whose stamps these are: mixed, if the kernel's could not be used for some of the reads."""
        n_user = self._lateness_ns.count(NO_LATENESS)
        if not n_user and self._lateness_ns:
            return "kernel"
        return "mixed" if n_user < len(self._lateness_ns) else "user"

    def _release(self) -> None:
        self._raw = bytearray()
        self._piece_ends = self._kernel_ns = self._read_ns = array("q")
        self._at_ns, self._lateness_ns = [], []
        self._n_decoded = 0
        self.message = b""
