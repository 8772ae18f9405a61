"""A loopback HTTP/1.1 server that answers by script, byte for byte: what every test of the load floor talks to.

The server runs in a thread with its own loop, so that the client under test has its thread to itself. A script is the list of
steps that answers one request, or a function from the request received to such a list; with `one_by_one` it is a list of
scripts, one a request in order of arrival, the last one for all that follow. After the last step the connection stays open for
the next request, unless a step closed it.

    with ScriptedServer([Send(ok_stream(n_tokens=3))]) as server:
        ... talk to server.url ...
    assert server.requests[0].path == "/v1/completions"

Steps wait for gates (`Gate`, opened by the test) rather than for time wherever order matters.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

DATA = Path(__file__).parent / "load" / "data"
CA_FILE = DATA / "ca.pem"
SERVER_PEM = DATA / "server.pem"

CRLF = b"\r\n"
TURNS_TO_BEGIN = 4  # of the loop, until a conversation that was just accepted knows that it is to close its socket


class Gate:
    """Opened once, from any thread; steps of the server wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_open = False
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._opened = threading.Event()

    def open(self) -> None:
        with self._lock:
            self._is_open = True
            waiters, self._waiters = self._waiters, []
        self._opened.set()
        for loop, event in waiters:
            loop.call_soon_threadsafe(event.set)

    async def passed(self) -> None:
        """Wait in a loop, here or in the server."""
        event = asyncio.Event()
        with self._lock:
            if self._is_open:
                return
            self._waiters.append((asyncio.get_running_loop(), event))
        await event.wait()

    def wait(self, timeout_s: float = 10.0) -> None:
        """Wait in a thread without a loop."""
        assert self._opened.wait(timeout_s), "the gate was never opened"


# Steps of a script.


@dataclass(frozen=True)
class Send:
    """Write these bytes as they are, in one piece."""

    data: bytes


@dataclass(frozen=True)
class Segments:
    """Write each part with a call of its own, `gap_ms` apart: with TCP_NODELAY each is a segment of its own."""

    parts: Sequence[bytes]
    gap_ms: float = 2.0


@dataclass(frozen=True)
class Pause:
    """Let time pass: only where the time itself is what is tested."""

    ms: float


@dataclass(frozen=True)
class Wait:
    """Wait until the test opens the gate."""

    gate: Gate


@dataclass(frozen=True)
class Open:
    """Tell the test (or another connection) that this point was reached."""

    gate: Gate


@dataclass(frozen=True)
class ReadBody:
    """Read the request's body (done before the script unless the server was made with `early=True`)."""


@dataclass(frozen=True)
class Close:
    """Close the connection in order (FIN)."""


@dataclass(frozen=True)
class Reset:
    """Close with RST: what the peer had not read yet is lost."""


@dataclass(frozen=True)
class HalfClose:
    """Close the sending side only."""


@dataclass(frozen=True)
class Silence:
    """Say nothing until the client closes the connection or the server stops."""


Step = Send | Segments | Pause | Wait | Open | ReadBody | Close | Reset | HalfClose | Silence


@dataclass
class Received:
    """One request as it arrived."""

    index: int  # in order of arrival, over all connections
    connection: int  # in order of accepting
    nth_on_connection: int  # above 0: the connection was reused
    head: bytes
    body: bytes = b""

    @property
    def method(self) -> str:
        return self.head.split(b" ", 1)[0].decode()

    @property
    def path(self) -> str:
        return self.head.split(b" ", 2)[1].decode()

    @property
    def header_lines(self) -> list[tuple[str, str]]:
        """Names in lower case, in the order sent."""
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        return [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines if line)]

    @property
    def headers(self) -> dict[str, str]:
        return dict(self.header_lines)

    @property
    def json(self) -> dict[str, object]:
        value = json.loads(self.body)
        assert isinstance(value, dict)
        return value


Steps = Iterable[Step]
Script = Steps | Callable[[Received], Steps]


def routes(table: Mapping[str, Script], default: Script | None = None) -> Callable[[Received], Steps]:
    """A script that chooses by "METHOD /path" (the query left out); without a default anything else is a 404."""

    def choose(request: Received) -> Steps:
        script = table.get(f"{request.method} {request.path.partition('?')[0]}", default or [Send(not_found())])
        return script(request) if callable(script) else script

    return choose


@dataclass
class ScriptedServer:
    """Serves scripts on 127.0.0.1, port chosen by the system; use as a context manager."""

    script: Script | Sequence[Script]
    tls: bool = False
    early: bool = False  # run the script when the head has arrived, before the body is read
    one_by_one: bool = False  # `script` is a list of scripts, one a request
    greeting: bytes = b""  # said as soon as a client has connected
    host: str = "127.0.0.1"
    requests: list[Received] = field(default_factory=list)
    n_connections: int = 0
    n_open: int = 0
    peak_open: int = 0
    n_client_closed: int = 0  # connections that the client closed first, cleanly or not
    errors: list[BaseException] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"

    def __enter__(self) -> ScriptedServer:
        self._changed = threading.Condition()
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(10), "the scripted server did not start"
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive(), "the scripted server did not stop"
        if self.errors and exc[0] is None:
            raise self.errors[0]

    def wait_for(self, condition: Callable[[ScriptedServer], bool], timeout_s: float = 10.0) -> None:
        """Block until the condition holds; it is looked at whenever a connection opens or closes or a request arrives."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self), timeout_s), "the server never got there"

    async def until(self, condition: Callable[[ScriptedServer], bool], timeout_s: float = 10.0) -> None:
        """`wait_for` without blocking the caller's loop."""
        await asyncio.get_running_loop().run_in_executor(None, self.wait_for, condition, timeout_s)

    async def _serve(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        context = None
        if self.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(SERVER_PEM)
        server = await asyncio.start_server(self._accept, self.host, 0, limit=1 << 24, backlog=2048, ssl=context)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._stop.wait()
        server.close()
        for _ in range(TURNS_TO_BEGIN):
            await asyncio.sleep(0)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _note(self, **changes: int) -> None:
        with self._changed:
            for name, change in changes.items():
                setattr(self, name, getattr(self, name) + change)
            self.peak_open = max(self.peak_open, self.n_open)
            self._changed.notify_all()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection = self.n_connections
        self._note(n_connections=1, n_open=1)
        try:
            await self._converse(reader, writer, connection)
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            self._note(n_client_closed=1)
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self.errors.append(error)
        finally:
            if not writer.is_closing():
                writer.transport.abort() if self._stop.is_set() else writer.close()
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await writer.wait_closed()
            self._note(n_open=-1)
            self._tasks.discard(task)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> None:
        nth = 0
        writer.write(self.greeting)
        while not writer.is_closing():
            head = await reader.readuntil(b"\r\n\r\n")
            request = Received(len(self.requests), connection, nth, head)
            self.requests.append(request)
            if not self.early:
                await _read_body(reader, request)
            self._note()
            for step in self._steps_for(request):
                await _perform(step, reader, writer, request)
            nth += 1

    def _steps_for(self, request: Received) -> Steps:
        script: object = self.script
        if self.one_by_one:
            assert isinstance(script, Sequence)
            script = script[min(request.index, len(script) - 1)]
        return script(request) if callable(script) else script  # type: ignore[return-value]


async def _read_body(reader: asyncio.StreamReader, request: Received) -> None:
    length = int(request.headers.get("content-length", "0"))
    request.body = await reader.readexactly(length)


async def _perform(step: Step, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Received) -> None:
    match step:
        case Send(data):
            writer.write(data)
            await writer.drain()
        case Segments(parts, gap_ms):
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(gap_ms / 1e3)
        case Pause(ms):
            await asyncio.sleep(ms / 1e3)
        case Wait(gate):
            await gate.passed()
        case Open(gate):
            gate.open()
        case ReadBody():
            await _read_body(reader, request)
        case Close():
            writer.close()
        case Reset():
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        case HalfClose():
            writer.write_eof()
        case Silence():
            await reader.read(1)
            raise ConnectionError("the client closed")


@contextlib.contextmanager
def refused_port() -> Iterator[int]:
    """A port of 127.0.0.1 at which nobody listens for as long as this lasts."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@contextlib.contextmanager
def unanswering_port() -> Iterator[int]:
    """A port whose backlog is full: connecting neither succeeds nor fails (Linux drops the SYN)."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(2):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


# Bytes of answers.


def head(status: int = 200, *headers: tuple[str, str], version: str = "1.1") -> bytes:
    """A status line and exactly these headers."""
    lines = [f"HTTP/{version} {status} Scripted", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


def stream_head(status: int = 200, *headers: tuple[str, str]) -> bytes:
    """The head of a chunked event stream."""
    return head(status, ("Content-Type", "text/event-stream; charset=utf-8"), ("Transfer-Encoding", "chunked"), *headers)


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


def chunked(*pieces: bytes, trailers: Sequence[tuple[str, str]] = ()) -> bytes:
    """A whole chunked body, a chunk a piece."""
    ends = b"".join(f"{name}: {value}\r\n".encode() for name, value in trailers)
    return b"".join(chunk(piece) for piece in pieces) + b"0\r\n" + ends + b"\r\n"


def event(value: object) -> bytes:
    """An SSE event with this JSON (or this text, as it is)."""
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return f"data: {text}\n\n".encode()


DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"


def usage_fields(prompt: int, output: int, cached: int | None = None) -> dict[str, object]:
    """The usage object in OpenAI shape."""
    fields: dict[str, object] = {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}
    if cached is not None:
        fields["prompt_tokens_details"] = {"cached_tokens": cached}
    return fields


def token(text: str = " x", finish: str | None = None, usage: dict[str, object] | None = None, **choice: object) -> bytes:
    """A completions event; with `finish` it carries the last token and the finish reason, as vLLM does."""
    value: dict[str, object] = {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish, **choice}],
    }
    if usage is not None:
        value["usage"] = usage
    return event(value)


def chat_token(content: str | None = " x", finish: str | None = None, **delta: object) -> bytes:
    """A chat event."""
    fields = delta if content is None else {"content": content, **delta}
    return event(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "delta": fields, "logprobs": None, "finish_reason": finish}],
        }
    )


ROLE = chat_token("", role="assistant")


def usage(prompt: int, output: int, cached: int | None = None) -> bytes:
    """The usage event at the end of a stream."""
    return event(
        {
            "id": "cmpl-1",
            "object": "text_completion",
            "created": 1,
            "model": "m",
            "choices": [],
            "usage": usage_fields(prompt, output, cached),
        }
    )


def error_event(message: str = "it broke", code: int = 500) -> bytes:
    """An error inside a stream."""
    return event({"error": {"message": message, "type": "InternalServerError", "param": None, "code": code}})


def stream_events(n_tokens: int, prompt_tokens: int = 4, finish: str = "length") -> list[bytes]:
    """The events of a good completions stream: one token each, usage within each and at the end, as vLLM sends."""
    events = [
        token(f" t{i}", finish if i == n_tokens - 1 else None, usage_fields(prompt_tokens, i + 1)) for i in range(n_tokens)
    ]
    return [*events, usage(prompt_tokens, n_tokens), DONE]


def ok_stream(n_tokens: int = 3, prompt_tokens: int = 4, finish: str = "length") -> bytes:
    """A whole good answer."""
    return stream_head() + chunked(*stream_events(n_tokens, prompt_tokens, finish))


def json_answer(value: object, status: int = 200, *headers: tuple[str, str]) -> bytes:
    """A whole JSON answer."""
    body = json.dumps(value, separators=(",", ":")).encode()
    return head(status, ("Content-Type", "application/json"), ("Content-Length", str(len(body))), *headers) + body


def not_found() -> bytes:
    """What uvicorn's applications say of an unknown path."""
    return json_answer({"detail": "Not Found"}, 404)


def models(*names: str, max_model_len: int | None = 65536, owned_by: str = "vllm") -> bytes:
    """An answer to GET /v1/models."""
    cards: list[dict[str, object]] = []
    for name in names or ("tiny",):
        card: dict[str, object] = {"id": name, "object": "model", "created": 1, "owned_by": owned_by, "root": name}
        if max_model_len is not None:
            card["max_model_len"] = max_model_len
        cards.append(card)
    return json_answer({"object": "list", "data": cards})
