"""Texts that cannot fit are refused before the work of encoding them, which would hold up everybody else's tokens."""

from __future__ import annotations

import pytest
from wire_parts import MODEL, body, context

from longbench_sched.sim import tokens
from longbench_sched.sim.policy.sglang import SglangOptions
from longbench_sched.sim.policy.trtllm import TrtllmOptions
from longbench_sched.sim.policy.vllm_v1 import VllmV1Options
from longbench_sched.sim.wire.base import MOST_CONTEXTS, Answer, Refused
from longbench_sched.sim.wire.sglang import SglangDialect
from longbench_sched.sim.wire.trtllm import TrtllmDialect
from longbench_sched.sim.wire.vllm import VllmDialect

SERVERS = {
    "vllm": (VllmDialect(), context("vllm", VllmV1Options())),
    "sglang": (SglangDialect(), context("sglang", SglangOptions())),
    "trtllm": (TrtllmDialect(), context("trtllm", TrtllmOptions())),
}


@pytest.fixture
def no_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def encode(text: str) -> list[int]:
        pytest.fail(f"{len(text)} characters were encoded")

    monkeypatch.setattr(tokens, "encode", encode)


@pytest.mark.usefixtures("no_encoding")
@pytest.mark.parametrize(
    ("name", "route"),
    [(name, route) for name in SERVERS for route in ("completions", "chat")] + [("sglang", "generate")],
)
def test_a_text_that_cannot_fit_is_refused_without_encoding_it(name: str, route: str) -> None:
    dialect, server = SERVERS[name]
    n = server.engine.context
    text = " abc" * n
    asked = {
        "completions": {"model": MODEL, "prompt": text},
        "chat": {"model": MODEL, "messages": [{"role": "user", "content": text}]},
        "generate": {"text": text},
    }
    with pytest.raises(Refused) as caught:
        dialect.read(server, route, body(**asked[route]))  # type: ignore[arg-type]
    assert caught.value.answer.status == 400
    assert "at least" in caught.value.answer.body.decode()
    assert str(n) in caught.value.answer.body.decode()


@pytest.mark.usefixtures("no_encoding")
@pytest.mark.parametrize(("name", "path"), [("vllm", "/tokenize"), ("sglang", "/tokenize"), ("trtllm", "/_internal/tokenize")])
def test_a_tokenizer_route_takes_a_few_contexts_of_text_at_most(name: str, path: str) -> None:
    dialect, server = SERVERS[name]
    most = MOST_CONTEXTS * server.engine.context
    with pytest.raises(Refused) as caught:
        dialect.post(server, path, body(model=MODEL, prompt=" abc" * (most + 1)))
    assert f"tokenizes up to {most}" in caught.value.answer.body.decode()


@pytest.mark.parametrize("name", SERVERS)
def test_a_text_that_may_fit_is_counted_exactly(name: str) -> None:
    dialect, server = SERVERS[name]
    ask = dialect.read(server, "completions", body(model=MODEL, prompt=" abc" * 8_000, max_tokens=1))
    assert ask.isl == 8_000 + server.engine.model.has_bos


def test_the_text_of_a_whole_context_can_be_tokenized() -> None:
    dialect, server = SERVERS["sglang"]
    answer = dialect.post(server, "/tokenize", body(prompt=" abc" * server.engine.context))
    assert isinstance(answer, Answer)
    assert f'"count":{server.engine.context}' in answer.body.decode()
