"""HttpTransport against a scripted server: every failure kind becomes the right record."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import threading
from array import array
from collections.abc import Sequence
from typing import Any

import pytest
import scripted_server as scripted
from scripted_server import (
    COMMENT,
    DONE,
    LAST_CHUNK,
    Close,
    Gate,
    Open,
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
    ok_stream,
    stream_events,
    stream_head,
    token,
)

from longbench_sched.engine import make_dialect
from longbench_sched.errors import UsageError
from longbench_sched.load.http import HttpTransport
from longbench_sched.load.timeouts import Timeouts
from longbench_sched.plan import Request
from longbench_sched.record import Reason, Status, StreamRecord
from longbench_sched.target import Endpoint, Target
from longbench_sched.transport import Transport

QUICK = Timeouts(connect_s=20.0, first_token_s=0.5, idle_s=None)


def make_request(index: int = 0, osl: int = 3, prompt: array[int] | str | None = None) -> Request:
    ids = array("I", [1, 2, 3, 4])
    return Request(index=index, phase="measured", lane=0, prompt=ids if prompt is None else prompt, isl=4, osl=osl)


def make_target(url: str, **fields: Any) -> Target:
    return Target(engine="vllm", endpoint=Endpoint.parse(url), model="m", **fields)


def make_transport(url: str, target: Target | None = None, **options: Any) -> HttpTransport:
    target = target or make_target(url)
    dialect = make_dialect(target.engine, target.api)
    return HttpTransport(target, dialect, "m", run_id="run7", lanes=("main",), **options)


def send(
    url: str, requests: Sequence[Request] | None = None, target: Target | None = None, **options: Any
) -> list[StreamRecord]:
    """Send the requests one after the other over one transport."""

    async def go() -> list[StreamRecord]:
        transport = make_transport(url, target, **options)
        records = [(await transport.stream(r, due_ns=1, slot_ns=2)).record() for r in requests or [make_request()]]
        await transport.aclose()
        return records

    return asyncio.run(go())


def send_one(url: str, **options: Any) -> StreamRecord:
    return send(url, **options)[0]


def test_a_good_answer_makes_a_full_record() -> None:
    with ScriptedServer([Send(ok_stream(3))]) as server:
        record = send_one(server.url)
    assert (record.status, record.decoded.reason, record.http_status) == (Status.OK, None, 200)
    assert (record.request_id, record.phase, record.lane, record.due_ns, record.slot_ns) == (
        "run7-r0",
        "measured",
        "main",
        1,
        2,
    )
    assert (record.decoded.output_tokens, list(record.decoded.chunk_tokens)) == (3, [1, 1, 1])
    stamps = [record.sent_ns, record.header_ns, *record.decoded.chunk_at_ns, record.end_ns]
    assert None not in stamps
    assert stamps == sorted(stamps, key=lambda at: at or 0)
    assert record.sent_ns is not None
    assert record.body_sent_ns is not None
    assert record.body_sent_ns >= record.sent_ns
    assert record.n_body_bytes == sum(map(len, stream_events(3)))
    assert record.clock == "user"
    assert list(record.decoded.chunk_lateness_ns) == [-1, -1, -1]


def test_the_transport_is_one() -> None:
    async def go() -> None:
        transport: Transport = make_transport("http://127.0.0.1:1")
        await transport.warm(3)
        assert not transport.is_read_waiting()
        transport.cancel_all()
        await transport.aclose()

    asyncio.run(go())


def test_the_head_that_is_sent_says_who_asks_and_asks_for_no_compression() -> None:
    with ScriptedServer([Send(ok_stream(3))]) as server:
        url = server.url.replace("http://", "http://u:p%40ss@") + "/gate/v1"
        send_one(url, target=make_target(url, headers=(("X-Team", "a"),), api_key="secret"))
        request = server.requests[0]
    assert (request.method, request.path) == ("POST", "/gate/v1/completions")
    assert request.headers["host"] == f"127.0.0.1:{server.port}"
    assert request.headers["x-request-id"] == "run7-r0"
    assert request.headers["x-team"] == "a"
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["accept"] == "text/event-stream"
    assert request.headers["authorization"] == "Basic dTpwQHNz"  # base64 of u:p@ss
    assert request.headers["content-length"] == str(len(request.body))
    assert request.json["prompt"] == [1, 2, 3, 4]
    names = [name for name, _ in request.header_lines]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("steps", "status", "reason"),
    [
        ([Close()], Status.FAILED, Reason.RESET),
        ([Reset()], Status.FAILED, Reason.RESET),
        ([Send(stream_head() + chunk(token())), Close()], Status.FAILED, Reason.CUT),
        ([Send(head(200, ("Content-Length", "999")) + token()), Close()], Status.FAILED, Reason.CUT),
        ([Send(stream_head() + chunked(*stream_events(3)[:-1])), Close()], Status.FAILED, Reason.CUT),
        ([Send(stream_head() + chunked(COMMENT, DONE))], Status.FAILED, Reason.EMPTY_STREAM),
        ([Send(stream_head() + chunked(token(), scripted.error_event(), DONE))], Status.FAILED, Reason.IN_BAND_ERROR),
        ([Send(scripted.json_answer({"error": {"message": "no"}}))], Status.FAILED, Reason.IN_BAND_ERROR),
        ([Send(scripted.json_answer({"detail": "Not Found"}, 404))], Status.FAILED, Reason.HTTP_STATUS),
        ([Send(scripted.json_answer({"message": "busy"}, 503))], Status.FAILED, Reason.HTTP_STATUS),
        ([Send(head(307, ("Location", "/elsewhere"), ("Content-Length", "0")))], Status.FAILED, Reason.REDIRECT),
        (
            [Send(head(200, ("Content-Type", "text/html"), ("Content-Length", "13")) + b"<html></html>")],
            Status.FAILED,
            Reason.NOT_JSON,
        ),
        ([Send(b"SSH-2.0-OpenSSH_9.6\r\n")], Status.FAILED, Reason.MALFORMED),
        ([Send(stream_head() + chunk(token())), Send(b"zz\r\n")], Status.FAILED, Reason.MALFORMED),
        ([Send(b"HTTP/1.1 200 OK\r\nX-Long: " + b"a" * 70_000 + b"\r\n\r\n")], Status.FAILED, Reason.TOO_LARGE),
        ([Send(head(200, ("Content-Type", "text/event-stream")) + token()), Reset()], Status.FAILED, Reason.RESET),
        ([Send(stream_head() + chunk(token())), Reset()], Status.FAILED, Reason.RESET),
    ],
    ids=[
        "closed-before-the-answer", "reset-before-the-answer", "cut-chunks", "cut-length", "no-done", "comments-only",
        "error-in-the-stream", "b06-error-object", "404", "503", "redirect-not-followed", "b06-html-page", "not-http",
        "broken-size-line", "header-too-long", "reset-of-a-body-to-eof", "reset-in-a-chunk",
    ],
)  # fmt: skip
def test_every_failure_makes_the_right_record(steps: Steps, status: Status, reason: Reason) -> None:
    with ScriptedServer(_apart(steps)) as server:
        record = send_one(server.url, timeouts=Timeouts(first_token_s=10.0, idle_s=5.0))
        assert len(server.requests) == 1
    assert (record.status, record.decoded.reason) == (status, reason), record.decoded.detail
    assert record.end_ns is not None


def _apart(steps: Steps) -> list[scripted.Step]:
    """The steps, each seen by the client before the next: what is lost by a reset must have been read."""
    spaced: list[scripted.Step] = []
    for step in steps:
        spaced += [step, scripted.Pause(20)]
    return spaced


def test_b06_the_body_of_a_gateways_page_is_kept_up_to_500_bytes() -> None:
    page = b"<html>" + b"x" * 2000
    with ScriptedServer([Send(head(200, ("Content-Type", "text/html"), ("Content-Length", str(len(page)))) + page)]) as server:
        record = send_one(server.url)
    assert record.decoded.detail is not None
    assert record.decoded.detail.startswith("<html>xxx")
    assert len(record.decoded.detail.encode()) <= 500


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(
            head(200, ("Content-Type", "text/event-stream"), version="1.0") + b"".join(stream_events(3)), id="http-1.0"
        ),
        pytest.param(stream_head() + chunked(*stream_events(3), trailers=[("X-Sum", "1")]), id="trailers"),
        pytest.param(
            head(200, ("Content-Type", "text/event-stream"), ("Content-Length", str(len(b"".join(stream_events(3))))))
            + b"".join(stream_events(3)),
            id="length",
        ),
    ],
)
def test_each_framing_of_a_body_is_read_to_its_end(answer: bytes) -> None:
    with ScriptedServer([Send(answer), Close()]) as server:
        record = send_one(server.url)
    assert (record.status, record.decoded.output_tokens) == (Status.OK, 3)


def test_the_end_is_the_last_chunk_and_not_the_done_event() -> None:
    gate = Gate()
    ends_like_a_body = token("0\r\n\r\n")
    script = [Send(stream_head() + chunk(ends_like_a_body) + chunk(b"".join(stream_events(3)))), Wait(gate), Send(LAST_CHUNK)]

    async def go(server: ScriptedServer) -> StreamRecord:
        transport = make_transport(server.url)
        task = asyncio.ensure_future(transport.stream(make_request(), 0, 0))
        await server.until(lambda s: len(s.requests) == 1)
        done, _ = await asyncio.wait({task}, timeout=0.1)
        assert not done
        gate.open()
        record = (await task).record()
        await transport.aclose()
        return record

    with ScriptedServer(script) as server:
        assert asyncio.run(go(server)).status is Status.OK


def test_b03_a_character_cut_by_two_segments_arrives_whole_with_the_stamp_of_the_second() -> None:
    whole = chunk(token("\u4e2d", "length", scripted.usage_fields(4, 1)))
    at = whole.index("\u4e2d".encode()) + 1
    tail = chunk(b"".join([scripted.usage(4, 1), DONE])) + LAST_CHUNK
    with ScriptedServer([Send(stream_head()), Segments([whole[:at], whole[at:]], gap_ms=50), Send(tail)]) as server:
        record = send(server.url, [make_request(osl=1)], keep_text=True)[0]
    assert (record.status, record.decoded.text) == (Status.OK, "\u4e2d")
    assert record.decoded.first_byte_ns is not None
    assert record.decoded.chunk_at_ns[0] > record.decoded.first_byte_ns


def test_b04_comments_are_counted_and_not_parsed() -> None:
    events = [COMMENT, b":\r\n\r\n", *stream_events(2)]
    with ScriptedServer([Send(stream_head() + chunked(*events))]) as server:
        record = send(server.url, [make_request(osl=2)])[0]
    assert (record.status, record.decoded.n_comments, len(record.decoded.chunk_at_ns)) == (Status.OK, 2, 2)


# Timeouts: censored outcomes with what had come.


@pytest.mark.parametrize(
    "steps",
    [
        [Silence()],
        [Send(stream_head()), Silence()],
        [Send(stream_head() + chunk(COMMENT)), Silence()],
        [Send(stream_head() + chunk(scripted.ROLE)), Silence()],
    ],
    ids=["nothing", "head", "comment", "role"],
)
def test_a_first_token_that_never_comes_is_a_timeout_whatever_else_came(steps: Steps) -> None:
    with ScriptedServer(steps) as server:
        record = send_one(
            server.url,
            target=make_target(server.url, api="chat"),
            requests=[make_request(prompt="hello")],
            timeouts=Timeouts(first_token_s=0.15, idle_s=0.05),
        )
        server.wait_for(lambda s: s.n_open == 0)
    assert (record.status, record.decoded.reason) == (Status.TIMEOUT, Reason.TIMEOUT_FIRST_TOKEN)
    assert list(record.decoded.chunk_at_ns) == []


def test_comments_do_not_put_the_first_token_deadline_off() -> None:
    script = [Send(stream_head()), *[step for _ in range(60) for step in (Send(chunk(COMMENT)), scripted.Pause(20))], Silence()]
    with ScriptedServer(script) as server:
        record = send_one(server.url, timeouts=QUICK)
    assert (record.status, record.decoded.reason) == (Status.TIMEOUT, Reason.TIMEOUT_FIRST_TOKEN)
    assert 0 < record.decoded.n_comments < 60


def test_b15_silence_after_a_token_is_an_idle_timeout_and_the_token_is_kept() -> None:
    with ScriptedServer([Send(stream_head() + chunk(token())), Silence()]) as server:
        record = send_one(server.url, timeouts=Timeouts(first_token_s=60.0, idle_s=0.1))
        server.wait_for(lambda s: s.n_open == 0)
    assert (record.status, record.decoded.reason) == (Status.TIMEOUT, Reason.TIMEOUT_IDLE)
    assert len(record.decoded.chunk_at_ns) == 1
    assert record.end_ns is not None
    assert record.end_ns > record.decoded.chunk_at_ns[0]


def test_gaps_shorter_than_the_idle_limit_are_no_timeout_however_long_the_stream() -> None:
    parts = [chunk(event) for event in stream_events(12)] + [LAST_CHUNK]
    with ScriptedServer([Send(stream_head()), Segments(parts, gap_ms=60)]) as server:
        record = send(server.url, [make_request(osl=12)], timeouts=Timeouts(first_token_s=5.0, idle_s=0.6))[0]
    assert record.status is Status.OK


def test_a_token_before_the_first_token_deadline_meets_it() -> None:
    gate = Gate()
    rest = chunk(b"".join(stream_events(3)[1:])) + LAST_CHUNK
    script = [Send(stream_head() + chunk(stream_events(3)[0])), scripted.Pause(600), Send(rest), Open(gate)]
    with ScriptedServer(script) as server:
        record = send_one(server.url, timeouts=QUICK)
    assert (record.status, record.decoded.output_tokens) == (Status.OK, 3)


def test_the_total_limit_ends_a_stream_that_still_flows() -> None:
    script = [Send(stream_head()), *[step for _ in range(80) for step in (Send(chunk(token())), scripted.Pause(10))], Silence()]
    with ScriptedServer(script) as server:
        record = send_one(server.url, timeouts=Timeouts(total_s=0.3))
    assert (record.status, record.decoded.reason) == (Status.TIMEOUT, Reason.TIMEOUT_TOTAL)
    assert len(record.decoded.chunk_at_ns) > 0


def test_a_connection_that_does_not_come_about_is_a_connect_timeout() -> None:
    with scripted.unanswering_port() as port:
        record = send_one(f"http://127.0.0.1:{port}", timeouts=Timeouts(connect_s=0.1))
    assert (record.status, record.decoded.reason) == (Status.TIMEOUT, Reason.TIMEOUT_CONNECT)
    assert record.sent_ns is None


def test_a_refused_connection_is_a_record_that_was_never_sent() -> None:
    with scripted.refused_port() as port:
        record = send_one(f"http://127.0.0.1:{port}")
    assert (record.status, record.decoded.reason) == (Status.FAILED, Reason.CONNECT_REFUSED)
    assert (record.sent_ns, record.header_ns, record.http_status) == (None, None, None)
    assert record.decoded.detail == "connection refused"


def test_a_name_that_nobody_knows_is_a_failed_connection() -> None:
    record = send_one("http://no-such-host.invalid:8000")
    assert (record.status, record.decoded.reason) == (Status.FAILED, Reason.CONNECT_FAILED)


# Cancelling.


def test_a_deadline_leaves_no_trace_in_the_task_that_sent() -> None:
    async def go(server: ScriptedServer) -> StreamRecord:
        transport = make_transport(server.url, timeouts=QUICK)
        record = (await transport.stream(make_request(), 0, 0)).record()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await transport.aclose()
        return record

    with ScriptedServer([Silence()]) as server:
        assert asyncio.run(go(server)).status is Status.TIMEOUT


def test_cancelling_all_ends_open_streams_and_keeps_their_tokens() -> None:
    async def go(server: ScriptedServer) -> list[StreamRecord]:
        transport = make_transport(server.url)
        tasks = [asyncio.ensure_future(transport.stream(make_request(i), 0, 0)) for i in range(3)]
        await server.until(lambda s: len(s.requests) == 3)
        await asyncio.sleep(0.05)  # the token is on its way
        transport.cancel_all()
        records = [(await task).record() for task in tasks]
        await transport.aclose()
        return records

    with ScriptedServer([Send(stream_head() + chunk(token())), Silence()]) as server:
        records = asyncio.run(go(server))
    assert [(r.status, r.decoded.reason, len(r.decoded.chunk_at_ns)) for r in records] == [
        (Status.CANCELLED, Reason.INTERRUPTED, 1)
    ] * 3


def test_a_task_cancelled_from_outside_is_cancelled() -> None:
    async def go(server: ScriptedServer) -> None:
        transport = make_transport(server.url)
        task = asyncio.ensure_future(transport.stream(make_request(), 0, 0))
        await server.until(lambda s: len(s.requests) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await transport.aclose()

    with ScriptedServer([Silence()]) as server:
        asyncio.run(go(server))


# Connections.


def test_a_connection_is_used_again() -> None:
    with ScriptedServer([Send(ok_stream(3))]) as server:
        records = send(server.url, [make_request(i) for i in range(3)])
    assert [r.status for r in records] == [Status.OK] * 3
    assert [(r.connection, r.nth_on_connection) for r in server.requests] == [(0, 0), (0, 1), (0, 2)]


def _first_good_then(*then: scripted.Step) -> Any:
    def script(request: Received) -> Steps:
        return then if request.nth_on_connection else [Send(ok_stream(3))]

    return script


@pytest.mark.parametrize("end", [Close(), Reset()], ids=["closed", "reset"])
def test_a_request_that_fails_on_a_used_connection_before_any_answer_is_sent_once_more(end: scripted.Step) -> None:
    with ScriptedServer(_first_good_then(scripted.Pause(30), end)) as server:
        first, second = send(server.url, [make_request(0), make_request(1)])
    assert (first.status, first.decoded.marks) == (Status.OK, [])
    assert (second.status, second.decoded.marks) == (Status.OK, ["retried"])
    assert [(r.connection, r.nth_on_connection) for r in server.requests] == [(0, 0), (0, 1), (1, 0)]
    assert server.requests[1].body == server.requests[2].body
    assert second.sent_ns is not None
    assert second.body_sent_ns is not None
    assert second.body_sent_ns - second.sent_ns > 25_000_000  # from the first send to the second


def test_a_request_of_which_a_part_was_answered_is_not_sent_again() -> None:
    with ScriptedServer(_first_good_then(Send(b"HTTP/1.1 200 OK\r\n"), scripted.Pause(20), Close())) as server:
        _, second = send(server.url, [make_request(0), make_request(1)])
    assert (second.status, second.decoded.marks) == (Status.FAILED, [])
    assert len(server.requests) == 2


def test_a_request_on_a_fresh_connection_is_not_sent_again() -> None:
    with ScriptedServer([Close()]) as server:
        record = send_one(server.url)
    assert (record.status, record.decoded.marks, len(server.requests)) == (Status.FAILED, [], 1)


def test_a_connection_closed_while_idle_is_replaced_before_the_send() -> None:
    def script(request: Received) -> Steps:
        return [Send(ok_stream(3)), *([Close()] if request.index == 0 else [])]

    async def go(server: ScriptedServer) -> list[StreamRecord]:
        transport = make_transport(server.url)
        first = (await transport.stream(make_request(0), 0, 0)).record()
        await server.until(lambda s: s.n_open == 0)
        await asyncio.sleep(0.02)  # the client's loop sees the end of the connection
        second = (await transport.stream(make_request(1), 0, 0)).record()
        await transport.aclose()
        return [first, second]

    with ScriptedServer(script) as server:
        records = asyncio.run(go(server))
    assert [(r.status, r.decoded.marks) for r in records] == [(Status.OK, [])] * 2
    assert [r.connection for r in server.requests] == [0, 1]


def test_a22_no_pool_holds_requests_back() -> None:
    n = 256
    gate = Gate()

    async def go(server: ScriptedServer) -> list[StreamRecord]:
        transport = make_transport(server.url)
        tasks = [asyncio.ensure_future(transport.stream(make_request(i), 0, 0)) for i in range(n)]
        await server.until(lambda s: len(s.requests) == n, timeout_s=30)
        gate.open()
        records = [(await task).record() for task in tasks]
        assert transport.n_sockets_peak == n
        await transport.aclose()
        return records

    with ScriptedServer([Wait(gate), Send(ok_stream(3))]) as server:
        records = asyncio.run(go(server))
    assert server.peak_open == n
    assert [r.status for r in records] == [Status.OK] * n


def test_a_body_that_the_server_is_slow_to_take_is_sent_in_full() -> None:
    gate = Gate()
    text = "x" * (8 << 20)

    async def go(server: ScriptedServer) -> StreamRecord:
        transport = make_transport(server.url)
        task = asyncio.ensure_future(transport.stream(make_request(prompt=text), 0, 0))
        await server.until(lambda s: len(s.requests) == 1)
        gate.open()
        record = (await task).record()
        await transport.aclose()
        return record

    script = [Wait(gate), scripted.ReadBody(), Send(ok_stream(3))]
    with ScriptedServer(script, early=True) as server:
        record = asyncio.run(go(server))
    assert record.status is Status.OK
    assert server.requests[0].json["prompt"] == text
    assert record.sent_ns is not None
    assert record.body_sent_ns is not None
    assert record.body_sent_ns > record.sent_ns


def test_an_answer_before_the_body_was_taken_is_read_and_its_connection_not_kept() -> None:
    script = [Send(scripted.json_answer({"message": "too long"}, 413)), Silence()]
    with ScriptedServer(script, early=True) as server:
        record = send_one(server.url, requests=[make_request(prompt="x" * (8 << 20))])
        server.wait_for(lambda s: s.n_open == 0)
    assert (record.http_status, record.decoded.reason, record.decoded.detail) == (413, Reason.HTTP_STATUS, "too long")


def test_prepared_requests_are_sent_as_they_were_encoded() -> None:
    async def go(server: ScriptedServer) -> None:
        transport = make_transport(server.url)
        transport.prepare(make_request(osl=3))
        await transport.stream(make_request(osl=9), 0, 0)
        await transport.aclose()

    with ScriptedServer([Send(ok_stream(3))]) as server:
        asyncio.run(go(server))
    assert server.requests[0].json["max_tokens"] == 3


def test_decoding_in_slices_gives_the_same_record() -> None:
    async def go(server: ScriptedServer) -> StreamRecord:
        transport = make_transport(server.url)
        ended = await transport.stream(make_request(osl=40), 0, 0)
        n_steps = 1
        while not ended.step(0):
            n_steps += 1
        assert n_steps > 1
        assert transport.undecoded_peak_bytes == sum(map(len, stream_events(40)))
        await transport.aclose()
        return ended.record()

    parts = [chunk(event) for event in stream_events(40)] + [LAST_CHUNK]
    with ScriptedServer([Send(stream_head()), Segments(parts, gap_ms=1)]) as server:
        record = asyncio.run(go(server))
    assert (record.status, record.decoded.output_tokens) == (Status.OK, 40)


# Proxies and TLS.


def test_a30_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted.refused_port() as dead, ScriptedServer([Send(ok_stream(3))]) as server:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{dead}")
        assert send_one(server.url).status is Status.OK


def test_a30_a_dead_proxy_that_was_asked_for_is_named() -> None:
    with scripted.refused_port() as dead, ScriptedServer([Send(ok_stream(3))]) as server:
        record = send_one(server.url, proxy=f"http://user:word@127.0.0.1:{dead}")
        assert server.requests == []
    assert (record.status, record.decoded.reason) == (Status.FAILED, Reason.CONNECT_FAILED)
    assert record.decoded.detail == f"cannot reach the proxy http://***@127.0.0.1:{dead} (connection refused)"


def test_a30_a_proxy_that_is_no_address_fails_the_request_and_not_the_run() -> None:
    record = send_one("http://127.0.0.1:9", proxy="http://:80")
    assert (record.status, record.decoded.reason) == (Status.FAILED, Reason.CONNECT_FAILED)


def test_a_proxy_is_asked_for_the_whole_address() -> None:
    with ScriptedServer([Send(ok_stream(3))]) as proxy:
        record = send_one("http://engine.test:8000", proxy=proxy.url)
    assert record.status is Status.OK
    assert proxy.requests[0].path == "http://engine.test:8000/v1/completions"


def test_c09_a_certificate_that_is_not_trusted_fails_with_a_remedy_and_nothing_is_sent() -> None:
    with ScriptedServer([Send(ok_stream(3))], tls=True) as server:
        record = send_one(server.url)
        assert server.requests == []
    assert (record.status, record.decoded.reason, record.sent_ns) == (Status.FAILED, Reason.TLS, None)
    assert record.decoded.detail is not None
    assert "certificate verify failed" in record.decoded.detail
    assert "--ca-file" in record.decoded.detail
    assert "--insecure" in record.decoded.detail


@pytest.mark.parametrize("options", [{"ca_file": scripted.CA_FILE}, {"insecure": True}], ids=["ca-file", "insecure"])
def test_c09_a_ca_file_or_an_explicit_insecure_let_it_through(options: dict[str, Any]) -> None:
    with ScriptedServer([Send(ok_stream(3))], tls=True) as server:
        target = make_target(server.url, headers=(("X-Team", "a"),))
        record = send_one(server.url, target=target, **options)
    assert record.status is Status.OK
    assert server.requests[0].headers["x-team"] == "a"


def test_a_header_with_a_line_break_is_refused_before_anything_is_sent() -> None:
    target = make_target("http://127.0.0.1:1", headers=(("X-Team", "a\r\nX-Evil: b"),))
    with pytest.raises(UsageError, match="line break"):
        HttpTransport(target, make_dialect("vllm"), "m")


def test_nothing_is_left_open() -> None:
    with ScriptedServer([Send(ok_stream(3))]) as server:
        send(server.url, [make_request(0), make_request(1)])
        server.wait_for(lambda s: s.n_open == 0)
    gc.collect()  # an unclosed session would warn here, and warnings are errors


def test_a_peer_that_hangs_without_a_farewell_leaves_nothing_open() -> None:
    """TLS ends with a word of both sides; this server says a head, and then no more."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(scripted.SERVER_PEM)
    held: list[socket.socket] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        peer = context.wrap_socket(listener.accept()[0], server_side=True)
        peer.recv(1 << 16)
        peer.sendall(stream_head())
        held.append(peer)

    async def go() -> StreamRecord:
        transport = make_transport(f"https://127.0.0.1:{listener.getsockname()[1]}", insecure=True)
        sending = asyncio.ensure_future(transport.stream(make_request(), due_ns=1, slot_ns=2))
        while not any(record.http_status for record in transport.open_records()):
            await asyncio.sleep(0.001)
        transport.cancel_all()
        record = (await sending).record()
        await transport.aclose()
        return record

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    assert asyncio.run(go()).status is Status.CANCELLED
    server.join()
    gc.collect()  # a transport that is not closed would warn here, and warnings are errors
    for open_socket in (*held, listener):
        open_socket.close()
