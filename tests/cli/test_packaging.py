"""What an install brings: few packages, no engine, and commands that start at once."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest
from packaging.requirements import Requirement

HEAVY = ("torch", "transformers", "vllm", "sglang", "tensorrt-llm")


def core_distributions() -> dict[str, metadata.Distribution]:
    """Everything that `pip install longbench-sched` brings, found by walking the installed requirements."""
    found: dict[str, metadata.Distribution] = {}
    waiting = ["longbench-sched"]
    while waiting:
        distribution = metadata.distribution(waiting.pop())
        found[distribution.name.lower()] = distribution
        for line in distribution.requires or []:
            requirement = Requirement(line)
            wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if wanted and requirement.name.lower() not in found:
                waiting.append(requirement.name)
    return found


def test_d01_the_core_install_is_small_and_holds_no_engine() -> None:
    found = core_distributions()
    assert "pyarrow" in found
    assert len(found) <= 50
    assert not set(HEAVY) & set(found)


def test_d01_the_core_install_takes_less_than_420_mb_without_bytecode() -> None:
    n_bytes = sum(
        file.size or 0
        for distribution in core_distributions().values()
        for file in distribution.files or []
        if file.suffix != ".pyc"
    )
    assert 100e6 < n_bytes < 420e6


def imported_by(code: str) -> set[str]:
    """Top-level packages in memory after the code ran in a fresh interpreter."""
    script = f"import sys\n{code}\nprint(chr(10).join(sorted(name.partition('.')[0] for name in sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_d01_no_module_of_ours_needs_an_engine() -> None:
    code = (
        "import pkgutil, importlib, longbench_sched\n"
        "for found in pkgutil.walk_packages(longbench_sched.__path__, 'longbench_sched.'):\n"
        "    if not found.name.endswith('__main__'): importlib.import_module(found.name)"
    )
    names = imported_by(code)
    assert "longbench_sched" in names
    assert not {"torch", "transformers", "vllm", "sglang", "tensorrt_llm"} & names


@pytest.mark.parametrize("flag", ["--version", "--help"])
def test_answers_that_need_no_work_import_nothing_heavy(flag: str) -> None:
    code = f"from longbench_sched.cli.app import main\nassert main([{flag!r}]) == 0"
    assert not {"numpy", "pandas", "pyarrow", "aiohttp", "httpx", "uvloop", "asyncio", "orjson"} & imported_by(code)
