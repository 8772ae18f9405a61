"""vLLM's answers, key by key against streams captured from 0.32.0.

The expected lines are written by hand from those captures (ids and words replaced), not by our decoder, so that encoder and
decoder cannot agree in an error.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import replace

import pytest
from wire_parts import CREATED, MODEL, body, context, events

from longbench_sched.sim import tokens
from longbench_sched.sim.policy.vllm_v1 import VllmV1Options
from longbench_sched.sim.wire.base import Ask, Refused
from longbench_sched.sim.wire.vllm import VllmDialect

VLLM = VllmDialect()
CONTEXT = context("vllm", VllmV1Options())
PLAIN = Ask("completions", MODEL, 2, None, 3, None, True, 0)
FULL = replace(PLAIN, prompt=array("I", [7, 8]), include_usage=True, continuous_usage=True, return_ids=True)
FIRST, SECOND, THIRD = (utterance.id for utterance in tokens.SPEECH[:3])  # " The", " scheduler", " hands"

CMPL = '{"id":"cmpl-R","object":"text_completion","created":1796034769,"model":"tiny-llama",'
CHAT = '{"id":"chatcmpl-R","object":"chat.completion.chunk","created":1796034769,"model":"tiny-llama",'


def test_completions_with_ids_and_continuous_usage() -> None:
    """Prompt ids once; the last token's event has the finish reason and its usage; then the usage event; then [DONE]."""
    assert events(VLLM, FULL, 3) == [
        [
            CMPL + '"choices":[{"index":0,"text":" The","logprobs":null,"finish_reason":null,"stop_reason":null,'
            f'"prompt_token_ids":[7,8],"token_ids":[{FIRST}]}}],"usage":{{"prompt_tokens":2,"total_tokens":3,"completion_tokens":1}}}}'
        ],
        [
            CMPL + '"choices":[{"index":0,"text":" scheduler","logprobs":null,"finish_reason":null,"stop_reason":null,'
            f'"prompt_token_ids":null,"token_ids":[{SECOND}]}}],"usage":{{"prompt_tokens":2,"total_tokens":4,"completion_tokens":2}}}}'
        ],
        [
            CMPL + '"choices":[{"index":0,"text":" hands","logprobs":null,"finish_reason":"length","stop_reason":null,'
            f'"prompt_token_ids":null,"token_ids":[{THIRD}]}}],"usage":{{"prompt_tokens":2,"total_tokens":5,"completion_tokens":3}}}}',
            CMPL + '"choices":[],"usage":{"prompt_tokens":2,"total_tokens":5,"completion_tokens":3},'
            '"system_fingerprint":"vllm-0.33.0-simulated"}',
            "[DONE]",
        ],
    ]


def test_completions_without_usage_put_the_fingerprint_on_the_last_token() -> None:
    first, _, last = events(VLLM, PLAIN, 3)
    assert first == [
        CMPL + '"choices":[{"index":0,"text":" The","logprobs":null,"finish_reason":null,"stop_reason":null,'
        '"prompt_token_ids":null,"token_ids":null}]}'
    ]
    assert last == [
        CMPL + '"choices":[{"index":0,"text":" hands","logprobs":null,"finish_reason":"length","stop_reason":null,'
        '"prompt_token_ids":null,"token_ids":null}],"system_fingerprint":"vllm-0.33.0-simulated"}',
        "[DONE]",
    ]


def test_a_completion_of_one_token_has_everything_at_once() -> None:
    (only,) = events(VLLM, replace(FULL, max_new=1), 1)
    assert [json.loads(line).get("choices", [None])[:1] != [] for line in only[:2]] == [True, False]
    assert json.loads(only[0])["choices"][0] == {
        "index": 0,
        "text": " The",
        "logprobs": None,
        "finish_reason": "length",
        "stop_reason": None,
        "prompt_token_ids": [7, 8],
        "token_ids": [FIRST],
    }
    assert only[2] == "[DONE]"


def test_an_eos_counts_as_a_token_without_text() -> None:
    """As captured: text empty, finish_reason stop, stop_reason null, the id of EOS, completion_tokens 1."""
    ((event, _, _),) = events(VLLM, replace(FULL, stop_at=1), 1, finish="stop")
    choice = json.loads(event)["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("", "stop", None)
    assert choice["token_ids"] == [tokens.EOS]
    assert json.loads(event)["usage"]["completion_tokens"] == 1


def test_half_a_character_is_an_event_with_empty_text() -> None:
    silent = next(i for i, utterance in enumerate(tokens.SPEECH) if not utterance.text)
    first, second, _ = events(VLLM, replace(PLAIN, start=silent), 3)
    assert json.loads(first[0])["choices"][0]["text"] == ""
    assert json.loads(second[0])["choices"][0]["text"] == "é"


def test_chat_starts_with_a_role_event_beside_the_first_token() -> None:
    """With continuous usage the role event counts 0; the last token's event has the finish reason, no event of its own."""
    first, second, last = events(VLLM, replace(FULL, route="chat"), 3)
    assert first == [
        CHAT + '"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],'
        '"usage":{"prompt_tokens":2,"total_tokens":2,"completion_tokens":0,"completion_tokens_details":null},'
        '"prompt_token_ids":[7,8],"prompt_text":null}',
        CHAT + '"choices":[{"index":0,"delta":{"content":" The"},"logprobs":null,"finish_reason":null,'
        f'"token_ids":[{FIRST}]}}],'
        '"usage":{"prompt_tokens":2,"total_tokens":3,"completion_tokens":1,"completion_tokens_details":null}}',
    ]
    assert len(second) == 1
    assert last == [
        CHAT + '"choices":[{"index":0,"delta":{"content":" hands"},"logprobs":null,"finish_reason":"length","stop_reason":null,'
        f'"token_ids":[{THIRD}]}}],'
        '"usage":{"prompt_tokens":2,"total_tokens":5,"completion_tokens":3,"completion_tokens_details":null}}',
        CHAT + '"choices":[],"usage":{"prompt_tokens":2,"total_tokens":5,"completion_tokens":3},'
        '"system_fingerprint":"vllm-0.33.0-simulated"}',
        "[DONE]",
    ]


def test_chat_without_usage() -> None:
    first, second, last = events(VLLM, replace(PLAIN, route="chat"), 3)
    assert first[0] == (
        CHAT + '"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],'
        '"prompt_token_ids":null,"prompt_text":null}'
    )
    assert second == [
        CHAT + '"choices":[{"index":0,"delta":{"content":" scheduler"},"logprobs":null,"finish_reason":null,"token_ids":null}]}'
    ]
    assert last[0].endswith('"stop_reason":null,"token_ids":null}],"system_fingerprint":"vllm-0.33.0-simulated"}')


def test_a_completion_in_one_piece() -> None:
    answer = json.loads(VLLM.whole(FULL, "R", CREATED, 3, "length"))
    keys = "id object created model choices service_tier system_fingerprint usage kv_transfer_params ec_transfer_params metrics"
    assert " ".join(answer) == keys
    keys = "index text logprobs finish_reason stop_reason token_ids prompt_logprobs prompt_token_ids routed_experts"
    assert " ".join(answer["choices"][0]) == keys
    assert answer["choices"][0]["text"] == " The scheduler hands"
    assert answer["choices"][0]["token_ids"] == [FIRST, SECOND, THIRD]
    assert answer["usage"]["completion_tokens"] == 3


def test_a_chat_answer_in_one_piece() -> None:
    answer = json.loads(VLLM.whole(replace(PLAIN, route="chat"), "R", CREATED, 2, "length"))
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["content"] == " The scheduler"
    assert answer["choices"][0]["token_ids"] is None


# Reading


def ask(route: str = "completions", **fields) -> Ask:
    return VLLM.read(CONTEXT, route, body(**fields))


def refusal(route: str = "completions", **fields) -> tuple[int, dict]:
    with pytest.raises(Refused) as caught:
        ask(route, **fields)
    answer = caught.value.answer
    return answer.status, json.loads(answer.body)["error"]


def test_defaults_of_a_bare_request() -> None:
    bare = ask(prompt=[5, 6, 7])
    assert (bare.isl, bare.max_new, bare.is_stream, bare.include_usage, bare.to_length) == (3, 16, False, False, False)
    assert bare.prompt == array("I", [5, 6, 7])


def test_more_output_than_fits_is_cut_to_the_context_without_a_word() -> None:
    assert ask(prompt=[5] * 32_000, max_tokens=2_000).max_new == 768


def test_continuous_usage_needs_include_usage() -> None:
    options = {"include_usage": False, "continuous_usage_stats": True}
    assert not ask(prompt=[5], stream=True, stream_options=options).continuous_usage
    assert ask(prompt=[5], stream=True, stream_options={**options, "include_usage": True}).continuous_usage


def test_max_completion_tokens_wins_in_chat_and_is_ignored_in_completions() -> None:
    messages = [{"role": "user", "content": "Count to five."}]
    assert ask("chat", messages=messages, max_tokens=5, max_completion_tokens=9).max_new == 9
    assert ask(prompt=[5], max_completion_tokens=9).max_new == 16


def test_only_ignore_eos_promises_the_full_length() -> None:
    assert ask(prompt=[5], max_tokens=400, ignore_eos=True).stop_at is None
    ends = {ask(prompt=[5, i], max_tokens=400, seed=i).stop_at for i in range(20)}
    assert len(ends) > 10
    assert ask(prompt=[5, 1], max_tokens=400).stop_at == ask(prompt=[5, 1], max_tokens=400).stop_at
    assert all(ask(prompt=[5, i], min_tokens=300).stop_at > 300 for i in range(20))


def test_an_unknown_model_is_404_in_vllms_words() -> None:
    assert refusal(model="no-such-model", prompt="Hello") == (
        404,
        {
            "message": "The model `no-such-model` does not exist. Valid aliases: tiny-llama.",
            "type": "NotFoundError",
            "param": "model",
            "code": 404,
        },
    )
    assert ask(model="", prompt="Hello").model == MODEL


def test_a_prompt_above_the_context_is_400_in_vllms_words() -> None:
    assert refusal(prompt=[5] * 32_769) == (
        400,
        {
            "message": "This model's maximum context length is 32768 tokens. However, your prompt contains at least 32769 "
            "input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input "
            "prompt. (parameter=input_tokens, value=32769)",
            "type": "BadRequestError",
            "param": "input_tokens",
            "code": 400,
        },
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt": "x", "stream_options": {"include_usage": True}}, "only be defined when `stream=True`"),
        ({"prompt": "x", "max_tokens": 40_000}, "requested 40000 output tokens"),
        ({"prompt": [1, 999_999]}, "999999 is out of vocabulary"),
        ({"prompt": [1, "a"]}, "list of token ids"),
        ({"prompt": [-1]}, "list of token ids"),
        ({"prompt": []}, "empty"),
        ({}, "prompt must be"),
        ({"prompt": "x", "max_tokens": "many"}, "max_tokens"),
        ({"prompt": "x", "n": 2}, "one choice"),
    ],
)
def test_a_bad_request_is_400(fields: dict, words: str) -> None:
    status, error = refusal(**fields)
    assert status == 400
    assert words in error["message"]
    assert list(error) == ["message", "type", "param", "code"]


def test_a_prompt_may_be_text_ids_or_a_list_with_one() -> None:
    assert [ask(prompt=prompt).isl for prompt in ("aa bb", [1, 2], ["aa bb"], [[1, 2]])] == [2, 2, 2, 2]


# The other routes


def get(path: str) -> dict:
    answer = VLLM.get(CONTEXT, path, {})
    assert answer is not None
    return json.loads(answer.body)


def test_models_tell_the_context_length() -> None:
    (model,) = get("/v1/models")["data"]
    assert list(model) == ["id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission"]
    assert (model["id"], model["owned_by"], model["max_model_len"]) == (MODEL, "vllm", 32_768)


def test_a_version_says_that_it_is_simulated() -> None:
    assert get("/version") == {"version": "0.33.0+simulated"}


def test_tokenize_and_detokenize_are_inverse() -> None:
    answer = json.loads(VLLM.post(CONTEXT, "/tokenize", body(model=MODEL, prompt="the quick fox")).body)
    assert list(answer) == ["count", "max_model_len", "tokens", "token_strs"]
    assert answer["count"] == len(answer["tokens"])
    assert json.loads(VLLM.post(CONTEXT, "/detokenize", body(tokens=answer["tokens"])).body) == {"prompt": "the quick fox"}


def test_tokenize_counts_a_chat_as_the_engine_does() -> None:
    messages = [{"role": "user", "content": "Count to five."}]
    answer = json.loads(VLLM.post(CONTEXT, "/tokenize", body(messages=messages)).body)
    assert answer["count"] == ask("chat", messages=messages).isl


def test_metrics_have_vllms_names_labels_and_kv_capacity() -> None:
    lines = VLLM.get(CONTEXT, "/metrics", {}).body.decode().splitlines()
    assert 'vllm:num_requests_running{engine="0",model_name="tiny-llama"} 0.0' in lines
    assert 'vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny-llama",reason="capacity"} 0.0' in lines
    assert 'vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny-llama"} 0.0' in lines
    (config,) = (line for line in lines if line.startswith("vllm:cache_config_info{"))
    assert f'num_gpu_blocks="{CONTEXT.engine.state.kv.total + 1}"' in config
    assert 'block_size="16"' in config
    assert "# TYPE vllm:generation_tokens counter" in lines


def test_what_is_not_there_is_not_there() -> None:
    assert VLLM.get(CONTEXT, "/v1/nothing", {}) is None
    assert VLLM.post(CONTEXT, "/v1/nothing", b"") is None
    assert VLLM.route("/generate") is None


def test_tokens_that_came_together_are_one_event() -> None:
    """As captured with n-gram speculation: the texts joined, the ids in one list."""
    stream = VLLM.stream(FULL, "R", CREATED)
    stream.token(1, None)
    payload = stream.token(3, "length", 2).split(b"\r\n")[1].removeprefix(b"data: ")
    (choice,) = json.loads(payload)["choices"]
    assert (choice["text"], choice["token_ids"], choice["finish_reason"]) == (" scheduler hands", [SECOND, THIRD], "length")
    assert json.loads(payload)["usage"]["completion_tokens"] == 3


def test_an_end_token_among_several_says_nothing() -> None:
    stream = VLLM.stream(replace(FULL, stop_at=3), "R", CREATED)
    (choice,) = json.loads(stream.token(3, "stop", 2).split(b"\r\n")[1].removeprefix(b"data: "))["choices"]
    assert (choice["text"], choice["token_ids"]) == (" scheduler", [SECOND, tokens.EOS])


def test_a_priority_is_refused_unless_the_scheduler_goes_by_it() -> None:
    assert refusal(prompt=[5], priority=2)[0] == 400
    assert ask(prompt=[5], priority=0).priority == 0
    urgent = context("vllm", VllmV1Options(scheduling_policy="priority"))
    assert VLLM.read(urgent, "completions", body(prompt=[5], priority=-2)).priority == -2
