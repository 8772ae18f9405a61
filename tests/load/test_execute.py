"""A whole run over loopback: warm-ups, signals, limits of the client, and what is said of it at the end."""

from __future__ import annotations

import errno
import gc
import io
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
import scripted_server as scripted
from scripted_server import Gate, Received, ScriptedServer, Send, Silence, Steps, Wait, chunk, ok_stream, stream_head, token
from virtual_loop import closed_lane, make_plan, open_lane
from wire_client import stamping_kernel

from longbench_sched.engine import make_dialect
from longbench_sched.engine.dialect import Dialect, HttpRequest
from longbench_sched.errors import ClientLimitError, UsageError
from longbench_sched.load import messages as messages_module
from longbench_sched.load.execute import LoadOptions, LoadResult, Progress, execute
from longbench_sched.load.messages import Messages
from longbench_sched.plan import Plan, Request
from longbench_sched.record import Reason, Status, StreamRecord
from longbench_sched.target import Endpoint, Target

OK = [Send(ok_stream(3))]


@pytest.fixture(scope="module", autouse=True)
def _stamps() -> Iterator[None]:
    with stamping_kernel():
        yield


def _requests(n: int, due_s: Callable[[int], float] | None = None, *, lane: int = 0, first: int = 0) -> list[Request]:
    return [
        Request(first + i, "measured", lane, f"prompt {first + i}", 4, 3, None if due_s is None else due_s(i)) for i in range(n)
    ]


def _warmups(n: int) -> tuple[Request, ...]:
    return tuple(Request(1000 + i, "warmup", -1, f"warm {i}", 4, 3) for i in range(n))


def _closed(n: int, concurrency: int, **plan: Any) -> Plan:
    return make_plan(closed_lane(_requests(n), (0.0, concurrency)), **plan)


def _execute(
    url: str,
    plan: Plan,
    *,
    dialect: Dialect | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> tuple[LoadResult, list[StreamRecord]]:
    records: list[StreamRecord] = []
    target = Target("vllm", Endpoint.parse(url), "m")
    settings = LoadOptions(run_id="run7", model="m", **options)
    result = execute(plan, target, dialect or make_dialect("vllm"), settings, records.append, on_progress)
    return result, records


# What is sent and told.


def test_warm_ups_are_sent_before_and_recorded_apart() -> None:
    with ScriptedServer(OK) as server:
        result, records = _execute(server.url, _closed(6, 2, warmups=_warmups(3)))
        sent = [r.json["prompt"] for r in server.requests]
    assert sent[:3] == ["warm 0", "warm 1", "warm 2"]
    assert sorted(sent[3:]) == [f"prompt {i}" for i in range(6)]
    assert [(r.phase, r.lane) for r in records] == [("warmup", "warmup")] * 3 + [("measured", "closed")] * 6
    assert {r.status for r in records} == {Status.OK}
    assert all((r.end_ns or 0) < result.measured_from_ns for r in records[:3])
    assert all(r.due_ns >= result.measured_from_ns for r in records[3:])
    assert all((r.end_ns or 0) <= result.measured_to_ns for r in records)
    assert (result.interrupted, result.is_aborted, result.transport, result.proxy) == (None, False, "wire", None)


def test_the_request_ids_are_those_of_the_records() -> None:
    with ScriptedServer(OK) as server:
        _, records = _execute(server.url, _closed(5, 5, warmups=_warmups(1)))
        sent = {r.headers["x-request-id"]: r.json["prompt"] for r in server.requests}
    assert {r.request_id for r in records} == set(sent)
    assert {r.request_id: f"prompt {r.index}" for r in records if r.phase == "measured"}.items() <= sent.items()
    assert sent["run7-w1000"] == "warm 0"


@pytest.mark.parametrize(
    ("options", "clock", "transport"),
    [
        ({}, "kernel", "wire"),
        ({"timestamps": "user"}, "user", "wire"),
        ({"transport": "http"}, "user", "http"),
    ],
    ids=["default", "user-stamps", "http"],
)
def test_which_clock_and_transport_were_used_is_told(options: dict[str, Any], clock: str, transport: str) -> None:
    if clock == "kernel" and not sys.platform.startswith("linux"):
        pytest.skip("only Linux stamps TCP segments")
    with ScriptedServer(OK) as server:
        result, records = _execute(server.url, _closed(4, 2, warmups=_warmups(1)), **options)
    assert (result.clock, result.client.clock, result.transport) == (clock, clock, transport)
    assert {(r.status, r.clock) for r in records} == {(Status.OK, clock)}
    assert (result.client.read_lateness_p99_ms is None) == (clock == "user")


def test_the_first_round_of_a_closed_loop_finds_its_connections_open() -> None:
    """8 in flight: all 8 requests of the first round find a connection; none is opened for them."""
    gate = Gate()

    def script(request: Received) -> Steps:
        if request.index == 7:
            gate.open()
        return [Wait(gate), *OK]

    with ScriptedServer(script) as server:
        result, _ = _execute(server.url, _closed(16, 8))
        assert {r.nth_on_connection for r in server.requests[:8]} == {0}
        assert server.n_connections == 8
    assert result.client.peak_open_sockets == 8


@pytest.mark.parametrize(("due_s", "n_ahead"), [(None, 8), (lambda i: i * 0.25, 5)], ids=["closed", "open"])
def test_connections_are_opened_even_if_nothing_is_sent(due_s: Callable[[int], float] | None, n_ahead: int) -> None:
    """All places of a closed loop; of an open one what is due within a second, its ends included."""
    requests = _requests(16, due_s)
    lane = closed_lane(requests, (0.0, 8), duration_s=0.0) if due_s is None else open_lane(requests, duration_s=0.0)
    with ScriptedServer(OK) as server:
        _, records = _execute(server.url, make_plan(lane))
        server.wait_for(lambda s: s.n_connections == n_ahead)
        assert (records, server.requests) == ([], [])


@pytest.mark.parametrize("transport", ["wire", "http"])
def test_a21_bodies_are_encoded_before_anything_is_sent(transport: str) -> None:
    real = make_dialect("vllm")
    n_arrived_at_encode: list[int] = []

    class Watched:
        engine, api, takes_token_ids = real.engine, real.api, real.takes_token_ids
        decoder, sent_options = real.decoder, real.sent_options

        @staticmethod
        def encode(request: Request, model: str) -> HttpRequest:
            n_arrived_at_encode.append(len(server.requests))
            return real.encode(request, model)

    with ScriptedServer(OK) as server:
        _, records = _execute(server.url, _closed(10, 2, warmups=_warmups(2)), dialect=Watched(), transport=transport)
    assert n_arrived_at_encode == [0] * 12
    assert {r.status for r in records} == {Status.OK}


def test_messages_that_fit_nowhere_are_one_error_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def write(self, data: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(messages_module, "IN_MEMORY_BYTES", 10)
    monkeypatch.setattr(messages_module.tempfile, "TemporaryFile", lambda **_: Full())
    requests = [Request(index=0, phase="measured", lane=0, prompt="x", isl=1, osl=1)]
    with pytest.raises(ClientLimitError, match=r"\(no space left on device\)\.\nName a folder with room in TMPDIR"):
        Messages(requests, make_dialect("vllm"), Target("vllm", Endpoint.parse("http://h"), "m"), "m", "run")


def test_messages_that_do_not_fit_into_memory_are_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def bodies() -> dict[str, tuple[bytes, bytes]]:
        with ScriptedServer(OK) as server:
            _, records = _execute(server.url, _closed(10, 3, warmups=_warmups(1)))
            assert {r.status for r in records} == {Status.OK}
            port = str(server.port).encode()
            return {r.headers["x-request-id"]: (r.head.replace(port, b"PORT"), r.body) for r in server.requests}

    in_memory = bodies()
    monkeypatch.setattr(messages_module, "IN_MEMORY_BYTES", 1000)
    assert bodies() == in_memory
    assert len(in_memory) == 11


def test_lanes_keep_their_names_and_due_times() -> None:
    plan = make_plan(
        closed_lane(_requests(8), (0.0, 2)), open_lane(_requests(3, lambda i: 0.02 * i, lane=1, first=8)), warmups=_warmups(1)
    )
    with ScriptedServer(OK) as server:
        result, records = _execute(server.url, plan)
    by_lane = {lane: sorted(r.index for r in records if r.lane == lane) for lane in ("closed", "open", "warmup")}
    assert by_lane == {"closed": list(range(8)), "open": [8, 9, 10], "warmup": [1000]}
    due = sorted(r.due_ns - result.measured_from_ns for r in records if r.lane == "open")
    assert due == [0, 20_000_000, 40_000_000]
    assert all((r.sent_ns or 0) >= r.slot_ns >= r.due_ns for r in records)


def test_a_server_that_refuses_makes_a_record_of_each_request() -> None:
    with scripted.refused_port() as port:
        result, records = _execute(f"http://127.0.0.1:{port}", _closed(5, 2, warmups=_warmups(1)))
    assert [r.decoded.reason for r in records] == [Reason.CONNECT_REFUSED] * 6
    assert (result.client.lateness_p99_ms, result.client.peak_open_sockets) == (None, 0)


def test_planned_and_achieved_rate_are_over_first_to_last_send() -> None:
    """A-25's other side: 11 requests 10 ms apart are 100/s, not 110."""
    plan = make_plan(open_lane(_requests(11, lambda i: 0.01 * i)))
    with ScriptedServer(OK) as server:
        result, records = _execute(server.url, plan)
    sent = sorted(r.sent_ns or 0 for r in records)
    assert result.client.planned_rate_per_s == pytest.approx(100)
    assert result.client.achieved_rate_per_s == pytest.approx(10e9 / (sent[-1] - sent[0]))


def test_a_closed_loop_has_no_planned_rate() -> None:
    with ScriptedServer(OK) as server:
        result, _ = _execute(server.url, _closed(4, 2))
    assert (result.client.planned_rate_per_s, result.client.achieved_rate_per_s) == (None, None)


def test_the_last_progress_counts_the_measured_requests() -> None:
    seen: list[Progress] = []

    def script(request: Received) -> Steps:
        return [Send(scripted.not_found())] if request.json["prompt"] == "prompt 1" else OK

    with ScriptedServer(script) as server:
        _execute(server.url, _closed(4, 2, warmups=_warmups(3)), on_progress=seen.append)
    last = seen[-1]
    assert (last.planned, last.sent, last.done, last.ok, last.in_flight) == (4, 4, 4, 3, 0)


def test_the_collector_and_the_signals_are_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), gc.isenabled()
    with ScriptedServer(OK) as server:
        _execute(server.url, _closed(2, 1))
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), gc.isenabled()) == before
    assert gc.isenabled()


def test_a_run_may_be_in_another_thread() -> None:
    records: list[StreamRecord] = []
    with ScriptedServer(OK) as server:
        thread = threading.Thread(target=lambda: records.extend(_execute(server.url, _closed(3, 1))[1]))
        thread.start()
        thread.join(20)
    assert [r.status for r in records] == [Status.OK] * 3


def test_a_record_that_cannot_be_stored_ends_the_run() -> None:
    def full(_: StreamRecord) -> None:
        raise OSError(28, "No space left on device")

    with ScriptedServer(OK) as server:
        target = Target("vllm", Endpoint.parse(server.url), "m")
        with pytest.raises(OSError, match="No space"):
            execute(_closed(4, 2, warmups=_warmups(1)), target, make_dialect("vllm"), LoadOptions("run7", "m"), full)
    assert gc.isenabled()


def test_a_header_that_cannot_be_sent_is_refused_before_anything_is_sent() -> None:
    with ScriptedServer(OK) as server:
        target = Target("vllm", Endpoint.parse(server.url), "m", headers=(("X-A", "1\r\nX-B: 2"),))
        with pytest.raises(UsageError, match="line break"):
            execute(_closed(1, 1), target, make_dialect("vllm"), LoadOptions("run7", "m"), lambda _: None)
        assert (server.n_connections, server.requests) == (0, [])


def test_kernel_stamps_that_cannot_be_had_are_refused_before_anything_is_sent() -> None:
    with ScriptedServer(OK) as server:
        with pytest.raises(UsageError, match="--timestamps auto"):
            _execute(server.url, _closed(1, 1), transport="http", timestamps="kernel")
        assert (server.n_connections, server.requests) == (0, [])


# Signals and limits, in a process of their own.

CHILD = """
import dataclasses, json, resource, sys
sys.path[:0] = json.loads(sys.argv[1])
asked = json.loads(sys.argv[2])
if asked["files"]:
    resource.setrlimit(resource.RLIMIT_NOFILE, tuple(asked["files"]))
from longbench_sched.engine import make_dialect
from longbench_sched.errors import ClientLimitError
from longbench_sched.load.execute import LoadOptions, execute
from longbench_sched.plan import Request
from longbench_sched.target import Endpoint, Target
from virtual_loop import closed_lane, make_plan, open_lane

def say(kind, **facts):
    print(json.dumps({"kind": kind, **facts}), flush=True)

requests = [Request(i, "measured", 0, "x", 4, 3, i * 0.001 if asked["is_open"] else None) for i in range(asked["n"])]
warmups = tuple(Request(1000 + i, "warmup", -1, "x", 4, 3) for i in range(asked["n_warmups"]))
n = asked["concurrency"]
lane = open_lane(requests, max_in_flight=n) if asked["is_open"] else closed_lane(requests, (0.0, n))
options = LoadOptions("run7", "m", drain_s=asked["drain_s"])
try:
    result = execute(
        make_plan(lane, warmups=warmups), Target("vllm", Endpoint.parse(asked["url"]), "m"), make_dialect("vllm"), options,
        lambda r: say("record", index=r.index, phase=r.phase, status=r.status, tokens=len(r.decoded.chunk_at_ns)),
        lambda p: say("progress", phase=p.phase),
    )
    say("result", interrupted=result.interrupted, is_aborted=result.is_aborted, sockets=result.client.peak_open_sockets,
        files=resource.getrlimit(resource.RLIMIT_NOFILE)[0])
except ClientLimitError as error:
    say("refused", text=str(error), code=error.exit_code)
"""


class Child:
    """A run in a process of its own, and what it says, line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.said: list[dict[str, Any]] = []

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def read_until(self, **facts: object) -> None:
        """Read lines until one says this."""
        lines: IO[str] | None = self._process.stdout
        assert lines is not None
        for line in lines:
            self.said.append(json.loads(line))
            if facts.items() <= self.said[-1].items():
                return
        raise AssertionError(f"it never said {facts}, but {self.said}")

    def finish(self) -> dict[str, Any]:
        """Read to the end; the last line."""
        out, _ = self._process.communicate(timeout=30)
        self.said += [json.loads(line) for line in out.splitlines()]
        assert self._process.returncode == 0
        return self.said[-1]

    def statuses(self, phase: str = "measured") -> list[tuple[str, int]]:
        """(status, tokens) of the records so far."""
        return [(s["status"], s["tokens"]) for s in self.said if s["kind"] == "record" and s["phase"] == phase]


@contextmanager
def _child(url: str, n: int, concurrency: int, **asked: Any) -> Iterator[Child]:
    facts = {"url": url, "n": n, "concurrency": concurrency, "n_warmups": 0, "is_open": False, "files": None, "drain_s": 60.0}
    tests = str(Path(__file__).parent.parent)
    command = [sys.executable, "-W", "error", "-c", CHILD, json.dumps([tests]), json.dumps({**facts, **asked})]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Child(process)
        finally:
            process.kill()


HELD = stream_head() + chunk(token("a"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
def test_b13_the_first_signal_stops_the_sending_and_drains(number: signal.Signals, is_open: bool) -> None:
    """4 of 100 in flight: they end well, nothing more is sent, and every record is handed on."""
    gate = Gate()
    with ScriptedServer([Wait(gate), *OK]) as server, _child(server.url, 100, 4, is_open=is_open) as child:
        server.wait_for(lambda s: len(s.requests) == 4, 30)
        child.signal(number)
        child.read_until(kind="progress", phase="drain")
        gate.open()
        result = child.finish()
        assert len(server.requests) == 4
    assert (result["interrupted"], result["is_aborted"]) == (number.name, False)
    assert child.statuses() == [("ok", 3)] * 4


def test_b13_the_second_signal_ends_what_is_open_and_keeps_what_had_come() -> None:
    with ScriptedServer([Send(HELD), Silence()]) as server, _child(server.url, 100, 4) as child:
        server.wait_for(lambda s: len(s.requests) == 4, 30)
        child.signal(signal.SIGINT)
        child.read_until(kind="progress", phase="drain")
        child.signal(signal.SIGINT)
        result = child.finish()
    assert (result["interrupted"], result["is_aborted"]) == ("SIGINT", True)
    assert child.statuses() == [("cancelled", 1)] * 4


def test_a_drain_that_takes_too_long_is_ended() -> None:
    with ScriptedServer([Send(HELD), Silence()]) as server, _child(server.url, 100, 4, drain_s=0.2) as child:
        server.wait_for(lambda s: len(s.requests) == 4, 30)
        child.signal(signal.SIGINT)
        result = child.finish()
    assert (result["interrupted"], result["is_aborted"]) == ("SIGINT", True)
    assert child.statuses() == [("cancelled", 1)] * 4


def test_a_signal_during_the_warm_up_ends_the_run_before_it_is_measured() -> None:
    gate = Gate()
    with ScriptedServer([Wait(gate), *OK]) as server, _child(server.url, 100, 4, n_warmups=3) as child:
        server.wait_for(lambda s: len(s.requests) == 1, 30)
        child.signal(signal.SIGINT)
        child.read_until(kind="progress", phase="drain")
        gate.open()
        result = child.finish()
        assert len(server.requests) == 1
    assert (result["interrupted"], child.statuses(), child.statuses("warmup")) == ("SIGINT", [], [("ok", 3)])


def test_too_few_open_files_are_one_clear_error_before_anything_is_sent() -> None:
    with ScriptedServer(OK) as server, _child(server.url, 1000, 1000, files=(256, 256)) as child:
        said = child.finish()
        assert server.n_connections == 0
    assert (said["kind"], said["code"]) == ("refused", 4)
    assert "1000 requests in flight need 1064 open files; this system allows 256" in said["text"]


def test_the_soft_limit_on_open_files_is_raised() -> None:
    """64 by default, 400 allowed: enough for 200 streams at once, though not for all the spare files hoped for."""
    gate = Gate()
    with ScriptedServer([Wait(gate), *OK]) as server, _child(server.url, 200, 200, files=(64, 400)) as child:
        server.wait_for(lambda s: len(s.requests) == 200, 30)
        gate.open()
        result = child.finish()
    assert (result["sockets"], result["files"]) == (200, 400)
    assert child.statuses() == [("ok", 3)] * 200
