"""trtllm-serve's answers against samples derived from its published source (no live capture exists)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from wire_parts import CREATED, MODEL, body, context, events

from longbench_sched.sim import tokens
from longbench_sched.sim.policy.trtllm import TrtllmOptions
from longbench_sched.sim.wire.base import Ask, Refused
from longbench_sched.sim.wire.trtllm import TrtllmDialect

TRTLLM = TrtllmDialect()
CONTEXT = context("trtllm", TrtllmOptions())
CHUNKED = context("trtllm", TrtllmOptions(enable_chunked_prefill=True))
PLAIN = Ask("completions", MODEL, 2, None, 2, None, True, 0)
FIRST, SECOND = (utterance.id for utterance in tokens.SPEECH[:2])

CMPL = '{"id":"cmpl-R","object":"text_completion","created":1796034769,"model":"tiny-llama",'
CHAT = '{"id":"chatcmpl-R","object":"chat.completion.chunk","created":1796034769,"model":"tiny-llama",'
USAGE = '{"prompt_tokens":2,"total_tokens":4,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":0}}'


def test_completions_keep_their_nulls() -> None:
    assert events(TRTLLM, replace(PLAIN, include_usage=True), 2) == [
        [
            CMPL
            + '"choices":[{"index":0,"text":" The","token_ids":null,"logprobs":null,"finish_reason":null,"stop_reason":null,'
            '"avg_decoded_tokens_per_iter":1.0}],"usage":null}'
        ],
        [
            CMPL + '"choices":[{"index":0,"text":" scheduler","token_ids":null,"logprobs":null,"finish_reason":"length",'
            '"stop_reason":null,"avg_decoded_tokens_per_iter":1.0}],"usage":null}',
            CMPL + f'"choices":[],"usage":{USAGE}}}',
            "[DONE]",
        ],
    ]


def test_without_detokenizing_there_are_ids_and_no_text() -> None:
    first, last = events(TRTLLM, replace(PLAIN, detokenize=False), 2)
    assert [json.loads(lines[0])["choices"][0]["token_ids"] for lines in (first, last)] == [[FIRST], [SECOND]]
    assert [json.loads(lines[0])["choices"][0]["text"] for lines in (first, last)] == ["", ""]


def test_the_role_event_of_a_chat_has_no_content_and_a_space_at_its_end() -> None:
    first, last = events(TRTLLM, replace(PLAIN, route="chat", include_usage=True), 2)
    assert first == [
        CHAT + '"choices":[{"index":0,"delta":{"role":"assistant"}}]} ',
        CHAT + '"choices":[{"index":0,"delta":{"content":" The","reasoning_content":""},"avg_decoded_tokens_per_iter":1.0}]}',
    ]
    assert last == [
        CHAT
        + '"choices":[{"index":0,"delta":{"content":" scheduler","reasoning_content":""},"avg_decoded_tokens_per_iter":1.0}]}',
        CHAT + '"choices":[{"index":0,"delta":{"content":"","reasoning_content":""},"finish_reason":"length",'
        '"avg_decoded_tokens_per_iter":1.0}]}',
        CHAT + f'"choices":[],"usage":{USAGE}}}',
        "[DONE]",
    ]


def test_no_token_is_without_text() -> None:
    """Whether its events for half a character exist is not known; the embedded engine does not guess."""
    n = len(tokens.SPEECH)
    texts = [json.loads(lines[0])["choices"][0]["text"] for lines in events(TRTLLM, replace(PLAIN, max_new=n), n)]
    assert all(texts)
    assert json.loads(TRTLLM.whole(replace(PLAIN, max_new=n), "R", CREATED, n, "length"))["choices"][0]["text"] == "".join(
        texts
    )


# Reading


def ask(route: str = "completions", of=CHUNKED, **fields) -> Ask:
    return TRTLLM.read(of, route, body(**fields))


def refusal(route: str = "completions", of=CHUNKED, **fields) -> tuple[int, dict]:
    with pytest.raises(Refused) as caught:
        ask(route, of, **fields)
    return caught.value.answer.status, json.loads(caught.value.answer.body)


@pytest.mark.parametrize(
    "field", ["return_token_ids", "stream_interval", "min_new_tokens", "max_completion_tokens", "cache_salt"]
)
def test_an_unknown_field_is_400_with_a_plain_string(field: str) -> None:
    status, answer = refusal(model=MODEL, prompt=[1], **{field: 1})
    assert status == 400
    assert isinstance(answer["error"], str)
    assert field in answer["error"]


def test_a_model_must_be_named_and_any_name_is_served() -> None:
    assert refusal(prompt=[1])[0] == 400
    assert ask(model="anything", prompt=[1]).model == "anything"


def test_include_usage_is_on_inside_stream_options() -> None:
    assert ask(model=MODEL, prompt=[1], stream=True, stream_options={}).include_usage
    assert not ask(model=MODEL, prompt=[1], stream=True).include_usage


def test_t6_a_30k_prompt_is_refused_unless_prompts_are_chunked() -> None:
    status, answer = refusal(of=CONTEXT, model=MODEL, prompt=[5] * 30_000, max_tokens=500)
    assert status == 400
    assert answer["object"] == "error"
    assert "max_num_tokens" in answer["message"]
    assert ask(model=MODEL, prompt=[5] * 30_000, max_tokens=500).isl == 30_000


def test_prompt_and_output_together_must_fit() -> None:
    status, answer = refusal(model=MODEL, prompt=[5] * 32_000, max_tokens=2_000)
    assert status == 400
    assert answer["type"] == "BadRequestError"


def test_without_max_tokens_the_context_is_filled() -> None:
    assert ask(model=MODEL, prompt=[5] * 32_000).max_new == 768


# The other routes


def get(path: str, of=CONTEXT):
    answer = TRTLLM.get(of, path, {})
    return None if answer is None else json.loads(answer.body)


def test_models_tell_no_context_length() -> None:
    assert list(get("/v1/models")["data"][0]) == ["id", "object", "created", "owned_by"]
    assert get("/version") == {"version": "1.2.1+simulated"}
    assert get("/server_info") == {"disaggregated_params": {}}


def test_metrics_are_a_list_that_is_empty_unless_asked_for_at_the_start() -> None:
    assert get("/metrics") == []
    (record,) = get("/metrics", context("trtllm", TrtllmOptions(enable_iter_perf_stats=True)))
    assert record["kvCacheStats"]["tokensPerBlock"] == 32
    assert record["inflightBatchingStats"]["numGenRequests"] == 0


def test_there_is_no_public_tokenizer() -> None:
    assert TRTLLM.post(CONTEXT, "/tokenize", body(prompt="x")) is None
    answer = json.loads(TRTLLM.post(CONTEXT, "/_internal/tokenize", body(prompt="the fox")).body)
    assert answer["count"] == len(answer["tokens"])
