"""The vLLM policy against the scheduler class of an installed vLLM, over random scenarios (opt-in: `make engines`).

LONGBENCH_VLLM_VENV names the environment that has vLLM; its CPU build will do. Equal to 0.32.0 in 1296 of 1296 scenarios
(2026-11-30).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from replay_vllm import differences
from scenarios import vllm_scenario

VENV = os.environ.get("LONGBENCH_VLLM_VENV")
RECORDER = Path(__file__).with_name("record_vllm.py")
N_SCENARIOS = int(os.environ.get("LONGBENCH_VLLM_SCENARIOS", "200"))


@pytest.mark.engines
@pytest.mark.skipif(VENV is None, reason="LONGBENCH_VLLM_VENV names no environment with vLLM")
def test_random_scenarios_are_decided_as_the_real_scheduler_does() -> None:
    scenarios = [vllm_scenario(seed) for seed in range(N_SCENARIOS)]
    done = subprocess.run(
        [f"{VENV}/bin/python", str(RECORDER)],
        input="\n".join(json.dumps(scenario) for scenario in scenarios),
        capture_output=True,
        text=True,
        check=False,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == N_SCENARIOS, done.stderr[-2000:]
    compared = 0
    for seed, (scenario, answer) in enumerate(zip(scenarios, answers, strict=True)):
        if "steps" in answer:
            compared += 1
            assert not differences(scenario["knobs"], scenario["requests"], answer["steps"]), f"seed {seed}"
    assert compared > 0.9 * N_SCENARIOS
