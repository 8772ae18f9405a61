"""The timed path: HTTP/1.1 straight on sockets. Stamps when bytes arrive, parses when the stream is over.

Plain sockets on Linux hang on an epoll of their own, itself watched by the loop; TLS, and systems without epoll, use the loop's
own transports with user-space stamps (connection.py). Either way an `Exchange` only collects bytes and instants while its
stream is open.

Connections are opened before they are due. One that the server closed while it was idle is replaced before its send; a
request that fails on a used connection before any byte of an answer is sent once more on a fresh one, and marked.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

from longbench_sched.engine.dialect import Dialect
from longbench_sched.load.connection import Connection, EpollReader, ProtocolConnection, SocketConnection
from longbench_sched.load.exchange import Exchange, open_record
from longbench_sched.load.messages import Messages
from longbench_sched.load.request_head import one_line, os_words, tls_advice
from longbench_sched.load.stamps import SO_TIMESTAMPNS, RealtimeOffset
from longbench_sched.load.timeouts import Timeouts
from longbench_sched.plan import Request
from longbench_sched.record import Ending, StreamRecord
from longbench_sched.target import Endpoint

SWEEP_S = 0.1
CLOSING_S = 0.5  # for connections that are being opened
CLOSING_TURNS = 20  # of the loop: its own transports are closed a few turns after they were told to
UNDECODED_LIMIT_BYTES = 256 << 20
RESTING_SHARE = 4  # of that, streams that have ended may hold a quarter in memory
SPOOL_A_SWEEP_BYTES = 4 << 20

HAS_EPOLL = hasattr(select, "epoll") and sys.platform.startswith("linux")

_monotonic_ns = time.monotonic_ns


@dataclass(frozen=True, slots=True)
class WireOptions:
    """How the wire transport works."""

    stamps: Literal["kernel", "user"]
    timeouts: Timeouts
    tls: ssl.SSLContext | None = None
    spare_connections: int = 0  # kept open and idle ahead of an open loop's next sends
    keep_text: bool = False
    undecoded_limit_bytes: int = UNDECODED_LIMIT_BYTES


class WireTransport:
    """transport.Transport over raw sockets. Make it inside the running loop."""

    def __init__(
        self,
        endpoint: Endpoint,
        dialect: Dialect,
        messages: Messages,
        lane_name: Callable[[Request], str],
        offset: RealtimeOffset,
        options: WireOptions,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._endpoint = endpoint
        self._dialect = dialect
        self._messages = messages
        self._lane_name = lane_name
        self._offset = offset
        self._options = options
        self._open: set[Exchange] = set()
        self._ended: set[Exchange] = set()  # over, not decoded: their bytes still count
        self._idle: list[Connection] = []
        self._n_opening = 0
        self._openers: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._addresses: list[tuple[int, Any]] | None = None
        self._spool: BinaryIO | None = None
        self._can_spool = True  # until the temporary folder is full: then all stays in memory
        self._reader = EpollReader(self._loop) if HAS_EPOLL and options.tls is None else None
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)
        self.n_sockets = 0
        self.n_sockets_peak = 0
        self.undecoded_peak_bytes = 0
        self.spooled_bytes = 0

    # Transport.

    async def stream(self, request: Request, due_ns: int, slot_ns: int) -> Exchange:
        """Send a request now; the exchange, when it is over."""
        exchange = Exchange(
            request,
            self._messages.request_id(request),
            self._lane_name(request),
            self._messages.take(request),
            lambda: self._dialect.decoder(request, keep_text=self._options.keep_text),
            self._offset,
            due_ns,
            slot_ns,
            self._loop.create_future(),
        )
        self._open.add(exchange)
        try:
            is_fresh_wanted = False
            while True:
                connection = await self._connection_for(exchange, is_fresh_wanted)
                if connection is None:
                    break
                was_used = connection.n_requests > 0
                connection.send(exchange)
                await exchange.over
                lost = exchange.ending in (Ending.EOF, Ending.RESET)
                if not (lost and was_used and exchange.is_untouched and not exchange.is_retried):
                    break
                exchange.restart(self._loop.create_future())
                is_fresh_wanted = True
        finally:
            self._open.discard(exchange)
        self._ended.add(exchange)
        return exchange

    async def warm(self, n_connections: int) -> None:
        """Open connections ahead; a server that refuses will say so again when it matters."""
        missing = n_connections - len(self._idle)
        while missing > 0:
            n = min(missing, 64)
            n_before = self.n_sockets
            await asyncio.gather(*(self._open_spare() for _ in range(n)))
            if self.n_sockets < n_before + n:
                return
            missing -= n

    def is_read_waiting(self) -> bool:
        """Whether a socket has bytes to read."""
        return self._reader is not None and self._reader.is_waiting()

    def open_records(self) -> list[StreamRecord]:
        """What is known of the streams that are open and sent."""
        return [open_record(exchange) for exchange in self._open if exchange.sent_ns is not None]

    def cancel_all(self) -> None:
        """End every open stream as cancelled."""
        for exchange in list(self._open):
            # One that is over stays what it is, unless it is about to be sent once more.
            if exchange.ending is None or exchange.is_untouched:
                self._give_up(exchange, Ending.CANCELLED, None)

    async def aclose(self) -> None:
        """Close all connections."""
        self._is_closed = True
        self._sweeper.cancel()
        if self._openers:  # a TLS handshake that is cut off is noisy: uvloop logs what it could not write
            await asyncio.wait(self._openers, timeout=CLOSING_S)
        for opener in list(self._openers):
            opener.cancel()
        await asyncio.gather(*self._openers, return_exceptions=True)
        for connection in list(self._idle):
            connection.close()
        self._idle.clear()
        if self._reader is not None:
            self._reader.close()
        if self._spool is not None:
            with contextlib.suppress(OSError):  # what a full disk has not taken
                self._spool.close()
        for _ in range(CLOSING_TURNS):
            if not self.n_sockets:
                break
            await asyncio.sleep(0)

    # Connections.

    async def _connection_for(self, exchange: Exchange, is_fresh_wanted: bool) -> Connection | None:
        """An open connection, or None with the exchange ended."""
        while self._idle and not is_fresh_wanted:
            connection = self._idle.pop()
            if connection.is_alive():
                self._keep_spare()
                return connection
            connection.close()
        opener = asyncio.ensure_future(self._open_connection())
        try:
            await asyncio.wait((opener, exchange.over), return_when=asyncio.FIRST_COMPLETED)
            if not opener.done():  # the run was cancelled meanwhile
                opener.cancel()
                return None
            connection = opener.result()
        except _ConnectFailed as failure:
            exchange.ending, exchange.detail = failure.ending, failure.detail
            exchange.end_ns = _monotonic_ns()
            return None
        if exchange.over.done():
            self._idle.append(connection)
            return None
        return connection

    async def _open_connection(self) -> Connection:
        """Connect. Raises _ConnectFailed."""
        self._n_opening += 1
        try:
            async with asyncio.timeout(self._options.timeouts.connect_s):
                connection = await self._connect()
        except TimeoutError as error:
            limit = self._options.timeouts.connect_s
            detail = os_words(error) if limit is None else f"no connection within {limit:g} s"
            raise _ConnectFailed(Ending.TIMEOUT_CONNECT, detail) from None
        except ConnectionRefusedError as error:
            raise _ConnectFailed(Ending.REFUSED, os_words(error)) from None
        except ssl.SSLError as error:
            raise _ConnectFailed(Ending.TLS, tls_advice(one_line(str(error)))) from None
        except OSError as error:
            raise _ConnectFailed(Ending.CONNECT_FAILED, os_words(error)) from None
        finally:
            self._n_opening -= 1
        connection.is_counted = True
        self.n_sockets += 1
        self.n_sockets_peak = max(self.n_sockets_peak, self.n_sockets)
        return connection

    async def _connect(self) -> Connection:
        if self._reader is None:
            _, protocol = await self._loop.create_connection(
                lambda: ProtocolConnection(self),
                self._endpoint.host,
                self._endpoint.port,
                ssl=self._options.tls,
                server_hostname=self._endpoint.host if self._options.tls is not None else None,
            )
            return protocol
        failure: OSError | None = None
        for family, address in await self._resolve():
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._options.stamps == "kernel":
                    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
                await self._loop.sock_connect(sock, address)
            except BaseException as error:
                sock.close()
                if not isinstance(error, OSError):
                    raise
                failure = error
                continue
            return SocketConnection(self, sock, self._reader)
        raise failure if failure is not None else OSError("the name has no address")

    async def _resolve(self) -> list[tuple[int, Any]]:
        """Look the host's name up, once."""
        if self._addresses is None:
            found = await self._loop.getaddrinfo(self._endpoint.host, self._endpoint.port, type=socket.SOCK_STREAM)
            self._addresses = [(family, address) for family, _, _, _, address in found]
        return self._addresses

    def _keep_spare(self) -> None:
        """Open another connection in the background if too few are idle."""
        if len(self._idle) + self._n_opening < self._options.spare_connections and not self._is_closed:
            opener = asyncio.ensure_future(self._open_spare())
            self._openers.add(opener)
            opener.add_done_callback(self._openers.discard)

    async def _open_spare(self) -> None:
        with contextlib.suppress(_ConnectFailed):
            connection = await self._open_connection()
            if self._is_closed:
                connection.close()
            else:
                self._idle.append(connection)

    # Called by connections.

    def answered(self, connection: Connection, exchange: Exchange) -> None:
        """An answer is over (its ending says how)."""
        connection.exchange = None
        connection.n_requests += 1
        if exchange.keeps_connection and not self._is_closed:
            self._idle.append(connection)
        else:
            connection.close()
        if not exchange.over.done():
            exchange.over.set_result(None)

    def dropped(self, connection: Connection) -> None:
        """An idle connection was closed by the server, or closed here."""
        self.n_sockets -= connection.is_counted
        connection.is_counted = False
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)

    # Deadlines and memory.

    def _sweep(self) -> None:
        if self._is_closed:
            return
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)
        now = _monotonic_ns()
        for exchange in list(self._open):
            if exchange.ending is None:
                self._check_deadlines(exchange, now)
        self._check_memory()

    def _check_deadlines(self, exchange: Exchange, now_ns: int) -> None:
        if exchange.sent_ns is None:
            return
        limits = self._options.timeouts
        since_sent_s = (now_ns - exchange.sent_ns) / 1e9
        if limits.total_s is not None and since_sent_s > limits.total_s:
            self._give_up(exchange, Ending.TIMEOUT_TOTAL, f"not over {limits.total_s:g} s after the send")
            return
        # Bytes alone do not tell a first token from a comment or a role chunk: only where a limit has passed are
        # they decoded now.
        last_ns = exchange.last_read_ns or exchange.sent_ns
        is_idle = limits.idle_s is not None and (now_ns - last_ns) / 1e9 > limits.idle_s
        is_first_late = limits.first_token_s is not None and since_sent_s > limits.first_token_s and not exchange.has_token
        if not is_idle and not is_first_late:
            return
        has_token = exchange.decode_available() > 0
        if exchange.ending is not None:  # so it turned out when the bytes were looked at
            self._let_go(exchange)
        elif is_first_late and not has_token:
            self._give_up(exchange, Ending.TIMEOUT_FIRST_TOKEN, f"no token {limits.first_token_s:g} s after the send")
        elif is_idle and has_token:
            self._give_up(exchange, Ending.TIMEOUT_IDLE, f"no byte for {limits.idle_s:g} s")

    def _give_up(self, exchange: Exchange, ending: Ending, detail: str | None) -> None:
        exchange.ending, exchange.detail = ending, detail
        exchange.end_ns = _monotonic_ns()
        self._let_go(exchange)

    @staticmethod
    def _let_go(exchange: Exchange) -> None:
        """Close the connection of an exchange that is over before its server knows."""
        if exchange.connection is not None:
            exchange.connection.exchange = None
            exchange.connection.close()
        if not exchange.over.done():
            exchange.over.set_result(None)

    def _check_memory(self) -> None:
        self._ended = {exchange for exchange in self._ended if exchange.n_undecoded_bytes}
        resting = sum(exchange.n_undecoded_bytes for exchange in self._ended)
        total = resting + sum(exchange.n_undecoded_bytes for exchange in self._open)
        self.undecoded_peak_bytes = max(self.undecoded_peak_bytes, total)
        limit = self._options.undecoded_limit_bytes
        if not self._can_spool:
            return
        if total > limit:
            self._spool_some([*self._open, *self._ended], total - limit // 2)
        elif resting > limit // RESTING_SHARE:
            # Nobody reads them for now. A little at a time: a long write would hold up the reads.
            self._spool_some(self._ended, min(resting - limit // RESTING_SHARE, SPOOL_A_SWEEP_BYTES))

    def _spool_some(self, exchanges: Iterable[Exchange], n_bytes: int) -> None:
        """Move at least so many bytes into the file, if there are and it takes them, from the largest on."""
        try:
            if self._spool is None:
                self._spool = tempfile.TemporaryFile(prefix="longbench-sched-")  # noqa: SIM115  # closed by aclose
            for exchange in sorted(exchanges, key=lambda e: e.n_undecoded_bytes, reverse=True):
                moved = exchange.spool(self._spool)
                self.spooled_bytes += moved
                n_bytes -= moved
                if n_bytes <= 0:
                    return
        except OSError:
            self._can_spool = False


class _ConnectFailed(Exception):
    """A connection could not be opened."""

    def __init__(self, ending: Ending, detail: str) -> None:
        super().__init__(detail)
        self.ending = ending
        self.detail = detail
