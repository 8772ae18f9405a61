"""The wire transport over loopback: statuses, counts and order, whatever the server does to the connection."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import scripted_server as scripted
from scripted_server import (
    COMMENT,
    DONE,
    ROLE,
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
    Step,
    Steps,
    Wait,
    chunk,
    chunked,
    ok_stream,
    stream_events,
    stream_head,
    token,
    usage,
)
from wire_client import PATIENT, make_requests, run, send, send_all, stamping_kernel, until, wire

from longbench_sched.engine import make_dialect
from longbench_sched.load import wire as wire_module
from longbench_sched.load.exchange import Exchange
from longbench_sched.load.http import HttpTransport
from longbench_sched.load.timeouts import Timeouts
from longbench_sched.load.wire import WireTransport
from longbench_sched.plan import Request
from longbench_sched.record import Decoded, Reason, Status, StreamRecord
from longbench_sched.target import Endpoint, Target

OK = [Send(ok_stream(3))]
MIB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def _stamps() -> Iterator[None]:
    with stamping_kernel():
        yield


@pytest.fixture(params=["kernel", "user", "loop", "tls"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way in which bytes are read: own epoll with kernel or user stamps, the loop's transports, TLS."""
    if request.param == "loop":
        monkeypatch.setattr(wire_module, "HAS_EPOLL", False)
    return str(request.param)


def _options(path: str) -> dict[str, Any]:
    tls = ssl.create_default_context(cafile=str(scripted.CA_FILE)) if path == "tls" else None
    return {"stamps": "kernel" if path == "kernel" else "user", "tls": tls}


def _outcome(record: StreamRecord) -> tuple[Status, Reason | None, list[str]]:
    return record.status, record.decoded.reason, record.decoded.marks


OKAY = (Status.OK, None, [])


# Connections.


def test_a_connection_is_used_again(path: str) -> None:
    with ScriptedServer(OK, tls=path == "tls") as server:
        records = send_all(server.url, make_requests(3), **_options(path))
        assert [_outcome(r) for r in records] == [OKAY] * 3
        assert [(r.connection, r.nth_on_connection) for r in server.requests] == [(0, 0), (0, 1), (0, 2)]
        assert [r.headers["x-request-id"] for r in server.requests] == ["run-r0", "run-r1", "run-r2"]
        server.wait_for(lambda s: s.n_open == 0)


@pytest.mark.parametrize("loop_sees_it", [True, False], ids=["seen-by-the-loop", "seen-before-the-send"])
def test_a_connection_closed_while_idle_is_replaced_and_nothing_is_marked(path: str, loop_sees_it: bool) -> None:
    if path in ("loop", "tls") and not loop_sees_it:
        pytest.skip("the loop's own transports are asked, not the socket")

    async def scenario(server: ScriptedServer) -> list[StreamRecord]:
        one, two = make_requests(2)
        async with wire(server.url, [one, two], **_options(path)) as transport:
            first = await send(transport, one)
            if loop_sees_it:
                await server.until(lambda s: s.n_open == 0)
                await until(lambda: not transport.n_sockets)
            else:
                server.wait_for(lambda s: s.n_open == 0)  # blocks the loop: it cannot have seen the close
                assert transport.n_sockets == 1
            return [first, await send(transport, two)]

    with ScriptedServer([[*OK, Close()], OK], one_by_one=True, tls=path == "tls") as server:
        records = run(scenario(server))
        assert [_outcome(r) for r in records] == [OKAY] * 2
        assert (server.n_connections, len(server.requests)) == (2, 2)


@pytest.mark.parametrize("end", [Reset(), Close()], ids=["reset", "close"])
def test_a_request_lost_on_a_used_connection_is_sent_once_more(path: str, end: Step) -> None:
    """Its clock is that of the first attempt, its body_sent that of the second."""
    arrived, lose = Gate(), Gate()

    async def scenario(url: str) -> tuple[StreamRecord, StreamRecord, int]:
        one, two = make_requests(2)
        async with wire(url, [one, two], **_options(path)) as transport:
            first = await send(transport, one)
            second = asyncio.ensure_future(send(transport, two))
            await arrived.passed()
            between_ns = time.monotonic_ns()
            lose.open()
            return first, await second, between_ns

    scripts = [OK, [Open(arrived), Wait(lose), end], OK]
    with ScriptedServer(scripts, one_by_one=True, tls=path == "tls") as server:
        first, second, between_ns = run(scenario(server.url))
        assert [r.nth_on_connection for r in server.requests] == [0, 1, 0]
        assert server.requests[1].body == server.requests[2].body
    assert _outcome(first) == OKAY
    assert _outcome(second) == (Status.OK, None, ["retried"])
    assert (second.sent_ns or 0) < between_ns < (second.body_sent_ns or 0)


def test_a_request_is_never_sent_a_third_time() -> None:
    with ScriptedServer([OK, [Reset()], [Reset()], OK], one_by_one=True) as server:
        records = send_all(server.url, make_requests(2))
        assert len(server.requests) == 3
    assert _outcome(records[1]) == (Status.FAILED, Reason.RESET, ["retried"])


def test_a_second_attempt_that_cannot_connect_says_so() -> None:
    async def scenario(server: ScriptedServer, arrived: Gate) -> StreamRecord:
        one, two = make_requests(2)
        async with wire(server.url, [one, two]) as transport:
            await send(transport, one)
            second = asyncio.ensure_future(send(transport, two))
            await arrived.passed()
            server.__exit__(None)  # closes the listener, then the connection
            return await second

    arrived = Gate()
    server = ScriptedServer([OK, [Open(arrived), Silence()]], one_by_one=True)
    server.__enter__()
    record = run(scenario(server, arrived))
    assert _outcome(record) == (Status.FAILED, Reason.CONNECT_REFUSED, ["retried"])
    assert record.sent_ns is not None


@pytest.mark.parametrize("end", [Reset(), Close()], ids=["reset", "close"])
def test_a_request_lost_on_a_fresh_connection_is_not_sent_again(end: Step) -> None:
    with ScriptedServer([[end], OK], one_by_one=True) as server:
        record = send_all(server.url, make_requests(1))[0]
        assert len(server.requests) == 1
    assert _outcome(record) == (Status.FAILED, Reason.RESET, [])
    assert record.http_status is None


@pytest.mark.parametrize("end", [Reset(), Close()], ids=["reset", "close"])
def test_a_request_of_which_one_byte_was_answered_is_not_sent_again(end: Step) -> None:
    one_byte_came = Gate()

    async def scenario(url: str) -> StreamRecord:
        one, two = make_requests(2)
        async with wire(url, [one, two]) as transport:
            await send(transport, one)
            second = asyncio.ensure_future(send(transport, two))
            await until(lambda: any(not exchange.is_untouched for exchange in transport._open))
            one_byte_came.open()
            return await second

    with ScriptedServer([OK, [Send(b"H"), Wait(one_byte_came), end], OK], one_by_one=True) as server:
        record = run(scenario(server.url))
        assert len(server.requests) == 2
    assert _outcome(record) == (Status.FAILED, Reason.RESET, [])


def test_bytes_that_nobody_asked_for_end_an_idle_connection() -> None:
    late = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"

    async def scenario(server: ScriptedServer) -> list[StreamRecord]:
        one, two = make_requests(2)
        async with wire(server.url, [one, two]) as transport:
            first = await send(transport, one)
            await server.until(lambda s: s.n_client_closed == 1)
            return [first, await send(transport, two)]

    with ScriptedServer([[*OK, Pause(20), Send(late)], OK], one_by_one=True) as server:
        assert [_outcome(r) for r in run(scenario(server))] == [OKAY] * 2
        assert server.n_connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        stream_head(200, ("Connection", "close")) + chunked(*stream_events(3)),
        ok_stream(3) + b"HTTP/1.1 200 OK\r\n\r\n",
        scripted.json_answer({"error": {"message": "no"}}, 500, ("Connection", "close")),
    ],
    ids=["connection-close", "bytes-after-the-end", "error-and-close"],
)
def test_a_connection_that_cannot_be_used_again_is_not(answer: bytes) -> None:
    with ScriptedServer([Send(answer)]) as server:
        send_all(server.url, make_requests(2))
        assert server.n_connections == 2


def test_connections_are_opened_ahead_and_used() -> None:
    async def scenario(server: ScriptedServer) -> list[StreamRecord]:
        requests = make_requests(8)
        async with wire(server.url, requests) as transport:
            await transport.warm(8)
            await server.until(lambda s: s.n_open == 8)
            assert not server.requests
            await transport.warm(8)
            records = await asyncio.gather(*(send(transport, r) for r in requests))
            assert (transport.n_sockets, transport.n_sockets_peak) == (8, 8)
            return list(records)

    with ScriptedServer(OK) as server:
        assert {r.status for r in run(scenario(server))} == {Status.OK}
        assert server.n_connections == 8
        assert {r.nth_on_connection for r in server.requests} == {0}


def test_spare_connections_are_replaced_as_they_are_taken() -> None:
    gate = Gate()

    async def scenario(server: ScriptedServer) -> None:
        requests = make_requests(3)
        async with wire(server.url, requests, spare_connections=2) as transport:
            await transport.warm(2)
            streams = [asyncio.ensure_future(send(transport, r)) for r in requests]
            await server.until(lambda s: len(s.requests) == 3 and s.n_open == 5)
            gate.open()
            await asyncio.gather(*streams)

    with ScriptedServer([Wait(gate), *OK]) as server:
        run(scenario(server))


def test_opening_ahead_at_a_port_that_refuses_is_no_error_yet() -> None:
    async def scenario(port: int) -> StreamRecord:
        requests = make_requests(1)
        async with wire(f"http://127.0.0.1:{port}", requests) as transport:
            await transport.warm(100)
            return await send(transport, requests[0])

    with scripted.refused_port() as port:
        record = run(scenario(port))
    assert _outcome(record) == (Status.FAILED, Reason.CONNECT_REFUSED, [])
    assert (record.decoded.detail, record.sent_ns, record.http_status) == ("connection refused", None, None)
    assert record.end_ns is not None


def test_a_name_that_nobody_knows_is_a_failed_connection() -> None:
    record = send_all("http://nobody.invalid:80", make_requests(1))[0]
    assert (_outcome(record), record.sent_ns) == ((Status.FAILED, Reason.CONNECT_FAILED, []), None)
    assert record.decoded.detail


def test_a_host_is_tried_at_each_of_its_addresses() -> None:
    """`localhost` is ::1 as well on most systems; the server listens on 127.0.0.1 alone."""
    with ScriptedServer(OK) as server:
        assert send_all(f"http://localhost:{server.port}", make_requests(1))[0].status is Status.OK


def test_ipv6_over_loopback() -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("no IPv6 here")
    with ScriptedServer(OK, host="::1") as server:
        assert _outcome(send_all(server.url, make_requests(1))[0]) == OKAY
        assert server.requests[0].headers["host"] == f"[::1]:{server.port}"


def test_a22_256_streams_are_open_at_once(path: str) -> None:
    """The server holds each back until it has all 256 requests; no pool is smaller than the concurrency."""
    n = 256 if path == "kernel" else 64
    gate = Gate()

    async def scenario(server: ScriptedServer) -> list[StreamRecord]:
        requests = make_requests(n)
        async with wire(server.url, requests, **_options(path)) as transport:
            streams = [asyncio.ensure_future(send(transport, r)) for r in requests]
            await server.until(lambda s: len(s.requests) == n)
            gate.open()
            records = list(await asyncio.gather(*streams))
            assert transport.n_sockets_peak == n
            return records

    with ScriptedServer([Wait(gate), *OK], tls=path == "tls") as server:
        records = run(scenario(server))
        assert (server.peak_open, server.n_connections) == (n, n)
    assert {_outcome(r)[0] for r in records} == {Status.OK}


# Bodies.


def test_a_line_of_any_length_is_one_event(path: str) -> None:
    """B-01 and B-02: lines of 300 KB and 5 MB; 131,073 and 524,289 bytes in pieces of 1,448."""
    small, large = (token("x" * size, usage=scripted.usage_fields(4, i)) for i, size in [(1, 300_000), (2, 5_000_000)])
    odd = [_line_of(131_073, 3), _line_of(524_289, 4, finish="length")]
    pieces = [part for event in odd for part in _in_pieces(chunk(event), 1448)]
    script = [
        Send(stream_head() + chunk(small)),
        Send(chunk(large)),
        Segments(pieces, gap_ms=0),
        Send(chunked(usage(4, 4), DONE)),
    ]
    with ScriptedServer(script, tls=path == "tls") as server:
        record = send_all(server.url, make_requests(1, osl=4), **_options(path))[0]
    assert _outcome(record) == OKAY
    assert list(record.decoded.chunk_tokens) == [1, 1, 1, 1]


def _line_of(n_bytes: int, n_tokens: int, **fields: Any) -> bytes:
    """A token event whose `data:` line has exactly so many bytes."""
    empty = len(token("", usage=scripted.usage_fields(4, n_tokens), **fields)) - 2
    line = token("x" * (n_bytes - empty), usage=scripted.usage_fields(4, n_tokens), **fields)
    assert len(line) - 2 == n_bytes
    return line


def _in_pieces(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


@contextlib.contextmanager
def _slow_server(answer: Callable[[socket.socket], None], *, tls: bool = False) -> Iterator[str]:
    """A server of one connection whose socket buffers hold little and that reads only when `answer` does."""

    def serve() -> None:
        connection, _ = listener.accept()
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(scripted.SERVER_PEM)
            connection = context.wrap_socket(connection, server_side=True)
        with connection, contextlib.suppress(ConnectionError):
            answer(connection)

    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"{'https' if tls else 'http'}://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(20)
        assert not thread.is_alive()


def _read_request(connection: socket.socket) -> bytes:
    """Head and body, by Content-Length."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    parts, got = [body], len(body)
    while got < length:
        parts.append(connection.recv(1 << 20))
        got += len(parts[-1])
    return b"".join(parts)


def test_a_large_body_is_sent_when_the_kernel_has_taken_its_last_byte(path: str) -> None:
    """8 MiB to a server that begins to read only later; another stream runs to its end meanwhile."""
    prompt = "0123456789abcdef" * (8 * MIB // 16)
    began_to_read = Gate()
    started: list[int] = []
    received: list[bytes] = []

    def answer(connection: socket.socket) -> None:
        began_to_read.wait()
        started.append(time.monotonic_ns())
        received.append(_read_request(connection))
        connection.sendall(ok_stream(3))
        connection.recv(1)

    async def scenario(url: str, other_url: str) -> tuple[StreamRecord, StreamRecord]:
        big, small = make_requests(1, prompt=prompt), make_requests(1)
        async with wire(url, big, **_options(path)) as transport, wire(other_url, small) as other:
            slow = asyncio.ensure_future(send(transport, big[0]))
            await until(lambda: any(exchange.sent_ns for exchange in transport._open))
            quick = await send(other, small[0])
            assert not slow.done()
            began_to_read.open()
            return await slow, quick

    with ScriptedServer(OK) as server, _slow_server(answer, tls=path == "tls") as url:
        slow, quick = run(scenario(url, server.url))
    assert (_outcome(slow), _outcome(quick)) == (OKAY, OKAY)
    assert prompt.encode() in received[0]
    assert (slow.sent_ns or 0) < started[0] < (slow.body_sent_ns or 0) <= (slow.end_ns or 0)
    assert quick.sent_ns is not None
    assert quick.body_sent_ns is not None


@pytest.mark.parametrize("end", ["stays-open", "closes", "resets"])
def test_an_answer_that_comes_while_the_body_is_still_sent_is_read(path: str, end: str) -> None:
    """413 after the head alone. The body (8 MiB) is not read: the connection is not used again."""
    if path == "tls" and end != "stays-open":
        pytest.skip("the loop's TLS may tell of the failed write first")
    refusal = scripted.json_answer({"error": {"message": "too long", "code": 413}}, 413)

    def answer(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(refusal)
        if end == "stays-open":
            connection.settimeout(20)
            with contextlib.suppress(OSError):
                while connection.recv(65536):
                    pass
        elif end == "closes":
            connection.shutdown(socket.SHUT_WR)
            time.sleep(0.05)

    with _slow_server(answer, tls=path == "tls") as url:
        record = send_all(url, make_requests(1, prompt="x" * (8 * MIB)), **_options(path))[0]
    assert (_outcome(record), record.http_status) == ((Status.FAILED, Reason.HTTP_STATUS, []), 413)
    assert record.decoded.detail == "too long"
    assert record.body_sent_ns is None


def test_a_server_that_closes_on_half_a_body_is_a_reset(path: str) -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(1000)

    with _slow_server(answer, tls=path == "tls") as url:
        record = send_all(url, make_requests(1, prompt="x" * (8 * MIB)), **_options(path))[0]
    assert _outcome(record) == (Status.FAILED, Reason.RESET, [])
    assert record.sent_ns is not None


def test_spooled_bytes_give_the_same_record() -> None:
    """The cap is 64 KiB; two sweeps pass while 3 MiB wait."""
    events = [token("x" * 10_000, "length" if i == 299 else None, scripted.usage_fields(4, i + 1)) for i in range(300)]
    first, second = (b"".join(map(chunk, part)) for part in (events[:150], events[150:]))
    script = [Send(stream_head() + first), Pause(250), Send(second), Pause(250), Send(chunked(usage(4, 300), DONE))]

    async def scenario(url: str) -> tuple[StreamRecord, int]:
        requests = make_requests(1, osl=300)
        async with wire(url, requests, undecoded_limit_bytes=65_536, keep_text=True) as transport:
            record = await send(transport, requests[0])
            assert transport.undecoded_peak_bytes > 65_536
            return record, transport.spooled_bytes

    with ScriptedServer(script) as server:
        record, spooled = run(scenario(server.url))
    assert spooled > 1_400_000
    assert _outcome(record) == OKAY
    assert list(record.decoded.chunk_tokens) == [1] * 300
    assert record.decoded.text == "x" * 3_000_000


def test_b15_a_full_temporary_folder_stops_neither_the_answers_nor_the_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be spooled stays in memory; the same sweep then still ends the stream that hangs."""

    def full(self: Exchange, file: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Exchange, "spool", full)
    first = b"".join(chunk(token("x" * 10_000, None, scripted.usage_fields(4, i + 1))) for i in range(30))

    async def scenario(url: str) -> tuple[StreamRecord, int]:
        requests = make_requests(1, osl=30)
        limits = Timeouts(connect_s=20.0, first_token_s=20.0, idle_s=0.5)
        async with wire(url, requests, undecoded_limit_bytes=65_536, timeouts=limits) as transport:
            return await send(transport, requests[0]), transport.spooled_bytes

    with ScriptedServer([Send(stream_head() + first), Silence()]) as server:
        record, spooled = run(scenario(server.url))
    assert spooled == 0
    assert _outcome(record) == (Status.TIMEOUT, Reason.TIMEOUT_IDLE, [])
    assert len(record.decoded.chunk_at_ns) == 30


def test_ended_streams_that_wait_for_their_decoding_leave_memory_and_lose_nothing() -> None:
    """A quarter of the cap of 256 KiB may rest; eight ended streams of 30 KB each are not decoded for some sweeps."""
    events = [token("x" * 1000, "length" if i == 29 else None, scripted.usage_fields(4, i + 1)) for i in range(30)]
    script = [Send(stream_head() + b"".join(map(chunk, events)) + chunked(usage(4, 30), DONE))]

    async def scenario(url: str) -> tuple[list[StreamRecord], int]:
        requests = make_requests(8, osl=30)
        async with wire(url, requests, undecoded_limit_bytes=262_144, keep_text=True) as transport:
            ended = [await transport.stream(request, 0, 0) for request in requests]
            while transport.spooled_bytes < 100_000:  # the bound of the test is that of the suite
                await asyncio.sleep(0.05)
            return [stream.record() for stream in ended], transport.spooled_bytes

    with ScriptedServer(script) as server:
        records, spooled = run(scenario(server.url))
    assert spooled >= 100_000
    assert [_outcome(record) for record in records] == [OKAY] * 8
    assert {record.decoded.text for record in records} == {"x" * 30_000}
    assert {tuple(record.decoded.chunk_tokens) for record in records} == {(1,) * 30}


# Broken answers.


@pytest.mark.parametrize(
    ("script", "status", "reason"),
    [
        ([Send(stream_head() + chunk(token()) + b"5\r\nda"), Close()], Status.FAILED, Reason.CUT),
        ([Send(stream_head() + chunk(token()) + chunk(DONE)), Close()], Status.FAILED, Reason.CUT),
        ([Send(stream_head() + chunked(token("a", "length")))], Status.FAILED, Reason.CUT),
        ([Send(stream_head() + chunk(token()) + b"xyz\r\n\r\n"), Silence()], Status.FAILED, Reason.MALFORMED),
        ([Send(b"SSH-2.0-OpenSSH_9.6\r\n"), Silence()], Status.FAILED, Reason.MALFORMED),
        ([Send(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000), Silence()], Status.FAILED, Reason.TOO_LARGE),
        ([Send(stream_head() + chunked(DONE))], Status.FAILED, Reason.EMPTY_STREAM),
        ([Send(stream_head() + chunked(scripted.error_event()))], Status.FAILED, Reason.IN_BAND_ERROR),
        ([Send(scripted.head(302, ("Location", "http://x/"), ("Content-Length", "0")))], Status.FAILED, Reason.REDIRECT),
        ([Send(scripted.not_found())], Status.FAILED, Reason.HTTP_STATUS),
        ([Send(scripted.head(204))], Status.FAILED, Reason.HTTP_STATUS),
        ([Send(stream_head() + b"".join(map(chunk, stream_events(3)))), Pause(20), Send(b"0\r\n\r\n")], Status.OK, None),
    ],
    ids=[
        "cut-mid-chunk", "cut-after-done", "no-done", "bad-chunk", "no-http", "head-too-large", "a28-only-done", "error-event",
        "redirect", "404", "204", "last-chunk-later",
    ],
)  # fmt: skip
def test_what_becomes_of_an_answer(path: str, script: list[Step], status: Status, reason: Reason | None) -> None:
    with ScriptedServer(script, tls=path == "tls") as server:
        record = send_all(server.url, make_requests(1), **_options(path))[0]
    assert (record.status, record.decoded.reason) == (status, reason)


def test_b17_each_request_has_its_own_outcome() -> None:
    """One refused by status, one reset at 3 tokens, the others fine."""
    reset_at_3 = [Send(stream_head() + b"".join(map(chunk, stream_events(9)[:3]))), Pause(30), Reset()]

    def script(request: Received) -> Steps:
        if request.headers["x-request-id"] == "run-r4":
            return [Send(scripted.json_answer({"error": {"message": "slow down"}}, 429))]
        return reset_at_3 if request.headers["x-request-id"] == "run-r7" else OK

    with ScriptedServer(script) as server:
        records = send_all(server.url, make_requests(10), side_by_side=True)
    reasons = {r.index: r.decoded.reason for r in records if r.status is not Status.OK}
    assert reasons == {4: Reason.HTTP_STATUS, 7: Reason.RESET}
    assert (records[4].http_status, len(records[7].decoded.chunk_at_ns)) == (429, 3)


# Limits.


def _limits(**limits: float | None) -> Timeouts:
    return dataclasses.replace(PATIENT, **limits)  # type: ignore[arg-type]


def test_no_connection_in_time_is_a_timeout() -> None:
    with scripted.unanswering_port() as port:
        record = send_all(f"http://127.0.0.1:{port}", make_requests(1), timeouts=_limits(connect_s=0.1))[0]
    assert _outcome(record) == (Status.TIMEOUT, Reason.TIMEOUT_CONNECT, [])
    assert (record.sent_ns, record.decoded.detail) == (None, "no connection within 0.1 s")


def test_comments_and_roles_do_not_meet_the_first_token_limit(path: str) -> None:
    """They keep coming; and the idle limit, which is shorter, does not count before the first token."""
    noise = [chunk(ROLE), *[chunk(COMMENT)] * 100]
    script = [Send(stream_head()), Pause(150), Segments(noise, gap_ms=5), Silence()]
    with ScriptedServer(script, tls=path == "tls") as server:
        limits = _limits(first_token_s=0.3, idle_s=0.05)
        record = send_all(server.url, make_requests(1), api="chat", timeouts=limits, **_options(path))[0]
    assert _outcome(record) == (Status.TIMEOUT, Reason.TIMEOUT_FIRST_TOKEN, [])
    assert record.decoded.n_comments > 0
    assert (record.end_ns or 0) - (record.sent_ns or 0) >= 300_000_000


def test_a_token_in_time_meets_the_first_token_limit_for_good() -> None:
    script = [Send(stream_head() + chunk(token("a"))), Pause(500), Send(chunked(token("b", "length"), usage(4, 2), DONE))]
    with ScriptedServer(script) as server:
        record = send_all(server.url, make_requests(1, osl=2), timeouts=_limits(first_token_s=0.3))[0]
    assert record.status is Status.OK


def test_b15_silence_after_a_token_ends_at_the_idle_limit(path: str) -> None:
    with ScriptedServer([Send(stream_head() + chunk(token("a"))), Silence()], tls=path == "tls") as server:
        record = send_all(server.url, make_requests(1), timeouts=_limits(idle_s=0.15), **_options(path))[0]
        server.wait_for(lambda s: s.n_open == 0)
    assert _outcome(record) == (Status.TIMEOUT, Reason.TIMEOUT_IDLE, [])
    assert (len(record.decoded.chunk_at_ns), record.decoded.detail) == (1, "no byte for 0.15 s")
    assert (record.end_ns or 0) - record.decoded.chunk_at_ns[0] >= 150_000_000


def test_b14_the_total_limit_censors_the_slow_and_spares_the_quick() -> None:
    """Of 10 requests, 2 flow on beyond the limit."""
    tokens = [chunk(token("a"))] * 200

    def script(request: Received) -> Steps:
        return [Send(stream_head()), Segments(tokens, gap_ms=5), Silence()] if request.index < 2 else OK

    with ScriptedServer(script) as server:
        records = send_all(server.url, make_requests(10), timeouts=_limits(total_s=0.6), side_by_side=True)
    outcomes = [_outcome(r)[:2] for r in records]
    assert outcomes.count((Status.TIMEOUT, Reason.TIMEOUT_TOTAL)) == 2
    assert outcomes.count((Status.OK, None)) == 8
    assert all(len(r.decoded.chunk_at_ns) > 0 for r in records)


def test_no_limits_are_no_limits() -> None:
    never = Timeouts(connect_s=None, first_token_s=None, idle_s=None, total_s=None)
    with ScriptedServer([Pause(150), *OK]) as server:
        assert send_all(server.url, make_requests(1), timeouts=never)[0].status is Status.OK


@pytest.mark.parametrize(
    ("came", "status", "reason"),
    [
        (stream_head() + b"no size\r\n", Status.FAILED, Reason.MALFORMED),
        (ok_stream(3) + b"junk", Status.OK, None),
    ],
    ids=["broken-framing", "an-end-that-bytes-follow"],
)
def test_a_limit_makes_the_bytes_be_looked_at(came: bytes, status: Status, reason: Reason | None) -> None:
    """Neither shows while the stream runs; the idle limit is where the stream ends instead of hanging."""
    with ScriptedServer([Send(came), Silence()]) as server:
        record = send_all(server.url, make_requests(1), timeouts=_limits(idle_s=0.1))[0]
    assert (record.status, record.decoded.reason) == (status, reason)


# Cancelling.


def test_cancelled_streams_keep_their_tokens(path: str) -> None:
    async def scenario(server: ScriptedServer) -> list[StreamRecord]:
        requests = make_requests(4)
        async with wire(server.url, requests, **_options(path)) as transport:
            streams = [asyncio.ensure_future(send(transport, r)) for r in requests]
            await until(lambda: sum(exchange.n_undecoded_bytes > 0 for exchange in transport._open) == 4)
            transport.cancel_all()
            records = await asyncio.gather(*streams)
            await server.until(lambda s: s.n_open == 0)
            return list(records)

    with ScriptedServer([Send(stream_head() + chunk(token("a"))), Silence()], tls=path == "tls") as server:
        records = run(scenario(server))
    assert [_outcome(r) for r in records] == [(Status.CANCELLED, Reason.INTERRUPTED, [])] * 4
    assert [len(r.decoded.chunk_at_ns) for r in records] == [1] * 4


def test_a_request_that_is_still_connecting_can_be_cancelled() -> None:
    async def scenario(port: int) -> StreamRecord:
        requests = make_requests(1)
        async with wire(f"http://127.0.0.1:{port}", requests) as transport:
            stream = asyncio.ensure_future(send(transport, requests[0]))
            await asyncio.sleep(0)
            transport.cancel_all()
            return await stream

    with scripted.unanswering_port() as port:
        record = run(scenario(port))
    assert (_outcome(record), record.sent_ns) == ((Status.CANCELLED, Reason.INTERRUPTED, []), None)


class _CancelledWhenAnswered(WireTransport):
    """Cancelled in the moment between the end of an answer and the return of its `stream`."""

    is_armed = False

    def answered(self, connection: Any, exchange: Exchange) -> None:
        super().answered(connection, exchange)
        if self.is_armed:
            self.cancel_all()


def test_an_answer_that_is_complete_is_not_cancelled_any_more() -> None:
    async def scenario(url: str) -> StreamRecord:
        requests = make_requests(1)
        async with wire(url, requests, make=_CancelledWhenAnswered) as transport:
            assert isinstance(transport, _CancelledWhenAnswered)
            transport.is_armed = True
            return await send(transport, requests[0])

    with ScriptedServer(OK) as server:
        assert _outcome(run(scenario(server.url))) == OKAY


def test_a_lost_request_is_not_sent_again_once_all_are_cancelled() -> None:
    async def scenario(url: str) -> StreamRecord:
        one, two = make_requests(2)
        async with wire(url, [one, two], make=_CancelledWhenAnswered) as transport:
            assert isinstance(transport, _CancelledWhenAnswered)
            await send(transport, one)
            transport.is_armed = True
            return await send(transport, two)

    with ScriptedServer([OK, [Reset()], OK], one_by_one=True) as server:
        record = run(scenario(server.url))
        assert len(server.requests) == 2
    assert record.status is Status.CANCELLED


def test_nothing_is_left_open(path: str) -> None:
    async def scenario(server: ScriptedServer) -> None:
        requests = make_requests(3)
        async with wire(server.url, requests, spare_connections=5, **_options(path)) as transport:
            await transport.warm(5)
            await asyncio.gather(*(send(transport, r) for r in requests))
        assert transport.n_sockets == 0
        await server.until(lambda s: s.n_open == 0)

    with ScriptedServer(OK, tls=path == "tls") as server:
        run(scenario(server))


def test_connections_that_did_not_come_about_are_not_counted() -> None:
    """Over TLS, closed while the handshakes are under way."""

    async def scenario(server: ScriptedServer) -> None:
        requests = make_requests(3)
        async with wire(server.url, requests, **_options("tls")) as transport:
            streams = [asyncio.ensure_future(send(transport, r)) for r in requests]
            await server.until(lambda s: s.n_connections > 0)
            transport.cancel_all()
            await asyncio.gather(*streams)
        assert transport.n_sockets == 0

    with ScriptedServer([Silence()], tls=True) as server:
        run(scenario(server))


# Stamps.


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux stamps TCP segments")
@pytest.mark.parametrize("stamps", ["kernel", "user"])
def test_a_busy_client_blurs_user_stamps_and_not_the_kernels(stamps: str) -> None:
    """The client computes while the second token arrives: the kernel knows when that was, a late read does not."""
    first_came, second_sent = Gate(), Gate()

    async def scenario(url: str) -> tuple[StreamRecord, int, int]:
        requests = make_requests(1, osl=2)
        async with wire(url, requests, stamps=stamps) as transport:
            stream = asyncio.ensure_future(send(transport, requests[0]))
            await until(lambda: any(exchange.n_undecoded_bytes for exchange in transport._open))
            sends_from_ns = time.monotonic_ns()
            first_came.open()
            second_sent.wait()  # blocks the loop
            blocked_until_ns = time.monotonic_ns()
            return await stream, sends_from_ns, blocked_until_ns

    first, second, *rest = map(chunk, stream_events(2))
    script = [
        Send(stream_head() + first),
        Wait(first_came),
        Send(second),
        Pause(10),
        Open(second_sent),
        Send(b"".join(rest) + b"0\r\n\r\n"),
    ]
    with ScriptedServer(script) as server:
        record, sends_from_ns, blocked_until_ns = run(scenario(server.url))
    assert (record.status, record.clock) == (Status.OK, stamps)
    at_ns, lateness_ns = record.decoded.chunk_at_ns[1], record.decoded.chunk_lateness_ns[1]
    assert at_ns > sends_from_ns
    if stamps == "kernel":
        assert at_ns < blocked_until_ns <= at_ns + lateness_ns
    else:
        assert (at_ns >= blocked_until_ns, lateness_ns) == (True, -1)


def test_stamps_are_in_order(path: str) -> None:
    with ScriptedServer(
        [Send(stream_head()), Segments([*map(chunk, stream_events(5)), b"0\r\n\r\n"])], tls=path == "tls"
    ) as server:
        record = send_all(server.url, make_requests(1, osl=5), **_options(path))[0]
    assert record.clock == ("kernel" if path == "kernel" else "user")
    assert record.sent_ns is not None
    assert record.body_sent_ns is not None
    assert record.header_ns is not None
    stamps = [record.sent_ns, record.header_ns, record.decoded.first_byte_ns, *record.decoded.chunk_at_ns, record.end_ns]
    assert stamps == sorted(stamps, key=lambda at: at or 0)
    assert record.sent_ns <= record.body_sent_ns


@pytest.mark.skipif(not wire_module.HAS_EPOLL, reason="the loop's own transports do not tell")
def test_decoding_is_told_when_a_read_waits() -> None:
    first_came, second_sent = Gate(), Gate()

    async def scenario(url: str) -> None:
        requests = make_requests(1, osl=2)
        async with wire(url, requests) as transport:
            stream = asyncio.ensure_future(send(transport, requests[0]))
            await until(lambda: any(exchange.n_undecoded_bytes for exchange in transport._open))
            assert not transport.is_read_waiting()
            first_came.open()
            second_sent.wait()  # blocks the loop: nobody reads
            assert transport.is_read_waiting()
            await stream
            assert not transport.is_read_waiting()

    first, *rest = map(chunk, stream_events(2))
    with ScriptedServer(
        [Send(stream_head() + first), Wait(first_came), Send(b"".join(rest) + b"0\r\n\r\n"), Open(second_sent)]
    ) as s:
        run(scenario(s.url))


# TLS.


def test_c09_a_certificate_of_an_unknown_authority_is_refused_with_a_remedy() -> None:
    with ScriptedServer(OK, tls=True) as server:
        record = send_all(server.url, make_requests(1), stamps="user", tls=ssl.create_default_context())[0]
    assert (_outcome(record), record.sent_ns) == ((Status.FAILED, Reason.TLS, []), None)
    assert "--ca-file" in (record.decoded.detail or "")
    assert not server.requests


def test_tls_to_a_server_without_it_is_a_tls_failure() -> None:
    with ScriptedServer(OK) as server:
        url = server.url.replace("http://", "https://")
        context = ssl.create_default_context(cafile=str(scripted.CA_FILE))
        record = send_all(url, make_requests(1), stamps="user", tls=context, timeouts=_limits(connect_s=0.3))[0]
    assert record.status in (Status.FAILED, Status.TIMEOUT)
    assert (record.decoded.reason in (Reason.TLS, Reason.TIMEOUT_CONNECT), record.sent_ns) == (True, None)


# The same answers by every path.


def _script_of_all(request: Received) -> Steps:
    """An answer of each kind, by index."""
    answers: list[list[Step]] = [
        [Send(ok_stream(3))],
        [Segments([stream_head(), *map(chunk, stream_events(4)), b"0\r\n\r\n"])],
        [Send(stream_head() + chunked(COMMENT, *stream_events(2)))],
        [Send(stream_head() + chunk(token("a"))), Pause(20), Close()],
        [Send(stream_head() + chunked(token("a"), scripted.error_event("it broke", 504), DONE))],
        [Send(scripted.json_answer({"error": {"message": "no such model", "code": 404}}, 404))],
        [Send(scripted.head(200, ("Content-Type", "text/html"), ("Content-Length", "13")) + b"<html></html>")],
        [Send(stream_head() + chunked(DONE))],
        [Send(scripted.head(200, ("Content-Type", "text/event-stream"), version="1.0") + b"".join(stream_events(3))), Close()],
        [Send(scripted.head(302, ("Location", "/x"), ("Content-Length", "0")))],
        [Send(scripted.head(503, ("Content-Length", "0")))],
        [Close()],
        [Send(stream_head() + chunked(*stream_events(3), trailers=[("X-T", "1")]))],
        [Send(stream_head() + chunked(token("中"), token("b", "length"), usage(4, 2, cached=3), DONE))],
        [Send(stream_head() + chunk(token("a"))), Silence()],
        [Send(stream_head() + chunked(token("a", "abort"), DONE))],
    ]
    return answers[request.json["max_tokens"] - 1]  # type: ignore[operator]


N_ANSWERS = 16
LIMITS = Timeouts(connect_s=20, first_token_s=20, idle_s=0.4)


def _ask_for_all() -> list[Request]:
    return [Request(i, "measured", 0, "x", 4, i + 1) for i in range(N_ANSWERS)]


def _without_stamps(record: StreamRecord) -> StreamRecord:
    """The record with its instants replaced by whether there is one."""
    decoded = record.decoded
    shown = {name: None if getattr(decoded, name) is None else 0 for name in ("answer_at_ns", "first_byte_ns", "finish_ns")}
    bare = dataclasses.replace(
        decoded,
        **shown,
        chunk_at_ns=len(decoded.chunk_at_ns),
        chunk_lateness_ns=len(decoded.chunk_lateness_ns),
        n_shared_reads=0,
    )  # type: ignore[arg-type]
    assert isinstance(bare, Decoded)
    stamps = ("sent_ns", "body_sent_ns", "header_ns", "end_ns")
    return dataclasses.replace(
        record, decoded=bare, clock="", **{name: None if getattr(record, name) is None else 0 for name in stamps}
    )  # type: ignore[arg-type]


def _by_wire(path: str) -> list[StreamRecord]:
    with ScriptedServer(_script_of_all, tls=path == "tls") as server:
        return send_all(server.url, _ask_for_all(), timeouts=LIMITS, keep_text=True, **_options(path))


def _by_http() -> list[StreamRecord]:
    async def scenario(url: str) -> list[StreamRecord]:
        target = Target("vllm", Endpoint.parse(url), "m")
        transport = HttpTransport(
            target, make_dialect("vllm"), "m", run_id="run", lanes=["main"], timeouts=LIMITS, keep_text=True
        )
        records = [(await transport.stream(r, 1, 2)).record() for r in _ask_for_all()]
        await transport.aclose()
        return records

    with ScriptedServer(_script_of_all) as server:
        return asyncio.run(scenario(server.url))


@pytest.fixture(scope="module")
def by_kernel() -> list[StreamRecord]:
    return _by_wire("kernel")


def _assert_same(one: list[StreamRecord], other: list[StreamRecord]) -> None:
    assert len(one) == len(other) == N_ANSWERS
    for a, b in zip(one, other, strict=True):
        assert _without_stamps(a) == _without_stamps(b)


def test_the_answers_that_are_compared_differ(by_kernel: list[StreamRecord]) -> None:
    assert [r.decoded.reason for r in by_kernel] == [
        None,
        None,
        None,
        Reason.CUT,
        Reason.IN_BAND_ERROR,
        Reason.HTTP_STATUS,
        Reason.NOT_JSON,
        Reason.EMPTY_STREAM,
        None,
        Reason.REDIRECT,
        Reason.HTTP_STATUS,
        Reason.RESET,
        None,
        None,
        Reason.TIMEOUT_IDLE,
        Reason.BAD_FINISH,
    ]


@pytest.mark.parametrize("path", ["user", "loop", "tls"], indirect=True)
def test_no_way_of_reading_changes_anything_but_the_stamps(by_kernel: list[StreamRecord], path: str) -> None:
    _assert_same(by_kernel, _by_wire(path))


def test_both_transports_make_the_same_record_of_the_same_answer(by_kernel: list[StreamRecord]) -> None:
    """wire and http on the same scripted server: equal but for the stamps."""
    _assert_same(by_kernel, _by_http())
