"""HTTP/1.1 from the server's side, without sockets: bytes in, requests out; heads of answers as bytes.

Kept small on purpose: one request at a time per connection, bodies by Content-Length or chunks, limits on everything that a
client sends. A general web framework costs more CPU per streamed token than the rest of the embedded engine together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote

MAX_HEAD_BYTES = 64 << 10
MAX_BODY_BYTES = 64 << 20
MAX_SIZE_LINE_BYTES = 1 << 10
MAX_LENGTH_DIGITS = 18  # of Content-Length: Python refuses to read thousands, and fewer say already that it is too long

_REQUEST_LINE = re.compile(rb"([A-Z]+) (\S+) HTTP/1\.([01])")
_HEX = re.compile(rb"[0-9A-Fa-f]{1,16}")


class ProtocolError(Exception):
    """The client's bytes are no request that can be answered; the connection ends after the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class HttpMessage:
    """A whole request."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    keep_alive: bool


@dataclass(slots=True)
class RequestReader:
    """Puts a request together from pieces.

    `feed` takes bytes; `next` gives the next whole request or None. `wants_continue` is set once when the client waits for
    "100 Continue" before it sends its body.
    """

    max_body: int = MAX_BODY_BYTES
    wants_continue: bool = False
    _buffer: bytearray = field(default_factory=bytearray)
    _head: tuple[str, str, bool, dict[str, str]] | None = None
    _left: int = 0  # bytes of the body, or of the current chunk
    _is_chunked: bool = False
    _in_chunk: bool = False
    _in_trailer: bool = False
    _parts: list[bytes] = field(default_factory=list)
    _size: int = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing of a next request has come."""
        return self._head is None and not self._buffer

    def feed(self, data: bytes) -> None:
        """Take what was read."""
        if self._head is not None and not self._is_chunked and not self._buffer and len(data) <= self._left:
            self._parts.append(data)  # the common case of a large body: nothing is copied
            self._left -= len(data)
            return
        self._buffer += data

    def next(self) -> HttpMessage | None:
        """The next request, if it is complete. Raises ProtocolError."""
        if self._head is None and not self._read_head():
            return None
        if self._is_chunked:
            if not self._read_chunks():
                return None
        else:
            if self._buffer and self._left:
                n = min(self._left, len(self._buffer))
                self._parts.append(bytes(self._buffer[:n]))
                del self._buffer[:n]
                self._left -= n
            if self._left:
                return None
        assert self._head is not None
        method, target, keep_alive, headers = self._head
        path, _, query = target.partition("?")
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._head, self._parts, self._size = None, [], 0
        return HttpMessage(method, unquote(path), dict(parse_qsl(query)), headers, body, keep_alive)

    def _read_head(self) -> bool:
        buffer = self._buffer
        while buffer[:2] == b"\r\n":  # blank lines before a request are allowed
            del buffer[:2]
        end = buffer.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
        if end < 0:
            if len(buffer) >= MAX_HEAD_BYTES:
                raise ProtocolError(431, f"header block above {MAX_HEAD_BYTES} bytes")
            return False
        first, *lines = bytes(buffer[:end]).split(b"\r\n")
        del buffer[: end + 4]
        match = _REQUEST_LINE.fullmatch(first)
        if not match:
            raise ProtocolError(400, "not an HTTP/1.1 request")
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon or not name or name != name.strip():
                raise ProtocolError(400, "malformed header line")
            key = name.decode("latin-1").lower()
            text = value.strip().decode("latin-1")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        self._begin_body(headers)
        wanted = headers.get("connection", "").lower()
        keep_alive = "close" not in wanted if match[3] == b"1" else "keep-alive" in wanted
        self._head = (match[1].decode(), match[2].decode("latin-1"), keep_alive, headers)
        return True

    def _begin_body(self, headers: Mapping[str, str]) -> None:
        self._left, self._in_chunk, self._in_trailer = 0, False, False
        self._is_chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        length = headers.get("content-length")
        if self._is_chunked and length is not None:
            raise ProtocolError(400, "both Content-Length and chunked")
        if length is not None:
            if not length.isascii() or not length.isdigit():
                raise ProtocolError(400, "Content-Length is not a number")
            self._left = int(length[:MAX_LENGTH_DIGITS])
            if self._left > self.max_body:
                raise ProtocolError(413, f"body of {self._left} bytes, at most {self.max_body} are accepted")
        self.wants_continue = headers.get("expect", "").lower() == "100-continue" and (self._left > 0 or self._is_chunked)

    def _read_chunks(self) -> bool:
        buffer = self._buffer
        while True:
            if self._in_chunk:
                if len(buffer) < self._left + 2:
                    return False
                if buffer[self._left : self._left + 2] != b"\r\n":
                    raise ProtocolError(400, "malformed chunk")
                self._parts.append(bytes(buffer[: self._left]))
                del buffer[: self._left + 2]
                self._in_chunk = False
                continue
            end = buffer.find(b"\r\n", 0, MAX_SIZE_LINE_BYTES)
            if end < 0:
                if len(buffer) >= MAX_SIZE_LINE_BYTES:
                    raise ProtocolError(400, "chunk size line too long")
                return False
            line = bytes(buffer[:end])
            del buffer[: end + 2]
            if self._in_trailer:
                if not line:
                    return True
                continue
            text = line.partition(b";")[0].strip()
            if not _HEX.fullmatch(text):
                raise ProtocolError(400, "malformed chunk size")
            self._left = int(text, 16)
            self._size += self._left
            if self._size > self.max_body:
                raise ProtocolError(413, f"body above {self.max_body} bytes")
            self._in_chunk, self._in_trailer = self._left > 0, self._left == 0


def head(status: int, headers: Mapping[str, str], length: int | None, content_type: str) -> bytes:
    """The head of an answer; `length` None means a chunked body."""
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    if length is not None:
        lines.append(f"content-length: {length}")
    if content_type:
        lines.append(f"content-type: {content_type}")
    if length is None:
        lines.append("transfer-encoding: chunked")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
