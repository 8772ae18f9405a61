"""Plan + target -> records. Everything that surrounds the timed path: encode ahead, warm up, measure, drain, say how it went.

Signals: the first SIGINT or SIGTERM stops the sending and lets what is in flight end (at most `drain_s`); the second ends
every open stream. Records are handed on in every case.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from longbench_sched.engine.dialect import Dialect
from longbench_sched.errors import ClientLimitError, UsageError
from longbench_sched.load.backlog import Backlog
from longbench_sched.load.clock import MonotonicClock
from longbench_sched.load.driver import Driver
from longbench_sched.load.health import Pulse, cpu_s, give_memory_back, peak_rss_mb, quantile_ms, raise_open_files
from longbench_sched.load.messages import Messages
from longbench_sched.load.proxy import environment_proxy
from longbench_sched.load.request_head import ssl_context
from longbench_sched.load.stamps import RealtimeOffset, kernel_stamps_work
from longbench_sched.load.timeouts import Timeouts
from longbench_sched.load.wire import HAS_EPOLL, WireOptions, WireTransport
from longbench_sched.plan import ClosedLoop, Plan, Request
from longbench_sched.record import StreamRecord
from longbench_sched.run import ClientHealth
from longbench_sched.target import Target

if TYPE_CHECKING:
    from longbench_sched.load.http import HttpTransport

SPARE_FILES = 64  # the journal, the results, the interpreter's own
MAX_SPARE_CONNECTIONS = 512
PROGRESS_EVERY_S = 0.5
DEADLINE = "DEADLINE"  # in the place of a signal's name
NOTES_A_TURN = 32
START_DELAY_NS = 50_000_000  # between the last preparation and the first due time


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a plan is sent."""

    run_id: str  # prefix of each X-Request-Id
    model: str
    transport: Literal["wire", "http"] = "wire"
    timestamps: Literal["kernel", "user", "auto"] = "auto"
    timeouts: Timeouts = field(default_factory=Timeouts)
    ca_file: Path | None = None
    insecure: bool = False
    proxy_from_env: bool = False
    keep_text: bool = False
    drain_s: float = 120.0
    deadline_s: float | None = None  # for all of it, warm-ups included; then every open stream is ended


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is."""

    phase: Literal["warmup", "measured", "drain"]
    planned: int
    sent: int
    done: int
    ok: int
    in_flight: int
    lateness_ms: float | None  # of the latest send
    elapsed_s: float
    left_s: float | None  # an estimate


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What is known of a run beside its records."""

    wall_anchor_ns: int
    mono_anchor_ns: int
    measured_from_ns: int
    measured_to_ns: int
    clock: Literal["kernel", "user"]
    client: ClientHealth
    transport: str
    proxy: str | None
    interrupted: str | None  # SIGINT, SIGTERM, DEADLINE
    is_aborted: bool  # a second signal ended open streams
    marks: tuple[str, ...]


def execute(
    plan: Plan,
    target: Target,
    dialect: Dialect,
    options: LoadOptions,
    on_record: Callable[[StreamRecord], None],
    on_progress: Callable[[Progress], None] | None = None,
    on_sent: Callable[[StreamRecord], None] | None = None,
) -> LoadResult:
    """Send the plan; each record is handed on as soon as it is decoded.

    `on_sent` hears of each request within half a second of its send, so that a journal can tell what was in flight.

    Raises UsageError (headers, TLS files, proxy) and ClientLimitError before anything is sent; a failed request is a record.
    """
    limit = raise_open_files(plan.peak_in_flight + MAX_SPARE_CONNECTIONS + SPARE_FILES)
    if limit is not None and limit < plan.peak_in_flight + SPARE_FILES:
        raise ClientLimitError(
            f"{plan.peak_in_flight} requests in flight need {plan.peak_in_flight + SPARE_FILES} open files; "
            f"this system allows {limit}. Raise it (ulimit -Hn, LimitNOFILE) or lower the concurrency."
        )
    runner = asyncio.Runner(loop_factory=_new_loop)
    with runner, _collector_off():
        result = runner.run(_Execution(plan, target, dialect, options, on_record, on_progress, on_sent).run())
    give_memory_back()
    return result


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # no wheel for this system
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


@contextmanager
def _collector_off() -> Iterator[None]:
    """No garbage collection but where the backlog asks for it; what is alive now is never looked at."""
    was_on = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()


class _Execution:
    """One run, from the encoded plan to the last record."""

    def __init__(
        self,
        plan: Plan,
        target: Target,
        dialect: Dialect,
        options: LoadOptions,
        on_record: Callable[[StreamRecord], None],
        on_progress: Callable[[Progress], None] | None,
        on_sent: Callable[[StreamRecord], None] | None,
    ) -> None:
        self._plan = plan
        self._target = target
        self._dialect = dialect
        self._options = options
        self._sink = on_record
        self._on_progress = on_progress
        self._on_sent = on_sent
        self._noted: set[str] = set()  # open requests that on_sent has heard of
        self._planned = sum(len(lane.requests) for lane in plan.lanes)
        self._lateness_ns = array("q")
        self._read_lateness_ns = array("q")
        self._sent_ns = array("q")
        self._n_done = 0
        self._n_ok = 0
        self._phase: Literal["warmup", "measured", "drain"] = "warmup"
        self._start_ns = 0
        self._signal: str | None = None
        self._is_aborted = False
        self._proxy = environment_proxy(target.endpoint, os.environ) if options.proxy_from_env else None
        uses_http = options.transport == "http" or self._proxy is not None
        self._transport_name: Literal["wire", "http"] = "http" if uses_http else "wire"
        can_kernel = options.timestamps != "user" and not uses_http and target.endpoint.scheme == "http" and HAS_EPOLL
        self._clock_name: Literal["kernel", "user"] = "kernel" if can_kernel and kernel_stamps_work() else "user"
        if options.timestamps == "kernel" and self._clock_name == "user":
            raise UsageError(
                "--timestamps kernel: the kernel stamps plain http over wire on Linux, and nothing else. Use --timestamps auto."
            )
        self._lane_names = {i: lane.name for i, lane in enumerate(plan.lanes)} | {-1: "warmup"}
        ahead = [] if uses_http else [*plan.warmups, *plan.requests]
        self._messages = Messages(ahead, dialect, target, options.model, options.run_id)

    async def run(self) -> LoadResult:
        self._offset = RealtimeOffset()
        self._clock = MonotonicClock()
        self._transport = self._new_transport()
        self._backlog = Backlog(self._on_record, self._transport.is_read_waiting)
        self._driver = Driver(self._transport, self._clock, self._backlog.add)
        pulse = Pulse(self._offset)
        loop = asyncio.get_running_loop()
        signals = [s for s in (signal.SIGINT, signal.SIGTERM) if _can_handle()]
        before = {number: signal.getsignal(number) or signal.SIG_DFL for number in signals}
        for number in signals:
            loop.add_signal_handler(number, self._on_signal, number)
        ticker = asyncio.ensure_future(self._tick())
        deadline = self._options.deadline_s
        alarm = None if deadline is None else loop.call_later(deadline, self._on_deadline)
        wall_ns, mono_ns = time.time_ns(), time.monotonic_ns()
        try:
            await self._driver.warm_up(self._plan.warmups, self._plan.warmup_concurrency)
            await self._backlog.drained()
            await self._transport.warm(self._connections_ahead())
            gc.collect()
            gc.freeze()
            self._phase = "measured"
            pulse.start()
            cpu_before = cpu_s()
            self._start_ns = time.monotonic_ns() + START_DELAY_NS
            await self._driver.run(self._plan, self._start_ns)
            measured_to_ns = time.monotonic_ns()
            cpu_used_s = cpu_s() - cpu_before
            await self._backlog.drained()
            pulse.stop()
        finally:
            ticker.cancel()
            if alarm is not None:
                alarm.cancel()
            await self._transport.aclose()
            self._clock.close()
            self._messages.close()
            for number in signals:
                loop.remove_signal_handler(number)  # which leaves the system's default
                signal.signal(number, before[number])
        self._report_progress()
        return LoadResult(
            wall_anchor_ns=wall_ns,
            mono_anchor_ns=mono_ns,
            measured_from_ns=self._start_ns,
            measured_to_ns=measured_to_ns,
            clock=self._clock_name,
            client=self._health(pulse, cpu_used_s, measured_to_ns),
            transport=self._transport_name,
            proxy=self._proxy,
            interrupted=self._signal,
            is_aborted=self._is_aborted,
            marks=("clock-stepped",) if self._offset.stepped and self._clock_name == "kernel" else (),
        )

    def _new_transport(self) -> WireTransport | HttpTransport:
        options = self._options
        tls = ssl_context(options.ca_file, options.insecure) if self._target.endpoint.scheme == "https" else None
        if self._transport_name == "http":
            return self._new_http_transport()
        return WireTransport(
            self._target.endpoint,
            self._dialect,
            self._messages,
            lambda request: self._lane_names[request.lane],
            self._offset,
            WireOptions(
                stamps=self._clock_name,
                timeouts=options.timeouts,
                tls=tls,
                spare_connections=self._spare_connections(),
                keep_text=options.keep_text,
            ),
        )

    def _new_http_transport(self) -> HttpTransport:
        from longbench_sched.load.http import HttpTransport  # aiohttp is loaded only where it is used

        options = self._options
        transport = HttpTransport(
            self._target,
            self._dialect,
            options.model,
            run_id=options.run_id,
            lanes=[lane.name for lane in self._plan.lanes],
            timeouts=options.timeouts,
            ca_file=options.ca_file,
            insecure=options.insecure,
            proxy=self._proxy,
            keep_text=options.keep_text,
        )
        for request in [*self._plan.warmups, *self._plan.requests]:
            transport.prepare(request)
        return transport

    def _connections_ahead(self) -> int:
        """Connections to open before the start: all of a closed loop's, and the spares of an open one."""
        closed = sum(
            min(lane.loop.concurrency, len(lane.requests)) for lane in self._plan.lanes if isinstance(lane.loop, ClosedLoop)
        )
        return closed + self._spare_connections()

    def _spare_connections(self) -> int:
        """Idle connections that an open loop needs ahead: the most sends that are due within one second."""
        spare = 0
        for lane in self._plan.lanes:
            if not isinstance(lane.loop, ClosedLoop):
                spare += _most_within(lane.requests, 1.0)
        return min(spare, MAX_SPARE_CONNECTIONS)

    def _on_record(self, record: StreamRecord) -> None:
        if record.phase == "measured":
            self._n_done += 1
            self._n_ok += record.decoded.status == "ok"
            if record.sent_ns is not None:
                self._lateness_ns.append(record.sent_ns - record.slot_ns)
                self._sent_ns.append(record.sent_ns)
            lateness = record.decoded.chunk_lateness_ns
            if lateness:
                self._read_lateness_ns.append(max(lateness))
        self._sink(record)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._signal is None:
            self._signal = number.name
            self._phase = "drain"
            self._driver.stop()
            asyncio.get_running_loop().call_later(self._options.drain_s, self._abort)
        else:
            self._abort()

    def _on_deadline(self) -> None:
        """Nothing may hold up the runs that follow: stop, and do not wait for what is open."""
        self._signal = self._signal or DEADLINE
        self._phase = "drain"
        self._driver.stop()
        self._abort()

    def _abort(self) -> None:
        self._is_aborted = True
        self._transport.cancel_all()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_EVERY_S)
            self._report_progress()
            await self._note_sent()

    async def _note_sent(self) -> None:
        """Hand on what was sent since the last look, a few at a time: never long on the timed path."""
        if self._on_sent is None:
            return
        while True:
            # Looked at afresh each turn: one that has ended meanwhile must not be noted after its record.
            records = self._transport.open_records()
            new = [record for record in records if record.request_id not in self._noted]
            self._noted &= {record.request_id for record in records}
            for record in new[:NOTES_A_TURN]:
                self._noted.add(record.request_id)
                self._on_sent(record)
            if len(new) <= NOTES_A_TURN:
                return
            await asyncio.sleep(0)

    def _report_progress(self) -> None:
        if self._on_progress is None:
            return
        now = time.monotonic_ns()
        elapsed_s = max(0.0, (now - self._start_ns) / 1e9) if self._start_ns else 0.0
        self._on_progress(
            Progress(
                phase=self._phase,
                planned=self._planned,
                sent=self._driver.n_sent,
                done=self._n_done,
                ok=self._n_ok,
                in_flight=self._driver.n_in_flight,
                lateness_ms=self._lateness_ns[-1] / 1e6 if self._lateness_ns else None,
                elapsed_s=elapsed_s,
                left_s=self._left_s(elapsed_s),
            )
        )

    def _left_s(self, elapsed_s: float) -> float | None:
        ends = [lane.duration_s for lane in self._plan.lanes]
        if all(end is not None for end in ends) and ends:
            return max(0.0, max(end for end in ends if end is not None) - elapsed_s)
        if not self._n_done:
            return None
        return elapsed_s / self._n_done * (self._planned - self._n_done)

    def _health(self, pulse: Pulse, cpu_used_s: float, measured_to_ns: int) -> ClientHealth:
        transport = self._transport
        first_due_rate, achieved = self._rates()
        return ClientHealth(
            clock=self._clock_name,
            cpu_s=cpu_used_s,
            wall_s=(measured_to_ns - self._start_ns) / 1e9,
            lateness_p50_ms=quantile_ms(self._lateness_ns, 0.5),
            lateness_p99_ms=quantile_ms(self._lateness_ns, 0.99),
            read_lateness_p99_ms=quantile_ms(self._read_lateness_ns, 0.99) if self._clock_name == "kernel" else None,
            loop_lag_p99_ms=pulse.lag_p99_ms(),
            gc_pauses=self._backlog.gc_pauses,
            gc_pause_max_ms=self._backlog.gc_pause_max_ns / 1e6,
            peak_open_sockets=transport.n_sockets_peak,
            peak_rss_mb=peak_rss_mb(),
            peak_undecoded_mb=transport.undecoded_peak_bytes / 1e6,
            spooled_mb=transport.spooled_bytes / 1e6,
            clock_step_max_us=self._offset.step_max_ns / 1e3,
            planned_rate_per_s=first_due_rate,
            achieved_rate_per_s=achieved,
        )

    def _rates(self) -> tuple[float | None, float | None]:
        """Planned and achieved rate of an open loop, both over first to last send: (n - 1) / span."""
        due = sorted(r.due_s for lane in self._plan.lanes for r in lane.requests if r.due_s is not None)
        if len(due) < 2 or len(self._sent_ns) < 2 or any(isinstance(lane.loop, ClosedLoop) for lane in self._plan.lanes):
            return None, None
        due = due[: len(self._sent_ns)]
        planned_span_s = due[-1] - due[0]
        achieved_span_s = (max(self._sent_ns) - min(self._sent_ns)) / 1e9
        planned = (len(due) - 1) / planned_span_s if planned_span_s > 0 else None
        return planned, (len(self._sent_ns) - 1) / achieved_span_s if achieved_span_s > 0 else None


def _can_handle() -> bool:
    import threading

    return threading.current_thread() is threading.main_thread()


def _most_within(requests: Sequence[Request], window_s: float) -> int:
    """The most requests that are due within any window of that length."""
    due = sorted(request.due_s for request in requests if request.due_s is not None)
    most = first = 0
    for last, at in enumerate(due):
        while at - due[first] > window_s:
            first += 1
        most = max(most, last - first + 1)
    return most
