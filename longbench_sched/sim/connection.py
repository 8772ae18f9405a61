"""A client's connection to the embedded engine: requests are read one after the other, and at most one is being answered."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

import orjson

from longbench_sched.sim import http1
from longbench_sched.sim.faults import Wire
from longbench_sched.sim.step import Sequence
from longbench_sched.sim.wire.base import Ask, Stream

_LINGER_BYTES = 256 << 20  # read and thrown away after a refusal, so that the client sees it before a reset


@dataclass(slots=True, eq=False)
class Exchange:
    """A generation request being answered."""

    wire: Wire
    ask: Ask
    request_id: str
    sequence: Sequence
    stream: Stream | None  # None: answered in one piece
    created: int
    has_head: bool = False
    cached: int = 0  # prompt tokens found in a cache


class Host(Protocol):
    """The server behind a connection."""

    connections: set[Connection]

    def catch_up(self) -> None:
        """Let no other work come before tokens that are due."""
        ...

    def receive(self, connection: Connection, message: http1.HttpMessage) -> None:
        """Take a request."""
        ...

    def abandon(self, exchange: Exchange) -> None:
        """The client has gone."""
        ...

    def head(self, status: int, length: int | None, content_type: str, request_id: str | None = None) -> bytes:
        """The head of an answer."""
        ...


class Connection(asyncio.Protocol):
    """One client connection: at most one request is being answered."""

    def __init__(self, server: Host) -> None:
        self.server = server
        self.transport: asyncio.Transport | None = None
        self.reader = http1.RequestReader()
        self.exchange: Exchange | None = None
        self.is_closed = False
        self._is_answering = False
        self._keeps_alive = True
        self._lingers: int | None = None  # bytes still thrown away

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """A client has gone: whatever it waited for is aborted."""
        self.is_closed = True
        self.server.connections.discard(self)
        if self.exchange is not None:
            self.server.abandon(self.exchange)
            self.exchange = None

    def data_received(self, data: bytes) -> None:
        """Take bytes; tokens that are due come first."""
        self.server.catch_up()
        if self._lingers is not None:
            self._lingers -= len(data)
            if self._lingers < 0:
                self.close()
            return
        self.reader.feed(data)
        if not self._is_answering:
            self._read_next()
        elif self.transport is not None:
            self.transport.pause_reading()  # what comes before the answer waits in the kernel

    def write(self, data: bytes) -> None:
        """Send bytes, unless nobody is there any more."""
        # A transport that failed tells so only in the loop's next turn, and complains of each write until then.
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def answered(self) -> None:
        """The answer is complete."""
        self.exchange = None
        self._is_answering = False
        if not self._keeps_alive:
            self.close()
            return
        if self.transport is not None and not self.is_closed:
            self.transport.resume_reading()
        if not self.reader.is_idle:
            self._read_next()

    def cut(self) -> None:
        """Close in the middle of an answer."""
        self.close()

    def close(self) -> None:
        """Close when everything is sent."""
        if self.transport is not None and not self.is_closed:
            self.transport.close()

    def _read_next(self) -> None:
        try:
            message = self.reader.next()
        except http1.ProtocolError as error:
            self._refuse(error)
            return
        if self.reader.wants_continue and message is None:
            self.reader.wants_continue = False
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if message is not None:
            self._is_answering = True
            self._keeps_alive = message.keep_alive
            self.server.receive(self, message)

    def _refuse(self, error: http1.ProtocolError) -> None:
        body = orjson.dumps(
            {"error": {"message": error.message, "type": "BadRequestError", "param": None, "code": error.status}}
        )
        head = self.server.head(error.status, len(body), "application/json").replace(
            b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"
        )
        self.write(head + body)
        if self.transport is not None and self.transport.can_write_eof():
            self.transport.write_eof()
        self._lingers = _LINGER_BYTES
