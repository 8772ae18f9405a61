"""The server over real loopback HTTP: heads, limits, aborts, order. No time is asserted."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest

from longbench_sched.launch.process import EmbeddedOptions, EmbeddedServer

FLAGS = {"vllm": (), "sglang": ("--enable-metrics",), "trtllm": ("--enable_chunked_prefill",)}


@pytest.fixture(scope="module", params=["vllm", "sglang", "trtllm"])
def any_server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(EmbeddedOptions(engine=request.param, time_scale=100, flags=FLAGS[request.param])) as server:
        yield server


@pytest.fixture(scope="module")
def vllm_server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(EmbeddedOptions(time_scale=100)) as server:
        yield server


@pytest.fixture(scope="module")
def slow_server() -> Iterator[EmbeddedServer]:
    """A clock so slow that a decode step takes about half a second: what is in flight stays in flight."""
    with EmbeddedServer(EmbeddedOptions(time_scale=0.01)) as server:
        yield server


class Peer:
    """A client connection over a plain socket."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.sock = socket.create_connection(("127.0.0.1", server.port), timeout=20)
        self.file = self.sock.makefile("rb")

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.file.close()
        self.sock.close()

    def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> None:
        lines = [f"{method} {path} HTTP/1.1", "host: x", f"content-length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.sock.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def head(self) -> tuple[int, dict[str, str]]:
        status = int(self.file.readline().split()[1])
        headers = {}
        while (line := self.file.readline()) != b"\r\n":
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        return status, headers

    def chunk(self) -> bytes:
        """The next chunk of a chunked body; empty at its end."""
        size = int(self.file.readline(), 16)
        data = self.file.read(size)
        assert self.file.read(2) == b"\r\n"
        return data

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        status, headers = self.head()
        if headers.get("transfer-encoding") == "chunked":
            body = b"".join(iter(self.chunk, b""))
        else:
            body = self.file.read(int(headers["content-length"]))
        return status, headers, body

    def ask(self, method: str, path: str, fields: object = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
        self.send(method, path, b"" if fields is None else json.dumps(fields).encode(), **headers)
        return self.answer()

    def info(self) -> dict:
        return json.loads(self.ask("GET", "/longbench/info")[2])


def completion(server: EmbeddedServer, **fields: object) -> dict:
    base = {"model": server.facts["model"], "prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True, "stream": True}
    return base | {"stream_options": {"include_usage": True}} | fields


def tokens_of(body: bytes) -> list[str]:
    events = [event.removeprefix("data: ") for event in body.decode().split("\n\n") if event]
    assert events[-1] == "[DONE]"
    parsed = [json.loads(event) for event in events[:-1]]
    assert parsed[-1]["choices"] == []
    return [event["choices"][0]["text"] for event in parsed[:-1]]


def test_a_stream_has_every_token_and_ends_by_its_framing(any_server: EmbeddedServer) -> None:
    with Peer(any_server) as peer:
        for n in (1, 2, 50):  # over one connection: it is kept alive
            status, headers, body = peer.ask(
                "POST", "/v1/completions", completion(any_server, max_tokens=n), x_request_id=f"r{n}"
            )
            assert status == 200
            assert headers["content-type"] == "text/event-stream; charset=utf-8"
            assert headers["x-request-id"] == f"r{n}"
            assert len(tokens_of(body)) == n


def test_a_stream_and_a_whole_answer_say_the_same(any_server: EmbeddedServer) -> None:
    with Peer(any_server) as peer:
        streamed = tokens_of(peer.ask("POST", "/v1/completions", completion(any_server, max_tokens=30))[2])
        fields = completion(any_server, max_tokens=30)
        del fields["stream"], fields["stream_options"]
        status, headers, body = peer.ask("POST", "/v1/completions", fields)
    assert (status, headers["content-type"]) == (200, "application/json")
    answer = json.loads(body)
    assert answer["choices"][0]["text"] == "".join(streamed)
    assert answer["usage"]["completion_tokens"] == 30


def test_the_same_prompt_gets_the_same_answer(any_server: EmbeddedServer) -> None:
    with Peer(any_server) as peer:
        fields = completion(any_server, ignore_eos=False, max_tokens=400, seed=3)
        assert tokens_of(peer.ask("POST", "/v1/completions", fields)[2]) == tokens_of(
            peer.ask("POST", "/v1/completions", fields)[2]
        )


def test_every_answer_says_that_it_is_simulated_and_on_what_clock(any_server: EmbeddedServer) -> None:
    with Peer(any_server) as peer:
        for path in ("/v1/models", "/health", "/nothing"):
            _, headers, _ = peer.ask("GET", path)
            assert (headers["x-longbench-simulated"], headers["x-longbench-time-scale"]) == ("1", "100")
        info = peer.info()
    assert (info["simulated"], info["time_scale"], info["gpu"]) == (True, 100.0, "H200")
    assert set(info["lateness"]) == {"n_steps", "p50_ms", "p99_ms", "max_ms"}
    assert any_server.facts["time_scale"] == 100.0


def test_the_health_and_models_routes_answer(any_server: EmbeddedServer) -> None:
    with Peer(any_server) as peer:
        assert peer.ask("GET", "/health")[0] == 200
        assert json.loads(peer.ask("GET", "/v1/models")[2])["data"][0]["id"] == any_server.facts["model"]
        assert peer.ask("GET", "/metrics")[0] == 200
        assert peer.ask("GET", "/nothing")[0] == 404
        assert peer.ask("GET", "/v1/completions")[0] == 405


def test_lateness_can_be_begun_anew(vllm_server: EmbeddedServer) -> None:
    with Peer(vllm_server) as peer:
        peer.ask("POST", "/v1/completions", completion(vllm_server))
        assert peer.info()["lateness"]["n_steps"] > 0
        assert json.loads(peer.ask("POST", "/longbench/reset")[2])["lateness"]["n_steps"] == 0
        assert peer.info()["lateness"]["p99_ms"] is None


def test_a_body_of_64_mib_is_accepted_and_a_larger_one_is_413(vllm_server: EmbeddedServer) -> None:
    fields = json.dumps(completion(vllm_server, prompt="x")).encode()
    padding = b" " * ((64 << 20) - len(fields))
    with Peer(vllm_server) as peer:
        peer.send("POST", "/v1/completions", fields + padding)
        status, _, body = peer.answer()
        assert (status, len(tokens_of(body))) == (200, 4)
    with Peer(vllm_server) as peer:
        peer.sock.sendall(b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % ((64 << 20) + 1))
        status, headers, _ = peer.answer()
        assert (status, headers["connection"]) == (413, "close")


def test_a_refused_upload_is_told_even_while_it_is_being_sent(vllm_server: EmbeddedServer) -> None:
    with Peer(vllm_server) as peer:
        peer.sock.sendall(b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (80 << 20))
        peer.sock.sendall(bytes(8 << 20))
        assert peer.answer()[0] == 413


def test_what_is_no_http_is_answered_400(vllm_server: EmbeddedServer) -> None:
    with Peer(vllm_server) as peer:
        peer.sock.sendall(b"nonsense\r\n\r\n")
        assert peer.answer()[0] == 400


def test_a_chunked_request_body_and_100_continue(vllm_server: EmbeddedServer) -> None:
    fields = json.dumps(completion(vllm_server)).encode()
    with Peer(vllm_server) as peer:
        peer.sock.sendall(b"POST /v1/completions HTTP/1.1\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n")
        assert peer.head()[0] == 100
        peer.sock.sendall(b"%x\r\n%b\r\n0\r\n\r\n" % (len(fields), fields))
        assert len(tokens_of(peer.answer()[2])) == 4


def test_requests_sent_ahead_on_one_connection_are_answered_in_order(vllm_server: EmbeddedServer) -> None:
    with Peer(vllm_server) as peer:
        for n in (3, 2, 5):
            peer.send("POST", "/v1/completions", json.dumps(completion(vllm_server, max_tokens=n)).encode())
        assert [len(tokens_of(peer.answer()[2])) for _ in range(3)] == [3, 2, 5]


def test_many_at_once_all_get_their_tokens(any_server: EmbeddedServer) -> None:
    """64 prompts of 3,000 tokens: as many as the headline has in flight."""
    peers = [Peer(any_server) for _ in range(64)]
    for i, peer in enumerate(peers):
        fields = completion(any_server, prompt=[10 + i] * 3000, max_tokens=20)
        peer.send("POST", "/v1/completions", json.dumps(fields).encode())
    assert [len(tokens_of(peer.answer()[2])) for peer in peers] == [20] * 64
    for peer in peers:
        peer.close()


def test_a_client_that_leaves_frees_its_place_and_memory(slow_server: EmbeddedServer) -> None:
    with Peer(slow_server) as watcher:
        before = watcher.info()["counters"]["finished"]["abort"]
        leaver = Peer(slow_server)
        leaver.send("POST", "/v1/completions", json.dumps(completion(slow_server, max_tokens=10_000)).encode())
        assert leaver.head()[0] == 200  # vLLM's head comes as soon as the request is in the queue
        info = watcher.info()
        assert info["n_running"] + info["n_waiting"] == 1
        leaver.close()
        for _ in range(5000):
            info = watcher.info()
            if info["counters"]["finished"]["abort"] > before:
                break
    assert info["counters"]["finished"]["abort"] == before + 1
    assert info["n_running"] + info["n_waiting"] == 0


def test_vllms_head_comes_before_the_first_token(slow_server: EmbeddedServer) -> None:
    with Peer(slow_server) as peer, Peer(slow_server) as watcher:
        peer.send("POST", "/v1/completions", json.dumps(completion(slow_server, prompt=[5] * 30_000)).encode())
        assert peer.head()[0] == 200
        assert watcher.info()["counters"]["generated_tokens"] == 0


def test_sglangs_head_waits_for_the_first_token() -> None:
    """Nothing has been sent while the prompt is prefilled; /generate sends its head at once."""
    options = EmbeddedOptions(engine="sglang", time_scale=0.01)
    with EmbeddedServer(options) as server, Peer(server) as watcher, Peer(server) as waiting, Peer(server) as native:
        waiting.send("POST", "/v1/completions", json.dumps(completion(server, prompt=[5] * 30_000)).encode())
        native.send("POST", "/generate", json.dumps({"input_ids": [5] * 30_000, "stream": True}).encode())
        assert native.head()[0] == 200
        assert any(watcher.info()["counters"]["n_arrived"] == 2 for _ in range(5000))
        waiting.sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            waiting.sock.recv(1)


def test_trtllm_refuses_the_headline_prompt_by_default() -> None:
    with EmbeddedServer(EmbeddedOptions(engine="trtllm", time_scale=100)) as server, Peer(server) as peer:
        status, _, body = peer.ask("POST", "/v1/completions", completion(server, prompt=[5] * 30_000))
        assert status == 400
        assert "enable_chunked_prefill" in json.loads(body)["message"]
        assert peer.ask("POST", "/v1/completions", completion(server))[0] == 200


def test_metrics_follow_the_state() -> None:
    """On a server of its own: a step that an earlier test left behind would keep this request waiting."""
    with EmbeddedServer(EmbeddedOptions(time_scale=0.01)) as server, Peer(server) as peer, Peer(server) as watcher:
        peer.send("POST", "/v1/completions", json.dumps(completion(server, prompt=[5] * 30_000)).encode())
        assert peer.head()[0] == 200
        text = watcher.ask("GET", "/metrics")[2].decode()
    values = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if not line.startswith("#")}
    assert values["vllm:num_requests_running"] == 1
    assert values["vllm:kv_cache_usage_perc"] > 0


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def full_server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    """One place, and a queue of one; a clock so slow that what runs stays."""
    limit = {"vllm": ("--max-num-seqs", "1", "--max-num-queued-reqs", "1")}
    flags = limit.get(request.param, ("--max-running-requests", "1", "--max-queued-requests", "1", "--enable-metrics"))
    with EmbeddedServer(EmbeddedOptions(engine=request.param, time_scale=0.01, flags=flags)) as server:
        yield server


def test_a_full_queue_is_told_as_each_engine_tells_it(full_server: EmbeddedServer) -> None:
    asked = completion(full_server, max_tokens=400)
    body = json.dumps(asked).encode()
    with Peer(full_server) as running, Peer(full_server) as queued, Peer(full_server) as third:
        running.send("POST", "/v1/completions", body)
        while third.info()["n_running"] < 1:
            pass
        queued.send("POST", "/v1/completions", body)
        while third.info()["n_waiting"] < 1:
            pass
        status, _, answer = third.ask("POST", "/v1/completions", asked)
        if full_server.facts["engine"] == "vllm":
            error = json.loads(answer)["error"]
            assert (status, error["type"], error["code"]) == (503, "Service Unavailable", 503)
            counted, name = third.ask("GET", "/metrics")[2].decode(), 'vllm:admission_rejections_total{model_name="{}",reason='
            assert f'{name.replace("{}", str(full_server.facts["model"]))}"max_num_queued_reqs"}} 1.0' in counted
        else:
            event, done = answer.decode().split("\n\n")[:2]
            error = json.loads(event.removeprefix("data: "))["error"]
            assert (status, error["type"], error["code"], done) == (200, "SERVICE_UNAVAILABLE", 503, "data: [DONE]")
            status, _, answer = third.ask("POST", "/v1/completions", {**asked, "stream": False})
            assert (status, json.loads(answer)["type"]) == (503, "503")
        assert sum(third.info()["n_rejected"].values()) >= 1
        assert third.info()["counters"]["n_arrived"] == 2


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_prompt_seen_before_is_found_in_the_cache_and_counted(engine: str) -> None:
    flags = ("--enable-metrics",) if engine == "sglang" else ()
    with EmbeddedServer(EmbeddedOptions(engine=engine, time_scale=1000, flags=flags)) as server, Peer(server) as peer:
        asked = completion(server, prompt=list(range(100, 740)), max_tokens=2)
        for _ in range(2):
            assert peer.ask("POST", "/v1/completions", asked)[0] == 200
        metrics = peer.ask("GET", "/metrics")[2].decode()
    lines = [line for line in metrics.splitlines() if not line.startswith("#")]
    samples = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines}
    if engine == "vllm":  # full blocks of 16, and never the last token: 39 of 40
        assert samples["vllm:prefix_cache_hits_total"] == samples["vllm:prompt_tokens_cached_total"] == 624
        assert samples["vllm:prefix_cache_queries_total"] == 1280
    else:
        assert samples["sglang:cache_hit_rate"] == pytest.approx(639 / 1280)


@pytest.mark.parametrize(
    ("engine", "path", "order"),
    [
        pytest.param("vllm", "/abort_requests", {"request_ids": ["cmpl-mine-0"]}, id="vllm by id"),
        pytest.param("vllm", "/abort_requests", {}, id="vllm all"),
        pytest.param("sglang", "/abort_request", {"rid": "mine"}, id="sglang by id"),
        pytest.param("sglang", "/abort_request", {"abort_all": True}, id="sglang all"),
    ],
)
def test_an_abort_ends_the_answer_with_its_reason_and_frees_the_place(engine: str, path: str, order: dict) -> None:
    with (
        EmbeddedServer(EmbeddedOptions(engine=engine, time_scale=0.05)) as server,
        Peer(server) as asking,
        Peer(server) as other,
    ):
        asking.send("POST", "/v1/completions", json.dumps(completion(server, max_tokens=400)).encode(), x_request_id="mine")
        while other.info()["n_running"] < 1:
            pass
        assert other.ask("POST", path, order)[0] == 200
        status, _, body = asking.answer()
        events = [json.loads(event.removeprefix("data: ")) for event in body.decode().split("\n\n")[:-2]]
        assert (status, events[-2]["choices"][0]["finish_reason"]) == (200, "abort")
        assert events[-1]["usage"]["completion_tokens"] == len(events) - 2  # the event with the reason has no token
        assert other.info()["n_running"] == 0
        assert other.info()["counters"]["finished"]["abort"] == 1


@pytest.mark.parametrize(
    ("engine", "path", "fields", "found"),
    [
        pytest.param("sglang", "/generate", ("meta_info", "cached_tokens"), 639, id="sglang"),
        pytest.param(
            "trtllm", "/v1/completions", ("usage", "prompt_tokens_details", "cached_tokens"), 608, id="trtllm: 19 blocks of 32"
        ),
    ],
)
def test_cached_tokens_are_told_where_the_engine_tells_them(engine: str, path: str, fields: tuple, found: int) -> None:
    with EmbeddedServer(EmbeddedOptions(engine=engine, time_scale=1000)) as server, Peer(server) as peer:
        ids = list(range(100, 740))
        asked: dict = {"model": server.facts["model"], "prompt": ids, "max_tokens": 2, "ignore_eos": True}
        if engine == "sglang":
            asked = {"input_ids": ids, "sampling_params": {"max_new_tokens": 2, "ignore_eos": True}}
        said = []
        for _ in range(2):
            answer = json.loads(peer.ask("POST", path, asked)[2])
            for name in fields:
                answer = answer[name]
            said.append(answer)
    assert said == [0, found]


def test_a_crowd_of_clients_that_vanish_leaves_no_word_and_a_server_that_answers() -> None:
    command = [sys.executable, "-m", "longbench_sched", "serve", "--port", "0", "--time-scale", "100"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        facts = json.loads(child.stdout.readline())
        model = facts["model"]
        body = json.dumps(
            {"model": model, "prompt": [5] * 8000, "max_tokens": 400, "ignore_eos": True, "stream": True}
        ).encode()
        request = b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        crowd = [socket.create_connection(("127.0.0.1", facts["port"]), timeout=20) for _ in range(300)]
        for peer in crowd:
            peer.sendall(request)
        for number, peer in enumerate(crowd):
            if number % 2:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST, without a goodbye
            peer.close()
        with socket.create_connection(("127.0.0.1", facts["port"]), timeout=20) as last:
            last.sendall(request.replace(b'"stream": true', b'"n": 1        '))
            assert last.recv(12) == b"HTTP/1.1 200"
        child.terminate()
        _, words = child.communicate(timeout=20)
    assert words == ""


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_an_engine_in_stages_serves_many_at_once(engine: str) -> None:
    flags = (*FLAGS[engine], "-tp", "2", "-pp", "4")
    with EmbeddedServer(EmbeddedOptions(engine=engine, time_scale=100, flags=flags)) as server:
        peers = [Peer(server) for _ in range(16)]
        for i, peer in enumerate(peers):
            fields = completion(server, prompt=[10 + i] * 3000, max_tokens=10)
            peer.send("POST", "/v1/completions", json.dumps(fields).encode())
        assert [len(tokens_of(peer.answer()[2])) for peer in peers] == [10] * 16
        for peer in peers:
            peer.close()
        with Peer(server) as watcher:
            info = watcher.info()
            assert (info["n_running"], info["n_waiting"]) == (0, 0)
            assert info["counters"]["generated_tokens"] == 160
