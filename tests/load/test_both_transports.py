"""The two transports on one scripted server: written apart, they must tell the same story."""

from __future__ import annotations

import asyncio
import socket
import threading
from array import array
from typing import Any, Literal

import pytest
import scripted_server as scripted
from scripted_server import (
    COMMENT,
    DONE,
    LAST_CHUNK,
    Close,
    Gate,
    Open,
    Pause,
    Received,
    Reset,
    ScriptedServer,
    Segments,
    Send,
    Silence,
    Steps,
    Wait,
    chunk,
    chunked,
    head,
    json_answer,
    ok_stream,
    stream_events,
    stream_head,
    token,
)

from longbench_sched.engine import make_dialect
from longbench_sched.load.http import HttpTransport
from longbench_sched.load.messages import Messages
from longbench_sched.load.request_head import ssl_context
from longbench_sched.load.stamps import RealtimeOffset
from longbench_sched.load.timeouts import Timeouts
from longbench_sched.load.wire import WireOptions, WireTransport
from longbench_sched.plan import Request
from longbench_sched.record import StreamRecord
from longbench_sched.target import Endpoint, Target
from longbench_sched.transport import Transport

Name = Literal["wire", "http"]
PATIENT = Timeouts(connect_s=20.0, first_token_s=20.0, idle_s=20.0)
IMPATIENT = Timeouts(connect_s=20.0, first_token_s=0.5, idle_s=0.3)
REQUESTS = [Request(index=i, phase="measured", lane=0, prompt=array("I", [1, 2, 3, 4]), isl=4, osl=3) for i in range(2)]


def make_transport(name: Name, target: Target, limits: Timeouts) -> Transport:
    dialect = make_dialect("vllm")
    tls = ssl_context(scripted.CA_FILE) if target.endpoint.scheme == "https" else None
    if name == "http":
        ca_file = scripted.CA_FILE if tls else None
        return HttpTransport(target, dialect, "m", run_id="run7", lanes=("main",), timeouts=limits, ca_file=ca_file)
    messages = Messages(REQUESTS, dialect, target, "m", "run7")
    options = WireOptions(stamps="user", timeouts=limits, tls=tls)
    return WireTransport(target.endpoint, dialect, messages, lambda _: "main", RealtimeOffset(), options)


def send(
    name: Name, script: Any, *, tls: bool = False, limits: Timeouts = PATIENT
) -> tuple[list[StreamRecord], list[Received]]:
    """Two requests, one after the other, over one transport."""

    async def go(target: Target) -> list[StreamRecord]:
        transport = make_transport(name, target, limits)
        records = [(await transport.stream(request, 1, 2)).record() for request in REQUESTS]
        await transport.aclose()
        return records

    with ScriptedServer(script, tls=tls) as server:
        return asyncio.run(go(Target(engine="vllm", endpoint=Endpoint.parse(server.url), model="m"))), server.requests


STRAY: dict[str, bytes] = {
    "junk": b"junk",
    "an-answer": ok_stream(2),
    "a-refusal": head(408, ("content-length", "0"), ("connection", "close")),
    "half-a-head": b"HTTP/1.1 200 O",
}


@pytest.mark.parametrize("stray", STRAY.values(), ids=STRAY.keys())
@pytest.mark.parametrize("name", ["wire", "http"])
def test_what_comes_on_an_idle_connection_is_nobodys_answer(name: Name, stray: bytes) -> None:
    """The server says more when it likes; the next request has its own answer, on a connection of its own."""
    go_on, said = Gate(), Gate()

    def script(request: Received) -> Steps:
        return [Send(ok_stream(3)), Wait(go_on), Send(stray), Open(said)] if request.index == 0 else [Send(ok_stream(3))]

    async def go(target: Target) -> list[StreamRecord]:
        transport = make_transport(name, target, PATIENT)
        records = [(await transport.stream(REQUESTS[0], 1, 2)).record()]
        go_on.open()
        await said.passed()
        for _ in range(3):  # the bytes are in our own receive buffer by then: turns of the loop in which they are read
            await asyncio.sleep(0)
        records.append((await transport.stream(REQUESTS[1], 1, 2)).record())
        await transport.aclose()
        return records

    with ScriptedServer(script) as server:
        records = asyncio.run(go(Target(engine="vllm", endpoint=Endpoint.parse(server.url), model="m")))
    assert [(record.status, len(record.decoded.chunk_tokens), record.decoded.marks) for record in records] == [
        ("ok", 3, [])
    ] * 2
    if stray != STRAY["half-a-head"]:  # aiohttp forgets that
        assert [request.nth_on_connection for request in server.requests] == [0, 0]


def story(record: StreamRecord) -> dict[str, object]:
    """All of a record that is no time: what both transports must agree on."""
    decoded = record.decoded
    fields = (
        "chunk_token_source", "n_comments", "prompt_tokens", "prompt_token_source", "output_tokens", "output_token_source",
        "cached_tokens", "finish_reason", "status", "reason", "error_code",
    )  # fmt: skip
    times = ("sent_ns", "body_sent_ns", "header_ns", "end_ns")
    return {
        **{name: getattr(record, name) for name in ("request_id", "index", "phase", "lane", "isl", "osl", "http_status")},
        **{name: getattr(decoded, name) for name in fields},
        **{name: getattr(record, name) is not None for name in times},
        "n_body_bytes": record.n_body_bytes,
        "tokens": list(decoded.chunk_tokens),
        "marks": sorted(decoded.marks),
        "in_order": _in_order(record),
    }


def _in_order(record: StreamRecord) -> bool:
    stamps = [record.sent_ns, record.header_ns, record.decoded.first_byte_ns, *record.decoded.chunk_at_ns, record.end_ns]
    known = [at for at in stamps if at is not None]
    return known == sorted(known)


def _retried(request: Received) -> Steps:
    return [Close()] if request.nth_on_connection else [Send(ok_stream(3))]


BODY = b"".join(stream_events(3))
SCRIPTS: dict[str, Any] = {
    "good": [Send(ok_stream(3))],
    "token by token": [Send(stream_head()), Segments([*map(chunk, stream_events(3)), LAST_CHUNK])],
    "byte by byte": [Segments([ok_stream(3)[i : i + 1] for i in range(len(ok_stream(3)))], gap_ms=0)],
    "comments": [Send(stream_head() + chunked(COMMENT, *stream_events(3)))],
    "trailers": [Send(stream_head() + chunked(*stream_events(3), trailers=[("X-Sum", "1")]))],
    "content-length": [Send(head(200, ("Content-Type", "text/event-stream"), ("Content-Length", str(len(BODY)))) + BODY)],
    "transfer coding": [Send(head(200, ("Transfer-Encoding", "gzip, chunked")) + b"5\r\n"), Pause(20), Close()],
    "http/1.0": [Send(head(200, ("Content-Type", "text/event-stream"), version="1.0") + BODY), Close()],
    "connection: close": [Send(stream_head(200, ("Connection", "close")) + chunked(*stream_events(3))), Close()],
    "100-continue": [Send(b"HTTP/1.1 100 Continue\r\n\r\n" + ok_stream(3))],
    "empty": [Send(stream_head() + chunked(DONE))],
    "no body": [Send(head(200, ("Content-Length", "0")))],
    "in-band error": [Send(stream_head() + chunked(token(), scripted.error_event(), DONE))],
    "400": [Send(json_answer({"error": {"message": "no", "type": "BadRequestError", "code": 400}}, 400))],
    "503 and close": [Send(json_answer({"message": "busy"}, 503, ("Connection", "close"))), Close()],
    "redirect": [Send(head(307, ("Location", "/x"), ("Content-Length", "0")))],
    "html": [Send(head(200, ("Content-Type", "text/html"), ("Content-Length", "6")) + b"<html>")],
    "cut chunks": [Send(stream_head() + chunk(token())), Pause(20), Close()],
    "cut length": [Send(head(200, ("Content-Length", "999")) + token()), Pause(20), Close()],
    "reset in the body": [Send(stream_head() + chunk(token())), Pause(20), Reset()],
    "reset at once": [Reset()],
    "closed at once": [Close()],
    "broken size line": [Send(stream_head() + chunk(token())), Pause(20), Send(b"zz\r\n\r\n")],
    "not http": [Send(b"SSH-2.0-OpenSSH_9.6\r\n")],
    "header too long": [Send(b"HTTP/1.1 200 OK\r\nX-Long: " + b"a" * 70_000 + b"\r\n\r\n")],
    "retried": _retried,
}  # fmt: skip
SILENT: dict[str, Any] = {
    "no token": [Send(stream_head() + chunk(COMMENT)), Silence()],
    "idle": [Send(stream_head() + chunk(token())), Silence()],
    "broken size line, then silence": [Send(stream_head() + chunk(token())), Pause(20), Send(b"zz\r\n"), Silence()],
}


@pytest.mark.parametrize(
    ("script", "limits"),
    [*((script, PATIENT) for script in SCRIPTS.values()), *((script, IMPATIENT) for script in SILENT.values())],
    ids=[*SCRIPTS, *SILENT],
)
def test_both_transports_tell_the_same_story(script: Any, limits: Timeouts) -> None:
    stories = {}
    for name in ("wire", "http"):
        records, requests = send(name, script, limits=limits)
        stories[name] = [story(record) for record in records]
        stories[name] += [{"connection": r.connection, "nth": r.nth_on_connection, "body": r.body} for r in requests]
    assert stories["wire"] == stories["http"]


def test_both_transports_send_the_same_lines() -> None:
    heads = [[sorted(request.header_lines) for request in send(name, [Send(ok_stream(3))])[1]] for name in ("wire", "http")]
    for lines in heads[0] + heads[1]:
        lines[:] = [(key, value) for key, value in lines if key != "host"]  # another port
    assert heads[0] == heads[1]


def test_both_transports_speak_tls() -> None:
    for name in ("wire", "http"):
        records, _ = send(name, [Send(ok_stream(3))], tls=True)
        assert [record.status for record in records] == ["ok", "ok"]


@pytest.mark.parametrize("name", ["wire", "http"])
@pytest.mark.parametrize("tls", [False, True])
def test_a_transport_that_was_closed_leaves_no_socket_open(name: Name, tls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []

    class Noted(socket.socket):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if threading.current_thread() is threading.main_thread():  # the server's are made in another
                made.append(self)

    async def go(target: Target) -> list[int]:
        monkeypatch.setattr("socket.socket", Noted)
        transport = make_transport(name, target, PATIENT)
        for request in REQUESTS:
            (await transport.stream(request, 1, 2)).record()
        monkeypatch.undo()
        assert made
        assert [one.fileno() for one in made if one.fileno() >= 0]
        await transport.aclose()
        return [one.fileno() for one in made]

    # The first answer ends its connection, so that both a connection in use and one given up are closed.
    script = [Send(ok_stream(3)), Close()]
    with ScriptedServer([script, [Send(ok_stream(3))]], tls=tls, one_by_one=True) as server:
        open_after = asyncio.run(go(Target(engine="vllm", endpoint=Endpoint.parse(server.url), model="m")))
    assert set(open_after) == {-1}
