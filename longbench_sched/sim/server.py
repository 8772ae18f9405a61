"""The embedded engine behind HTTP: a step loop on a real or compressed clock, speaking one engine's dialect.

Engine time runs `time_scale` times as fast as wall time. A step that begins at engine time t and costs d ends at t + d
exactly, at wall instant origin + (t + d) / time_scale; the next begins there, whenever the process was really woken, so
lateness never adds up. How late each emission was is measured and told (`/longbench/info`, header `x-longbench-late-p99-ms`).

Bodies are parsed one at a time between two looks at the clock, so that a burst of long prompts does not hold up the tokens of
those already running.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from email.utils import formatdate

import orjson

from longbench_sched.errors import UsageError
from longbench_sched.sim import http1
from longbench_sched.sim.alarm import Alarm
from longbench_sched.sim.calibration import Calibration
from longbench_sched.sim.connection import Connection, Exchange
from longbench_sched.sim.drafting import build_speculating, draft_facts
from longbench_sched.sim.engine import OPTIONS, PLAYED, Engine, EngineOptions
from longbench_sched.sim.faults import Fault, FaultPlan, FaultyWire
from longbench_sched.sim.hardware import find_gpu
from longbench_sched.sim.lateness import Lateness
from longbench_sched.sim.models import Model, find_model
from longbench_sched.sim.naming import Names
from longbench_sched.sim.speculation import Wish
from longbench_sched.sim.step import Sequence
from longbench_sched.sim.wire.base import (
    EVENTS,
    LAST_CHUNK,
    Aborted,
    Answer,
    Context,
    Refused,
    Route,
    ServerDialect,
    Tally,
    frame,
    ids_until,
)
from longbench_sched.sim.wire.sglang import SglangDialect
from longbench_sched.sim.wire.trtllm import TrtllmDialect
from longbench_sched.sim.wire.vllm import VllmDialect

HOST = "127.0.0.1"
DEFAULT_MODEL = "Qwen2.5-Coder-7B-Instruct"
DEFAULT_GPU = "H200"
_BACKLOG = 4096
_NAMED_CAPACITIES = 2  # token lists are known again for so many times the tokens that the cache holds

DIALECTS: Mapping[str, Callable[[], ServerDialect]] = {"vllm": VllmDialect, "sglang": SglangDialect, "trtllm": TrtllmDialect}


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What `serve` needs to know."""

    engine: str = "vllm"
    port: int = 0  # 0: the system chooses
    model: str = DEFAULT_MODEL
    gpu: str = DEFAULT_GPU
    time_scale: float = 1.0  # engine seconds per wall second
    served_model: str | None = None  # None: `model` as it was given
    options: EngineOptions | None = None  # the engine's own flags
    calibration: Calibration = field(default_factory=Calibration)
    shape: Model | None = None  # of a model that is not in the table
    wish: Wish = field(default_factory=Wish)  # of a drafter, what no flag of an engine says
    is_child: bool = False  # ends when its standard input does
    faults: tuple[Fault, ...] = ()  # what it does wrong on purpose
    fault_seed: int = 0

    @property
    def engine_options(self) -> EngineOptions:
        """The engine's own flags, or their defaults. Raises UsageError for an engine that is not played."""
        if self.engine not in OPTIONS:
            raise UsageError(f"the embedded engine does not play {self.engine!r}. Known: {', '.join(OPTIONS)}.")
        return self.options if self.options is not None else OPTIONS[self.engine]()


class _Server:
    """The state of one server: engine, clock, connections."""

    def __init__(self, options: ServerOptions, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self.options = options
        self.engine = engine
        self.dialect = DIALECTS[PLAYED[options.engine].dialect]()
        self.loop = loop
        self.alarm = Alarm(loop, self.ring)
        self.lateness = Lateness()
        self.exchanges: dict[Sequence, Exchange] = {}
        self.connections: set[Connection] = set()
        self.inbox: deque[tuple[Connection, http1.HttpMessage]] = deque()
        self.is_reading_inbox = False
        self.origin_s = time.monotonic()
        self.due_s: float | None = None  # wall instant at which the step in progress ends
        self.end_s = 0.0  # the same in engine time
        self.started = int(time.time())
        self.n_http = 0
        self.tally = Tally()
        kv = engine.state.kv
        self.names = Names(_NAMED_CAPACITIES * kv.total * kv.block_tokens) if kv.is_caching else None
        self.faults = FaultPlan(options.faults, options.fault_seed)
        self._date = (0, "")

    # -- clock and steps

    def now_s(self) -> float:
        """Engine time."""
        return (time.monotonic() - self.origin_s) * self.options.time_scale

    def ring(self) -> None:
        """End the step in progress if it is due, and begin the next."""
        due_s = self.due_s
        if due_s is None:
            return
        if time.monotonic() < due_s:
            self.alarm.set(due_s)
            return
        yielded = self.engine.end(self.end_s)
        for sequence in yielded:
            self._emit(sequence)
        if yielded:
            self.lateness.add(time.monotonic() - due_s)
        self._begin(self.end_s)

    def catch_up(self) -> None:
        """Let no other work come before tokens that are due."""
        if self.due_s is not None and time.monotonic() >= self.due_s:
            self.ring()

    def wake(self) -> None:
        """Begin a step if the engine is idle, or if it can begin one while others go on."""
        if self.due_s is None:
            self._begin(max(self.now_s(), self.end_s))
        elif self.engine.is_concurrent:
            self._begin(min(self.now_s(), self.end_s))  # never beyond what is due

    def _begin(self, at_s: float) -> None:
        duration_s = self.engine.begin(at_s)
        if duration_s is None:
            self.due_s = None
            return
        self.end_s = at_s + duration_s
        self.due_s = self.origin_s + self.end_s / self.options.time_scale
        self.alarm.set(self.due_s)

    def _emit(self, sequence: Sequence) -> None:
        exchange = self.exchanges.get(sequence)
        if exchange is None:
            return
        finish = sequence.finish
        stream = exchange.stream
        if sequence.generated == sequence.yielded_now and finish != "abort":
            exchange.cached = sequence.cached
            self.tally.cached_tokens += sequence.cached
            if stream is not None:
                stream.cached = sequence.cached
        n_new = 0 if finish == "abort" else sequence.yielded_now
        if stream is not None:
            data = stream.token(sequence.generated, finish, n_new)
            if not exchange.has_head:
                exchange.has_head = True
                data = self.head(200, None, EVENTS, exchange.request_id) + data
            if data:
                exchange.wire.write(data)
        if finish is None:
            return
        del self.exchanges[sequence]
        self._remember(exchange)
        if stream is None:
            body = self.dialect.whole(
                exchange.ask, exchange.request_id, exchange.created, sequence.generated, finish, exchange.cached
            )
            exchange.wire.write(self.head(200, len(body), "application/json", exchange.request_id) + body)
        exchange.wire.answered()

    def _remember(self, exchange: Exchange) -> None:
        """Know the prompt with its answer again: the next turn of a conversation begins with both."""
        ask, sequence = exchange.ask, exchange.sequence
        if self.names is not None and ask.prompt is not None and sequence.content is not None:
            self.names.extend(sequence.id, ask.prompt, sequence.content, ids_until(ask, sequence.generated))

    # -- requests

    def receive(self, connection: Connection, message: http1.HttpMessage) -> None:
        """Queue a request; queued ones are read one at a time."""
        self.inbox.append((connection, message))
        if not self.is_reading_inbox:
            self.is_reading_inbox = True
            self.loop.call_soon(self._read_inbox)

    def _read_inbox(self) -> None:
        self.catch_up()
        connection, message = self.inbox.popleft()
        if self.inbox:
            self.loop.call_soon(self._read_inbox)
        else:
            self.is_reading_inbox = False
        if not connection.is_closed:
            self._handle(connection, message)

    def _handle(self, connection: Connection, message: http1.HttpMessage) -> None:
        self.n_http += 1
        request_id = message.headers.get("x-request-id") or uuid.uuid4().hex[:16]
        route = self.dialect.route(message.path)
        try:
            if route is not None and message.method in ("POST", "PUT"):
                self._generate(connection, route, message, request_id)
                return
            answer = self._answer(message)
        except Refused as refused:
            answer = refused.answer
            if refused.limit is not None:
                self.tally.rejected[refused.limit] = self.tally.rejected.get(refused.limit, 0) + 1
        is_stream = answer.content_type == EVENTS
        body = frame(answer.body) + LAST_CHUNK if is_stream else answer.body
        head = self.head(answer.status, None if is_stream else len(body), answer.content_type, request_id)
        connection.write(head if message.method == "HEAD" else head + body)
        connection.answered()

    def _answer(self, message: http1.HttpMessage) -> Answer:
        path, context = message.path, self.context()
        answer: Answer | None = None
        if path.startswith("/longbench/"):
            answer = self._own(message.method, path)
        elif message.method in ("GET", "HEAD"):
            answer = self.dialect.get(context, path, message.query)
        elif message.method == "POST" and (which := self.dialect.aborted(path, message.body)) is not None:
            answer = self._abort(which)
        elif message.method == "POST":
            answer = self.dialect.post(context, path, message.body)
        if answer is not None:
            return answer
        if self.dialect.route(path) is not None:
            return Answer.json({"detail": "Method Not Allowed"}, 405)
        return Answer.json({"detail": "Not Found"}, 404)

    def _generate(self, connection: Connection, route: Route, message: http1.HttpMessage, request_id: str) -> None:
        fault = self.faults.next()
        if fault is not None and fault.kind == "5xx":
            raise Refused(self.dialect.failure(fault.status, "a fault that was asked for (serve --fault)"))
        ask = self.dialect.read(self.context(), route, message.body)
        self.dialect.check_room(self.context(), ask)
        created = int(time.time())
        stream = self.dialect.stream(ask, request_id, created) if ask.is_stream else None
        content = None
        if self.names is not None and ask.prompt is not None:
            content = self.names.name(self.engine.counters.n_arrived, ask.prompt)
        elif not ask.return_ids:
            ask = replace(ask, prompt=None)
        sequence = self.engine.submit(
            ask.isl,
            ask.max_new,
            self.now_s(),
            stop_at=ask.stop_at,
            to_length=ask.to_length,
            content=content,
            priority=ask.priority,
        )
        wire = connection if fault is None else FaultyWire(connection, fault, self.loop)
        exchange = Exchange(wire, ask, request_id, sequence, stream, created)
        self.exchanges[sequence] = exchange
        connection.exchange = exchange
        if stream is not None and not self.dialect.holds_head(route):
            exchange.has_head = True
            connection.write(self.head(200, None, EVENTS, request_id))
        self.wake()

    def _abort(self, which: Aborted) -> Answer:
        """End requests by order of an operator: each is told, with the tokens that it had."""
        for sequence, exchange in list(self.exchanges.items()):
            if which == "all" or any(exchange.request_id and exchange.request_id in one for one in which):
                self.engine.abort(sequence)
                self._emit(sequence)
        return Answer(b"", content_type="")

    def abandon(self, exchange: Exchange) -> None:
        """The client has gone."""
        if self.exchanges.pop(exchange.sequence, None) is not None:
            self.engine.abort(exchange.sequence)

    def _own(self, method: str, path: str) -> Answer | None:
        if path == "/longbench/info" and method in ("GET", "HEAD"):
            return Answer.json(self.info())
        if path == "/longbench/reset" and method == "POST":
            self.lateness = Lateness()
            return Answer.json(self.info())
        return None

    # -- what is told

    def context(self) -> Context:
        """What the dialect may know."""
        return Context(self.engine, self.options.served_model or self.options.model, self.started, self.now_s(), self.tally)

    def info(self) -> dict[str, object]:
        """What a client needs to know to read its times: scale, lateness, what is simulated."""
        engine = self.engine
        state = engine.state
        usage = os.times()
        speculator = engine.cost.speculator
        return {
            "simulated": True,
            "engine": self.options.engine,
            "model": self.options.served_model or self.options.model,
            "gpu": engine.gpu.name,
            "time_scale": self.options.time_scale,
            "engine_time_s": round(self.now_s(), 6),
            "lateness": self.lateness.summary(),
            "context": engine.context,
            "kv_capacity_tokens": state.kv.total * state.kv.block_tokens,
            "options": asdict(engine.options),
            "calibration": asdict(engine.cost.calibration),
            "n_running": len(state.running),
            "n_waiting": len(state.waiting),
            "n_preemptions": state.n_preemptions,
            "counters": asdict(engine.counters),
            "n_rejected": dict(self.tally.rejected),
            "faults": {"n_requests": self.faults.n_requests, "n_hit": self.faults.n_hit},
            "cpu_s": round(usage.user + usage.system, 3),
            "pid": os.getpid(),
        } | (draft_facts(speculator) if speculator is not None else {})

    def head(self, status: int, length: int | None, content_type: str, request_id: str | None = None) -> bytes:
        """The head of an answer."""
        second = int(time.time())
        if self._date[0] != second:
            self._date = (second, formatdate(second, usegmt=True))
        headers = {"date": self._date[1], "server": "longbench-sched", "x-longbench-simulated": "1"}
        headers["x-longbench-time-scale"] = f"{self.options.time_scale:g}"
        late = self.lateness.quantile_s(0.99)
        if late is not None:
            headers["x-longbench-late-p99-ms"] = f"{late * 1e3:.3f}"
        if request_id is not None and request_id.isprintable() and request_id.isascii():
            headers["x-request-id"] = request_id
        return http1.head(status, headers, length, content_type)


def serve(options: ServerOptions, announce: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT. When it listens, one JSON line goes to `announce` (default: standard output).

    Raises UsageError for an engine, model, GPU or port that cannot be had.
    """
    model = options.shape or find_model(options.model)
    engine = build_speculating(
        options.engine, find_gpu(options.gpu), model, options.engine_options, options.calibration, wish=options.wish
    )
    if not 0 < options.time_scale <= 1000:
        raise UsageError(
            f"time scale {options.time_scale:g} is out of range: give 1 for real time, 6 for a clock six times as fast."
        )
    asyncio.run(_serve(options, engine, announce or _to_stdout))


async def _serve(options: ServerOptions, engine: Engine, announce: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    server = _Server(options, engine, loop)
    try:
        listener = await loop.create_server(
            lambda: Connection(server), HOST, options.port, backlog=_BACKLOG, family=socket.AF_INET
        )
    except OSError as error:
        raise UsageError(
            f"cannot listen on {HOST}:{options.port} ({error.strerror or error}). Choose another --port, or 0 for any."
        ) from None
    if options.is_child:
        _watch_stdin(loop, stopped.set)
    # Collections walk over everything that is alive; what is alive now stays alive.
    gc.collect()
    gc.freeze()
    port = int(listener.sockets[0].getsockname()[1])
    facts = server.info()
    ready = {"port": port, "pid": os.getpid(), "host": HOST, "url": f"http://{HOST}:{port}"}
    ready |= {
        key: facts[key]
        for key in ("engine", "model", "gpu", "time_scale", "simulated", "context", "kv_capacity_tokens", "options")
    }
    announce(orjson.dumps(ready).decode())
    try:
        await stopped.wait()
    finally:
        listener.close()
        for connection in list(server.connections):
            if connection.transport is not None:
                connection.transport.abort()
        server.alarm.close()


def _watch_stdin(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Stop when standard input ends: the parent holds the other end, which the kernel closes even if it is killed."""
    fd = sys.stdin.fileno()
    os.set_blocking(fd, False)

    def readable() -> None:
        try:
            ended = not os.read(fd, 4096)
        except BlockingIOError:
            return
        except OSError:
            ended = True
        if ended:
            loop.remove_reader(fd)
            stop()

    loop.add_reader(fd, readable)


def _to_stdout(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
