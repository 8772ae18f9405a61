"""The SGLang policy against steps of SGLang's own scheduler (0.5.23, no overlap), recorded without a model: equal.

What is compared: mode, tokens of each request, the prompt in progress, retractions, the decode batch, the flag "full", the
queue in its order, the ratio, unused and evictable tokens, tokens emitted and finishes.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from replay_sglang import differences

TRACES = sorted((Path(__file__).parent / "traces" / "sglang-0.5.23").glob("*.json"))


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_every_step_is_the_recorded_one(path: Path) -> None:
    trace = json.loads(path.read_text())
    assert not differences(trace["knobs"], trace["requests"], trace["steps"])
