"""SGLang on a CPU: its Python part from the package index, over the torch and the libraries of vLLM's environment.

As published, 0.5.23 asks for a CUDA torch and a dozen packages of CUDA kernels. A Llama on the attention of plain torch calls
none of them, but two packages are imported whatever the model is: torchvision, and sgl_kernel, of which the index has no build
for CPUs. `absent.py` stands for both. Scheduler, tokenizer, detokenizer and HTTP server are the real ones.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from benchmarks.engines import absent
from benchmarks.engines.served import MODEL, EngineFailure, call

TITLE = "SGLang"
VERSION = "0.5.23"
# What it imports for a text model and vLLM does not bring.
NEEDED = (
    *("orjson", "gguf", "soundfile", "ipython", "traitlets", "decorator", "pexpect", "ptyprocess", "prompt_toolkit", "wcwidth"),
    *("matplotlib-inline", "stack_data", "executing", "asttokens", "pure_eval", "jedi", "parso"),
)
# One thread, as vLLM binds itself to one core: threads that wait for each other on cores that others use take seconds a step.
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"}


def install(venv: Path, base: Path) -> None:
    """Install once, over the environment `base` that has vLLM: about 50 MB of downloads. Raises EngineFailure."""
    done = venv / f".sglang-{VERSION}"
    python = venv / "bin" / "python"
    if not python.exists():
        call(str(base.absolute() / "bin" / "python"), "-m", "venv", "--without-pip", str(venv))
    if not done.exists():
        uv = (str(base / "bin" / "uv"), "pip", "install", "--quiet", "--no-deps", "--python", str(python))
        call(*uv, f"sglang=={VERSION}", *NEEDED)
    site = _site(venv)
    shutil.copy(absent.__file__, site / "engines_absent.py")
    # Read at each start of this Python, in processes that the engine starts as well.
    (site / "zz_base.pth").write_text(f"{_site(base)}\nimport engines_absent\n", encoding="utf-8")
    done.touch()


def _site(venv: Path) -> Path:
    """Where an environment keeps its packages."""
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    told = subprocess.run([str(venv / "bin" / "python"), "-c", ask], capture_output=True, text=True, check=False)
    if told.returncode:
        raise EngineFailure(f"{venv} is no environment with a Python that works: {told.stderr.strip()}")
    return Path(told.stdout.strip()).absolute()


def command(venv: Path) -> list[str]:
    """What serves the model that lies in the working directory."""
    return [
        str(venv.absolute() / "bin" / "python"),
        *("-m", "sglang.launch_server", "--model-path", MODEL, "--served-model-name", MODEL),
        *("--device", "cpu", "--attention-backend", "torch_native", "--disable-overlap-schedule"),
        *("--context-length", "65536", "--max-total-tokens", "262144", "--enable-metrics"),
    ]
