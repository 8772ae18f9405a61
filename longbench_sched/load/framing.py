r"""Where an HTTP/1.x answer ends: its head, and the framing of its body. Pure: bytes in, positions out.

The end of a body is found by its framing and nothing else: by a chunk of size 0, by Content-Length, or by the end of the
connection. What the bytes say (`[DONE]`, a usage chunk, an event that ends in `0\r\n\r\n`) never matters here.

On the timed path a chunked body is not walked at every read. Its last bytes are CRLF CRLF, so `BodyEnd` walks the chunks when a
read brought these (and every 4 KiB); what it then finds is decided by the chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MAX_HEAD_BYTES = 64 << 10
MAX_SIZE_LINE_BYTES = 1 << 10
MAX_TRAILER_BYTES = 64 << 10
MAX_LENGTH_DIGITS = 18  # of Content-Length: beyond any body; Python itself refuses to read thousands
WALK_EVERY_BYTES = 4 << 10  # often enough that little is left to walk when a stream ends, and many end at once

_HEX_DIGITS = b"0123456789abcdefABCDEF"
_HEX = frozenset(_HEX_DIGITS)
_NO_BODY = frozenset({204, 304})


class FramingError(Exception):
    """The peer's bytes are no HTTP/1.x. `too_large` says that a bound was passed, not that they are malformed."""

    def __init__(self, text: str, *, too_large: bool = False) -> None:
        super().__init__(text)
        self.too_large = too_large
        self.content = b""  # of a body: what came before the fault


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """Status line and headers of an answer."""

    status: int
    headers: Mapping[str, str]  # names in lower case; repeated headers joined by ", "
    length: int | None  # Content-Length, if that frames the body
    chunked: bool
    keep_alive: bool  # the connection may be used again after the body

    @property
    def to_eof(self) -> bool:
        """The body lasts until the peer closes."""
        return self.length is None and not self.chunked


def parse_head(raw: bytes | bytearray) -> tuple[ResponseHead, int] | None:
    """Read a response head; the position after it, or None if it is not complete. 1xx answers are skipped.

    Raises FramingError.
    """
    start = 0
    while True:
        end = raw.find(b"\r\n\r\n", start)
        if end < 0:
            if len(raw) > MAX_HEAD_BYTES:
                raise FramingError(f"response headers over {MAX_HEAD_BYTES >> 10} KiB", too_large=True)
            if raw[start : start + 5] not in (b"HTTP/"[: len(raw) - start], b"HTTP/"):
                raise FramingError(f"not an HTTP/1.x answer: it begins with {bytes(raw[start : start + 20])!r}")
            return None
        if end > MAX_HEAD_BYTES:  # interim answers count too: there is no end to how many a server may send
            raise FramingError(f"response headers over {MAX_HEAD_BYTES >> 10} KiB", too_large=True)
        head = _read_head(bytes(raw[start:end]))
        start = end + 4
        if head.status >= 200:
            return head, start
        if head.status == 101:
            raise FramingError("the server switched protocols (101)")


def _read_head(block: bytes) -> ResponseHead:
    lines = block.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ", 2)
    version = parts[0]
    if (
        version not in ("HTTP/1.1", "HTTP/1.0")
        or len(parts) < 2
        or len(parts[1]) != 3
        or not parts[1].isascii()
        or not parts[1].isdigit()
    ):
        raise FramingError(f"not an HTTP/1.x status line: {lines[0][:80]!r}")
    status = int(parts[1])
    if status < 100:
        raise FramingError(f"not an HTTP status: {lines[0][:80]!r}")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise FramingError(f"not a header line: {line[:80]!r}")
        key = name.lower()
        value = value.strip()
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    codings = [c.strip().lower() for c in headers.get("transfer-encoding", "").split(",") if c.strip()]
    if codings and codings != ["chunked"]:
        raise FramingError(f"transfer coding {', '.join(codings)[:80]!r} was not asked for")
    length = _content_length(headers.get("content-length")) if not codings else None
    if status in _NO_BODY or 100 <= status < 200:
        length, codings = 0, []
    connection = {token.strip().lower() for token in headers.get("connection", "").split(",")}
    keep_alive = "close" not in connection and (version == "HTTP/1.1" or "keep-alive" in connection)
    framed = bool(codings) or length is not None
    return ResponseHead(status, headers, length, bool(codings), keep_alive and framed)


def _content_length(text: str | None) -> int | None:
    if text is None:
        return None
    values = {part.strip() for part in text.split(",")}
    value = values.pop()
    if values or not value.isascii() or not value.isdigit():
        raise FramingError(f"Content-Length {text[:80]!r} is not one number")
    if len(value) > MAX_LENGTH_DIGITS:
        raise FramingError(f"Content-Length {value[:80]}... is no length")
    return int(value)


def read_size_line(raw: bytes | bytearray, at: int) -> tuple[int, int] | None:
    """Read a chunk's size line at `at`: (size, position after the line); None if it is not complete. Raises FramingError."""
    end = raw.find(b"\r\n", at, at + MAX_SIZE_LINE_BYTES + 2)
    if end < 0:
        if len(raw) - at > MAX_SIZE_LINE_BYTES:
            raise FramingError("chunk size line over 1 KiB", too_large=True)
        return None
    digits = bytes(raw[at:end]).partition(b";")[0].strip(b" \t")
    if not digits or len(digits) > 15 or not _HEX.issuperset(digits):
        raise FramingError(f"not a chunk size: {bytes(raw[at : min(end, at + 20)])!r}")
    return int(digits, 16), end + 2


class BodyEnd:
    """Finds the end of a body in a growing buffer. Positions are relative to the buffer, which may be cut in front (`cut`)."""

    __slots__ = ("_at", "_in_trailer", "_looked", "_next_walk", "chunked", "length", "to_eof")

    def __init__(self, head: ResponseHead) -> None:
        self.chunked = head.chunked
        self.length = head.length
        self.to_eof = head.to_eof
        self._at = 0  # start of the next size line; everything before it has been walked
        self._in_trailer = False
        self._looked = 0  # no CRLF CRLF that has not been walked begins before this
        self._next_walk = WALK_EVERY_BYTES

    def find(self, raw: bytearray) -> int | None:
        """The position after the body's framing, or None if it has not all come. Raises FramingError."""
        if self.chunked:
            n_bytes = len(raw)
            at = raw.find(b"\r\n\r\n", self._looked)
            self._looked = n_bytes - 3 if n_bytes > 3 else 0
            return None if at < 0 and n_bytes < self._next_walk else self._walk(raw)
        if self.length is not None and len(raw) >= self.length:
            return self.length
        return None

    def check(self, raw: bytearray) -> None:
        """Look at every chunk now: for when nothing more comes. Raises FramingError."""
        if self.chunked:
            self._walk(raw)

    @property
    def walked(self) -> int:
        """What lies before this position is of no more use for finding the end."""
        # With the CRLF of the last chunk's size line the empty line after it still looks like an end to `find`.
        return self._at - 2 if self._in_trailer else self._at

    def cut(self, n_bytes: int) -> None:
        """Take note that the first bytes of the buffer (at most `walked`; any number of a length-framed body) were removed."""
        self._at -= n_bytes
        self._looked = max(self._looked - n_bytes, 0)
        self._next_walk = max(self._next_walk - n_bytes, WALK_EVERY_BYTES)
        if self.length is not None:
            self.length -= n_bytes

    def _walk(self, raw: bytearray) -> int | None:
        at, n, find = self._at, len(raw), raw.find
        while not self._in_trailer:
            # The usual size line, read in place; whatever is odd about one is left to read_size_line.
            end = find(b"\r\n", at, at + 17)
            digits = raw[at:end] if end > 0 else b""
            if digits.isalnum() and _HEX.issuperset(digits):
                size, data_at = int(digits, 16), end + 2
            else:
                line = read_size_line(raw, at)
                if line is None:
                    break
                size, data_at = line
            if size == 0:
                self._in_trailer = True
                at = data_at
                break
            after = data_at + size
            if after + 2 > n:
                break
            if raw[after] != 13 or raw[after + 1] != 10:
                raise FramingError("a chunk does not end where its size says")
            at = after + 2
        self._at = at
        self._next_walk = max(n, at) + WALK_EVERY_BYTES
        return self._trailer_end(raw) if self._in_trailer else None

    def _trailer_end(self, raw: bytearray) -> int | None:
        at = self._at
        while True:
            end = raw.find(b"\r\n", at)
            if end < 0:
                if len(raw) - self._at > MAX_TRAILER_BYTES:
                    raise FramingError("trailers over 64 KiB", too_large=True)
                return None
            if end == at:
                return end + 2
            at = end + 2


class Dechunker:
    """Takes the chunk framing off a body that is fed in pieces, as they were read. Stops at the last chunk."""

    __slots__ = ("_buffer", "_left", "_over")

    def __init__(self) -> None:
        self._buffer = b""  # an incomplete size line, or the CRLF after a chunk
        self._left = 0  # bytes of the current chunk's data still to come; -n: n bytes of its CRLF
        self._over = False

    def feed(self, piece: bytes) -> bytes:
        """The body bytes that this piece completes. Raises FramingError, with those before the fault in it."""
        # The usual case: exactly one whole chunk in a read.
        if not self._left and not self._buffer and not self._over:
            end = piece.find(b"\r\n", 0, 18)
            if end > 0:
                digits = piece[:end]
                if not digits.strip(_HEX_DIGITS):  # no sign, underscore or 0x, which int() would take
                    size = int(digits, 16)
                    if size and end + size + 4 == len(piece) and piece.endswith(b"\r\n"):
                        return piece[end + 2 : -2]
        out: list[bytes] = []
        try:
            self._feed(piece, out)
        except FramingError as error:
            error.content = b"".join(out)
            raise
        return out[0] if len(out) == 1 else b"".join(out)

    def _feed(self, piece: bytes, out: list[bytes]) -> None:
        raw = self._buffer + piece if self._buffer else piece
        self._buffer = b""
        at, n = 0, len(raw)
        while at < n and not self._over:
            if self._left > 0:
                data = raw[at : at + self._left]
                out.append(data)
                at += len(data)
                self._left -= len(data)
                if self._left:
                    break
                self._left = -2
            if self._left < 0:
                crlf = raw[at : at - self._left]
                if crlf != b"\r\n"[2 + self._left :][: len(crlf)]:
                    raise FramingError("a chunk does not end where its size says")
                at += len(crlf)
                self._left += len(crlf)
                continue
            line = read_size_line(raw, at)
            if line is None:
                self._buffer = bytes(raw[at:])
                break
            size, at = line
            self._left = size
            self._over = size == 0
