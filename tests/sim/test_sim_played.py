"""Every scheduler of the table: built by name for a real GPU, served under the dialect that it has or borrows."""

from __future__ import annotations

import json

import pytest
from checked_engine import H200, QWEN
from wire_parts import context

from longbench_sched.errors import UsageError
from longbench_sched.sim.engine import OPTIONS, PLAYED, build_engine
from longbench_sched.sim.policy.sglang import SglangOptions
from longbench_sched.sim.policy.static import StaticOptions
from longbench_sched.sim.server import DIALECTS


def options_of(name: str):
    return StaticOptions(4) if name == "static" else OPTIONS[name]()


@pytest.mark.parametrize("name", PLAYED)
def test_each_runs_the_headline_requests_to_their_end(name: str) -> None:
    """8 requests of 2,000 tokens in and 5 out."""
    engine = build_engine(name, H200, QWEN, options_of(name))
    for _ in range(8):
        engine.submit(2000, 5, 0.0)
    now_s = 0.0
    while (duration_s := engine.begin(now_s)) is not None:
        now_s += duration_s
        engine.end(now_s)
    assert engine.counters.finished == {"stop": 0, "length": 8, "abort": 0}
    assert engine.counters.generated_tokens == 40
    assert engine.counters.prompt_tokens == 16_000
    assert engine.state.kv.held == 0


@pytest.mark.parametrize("name", PLAYED)
def test_each_answers_under_its_dialect(name: str) -> None:
    asked = context(name, options_of(name))
    dialect = DIALECTS[PLAYED[name].dialect]()
    for path in ("/v1/models", "/metrics", "/health"):
        answer = dialect.get(asked, path, {})
        assert answer is None or answer.status == 200, path
    if PLAYED[name].dialect == "vllm":
        info = dialect.get(asked, "/server_info", {"config_format": "json"})
        if info is not None:
            assert "vllm_config" in json.loads(info.body)


def test_a_static_batch_has_no_usual_size() -> None:
    with pytest.raises(UsageError, match="--batch-size"):
        build_engine("static", H200, QWEN, StaticOptions())


def test_flags_of_another_engine_are_refused() -> None:
    with pytest.raises(UsageError, match="does not play 'vllm'"):
        build_engine("vllm", H200, QWEN, SglangOptions())
