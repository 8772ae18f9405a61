"""The vLLM policy against steps of vLLM's own scheduler class (0.32.0), recorded without a model: equal, step for step.

What is compared: tokens of each request, admissions with the tokens they found, preemptions in their order, blocks held, the
queue, free blocks, tokens emitted, finishes, and how many free blocks can still be found.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from replay_vllm import differences

TRACES = sorted((Path(__file__).parent / "traces" / "vllm-0.32.0").glob("*.json"))


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_every_step_is_the_recorded_one(path: Path) -> None:
    trace = json.loads(path.read_text())
    assert not differences(trace["knobs"], trace["requests"], trace["steps"])


RANDOM = (Path(__file__).parent / "traces" / "vllm-0.32.0-random.jsonl").read_text().splitlines()


@pytest.mark.parametrize("line", RANDOM, ids=lambda line: f"seed{json.loads(line)['seed']}")
def test_random_scenarios_are_decided_as_recorded(line: str) -> None:
    """One for each mix of cache, priorities, speculation and steps planned ahead, all with preemptions (`scenarios.py`)."""
    trace = json.loads(line)
    assert not differences(trace["knobs"], trace["requests"], trace["steps"])
