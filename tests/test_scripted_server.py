"""The scripted server does what the tests of the load floor take for granted."""

from __future__ import annotations

import socket
import ssl

import pytest
import scripted_server as scripted
from scripted_server import Close, Gate, HalfClose, Open, Received, Reset, ScriptedServer, Segments, Send, Silence, Steps, Wait

POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"


def _read_all(sock: socket.socket) -> bytes:
    data = b""
    while piece := sock.recv(65536):
        data += piece
    return data


def test_bytes_of_a_script_arrive_as_written_and_the_request_is_kept() -> None:
    with ScriptedServer([Send(scripted.ok_stream(2)), Close()]) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            sock.sendall(POST)
            assert _read_all(sock) == scripted.ok_stream(2)
        assert (server.requests[0].method, server.requests[0].path, server.requests[0].json) == ("POST", "/v1/completions", {})


def test_a_gate_holds_the_rest_of_a_script_back() -> None:
    gate = Gate()
    script = [Send(b"a"), Wait(gate), Segments([b"b", b"c"]), Close()]
    with ScriptedServer(script) as server, socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(POST)
        assert sock.recv(10) == b"a"
        sock.settimeout(0.05)
        with pytest.raises(TimeoutError):
            sock.recv(10)
        sock.settimeout(5)
        gate.open()
        assert _read_all(sock) == b"bc"


def test_a_connection_is_reused_and_scripts_are_taken_in_turn() -> None:
    with ScriptedServer([[Send(b"1")], [Send(b"2"), HalfClose()]], one_by_one=True) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            sock.sendall(POST)
            assert sock.recv(10) == b"1"
            sock.sendall(POST)
            assert _read_all(sock) == b"2"
        server.wait_for(lambda s: s.n_open == 0)
    assert [(r.connection, r.nth_on_connection) for r in server.requests] == [(0, 0), (0, 1)]


def test_reset_is_seen_as_reset() -> None:
    with ScriptedServer([Reset()]) as server, socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(POST)
        with pytest.raises(ConnectionResetError):
            sock.recv(10)


def test_open_sockets_are_counted() -> None:
    with ScriptedServer([Silence()]) as server:
        socks = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(5)]
        server.wait_for(lambda s: s.n_open == 5)
        for sock in socks:
            sock.close()
        server.wait_for(lambda s: s.n_open == 0)
    assert server.peak_open == 5


def test_an_early_script_runs_before_the_body_is_read() -> None:
    reached = Gate()

    def script(request: Received) -> Steps:
        return [Open(reached), Send(b"no"), Close()]

    with ScriptedServer(script, early=True) as server, socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(POST.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
        reached.wait()
        assert sock.recv(10) == b"no"


def test_tls_is_served_with_the_test_authority() -> None:
    context = ssl.create_default_context(cafile=str(scripted.CA_FILE))
    with ScriptedServer([Send(b"tls"), Close()], tls=True) as server:
        raw = socket.create_connection(("127.0.0.1", server.port))
        with context.wrap_socket(raw, server_hostname="127.0.0.1") as sock:
            sock.sendall(POST)
            assert sock.recv(10) == b"tls"


def test_an_unanswering_port_lets_a_connection_time_out() -> None:
    with scripted.unanswering_port() as port, pytest.raises(TimeoutError):
        socket.create_connection(("127.0.0.1", port), timeout=0.05)


def test_a_refused_port_refuses() -> None:
    with scripted.refused_port() as port, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
