"""What each dialect sends: the exact body, and nothing that the engine would refuse or not honour."""

from __future__ import annotations

from array import array

import orjson
import pytest
from engine_events import request

from longbench_sched.engine import make_dialect
from longbench_sched.engine.dialect import HttpRequest
from longbench_sched.errors import PromptError, UsageError
from longbench_sched.plan import Request, Sampling
from longbench_sched.target import Api, CountMode

IDS = array("I", [0, 1400, 4962])
FULL = {"include_usage": True, "continuous_usage_stats": True}
FINAL = {"include_usage": True}
GREEDY = {"stream": True, "temperature": 0.0, "top_p": 1.0}
TRITON = {"exclude_input_in_output": True, "return_num_input_tokens": True, "return_num_output_tokens": True}
MESSAGES = [{"role": "user", "content": "Hello"}]


def _body(sent: HttpRequest) -> object:
    return orjson.loads(sent.body)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize(("count", "options"), [("full", FULL), ("final", FINAL)])
def test_completions_take_token_ids_and_ignore_eos_alone(engine: str, count: CountMode, options: dict[str, bool]) -> None:
    sent = make_dialect(engine, "completions", count).encode(request(osl=500, prompt=IDS), "m")
    assert (sent.method, sent.path) == ("POST", "/v1/completions")
    assert sent.headers == (("Content-Type", "application/json"), ("Accept", "text/event-stream"))
    assert _body(sent) == {
        "model": "m", "prompt": [0, 1400, 4962], "max_tokens": 500, "stream_options": options, "ignore_eos": True, **GREEDY,
    }  # fmt: skip


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_chat_takes_text_and_the_length_by_its_own_name(engine: str) -> None:
    sent = make_dialect(engine, "chat").encode(request(osl=500, prompt="Hello"), "m")
    assert sent.path == "/v1/chat/completions"
    assert _body(sent) == {
        "model": "m", "messages": MESSAGES, "max_completion_tokens": 500, "stream_options": FULL, "ignore_eos": True, **GREEDY,
    }  # fmt: skip


@pytest.mark.parametrize("count", ["full", "final"])
def test_openai_sends_standard_fields_only(count: CountMode) -> None:
    completions = make_dialect("openai", "completions", count).encode(request(osl=500, prompt="Hello"), "m")
    assert _body(completions) == {"model": "m", "prompt": "Hello", "max_tokens": 500, "stream_options": FINAL, **GREEDY}
    chat = make_dialect("openai", "chat", count).encode(request(osl=500, prompt="Hello"), "m")
    assert _body(chat) == {"model": "m", "messages": MESSAGES, "max_tokens": 500, "stream_options": FINAL, **GREEDY}


@pytest.mark.parametrize(("prompt", "key", "value"), [(IDS, "input_ids", [0, 1400, 4962]), ("Hello", "text", "Hello")])
def test_sglang_generate_has_sampling_parameters_of_its_own(prompt: array[int] | str, key: str, value: object) -> None:
    sent = make_dialect("sglang", "generate").encode(request(osl=500, prompt=prompt), "m")
    sampling = {"max_new_tokens": 500, "temperature": 0.0, "top_p": 1.0, "ignore_eos": True}
    assert (sent.path, _body(sent)) == ("/generate", {key: value, "sampling_params": sampling, "stream": True})


def test_a19_a20_min_tokens_is_sent_where_it_is_the_only_way() -> None:
    sent = make_dialect("triton").encode(request(osl=500, prompt="Hello"), "my/ensemble")
    assert sent.path == "/v2/models/my%2Fensemble/generate_stream"
    assert _body(sent) == {"text_input": "Hello", "max_tokens": 500, "min_tokens": 500, **GREEDY, **TRITON}


@pytest.mark.parametrize(
    ("engine", "api", "absent", "seed"),
    [
        ("vllm", "completions", "ignore_eos", "seed"),
        ("vllm", "chat", "ignore_eos", "seed"),
        ("trtllm", "completions", "ignore_eos", "seed"),
        ("sglang", "generate", "ignore_eos", "sampling_seed"),
        ("triton", "generate", "min_tokens", "seed"),
        ("openai", "chat", "ignore_eos", "seed"),
    ],
)
def test_sampling_is_sent_as_the_plan_says(engine: str, api: Api, absent: str, seed: str) -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9, ignore_eos=False, seed=11)
    dialect = make_dialect(engine, api)
    body = orjson.loads(dialect.encode(Request(0, "measured", 0, "Hello", 3, 8, sampling=sampling), "m").body)
    fields = body.get("sampling_params", body)
    assert (fields["temperature"], fields["top_p"], fields[seed]) == (0.7, 0.9, 11)
    assert absent not in fields
    assert dialect.sent_options(sampling)["temperature"] == 0.7


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_the_record_shows_what_is_sent(engine: str) -> None:
    assert make_dialect(engine).sent_options() == {"stream_options": FULL, "ignore_eos": True, **GREEDY}


@pytest.mark.parametrize(
    ("engine", "api", "takes"),
    [
        ("vllm", "completions", True), ("vllm", "chat", False), ("sglang", "generate", True), ("triton", "generate", False),
        ("openai", "completions", True), ("trtllm", "completions", True),
    ],
)  # fmt: skip
def test_a_dialect_says_whether_it_takes_token_ids(engine: str, api: Api, takes: bool) -> None:
    dialect = make_dialect(engine, api)
    assert (dialect.engine, dialect.api, dialect.takes_token_ids) == (engine, api, takes)
    if takes:
        assert b"1400" in dialect.encode(request(prompt=IDS), "m").body
    else:
        with pytest.raises(PromptError, match="text, not token ids"):
            dialect.encode(request(prompt=IDS), "m")


@pytest.mark.parametrize(
    ("engine", "api", "known"),
    [("vllm", "generate", "completions, chat"), ("triton", "chat", "generate"), ("openai", "generate", "completions, chat")],
)
def test_an_api_that_an_engine_lacks_is_refused(engine: str, api: Api, known: str) -> None:
    with pytest.raises(UsageError, match=rf"--engine {engine} has no --api {api}\. Known: {known}\."):
        make_dialect(engine, api)


def test_text_is_sent_as_utf8_and_long_prompts_whole() -> None:
    body = make_dialect("vllm").encode(request(prompt="中" * 30_000), "m").body
    assert body.count("中".encode()) == 30_000
    ids = array("I", range(100_000, 130_000))
    assert orjson.loads(make_dialect("vllm").encode(request(prompt=ids), "m").body)["prompt"] == ids.tolist()
