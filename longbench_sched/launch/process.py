"""The embedded engine as a child process that never outlives its parent.

The child is told to end in three ways, since each alone has a gap: SIGTERM from `stop`; the end of its standard input, whose
other end only the parent holds and the kernel closes however the parent dies; and on Linux a signal from the kernel at the
parent's death, for a child too busy to look at its input. The last is tied to the *thread* that started the child, so it is
asked for only from the main thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from types import TracebackType

from longbench_sched.errors import TargetError

_PR_SET_PDEATHSIG = 1
_KEPT_STDERR_LINES = 40


@dataclass(frozen=True, slots=True)
class EmbeddedOptions:
    """What the child is started with."""

    engine: str = "vllm"
    model: str = "Qwen2.5-Coder-7B-Instruct"
    gpu: str = "H200"
    time_scale: float = 1.0
    port: int = 0  # 0: the system chooses
    flags: tuple[str, ...] = ()  # the engine's own: ("--enable_chunked_prefill",)
    program: tuple[str, ...] = (sys.executable, "-m", "longbench_sched")
    ready_timeout_s: float = 30.0
    stop_grace_s: float = 3.0

    def arguments(self) -> list[str]:
        """The command line after the program."""
        words = ["serve", "--engine", self.engine, "--model", self.model, "--gpu", self.gpu, "--port", str(self.port)]
        return [*words, "--time-scale", f"{self.time_scale:g}", *self.flags]


class EmbeddedServer:
    """A running embedded engine: `with EmbeddedServer(options) as server: server.base_url`."""

    def __init__(self, options: EmbeddedOptions | None = None) -> None:
        self.options = options or EmbeddedOptions()
        self.facts: dict[str, object] = {}  # the line with which it said that it listens
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: deque[str] = deque(maxlen=_KEPT_STDERR_LINES)
        self._drain: threading.Thread | None = None

    @property
    def port(self) -> int:
        """Where it listens, on 127.0.0.1."""
        return int(str(self.facts["port"]))

    @property
    def pid(self) -> int:
        """The child's process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def base_url(self) -> str:
        """For `--base-url`."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def stderr(self) -> str:
        """The last lines that the child wrote to standard error."""
        return "\n".join(self._stderr)

    def start(self) -> EmbeddedServer:
        """Start the child and wait until it listens. Raises TargetError with what it wrote to standard error."""
        command = [*self.options.program, *self.options.arguments(), "--is-child"]
        if threading.current_thread() is threading.main_thread():
            command += ["--dies-with-parent", str(os.getpid())]
        # Not in our process group: Ctrl-C is for us to handle, and the last answers must not be cut by it.
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        self._process = process
        self._drain = threading.Thread(target=self._keep_stderr, args=(process,), daemon=True)
        self._drain.start()
        try:
            self.facts = self._read_ready_line(process)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the child: SIGTERM, then SIGKILL after the grace. Safe to call again."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(self.options.stop_grace_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._drain is not None:
            self._drain.join(self.options.stop_grace_s)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def __enter__(self) -> EmbeddedServer:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _read_ready_line(self, process: subprocess.Popen[bytes]) -> dict[str, object]:
        assert process.stdout is not None
        fd = process.stdout.fileno()
        deadline_s = time.monotonic() + self.options.ready_timeout_s
        selector = selectors.DefaultSelector()  # not select(): descriptors may be numbered above 1023
        selector.register(fd, selectors.EVENT_READ)
        line = b""
        while not line.endswith(b"\n"):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not selector.select(left_s):
                raise TargetError(f"the embedded engine did not start within {self.options.ready_timeout_s:g} s.{self._said()}")
            piece = os.read(fd, 65536)
            if not piece:
                process.wait()
                if self._drain is not None:
                    self._drain.join(1.0)
                raise TargetError(
                    f"the embedded engine ended with exit code {process.returncode} before it listened.{self._said()}"
                )
            line += piece
        selector.close()
        facts = json.loads(line)
        assert isinstance(facts, dict)
        return facts

    def _keep_stderr(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self._stderr.append(line.decode(errors="replace").rstrip()[:500])

    def _said(self) -> str:
        return f"\n  It said: {self.stderr}" if self._stderr else ""


def die_with_parent(parent_pid: int) -> None:
    """Called in the child: be killed when the thread that started it ends. Does nothing where the kernel cannot do that."""
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it had died before we asked
        os._exit(1)
