"""Connections to the engine: a plain socket on the epoll that all of them share, or a transport of the loop's.

One wake-up reads whatever has come on any number of plain sockets, each read with the kernel's receive stamp (stamps.py). A
connection carries at most one exchange at a time; what it reads goes straight into that exchange.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import time
from typing import Protocol, cast

from longbench_sched.load.exchange import Exchange
from longbench_sched.load.request_head import os_words
from longbench_sched.load.stamps import ANCILLARY_BYTES, unpack_timespec
from longbench_sched.record import Ending

READ_BYTES = 1 << 16
WRITE_BYTES = 1 << 16  # at once, where the loop's own transports write
MAX_BATCH = 256  # streams read in one go before the loop may do something else

_monotonic_ns = time.monotonic_ns


class Connection(Protocol):
    """A connection to the engine, carrying at most one exchange at a time."""

    exchange: Exchange | None
    n_requests: int
    is_counted: bool  # among the open sockets: not while it is being opened

    def send(self, exchange: Exchange) -> None:
        """Send the exchange's request now."""
        ...

    def is_alive(self) -> bool:
        """Whether an idle connection can still carry a request."""
        ...

    def close(self) -> None:
        """Close it now."""
        ...


class Owner(Protocol):
    """Who opened a connection, and is told what becomes of it."""

    def answered(self, connection: Connection, exchange: Exchange) -> None:
        """An answer is over (its ending says how)."""
        ...

    def dropped(self, connection: Connection) -> None:
        """The connection was closed, by the server or here."""
        ...


class EpollReader:
    """One epoll for all plain sockets, hung into the loop: a wake-up serves every stream that has something."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._connections: dict[int, SocketConnection] = {}
        loop.add_reader(self._epoll.fileno(), self._on_ready)

    def add(self, connection: SocketConnection) -> None:
        """Watch a connection for bytes."""
        self._connections[connection.fd] = connection
        self._epoll.register(connection.fd, select.EPOLLIN)

    def want_write(self, connection: SocketConnection, is_wanted: bool) -> None:
        """Also tell, or no longer tell, when the kernel takes more of what is being sent."""
        self._epoll.modify(connection.fd, select.EPOLLIN | select.EPOLLOUT if is_wanted else select.EPOLLIN)

    def remove(self, connection: SocketConnection) -> None:
        """Watch it no more."""
        if self._connections.pop(connection.fd, None) is not None:
            self._epoll.unregister(connection.fd)

    def is_waiting(self) -> bool:
        """Whether a socket has bytes to read."""
        return bool(self._epoll.poll(0, 1))

    def _on_ready(self) -> None:
        connections = self._connections
        for fd, events in self._epoll.poll(0, MAX_BATCH):
            connection = connections.get(fd)
            if connection is None:
                continue
            if events & select.EPOLLOUT:
                connection.flush()
            if events & ~select.EPOLLOUT:
                connection.read()

    def close(self) -> None:
        """Close every connection that is left, then the epoll."""
        self._loop.remove_reader(self._epoll.fileno())
        for connection in list(self._connections.values()):
            connection.close()
        self._epoll.close()


class SocketConnection:
    """A plain socket on the epoll."""

    __slots__ = ("_is_blocked", "_out", "_owner", "_reader", "_recvmsg", "_sock", "exchange", "fd", "is_counted", "n_requests")

    def __init__(self, owner: Owner, sock: socket.socket, reader: EpollReader) -> None:
        self._owner = owner
        self._sock = sock
        self._recvmsg = sock.recvmsg
        self._reader = reader
        self._out: memoryview | None = None
        self._is_blocked = False  # the kernel takes no more for now: the epoll tells when it does
        self.fd = sock.fileno()
        self.exchange: Exchange | None = None
        self.n_requests = 0
        self.is_counted = False
        reader.add(self)

    def send(self, exchange: Exchange) -> None:
        """Send the request now; `sent_ns` is that of the first attempt."""
        self.exchange = exchange
        exchange.connection = self
        self._out = memoryview(exchange.message)
        if exchange.sent_ns is None:
            exchange.sent_ns = _monotonic_ns()
        self.flush()

    def flush(self) -> None:
        """Send on, as far as the kernel takes it."""
        exchange, out = self.exchange, self._out
        if exchange is None or out is None:
            return
        try:
            while out:
                out = out[self._sock.send(out) :]
        except BlockingIOError:
            self._out = out
            if not self._is_blocked:
                self._is_blocked = True
                self._reader.want_write(self, True)
            return
        except OSError as error:
            # The server may have answered (413, say) before it closed: what it said is read first.
            self._out = None
            self.read()
            if self.exchange is exchange and exchange.ending is None:
                self._lost(Ending.RESET, os_words(error))
            return
        exchange.body_sent_ns = _monotonic_ns()
        self._out = None
        if self._is_blocked:
            self._is_blocked = False
            self._reader.want_write(self, False)

    def read(self) -> None:
        """Take what has come in one read, with its stamps."""
        try:
            data, ancillary, _, _ = self._recvmsg(READ_BYTES, ANCILLARY_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(Ending.RESET, os_words(error))
            return
        read_ns = _monotonic_ns()
        exchange = self.exchange
        if not data:
            self._lost(Ending.EOF, None)
        elif exchange is None:
            self.close()  # bytes that nobody asked for
        else:
            kernel_ns = 0
            if ancillary:
                seconds, nanos = unpack_timespec(ancillary[0][2])
                kernel_ns = seconds * 1_000_000_000 + nanos
            if exchange.take(data, kernel_ns, read_ns):
                self._owner.answered(self, exchange)

    def _lost(self, ending: Ending, detail: str | None) -> None:
        exchange = self.exchange
        if exchange is None:
            self.close()
            return
        if ending is Ending.EOF:
            exchange.end_at_eof()
        else:
            exchange.ending, exchange.detail = ending, detail
        if exchange.ending is not Ending.COMPLETE:
            exchange.end_ns = _monotonic_ns()
        self._owner.answered(self, exchange)

    def is_alive(self) -> bool:
        """Whether the server has neither closed it nor said anything that nobody asked for."""
        if self.fd < 0:
            return False
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False  # closed by the server, or bytes that nobody asked for

    def close(self) -> None:
        """Close the socket; once is enough."""
        if self.fd < 0:
            return
        self._reader.remove(self)
        self._sock.close()
        self.fd = -1
        self._owner.dropped(self)


class ProtocolConnection(asyncio.Protocol):
    """A connection of the loop's: TLS, or a system without epoll. Stamps are user-space."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._out: memoryview | None = None
        self._is_paused = False  # what was written has not all been taken
        self.exchange: Exchange | None = None
        self.n_requests = 0
        self.is_counted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask to be told as soon as a write has not all been taken."""
        # A cast, not an assertion: uvloop's TLS transports are asyncio.Transports by shape only.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=1)  # 0 would pause TLS with nothing to write

    def send(self, exchange: Exchange) -> None:
        """Send the request now; `sent_ns` is that of the first attempt."""
        assert self._transport is not None
        self.exchange = exchange
        exchange.connection = self
        if exchange.sent_ns is None:
            exchange.sent_ns = _monotonic_ns()
        self._out = memoryview(exchange.message)
        self._write()

    def _write(self) -> None:
        """Write on, a piece at a time: TLS would take it all at once and not tell when the kernel had it."""
        exchange, out = self.exchange, self._out
        if exchange is None or out is None or self._transport is None:
            return
        while out and not self._is_paused:
            self._transport.write(out[:WRITE_BYTES])
            out = out[WRITE_BYTES:]
        self._out = out
        if not out and not self._is_paused:
            exchange.body_sent_ns = _monotonic_ns()
            self._out = None

    def pause_writing(self) -> None:
        """The kernel takes no more for now."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """It does again."""
        self._is_paused = False
        self._write()

    def data_received(self, data: bytes) -> None:
        """Take what has come, with a user-space stamp."""
        read_ns = _monotonic_ns()
        exchange = self.exchange
        if exchange is None:
            self.close()
        elif exchange.take(data, 0, read_ns):
            self._owner.answered(self, exchange)

    def eof_received(self) -> bool:
        """Let the transport close."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """End the exchange that was on it, if there is one."""
        exchange, self.exchange = self.exchange, None
        self._transport = None
        if exchange is not None and exchange.ending is None:
            if error is None:
                exchange.end_at_eof()
            else:
                exchange.ending = Ending.TLS if isinstance(error, ssl.SSLError) else Ending.RESET
                exchange.detail = str(error)
            if exchange.ending is not Ending.COMPLETE:
                exchange.end_ns = _monotonic_ns()
            self._owner.answered(self, exchange)
        self._owner.dropped(self)

    def is_alive(self) -> bool:
        """Whether the transport still stands."""
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        """Drop the connection at once."""
        if self._transport is not None:
            self._transport.abort()
