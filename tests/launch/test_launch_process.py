"""A child that listens, says why if it cannot, and never outlives its parent."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import urllib.request

import pytest

from longbench_sched.errors import TargetError
from longbench_sched.launch.process import EmbeddedOptions, EmbeddedServer

PARENT = """
import sys, threading
from longbench_sched.launch.process import EmbeddedServer
def start():
    global server
    server = EmbeddedServer().start()
    print(server.pid, flush=True)
if sys.argv[1] == "thread":
    thread = threading.Thread(target=start)
    thread.start(); thread.join()
else:
    start()
server  # NameError ends this process if the thread's start failed: nobody waits for its pid
sys.stdin.read()
"""


def gone(pid: int) -> bool:
    """Wait until the process has ended; False if it has not within 10 s."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], 10)[0])
    finally:
        os.close(watched)


needs_pidfd = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits on a process that is not its child: Linux only")


@needs_pidfd
@pytest.mark.parametrize(
    ("where", "how"),
    [
        pytest.param("main", signal.SIGKILL, id="killed"),
        pytest.param("thread", signal.SIGKILL, id="killed, started in a thread"),
        pytest.param("main", signal.SIGTERM, id="terminated"),
    ],
)
def test_the_child_dies_with_its_parent(where: str, how: signal.Signals) -> None:
    """Also when it was started from a thread that has long ended: the kernel's signal at a parent's death is a thread's."""
    with subprocess.Popen([sys.executable, "-c", PARENT, where], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        os.kill(child, 0)
        parent.send_signal(how)
    assert gone(child)


@needs_pidfd
def test_a_stopped_child_dies_with_its_parent_too() -> None:
    """A child that cannot run (SIGSTOP) reads no end of input; the kernel kills it."""
    with subprocess.Popen([sys.executable, "-c", PARENT, "main"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        os.kill(child, signal.SIGSTOP)
        parent.kill()
    assert gone(child)


def test_a_server_started_in_a_thread_survives_the_thread() -> None:
    server = EmbeddedServer()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    try:
        for _ in range(50):  # the kernel's signal would come a moment after the thread has gone
            with urllib.request.urlopen(f"{server.base_url}/longbench/info", timeout=10) as answer:
                assert b'"simulated":true' in answer.read()
    finally:
        server.stop()


def test_stop_ends_the_child_and_may_be_called_again() -> None:
    with EmbeddedServer() as server:
        assert server.base_url == f"http://127.0.0.1:{server.port}"
        pid = server.pid
        server.stop()
        server.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_child_that_does_not_listen_to_sigterm_is_killed() -> None:
    program = (
        sys.executable,
        "-c",
        "import signal,time; signal.signal(15, 1); print('{\"port\": 1}', flush=True); time.sleep(60)",
    )
    server = EmbeddedServer(EmbeddedOptions(program=program, stop_grace_s=0.1)).start()
    server.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


def test_a_child_that_fails_says_why() -> None:
    with pytest.raises(TargetError, match=r"(?s)exit code 2.*no GPU named 'H2000'.*Did you mean"):
        EmbeddedServer(EmbeddedOptions(gpu="H2000")).start()


def test_a_port_in_use_is_one_clear_error() -> None:
    with EmbeddedServer() as server, pytest.raises(TargetError, match=f"cannot listen on 127.0.0.1:{server.port}"):
        EmbeddedServer(EmbeddedOptions(port=server.port)).start()


def test_a_child_that_says_nothing_is_given_up() -> None:
    program = (sys.executable, "-c", "import time; time.sleep(60)")
    server = EmbeddedServer(EmbeddedOptions(program=program, ready_timeout_s=0.2, stop_grace_s=0.1))
    with pytest.raises(TargetError, match="did not start within"):
        server.start()
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


def test_a_flood_on_stderr_neither_blocks_the_child_nor_fills_memory() -> None:
    flood = "import sys; sys.stderr.write(('x' * 2000 + '\\n') * 3000); sys.stderr.write('the reason\\n'); sys.exit(3)"
    server = EmbeddedServer(EmbeddedOptions(program=(sys.executable, "-c", flood)))
    with pytest.raises(TargetError, match="the reason"):
        server.start()
    assert len(server.stderr) < 40 * 501
