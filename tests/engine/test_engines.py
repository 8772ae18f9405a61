"""The table of engines."""

from __future__ import annotations

import pytest

from longbench_sched.engine import ENGINES, find_engine, make_dialect
from longbench_sched.errors import UsageError


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vlm", "no engine named 'vlm'. Known: vllm, sglang, trtllm, triton, openai.\n  Did you mean vllm?"),
        ("SGLang", "no engine named 'SGLang'. Known: vllm, sglang, trtllm, triton, openai.\n  Did you mean sglang?"),
        (
            "tensorrt-llm",
            "no engine named 'tensorrt-llm'. Known: vllm, sglang, trtllm, triton, openai.\n  Did you mean trtllm?",
        ),
        ("zzz", "no engine named 'zzz'. Known: vllm, sglang, trtllm, triton, openai."),
    ],
)
def test_an_unknown_engine_is_named_with_the_known_ones_and_a_guess(name: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_engine(name)
    assert str(caught.value) == message


@pytest.mark.parametrize("name", list(ENGINES))
def test_every_entry_makes_what_it_promises(name: str) -> None:
    entry = find_engine(name)
    assert (entry.name, make_dialect(name).api) == (name, entry.apis[0])
    for api in entry.apis:
        assert (entry.make(api, "full").engine, entry.make(api, "final").api) == (name, api)


def test_what_was_never_run_says_so() -> None:
    unproven = {name for name, entry in ENGINES.items() if entry.evidence == "from source, not yet run against a live server"}
    assert unproven == {"trtllm", "triton"}


def test_the_default_ports_are_the_engines_own() -> None:
    assert {name: entry.default_port for name, entry in ENGINES.items()} == {
        "vllm": 8000, "sglang": 30000, "trtllm": 8000, "triton": 8000, "openai": 8000,
    }  # fmt: skip
