"""An engine as a process: commands that install it, its start, the wait until it answers, its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

MODEL = "tiny-llama"
START_LIMIT_S = 600.0  # 40 to 310 s were seen on two busy cores, vLLM's first time compiling
STOP_LIMIT_S = 30.0
NICE = 5


class EngineFailure(Exception):
    """The engine could not be installed or started; the message says why."""


def call(*command: str) -> None:
    """Run to the end. Raises EngineFailure."""
    try:
        subprocess.run(command, check=True)
    except (subprocess.CalledProcessError, OSError) as error:
        raise EngineFailure(f"{Path(command[0]).name} {' '.join(command[1:4])} ... failed: {error}") from None


@contextmanager
def serve(title: str, command: Sequence[str], model: Path, log: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """The base URL of a server that answers; it is stopped on the way out. Raises EngineFailure.

    `command` is told where to listen by `--host` and `--port`, and is started beside the model so that it can give its bare
    name: lists of models and logs then show no path of this machine.
    """
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as out:
        server = subprocess.Popen(
            ["nice", "-n", str(NICE), *command, "--host", "127.0.0.1", "--port", str(port)],
            cwd=model.parent,
            env=os.environ | environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _step_back(server.pid)
    try:
        _wait(title, server, f"{url}/health", log)
        yield url
    finally:
        _stop(server)


def _step_back(pid: int) -> None:
    """Let the client go first, or it reads late whatever the engine sends while it computes: by seconds, on two cores.

    Linux shares the processor between sessions before it looks at `nice`, unless that was turned off.
    """
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(NICE), encoding="ascii")


def _free_port() -> int:
    """A port that was free a moment ago; not every engine says which one it took when it is given port 0."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(title: str, server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + START_LIMIT_S
    while time.monotonic() < end:
        if server.poll() is not None:
            raise EngineFailure(f"{title} ended with code {server.returncode} before it answered. Its last words are in {log}.")
        # SGLang's answer is that of a request of one token. An URLError is an OSError.
        with suppress(OSError), opener.open(url, timeout=30) as answer:
            if answer.status == 200:
                return
        time.sleep(0.5)
    raise EngineFailure(f"{title} did not answer within {START_LIMIT_S:.0f} s. Its log is {log}.")


def _stop(server: subprocess.Popen[bytes]) -> None:
    """Ask, then insist. The group holds the engine's own processes, and nothing else."""
    server.terminate()
    with suppress(subprocess.TimeoutExpired):
        server.wait(STOP_LIMIT_S)
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()
