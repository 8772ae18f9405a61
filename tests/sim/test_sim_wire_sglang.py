"""SGLang's answers, key by key against streams captured from 0.5.23; expected lines written by hand from them."""

from __future__ import annotations

import json
from array import array
from dataclasses import replace

import pytest
from wire_parts import CREATED, MODEL, body, context, events

from longbench_sched.sim import tokens
from longbench_sched.sim.policy.sglang import SglangOptions
from longbench_sched.sim.wire.base import Ask, Refused, Route
from longbench_sched.sim.wire.sglang import SglangDialect

SGLANG = SglangDialect()
CONTEXT = context("sglang", SglangOptions())
PLAIN = Ask("completions", MODEL, 2, None, 3, None, True, 0)
FULL = replace(PLAIN, prompt=array("I", [7, 8]), include_usage=True, continuous_usage=True, return_ids=True)
FIRST, SECOND, THIRD = (utterance.id for utterance in tokens.SPEECH[:3])

CMPL = '{"id":"R","object":"text_completion","created":1796034769,"model":"tiny-llama",'
CHAT = '{"id":"R","object":"chat.completion.chunk","created":1796034769,"model":"tiny-llama",'


def usage(n: int) -> str:
    return (
        f'{{"prompt_tokens":2,"total_tokens":{2 + n},"completion_tokens":{n},"prompt_tokens_details":null,"reasoning_tokens":0,'
        '"completion_tokens_details":null}'
    )


def test_completions_with_ids_and_continuous_usage() -> None:
    """token_ids before prompt_token_ids, both only when asked for; the last usage event has four keys, those in chunks six."""
    assert events(SGLANG, FULL, 3) == [
        [
            CMPL + '"choices":[{"index":0,"text":" The","logprobs":null,"finish_reason":null,"matched_stop":null,'
            f'"token_ids":[{FIRST}],"prompt_token_ids":[7,8]}}],"usage":{usage(1)}}}'
        ],
        [
            CMPL + '"choices":[{"index":0,"text":" scheduler","logprobs":null,"finish_reason":null,"matched_stop":null,'
            f'"token_ids":[{SECOND}]}}],"usage":{usage(2)}}}'
        ],
        [
            CMPL + '"choices":[{"index":0,"text":" hands","logprobs":null,"finish_reason":"length","matched_stop":null,'
            f'"token_ids":[{THIRD}]}}],"usage":{usage(3)}}}',
            CMPL + '"choices":[],"usage":{"prompt_tokens":2,"total_tokens":5,"completion_tokens":3,"reasoning_tokens":0}}',
            "[DONE]",
        ],
    ]


def test_completions_without_usage_say_usage_null_in_every_chunk() -> None:
    first, _, last = events(SGLANG, PLAIN, 3)
    assert first == [
        CMPL + '"choices":[{"index":0,"text":" The","logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}'
    ]
    assert last == [
        CMPL
        + '"choices":[{"index":0,"text":" hands","logprobs":null,"finish_reason":"length","matched_stop":null}],"usage":null}',
        "[DONE]",
    ]


def test_an_eos_is_named_as_what_matched() -> None:
    ((event, _),) = events(SGLANG, replace(PLAIN, stop_at=1), 1, finish="stop")
    choice = json.loads(event)["choices"][0]
    assert choice == {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop", "matched_stop": tokens.EOS}


def test_chat_ends_with_a_finish_event_that_holds_no_token() -> None:
    first, second, last = events(SGLANG, replace(PLAIN, route="chat", include_usage=True), 3)
    assert first == [
        CHAT + '"choices":[{"index":0,"delta":{"reasoning_content":null,"role":"assistant","content":""},"logprobs":null,'
        '"finish_reason":null,"matched_stop":null}]}',
        CHAT + '"choices":[{"index":0,"delta":{"reasoning_content":null,"content":" The"},"logprobs":null,"finish_reason":null,'
        '"matched_stop":null}]}',
    ]
    assert len(second) == 1
    assert last == [
        CHAT
        + '"choices":[{"index":0,"delta":{"reasoning_content":null,"content":" hands"},"logprobs":null,"finish_reason":null,'
        '"matched_stop":null}]}',
        CHAT + '"choices":[{"index":0,"delta":{"reasoning_content":null},"logprobs":null,"finish_reason":"length",'
        '"matched_stop":null}]}',
        CHAT + f'"choices":[],"usage":{usage(3)}}}',
        "[DONE]",
    ]


def test_continuous_usage_in_chat_sits_on_content_events_only() -> None:
    first, _, last = events(SGLANG, replace(PLAIN, route="chat", continuous_usage=True), 3)
    assert ["usage" in json.loads(line) for line in first] == [False, True]
    assert ["usage" in json.loads(line) for line in last[:2]] == [True, False]
    assert last[0].endswith(f',"usage":{usage(3)}}}')


def test_a_chat_step_without_text_sends_nothing() -> None:
    silent = next(i for i, utterance in enumerate(tokens.SPEECH) if not utterance.text)
    _, nothing, visible, _ = events(SGLANG, replace(PLAIN, route="chat", start=silent - 1), 4)
    assert nothing == []
    assert json.loads(visible[0])["choices"][0]["delta"]["content"] == "é"


def test_generate_repeats_everything_so_far() -> None:
    first, second, third = events(SGLANG, replace(PLAIN, route="generate"), 3)
    parsed = [json.loads(lines[0]) for lines in (first, second, third)]
    assert [event["text"] for event in parsed] == [" The", " The scheduler", " The scheduler hands"]
    assert [event["output_ids"] for event in parsed] == [[FIRST], [FIRST, SECOND], [FIRST, SECOND, THIRD]]
    assert [event["meta_info"]["completion_tokens"] for event in parsed] == [1, 2, 3]
    assert [event["meta_info"]["finish_reason"] for event in parsed] == [None, None, {"type": "length", "length": 3}]
    assert list(parsed[0]) == ["text", "output_ids", "meta_info"]
    assert third[1:] == ["[DONE]"]


def test_answers_in_one_piece() -> None:
    answer = json.loads(SGLANG.whole(PLAIN, "R", CREATED, 2, "length"))
    assert list(answer) == ["id", "object", "created", "model", "choices", "usage", "metadata"]
    assert answer["choices"] == [
        {"index": 0, "text": " The scheduler", "logprobs": None, "finish_reason": "length", "matched_stop": None}
    ]
    chat = json.loads(SGLANG.whole(replace(PLAIN, route="chat"), "R", CREATED, 2, "length"))
    assert chat["choices"][0]["message"] == {"role": "assistant", "content": " The scheduler", "reasoning_content": None}


# Reading


def ask(route: str = "completions", **fields) -> Ask:
    return SGLANG.read(CONTEXT, route, body(**fields))


def refusal(route: str = "completions", **fields) -> tuple[int, dict]:
    with pytest.raises(Refused) as caught:
        ask(route, **fields)
    return caught.value.answer.status, json.loads(caught.value.answer.body)


def test_an_unknown_model_is_served_under_its_name() -> None:
    assert ask(model="no-such-model", prompt="Hello").model == "no-such-model"


def test_a_prompt_above_the_context_is_400_and_flat_in_sglangs_words() -> None:
    limit = CONTEXT.engine.context
    assert refusal(prompt=[5] * (limit + 1)) == (
        400,
        {
            "object": "error",
            "message": f"The input ({limit + 1} tokens) is longer than the model's context length ({limit} tokens).",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        },
    )


def test_prompt_and_output_together_must_fit() -> None:
    status, error = refusal(prompt=[5] * 32_000, max_tokens=2_000)
    assert status == 400
    assert "34000 tokens" in error["message"]


def test_continuous_usage_stands_alone() -> None:
    asked = ask(prompt=[5], stream=True, stream_options={"continuous_usage_stats": True})
    assert (asked.include_usage, asked.continuous_usage) == (False, True)


def test_chat_streams_give_no_ids() -> None:
    status, error = refusal("chat", messages=[{"role": "user", "content": "x"}], stream=True, return_token_ids=True)
    assert (status, error["code"]) == (400, 400)


def test_chat_takes_ids_instead_of_messages() -> None:
    assert ask("chat", input_ids=[1, 2, 3], max_tokens=5).isl == 3


def test_generate_takes_ids_or_text_but_not_both() -> None:
    sampling = {"max_new_tokens": 6, "ignore_eos": True}
    asked = ask("generate", input_ids=[1, 2, 3], sampling_params=sampling, stream=True)
    assert (asked.isl, asked.max_new, asked.stop_at) == (3, 6, None)
    assert ask("generate", text="aa bb").max_new == 128
    assert refusal("generate", text="a", input_ids=[1])[0] == 400


def test_a_streamed_generate_says_its_error_in_an_event() -> None:
    with pytest.raises(Refused) as caught:
        ask("generate", input_ids=[5] * 40_000, stream=True)
    answer = caught.value.answer
    assert (answer.status, answer.content_type) == (200, "text/event-stream; charset=utf-8")
    event, done, _ = answer.body.decode().split("\n\n")
    assert json.loads(event.removeprefix("data: "))["error"]["type"] == "invalid_request_error"
    assert done == "data: [DONE]"


def test_openai_heads_wait_for_the_first_event_and_native_ones_do_not() -> None:
    assert [SGLANG.holds_head(route) for route in ("completions", "chat", "generate")] == [True, True, False]


# The other routes


def get(path: str, of=CONTEXT) -> dict | None:
    answer = SGLANG.get(of, path, {})
    return None if answer is None else json.loads(answer.body)


def test_there_is_no_version_route_but_server_info_has_it() -> None:
    assert get("/version") is None
    for path in ("/server_info", "/get_server_info"):
        info = get(path)
        assert info["version"] == "0.5.23+simulated"
        assert info["chunked_prefill_size"] == 8192
        assert info["max_total_num_tokens"] == CONTEXT.engine.state.kv.total
        assert info["internal_states"][0]["max_prefill_tokens"] == 16_384


def test_models_loads_and_model_info() -> None:
    (model,) = get("/v1/models")["data"]
    assert list(model) == ["id", "object", "created", "owned_by", "root", "parent", "max_model_len"]
    assert model["owned_by"] == "sglang"
    assert get("/model_info")["served_model_name"] == MODEL
    (load,) = get("/v1/loads")["loads"]
    assert (load["num_running_reqs"], load["num_waiting_reqs"], load["token_usage"]) == (0, 0, 0.0)


def test_metrics_must_be_asked_for_at_the_start() -> None:
    assert SGLANG.get(CONTEXT, "/metrics", {}) is None
    lines = SGLANG.get(context("sglang", SglangOptions(enable_metrics=True)), "/metrics", {}).body.decode().splitlines()
    labels = '{engine_type="unified",model_name="tiny-llama",moe_ep_rank="0",pp_rank="0",tp_rank="0"}'
    assert f"sglang:num_running_reqs{labels} 0.0" in lines
    assert f"sglang:num_queue_reqs{labels} 0.0" in lines


@pytest.mark.parametrize(("is_on", "cached", "told"), [(True, 2, True), (True, 0, False), (False, 2, False)])
@pytest.mark.parametrize("route", ["completions", "chat"])
def test_cached_tokens_are_told_where_there_are_some_and_the_flag_is_set(
    route: Route, is_on: bool, cached: int, told: bool
) -> None:
    server = context("sglang", SglangOptions(enable_cache_report=is_on))
    asked = {"messages": [{"role": "user", "content": "Hi"}]} if route == "chat" else {"prompt": "Hi"}
    usages = {"include_usage": True, "continuous_usage_stats": True}
    read = SGLANG.read(server, route, body(**asked, stream=True, stream_options=usages, max_tokens=2, ignore_eos=True))
    stream = SGLANG.stream(read, "R", CREATED)
    stream.cached = cached
    written = [stream.token(1, None), stream.token(2, "length"), SGLANG.whole(read, "R", CREATED, 2, "length", cached)]
    assert [b'"prompt_tokens_details":{"cached_tokens":2}' in data for data in written] == [told] * 3
    assert written[1].count(b"cached_tokens") == 2 * told


def test_tokenize_and_detokenize_are_inverse() -> None:
    answer = json.loads(SGLANG.post(CONTEXT, "/tokenize", body(prompt="the quick fox")).body)
    assert list(answer) == ["tokens", "count", "max_model_len"]
    assert json.loads(SGLANG.post(CONTEXT, "/detokenize", body(tokens=answer["tokens"])).body) == {"text": "the quick fox"}


def test_a_cache_in_use_is_not_flushed() -> None:
    busy = context("sglang", SglangOptions())
    assert SGLANG.post(busy, "/flush_cache", b"").status == 200
    busy.engine.submit(10, 10, 0.0)
    assert SGLANG.post(busy, "/flush_cache", b"").status == 400


def test_a_priority_is_read_in_the_openai_routes_and_in_the_native_one() -> None:
    assert ask(prompt=[5], priority=2).priority == 2
    assert SGLANG.read(CONTEXT, "generate", body(input_ids=[5], priority=-2)).priority == -2
    assert ask(prompt=[5]).priority == 0
