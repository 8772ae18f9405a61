"""One request over aiohttp: stamps and bytes as they come, and the deadline that holds at the moment."""

from __future__ import annotations

import asyncio
import time
from collections import deque

import aiohttp

from longbench_sched.engine.dialect import StreamDecoder
from longbench_sched.engine.marks import RETRIED
from longbench_sched.load.exchange import PIECES_A_LOOK, open_record
from longbench_sched.load.stamps import NO_LATENESS
from longbench_sched.load.timeouts import Timeouts
from longbench_sched.plan import Request
from longbench_sched.record import Decoded, Ending, StreamRecord

UNDECODED_BYTES = 4 << 20  # of one stream; more is decoded at once, to bound memory


class Held:
    """Bytes held undecoded, over all exchanges of a transport."""

    def __init__(self) -> None:
        self.now_bytes = 0
        self.peak_bytes = 0

    def add(self, n_bytes: int) -> None:
        """Take more of them, or with a minus fewer."""
        self.now_bytes += n_bytes
        self.peak_bytes = max(self.peak_bytes, self.now_bytes)


class HttpExchange:
    """One request on its way; when it has ended, its record."""

    def __init__(
        self,
        request: Request,
        request_id: str,
        lane: str,
        decoder: StreamDecoder,
        timeouts: Timeouts,
        held: Held,
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
        """Take status and headers. Raises BrokenFraming for a transfer coding that aiohttp passes on undone."""
        coding = response.headers.get("Transfer-Encoding", "chunked").strip().lower()
        if coding != "chunked":
            raise BrokenFraming(f"transfer coding {coding[:80]} was not asked for")
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
                response.content.set_exception(BrokenFraming(str(broken)))

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


class BrokenFraming(aiohttp.ClientPayloadError):
    """The framing of a body makes no sense."""
