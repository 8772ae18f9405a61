"""The commands of docs/check.md, run as they stand there, with a simulated engine in the place of the GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "check.md").read_text("utf-8")
# Every run of it gives the same numbers: lengths are fixed, and a simulated engine has no noise.
WORKLOAD = 'title = "Tiny"\nisl = 2000\nosl = 8\nconcurrency = 4\nrequests = 16\nwarmups = 0\n'
MEASURED = "30k-500-c64 --engine vllm --base-url http://127.0.0.1:8000 --num-runs 5"
ELSEWHERE = MEASURED.replace("127.0.0.1", "gpu7")


def simulated(*settings: str) -> str:
    return " ".join(["tiny.toml --num-runs 5 --target", ",".join(["build=simulated,engine=vllm", *settings])])


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def steps() -> list[str]:
    """What the workflow of the page runs: its `run:` steps but for the installation, which has happened."""
    (workflow,) = blocks("yaml")
    one_line = re.sub(r"- run: \|\n((?: {10}.*\n)+)", lambda m: f"- run: {m[1].replace(chr(10), chr(0))}\n", workflow)
    found = [step.replace("\0", "\n") for step in re.findall(r"- run: (.*)", one_line)]
    return [step for step in found if not step.startswith("pip install")]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A checkout with a workload, the policy of the page, and an engine that is up."""
    (tmp_path / "tiny.toml").write_text(WORKLOAD)
    (tmp_path / "gate.toml").write_text(blocks("toml")[0])
    for name, text in (
        ("start-engine.sh", "#!/bin/sh\n"),
        ("bin/longbench-sched", f'#!/bin/sh\nexec "{sys.executable}" -m longbench_sched "$@"\n'),
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    return tmp_path


def run_steps(lines: list[str], folder: Path, measure: str) -> int:
    """Run them one by one, as the runner of a workflow does; the exit code of the first that fails."""
    environment = os.environ | {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        "MEASURE": measure,
    }
    for line in lines:
        done = subprocess.run(
            ["bash", "-e", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            return done.returncode
    return 0


def test_the_workflow_of_the_page_passes_the_same_build_and_fails_a_slower_one(repository: Path) -> None:
    first, *_ = blocks("")
    assert ELSEWHERE in first
    make_baseline = first.replace(ELSEWHERE, simulated()).splitlines()
    assert len(make_baseline) == 3
    assert run_steps(make_baseline, repository, "") == 0
    (workflow,) = blocks("yaml")
    assert f"MEASURE: {MEASURED}\n" in workflow
    assert len(steps()) == 3
    assert run_steps(steps(), repository, simulated()) == 0
    assert "PASSED" in (repository / "summary.md").read_text()
    assert ET.parse(repository / "verdict.xml").getroot().get("failures") == "0"
    assert run_steps(steps(), repository, simulated("gpu=A100")) == 1
    assert "FAILED" in (repository / "summary.md").read_text()
