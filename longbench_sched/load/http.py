"""HttpTransport: the same seam as `wire.py`, over aiohttp. Serves proxies, and cross-checks the timed path.

Bytes are stamped when they are read from the connection, in user space, and kept; they are decoded when the record is made.
Only when a deadline may have passed are they decoded early, to tell a first token from comments and role chunks.

What aiohttp does not tell: the kernel's receive stamps; how far a response head had come when the connection was reset; a size
line of a chunk that is longer than it should be (it is skipped).
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from weakref import WeakSet

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from yarl import URL

from longbench_sched.engine.dialect import Dialect, HttpRequest, StreamDecoder
from longbench_sched.engine.marks import RETRIED
from longbench_sched.load.exchange import PIECES_A_LOOK, open_record
from longbench_sched.load.framing import MAX_HEAD_BYTES
from longbench_sched.load.request_head import (
    common_lines,
    head_lines,
    one_line,
    os_words,
    request_path,
    ssl_context,
    tls_advice,
)
from longbench_sched.load.stamps import NO_LATENESS
from longbench_sched.load.timeouts import Timeouts
from longbench_sched.plan import Request
from longbench_sched.record import Decoded, Ending, StreamRecord
from longbench_sched.target import Target, mask_url

# Engines close idle connections after 5 s; one that we drop before that cannot be reset under a request.
KEEP_ALIVE_S = 4.0
MOST_S_TO_CLOSE = 1.0  # a TLS transport closes its socket some turns of the loop after it was told to
UNDECODED_BYTES = 4 << 20  # of one stream; more is decoded at once, to bound memory


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
        self._open: set[_Exchange] = set()
        self._undecoded = _Held()
        self.n_sockets_peak = 0
        self.spooled_bytes = 0

    @property
    def undecoded_peak_bytes(self) -> int:
        """The most bytes that were ever held undecoded."""
        return self._undecoded.peak_bytes

    def prepare(self, request: Request) -> None:
        """Encode a request ahead, so that nothing is built while the run is measured."""
        self._encoded[request.index] = self._dialect.encode(request, self._model)

    async def stream(self, request: Request, due_ns: int, slot_ns: int) -> _Exchange:
        """Send a request now; the exchange, when it is over."""
        http_request = self._encoded.pop(request.index, None) or self._dialect.encode(request, self._model)
        exchange = _Exchange(
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
        until_s = time.monotonic() + MOST_S_TO_CLOSE
        while any(made.fileno() >= 0 for made in self._sockets) and time.monotonic() < until_s:
            await asyncio.sleep(0.001)

    async def _attempt(self, exchange: _Exchange, http_request: HttpRequest, session: aiohttp.ClientSession) -> None:
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
            case aiohttp.ServerDisconnectedError():
                return Ending.EOF, "the connection was closed before the answer"
            case _BrokenFraming():
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
            connector=aiohttp.TCPConnector(
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


class _Held:
    """Bytes held undecoded, over all exchanges of a transport."""

    def __init__(self) -> None:
        self.now_bytes = 0
        self.peak_bytes = 0

    def add(self, n_bytes: int) -> None:
        self.now_bytes += n_bytes
        self.peak_bytes = max(self.peak_bytes, self.now_bytes)


class _Exchange:
    """One request on its way: stamps and bytes as they come, and the deadline that holds at the moment. Ended: its record."""

    def __init__(
        self,
        request: Request,
        request_id: str,
        lane: str,
        decoder: StreamDecoder,
        timeouts: Timeouts,
        held: _Held,
        due_ns: int,
        slot_ns: int,
    ) -> None:
        self.request = request
        self.lane = lane
        self._decoder = decoder
        self._timeouts = timeouts
        self._held = held
        self.due_ns = due_ns
        self.slot_ns = slot_ns
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None
        self._pieces: deque[tuple[bytes, int]] = deque()
        self._n_undecoded = 0
        self.n_body_bytes = 0
        self._ending = Ending.COMPLETE
        self._detail: str | None = None
        self._is_given_up = False
        self._is_over = False
        self._is_to_eof = False
        self._is_untouched = False
        self._is_retried = False
        self._was_reset = False
        self.http_status: int | None = None
        self._header_ns: int | None = None
        self._last_ns = 0
        self._end_ns: int | None = None
        self._decoded: Decoded | None = None
        self.request_id = request_id
        self.is_reused = False
        self.sent_ns: int | None = None
        self.body_sent_ns: int | None = None

    # Sending.

    def begin_send(self) -> None:
        """The first byte is about to be handed to the kernel."""
        if self.sent_ns is None:
            self.sent_ns = time.monotonic_ns()
        self._arm()

    @property
    def may_be_sent_again(self) -> bool:
        """A kept connection failed before any byte of an answer: the server had closed it while it was idle."""
        return self._is_untouched and self.is_reused and not self._is_retried

    def begin_again(self) -> None:
        """Forget how the first attempt ended; its send stays the start of all times."""
        self._is_retried = True
        self._is_untouched = self._is_over = self.is_reused = self._was_reset = False
        self._ending, self._detail = Ending.COMPLETE, None
        self.body_sent_ns = self._end_ns = None

    # Reading.

    def take_head(self, response: aiohttp.ClientResponse) -> None:
        """Take status and headers."""
        self._header_ns = self._last_ns = time.monotonic_ns()
        self.http_status = response.status
        headers: dict[str, str] = {}
        for name, value in response.headers.items():
            key = name.lower()
            headers[key] = f"{headers[key]}, {value}" if key in headers else value
        self._is_to_eof = "transfer-encoding" not in headers and "content-length" not in headers
        self._decoder.start(response.status, headers)
        self._watch(response)

    def _watch(self, response: aiohttp.ClientResponse) -> None:
        """Learn how the connection ends.

        aiohttp (3.14) closes it when the framing of a body breaks, but leaves whoever reads that body waiting; and it takes a
        reset for a proper end where a body lasts until the connection closes.
        """
        protocol = response.connection.protocol if response.connection is not None else None
        closed = protocol.closed if protocol is not None else None
        if protocol is None or closed is None:
            return  # the answer was complete when its head was read

        def note(closed: asyncio.Future[None]) -> None:
            self._was_reset = not closed.cancelled() and closed.exception() is not None
            broken = protocol.exception()
            if broken is not None and not response.content.is_eof() and response.content.exception() is None:
                response.content.set_exception(_BrokenFraming(str(broken)))

        closed.add_done_callback(note)

    async def read(self, content: aiohttp.StreamReader) -> None:
        """Read the body to its end, stamping each read."""
        while True:
            data = await content.readany()
            now = time.monotonic_ns()
            if not data:
                break
            self._last_ns = now
            self._pieces.append((data, now))
            self.n_body_bytes += len(data)
            self._n_undecoded += len(data)
            self._held.add(len(data))
            if len(self._pieces) == 1:
                self._arm()  # from here on a token may have come, and then the idle limit holds
            if self._n_undecoded > UNDECODED_BYTES:
                self._decode(None)
            if content.at_eof():
                break
        self._end(Ending.RESET if self._is_to_eof and self._was_reset else Ending.COMPLETE, None, now)

    @property
    def keeps_connection(self) -> bool:
        """The connection may carry another request."""
        return self._is_over and self._ending is Ending.COMPLETE and self.body_sent_ns is not None

    # Ending.

    def give_up(self, ending: Ending, detail: str | None) -> None:
        """End it now, from outside its task."""
        if not self._is_over:
            self._is_given_up = True
            self._end(ending, detail, time.monotonic_ns())
            assert self._task is not None
            self._task.cancel()

    def take_cancellation(self) -> bool:
        """Whether the cancellation of the task was our own doing, and is dealt with."""
        if self._is_given_up:
            assert self._task is not None
            self._task.uncancel()
        return self._is_given_up

    def take_error(self, error: BaseException, ending: Ending, detail: str) -> None:
        """The exchange failed. A request of which no answer byte was read may be sent again."""
        # aiohttp gives what it had parsed of a head as the message of the error.
        has_begun = isinstance(error, aiohttp.ServerDisconnectedError) and not isinstance(error.message, str)
        self._is_untouched = self._header_ns is None and not has_begun and ending in (Ending.EOF, Ending.RESET)
        if ending is Ending.EOF and self._was_reset:
            ending, detail = Ending.RESET, "connection reset by peer"
        self._end(ending, detail, time.monotonic_ns())

    def _end(self, ending: Ending, detail: str | None, at_ns: int) -> None:
        self._is_over = True
        self._ending, self._detail, self._end_ns = ending, detail, at_ns

    # Deadlines.

    def disarm(self) -> None:
        """No deadline holds any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        """Wake at the earliest instant at which a limit can have passed."""
        self.disarm()
        limits = [at_ns for at_ns, _, _ in self._limits(may_have_token=bool(self._pieces))]
        if limits:
            self._timer = self._loop.call_later(max(0.0, (min(limits) - time.monotonic_ns()) / 1e9), self._look)

    def _look(self) -> None:
        """A limit may have passed: decode what came, then give up or wait on."""
        self._decode(None)
        now = time.monotonic_ns()
        passed = [limit for limit in self._limits(may_have_token=False) if limit[0] <= now]
        if passed:
            self.give_up(*min(passed)[1:])
        else:
            self._arm()

    def _limits(self, *, may_have_token: bool) -> list[tuple[int, Ending, str]]:
        """The instants at which the exchange is given up. Bytes not decoded may hold a token: then the idle limit may hold."""
        assert self.sent_ns is not None
        limits = self._timeouts
        has_token = self._decoder.n_token_events > 0
        found: list[tuple[int, Ending, str]] = []
        if limits.first_token_s is not None and not has_token:
            at_ns = self.sent_ns + round(limits.first_token_s * 1e9)
            found.append((at_ns, Ending.TIMEOUT_FIRST_TOKEN, f"no token {limits.first_token_s:g} s after the send"))
        if limits.idle_s is not None and (has_token or may_have_token):
            at_ns = self._last_ns + round(limits.idle_s * 1e9)
            found.append((at_ns, Ending.TIMEOUT_IDLE, f"no byte for {limits.idle_s:g} s"))
        if limits.total_s is not None:
            at_ns = self.sent_ns + round(limits.total_s * 1e9)
            found.append((at_ns, Ending.TIMEOUT_TOTAL, f"not over {limits.total_s:g} s after the send"))
        return found

    # The record.

    @property
    def ended_ns(self) -> int:
        """When the answer ended."""
        return self.slot_ns if self._end_ns is None else self._end_ns

    @property
    def n_undecoded_bytes(self) -> int:
        """Memory held by what is not decoded yet."""
        return self._n_undecoded

    def step(self, until_ns: int) -> bool:
        """Decode until that instant; True when `record` costs nothing more."""
        return self._decode(until_ns)

    def record(self) -> StreamRecord:
        """The record of this exchange, finished."""
        self._decode(None)
        if self._decoded is None:
            self._decoded = self._decoder.finish(self._ending, self._detail)
            if self._is_retried:
                self._decoded.marks.append(RETRIED)
        record = open_record(self)
        record.decoded = self._decoded
        record.header_ns, record.end_ns = self._header_ns, self.ended_ns
        return record

    def _decode(self, until_ns: int | None) -> bool:
        """Feed the decoder; True if all that has come is decoded."""
        n = 0
        while self._pieces:
            if until_ns is not None and n and not n % PIECES_A_LOOK and time.monotonic_ns() >= until_ns:
                return False
            data, at_ns = self._pieces.popleft()
            self._n_undecoded -= len(data)
            self._held.add(-len(data))
            self._decoder.feed(data, at_ns, NO_LATENESS)
            n += 1
        return True


class _BrokenFraming(aiohttp.ClientPayloadError):
    """The framing of a body makes no sense."""


class _StampedBody(aiohttp.payload.Payload):
    """A request's body that notes when its first byte goes to the kernel and when the kernel has taken the last."""

    _autoclose = True

    def __init__(self, body: bytes, exchange: _Exchange) -> None:
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
    async def note(session: aiohttp.ClientSession, context: SimpleNamespace, params: object) -> None:
        context.trace_request_ctx.is_reused = True

    config = aiohttp.TraceConfig()
    config.on_connection_reuseconn.append(note)
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
