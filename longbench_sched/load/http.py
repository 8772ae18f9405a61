"""HttpTransport: the same seam as `wire.py`, over aiohttp. Serves proxies, and cross-checks the timed path.

Bytes are stamped when they are read from the connection, in user space, and kept; they are decoded when the record is made.
Only when a deadline may have passed are they decoded early, to tell a first token from comments and role chunks.

What aiohttp does not tell: the kernel's receive stamps; how far a response head had come when the connection was reset; a size
line of a chunk that is longer than it should be (it is skipped); where an answer ended if bytes that are no HTTP came with its
head in one read (it counts as malformed; `wire` reads it to its end and drops the connection).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from weakref import WeakSet

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.tracing import Trace
from yarl import URL

from longbench_sched.engine.dialect import Dialect, HttpRequest
from longbench_sched.load.exchange import open_record
from longbench_sched.load.framing import MAX_HEAD_BYTES
from longbench_sched.load.http_exchange import BrokenFraming, Held, HttpExchange
from longbench_sched.load.request_head import (
    common_lines,
    head_lines,
    one_line,
    os_words,
    request_path,
    ssl_context,
    tls_advice,
)
from longbench_sched.load.timeouts import Timeouts
from longbench_sched.plan import Request
from longbench_sched.record import Ending, StreamRecord
from longbench_sched.target import Target, mask_url

# Engines close idle connections after 5 s; one that we drop before that cannot be reset under a request.
KEEP_ALIVE_S = 4.0
MOST_S_TO_CLOSE = 1.0  # a TLS transport closes its socket some turns of the loop after it was told to


class HttpTransport:
    """transport.Transport over aiohttp. Make and use it inside one running loop."""

    def __init__(
        self,
        target: Target,
        dialect: Dialect,
        model: str,
        *,
        run_id: str = "run",
        lanes: Sequence[str] = (),
        timeouts: Timeouts | None = None,
        ca_file: str | Path | None = None,
        insecure: bool = False,
        proxy: str | None = None,
        keep_text: bool = False,
    ) -> None:
        """Raises UsageError for headers or certificates that cannot be used.

        run_id: request ids are `<run_id>-<request.id>`. lanes: names by lane index. proxy: its URL, or None to go directly.
        """
        common_lines(target)
        self._target = target
        self._dialect = dialect
        self._model = model
        self._run_id = run_id
        self._lanes = lanes
        self._timeouts = timeouts or Timeouts()
        self._proxy = proxy
        self._keep_text = keep_text
        self._ssl: ssl.SSLContext | bool = ssl_context(ca_file, insecure) if target.endpoint.scheme == "https" else True
        self._encoded: dict[int, HttpRequest] = {}
        self._pool: aiohttp.ClientSession | None = None
        self._single_use: aiohttp.ClientSession | None = None
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._open: set[HttpExchange] = set()
        self._undecoded = Held()
        self.n_sockets_peak = 0
        self.spooled_bytes = 0

    @property
    def undecoded_peak_bytes(self) -> int:
        """The most bytes that were ever held undecoded."""
        return self._undecoded.peak_bytes

    def prepare(self, request: Request) -> None:
        """Encode a request ahead, so that nothing is built while the run is measured."""
        self._encoded[request.index] = self._dialect.encode(request, self._model)

    async def stream(self, request: Request, due_ns: int, slot_ns: int) -> HttpExchange:
        """Send a request now; the exchange, when it is over."""
        http_request = self._encoded.pop(request.index, None) or self._dialect.encode(request, self._model)
        exchange = HttpExchange(
            request,
            f"{self._run_id}-{request.id}",
            self._lanes[request.lane] if 0 <= request.lane < len(self._lanes) else request.phase,
            self._dialect.decoder(request, keep_text=self._keep_text),
            self._timeouts,
            self._undecoded,
            due_ns,
            slot_ns,
        )
        self._open.add(exchange)
        self.n_sockets_peak = max(self.n_sockets_peak, len(self._open))
        try:
            await self._attempt(exchange, http_request, self._open_pool())
            if exchange.may_be_sent_again:
                exchange.begin_again()
                await self._attempt(exchange, http_request, self._open_single_use())
        finally:
            self._open.discard(exchange)
        return exchange

    async def warm(self, n_connections: int) -> None:
        """Do nothing: aiohttp connects when a request is sent. The connecting is in the lateness, not in `sent_ns`."""

    def is_read_waiting(self) -> bool:
        """Not to be learnt from aiohttp."""
        return False

    def open_records(self) -> list[StreamRecord]:
        """What is known of the streams that are open and sent."""
        return [open_record(exchange) for exchange in self._open if exchange.sent_ns is not None]

    def cancel_all(self) -> None:
        """End every open stream as cancelled."""
        for exchange in self._open:
            exchange.give_up(Ending.CANCELLED, None)

    async def aclose(self) -> None:
        """Close all connections."""
        for session in (self._pool, self._single_use):
            if session is not None:
                await session.close()
        self._pool = self._single_use = None
        for made in self._sockets:
            # A request that was given up leaves TLS waiting for a farewell, which a peer that hangs never sends.
            with contextlib.suppress(OSError):
                made.shutdown(socket.SHUT_RDWR)
        until_s = time.monotonic() + MOST_S_TO_CLOSE
        while any(made.fileno() >= 0 for made in self._sockets) and time.monotonic() < until_s:
            await asyncio.sleep(0.001)

    async def _attempt(self, exchange: HttpExchange, http_request: HttpRequest, session: aiohttp.ClientSession) -> None:
        """Send once and read to the end; how that went is in the exchange."""
        endpoint = self._target.endpoint
        path = request_path(self._target, http_request)
        response: aiohttp.ClientResponse | None = None
        try:
            response = await session.request(
                http_request.method,
                URL(f"{endpoint.scheme}://{endpoint.netloc}{path}", encoded=True),
                headers=head_lines(self._target, http_request, exchange.request_id),
                data=_StampedBody(http_request.body, exchange),
                allow_redirects=False,
                proxy=self._proxy,
                ssl=self._ssl,
                trace_request_ctx=exchange,
            )
            exchange.take_head(response)
            await exchange.read(response.content)
        except asyncio.CancelledError:
            if not exchange.take_cancellation():
                raise
        except (aiohttp.ClientError, TimeoutError, OSError, HttpProcessingError) as error:
            exchange.take_error(error, *self._read_error(error))
        finally:
            exchange.disarm()
            if response is not None:
                response.release() if exchange.keeps_connection else response.close()

    def _read_error(self, error: BaseException) -> tuple[Ending, str]:
        """How an exchange ended, read from aiohttp's error, and what to tell people."""
        proxy = mask_url(self._proxy or "")
        match error:
            case aiohttp.ConnectionTimeoutError():
                return Ending.TIMEOUT_CONNECT, f"no connection within {self._timeouts.connect_s:g} s"
            case aiohttp.ClientProxyConnectionError():
                return Ending.CONNECT_FAILED, f"cannot reach the proxy {proxy} ({os_words(error.os_error)})"
            case aiohttp.ClientHttpProxyError():
                return Ending.CONNECT_FAILED, f"the proxy {proxy} answered {error.status} to CONNECT"
            case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError() | ssl.SSLError():
                return Ending.TLS, tls_advice(_tls_words(error))
            case aiohttp.ClientConnectorError():
                ending = Ending.REFUSED if error.os_error.errno == errno.ECONNREFUSED else Ending.CONNECT_FAILED
                return ending, os_words(error.os_error)
            case aiohttp.InvalidURL():  # an address, of the server or of the proxy, that aiohttp takes for none
                return Ending.CONNECT_FAILED, one_line(str(error))
            case aiohttp.ServerDisconnectedError():
                return Ending.EOF, "the connection was closed before the answer"
            case BrokenFraming():
                return Ending.MALFORMED, one_line(str(error))
            case aiohttp.ClientPayloadError():
                return Ending.EOF, "the connection was closed before the body was complete"
            case aiohttp.ClientResponseError() | HttpProcessingError():
                return (Ending.TOO_LARGE if _is_over_a_bound(error) else Ending.MALFORMED), one_line(error.message)
            case _:
                return Ending.RESET, os_words(error)

    def _open_pool(self) -> aiohttp.ClientSession:
        if self._pool is None:
            # limit=0: the connector never holds a request back; how many are in flight is the driver's business.
            self._pool = self._open_session(keepalive_timeout=KEEP_ALIVE_S)
        return self._pool

    def _open_single_use(self) -> aiohttp.ClientSession:
        if self._single_use is None:
            self._single_use = self._open_session(force_close=True)
        return self._single_use

    def _open_session(self, *, force_close: bool = False, keepalive_timeout: float | None = None) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=_CleanConnector(
                limit=0,
                limit_per_host=0,
                force_close=force_close,
                keepalive_timeout=keepalive_timeout,
                socket_factory=self._make_socket,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, connect=self._timeouts.connect_s, sock_connect=None, sock_read=None),
            trust_env=False,
            auto_decompress=False,
            max_line_size=MAX_HEAD_BYTES,
            max_field_size=MAX_HEAD_BYTES,
            trace_configs=[_note_reuse()],
        )

    def _make_socket(self, address: tuple[int, int, int, str, object]) -> socket.socket:
        family, kind, protocol, *_ = address
        made = socket.socket(family, kind, protocol)
        self._sockets.add(made)
        return made


class _CleanConnector(aiohttp.TCPConnector):
    """Gives no kept connection on which bytes have come since its last answer: they would be taken for the next one."""

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.connector.Connection:
        """A connection to send the request on."""
        while True:
            connection = await super().connect(req, traces, timeout)
            if connection.protocol is None or not connection.protocol.should_close:
                return connection
            connection.close()


class _StampedBody(aiohttp.payload.Payload):
    """A request's body that notes when its first byte goes to the kernel and when the kernel has taken the last."""

    _autoclose = True

    def __init__(self, body: bytes, exchange: HttpExchange) -> None:
        super().__init__(body)
        self._size = len(body)
        self._exchange = exchange

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The body as text; asked for by the base class."""
        return bytes(self._value).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write it all."""
        await self.write_with_length(writer, None)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Write it all; the head, which aiohttp has kept back until now, goes out in the same write."""
        assert isinstance(writer, aiohttp.http.StreamWriter)
        if writer.transport is not None:
            writer.transport.set_write_buffer_limits(high=0)  # drain() then returns when the kernel has taken the last byte
        self._exchange.begin_send()
        await writer.write(self._value)
        await writer.drain()
        self._exchange.body_sent_ns = time.monotonic_ns()


def _note_reuse() -> aiohttp.TraceConfig:
    async def note_kept(session: aiohttp.ClientSession, context: SimpleNamespace, params: object) -> None:
        context.trace_request_ctx.is_reused = True

    async def note_new(session: aiohttp.ClientSession, context: SimpleNamespace, params: object) -> None:
        context.trace_request_ctx.is_reused = False

    config = aiohttp.TraceConfig()
    config.on_connection_reuseconn.append(note_kept)
    config.on_connection_create_start.append(note_new)
    return config


def _is_over_a_bound(error: BaseException) -> bool:
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, LineTooLong) or "Too many headers" in str(chain):
            return True
        chain = chain.__cause__
    return False


def _tls_words(error: BaseException) -> str:
    inner = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error
    return one_line(str(inner))
