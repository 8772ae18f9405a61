"""Events with the keys, nulls and order that the engines really send, and a way to decode a script of them.

The shapes are facts noted from streams of vLLM 0.32.0, SGLang 0.5.23, llama.cpp b11434 and Dynamo 1.6.1 (trtllm-serve and
Triton: from their sources); ids, names and texts are ours. A script is a list of (stamp in ms, bytes): what one read brought.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from longbench_sched.engine import make_dialect
from longbench_sched.plan import Request, Sampling
from longbench_sched.record import Decoded, Ending
from longbench_sched.target import Api, CountMode

Script = Sequence[tuple[float, bytes]]

STREAM = {"content-type": "text/event-stream; charset=utf-8", "transfer-encoding": "chunked"}
JSON = {"content-type": "application/json", "content-length": "1"}
DONE = b"data: [DONE]\n\n"


def sse(body: object, end: str = "\n\n") -> bytes:
    text = body if isinstance(body, str) else json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    return f"data: {text}{end}".encode()


def usage(prompt: int, completion: int, **more: object) -> dict[str, object]:
    return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion, **more}


def vllm_text(text: str, finish: str | None = None, n: int | None = None, ids: list[int] | None = None, isl: int = 24) -> bytes:
    """A completions event: `usage` only where running usage was asked for, else no such key."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
    choice |= {"prompt_token_ids": None, "token_ids": ids}
    event: dict[str, object] = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
    return sse(event | ({} if n is None else {"usage": usage(isl, n)}))


def vllm_chat(delta: Mapping[str, object], finish: str | None = None, n: int | None = None, isl: int = 15) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "token_ids": None}
    event: dict[str, object] = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    event["choices"] = [choice]
    return sse(event | ({} if n is None else {"usage": usage(isl, n, completion_tokens_details=None)}))


def vllm_role(n: int | None = None) -> bytes:
    choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    event: dict[str, object] = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    event["choices"] = [choice]
    counts = {} if n is None else {"usage": usage(15, n, completion_tokens_details=None)}
    return sse(event | counts | {"prompt_token_ids": None, "prompt_text": None})


def vllm_usage(prompt: int, completion: int, **more: object) -> bytes:
    event = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": []}
    return sse(event | {"usage": usage(prompt, completion, **more), "system_fingerprint": "vllm-0.32.0-1"})


def sglang_text(text: str, finish: str | None = None, n: int | None = None, ids: list[int] | None = None) -> bytes:
    """`usage` is always there, null where it was not asked for; `token_ids` only where asked for."""
    choice: dict[str, object] = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "matched_stop": None}
    choice |= {} if ids is None else {"token_ids": ids}
    event: dict[str, object] = {"id": "1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
    more = {"prompt_tokens_details": None, "reasoning_tokens": 0, "completion_tokens_details": None}
    return sse(event | {"usage": None if n is None else usage(24, n, **more)})


def sglang_chat(delta: Mapping[str, object], finish: str | None = None, n: int | None = None) -> bytes:
    choice = {"index": 0, "delta": {"reasoning_content": None, **delta}, "logprobs": None, "finish_reason": finish}
    event: dict[str, object] = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    event["choices"] = [choice | {"matched_stop": None}]
    more = {"prompt_tokens_details": None, "reasoning_tokens": 0, "completion_tokens_details": None}
    return sse(event | ({} if n is None else {"usage": usage(15, n, **more)}))


def sglang_usage(prompt: int, completion: int) -> bytes:
    event = {"id": "1", "object": "text_completion", "created": 1, "model": "m", "choices": []}
    return sse(event | {"usage": usage(prompt, completion, reasoning_tokens=0)})


def sglang_generate(text: str, ids: list[int], n: int, finish: object = None, cached: int = 23) -> bytes:
    meta = {"id": "1", "finish_reason": finish, "prompt_tokens": 24, "weight_version": "default", "num_retractions": 0}
    meta |= {"reasoning_tokens": 0, "completion_tokens": n, "cached_tokens": cached, "dp_rank": None}
    return sse({"text": text, "output_ids": ids, "meta_info": meta})


def llama_text(text: str, finish: str | None = None, n: int | None = None) -> bytes:
    """llama.cpp: keys in another order; usage in the finish event, whose choices are not empty."""
    event: dict[str, object] = {"choices": [{"text": text, "index": 0, "logprobs": None, "finish_reason": finish}]}
    event |= {"created": 1, "model": "m", "system_fingerprint": "b0-unknown", "object": "text_completion"}
    event |= {} if n is None else {"usage": usage(24, n, prompt_tokens_details={"cached_tokens": 19})}
    return sse(event | {"id": "chatcmpl-1"})


def dynamo_text(text: str, finish: str | None = None, n: int | None = None) -> bytes:
    """Dynamo: no null keys in a choice; the finish event is empty and repeats the count."""
    choice = {"text": text, "index": 0} | ({} if finish is None else {"finish_reason": finish})
    counts = None if n is None else usage(24, n, prompt_tokens_details={"audio_tokens": None, "cached_tokens": 0})
    event = {"id": "cmpl-1", "choices": [choice], "created": 1, "model": "m", "system_fingerprint": None}
    return sse(event | {"object": "text_completion", "usage": counts})


def trtllm_text(text: str, finish: str | None = None, n: int | None = None, ids: list[int] | None = None) -> bytes:
    choice = {"index": 0, "text": text, "token_ids": ids, "logprobs": None, "finish_reason": finish, "stop_reason": None}
    event = {"id": "cmpl-7", "object": "text_completion", "created": 1, "model": "m"}
    counts = None if n is None else usage(24, n)
    return sse(event | {"choices": [choice | {"avg_decoded_tokens_per_iter": 1.0}], "usage": counts})


def trtllm_chat(delta: Mapping[str, object], finish: str | None = None, end: str = "\n\n") -> bytes:
    choice = {"index": 0, "delta": delta} | ({} if finish is None else {"finish_reason": finish})
    return sse({"id": "chatcmpl-7", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}, end)


def triton_text(text: str, n: int | None = None, n_input: int | None = None) -> bytes:
    event: dict[str, object] = {"model_name": "ensemble", "model_version": "1", "sequence_id": 0, "text_output": text}
    event |= {} if n is None else {"num_output_tokens": n}
    return sse(event | ({} if n_input is None else {"num_input_tokens": n_input}))


@dataclass(frozen=True)
class Case:
    """One stream and what must be read from it, worked out by hand."""

    engine: str
    events: list[bytes]
    api: Api = "completions"
    osl: int = 4
    at: list[int] = field(default_factory=list)  # indices of the token-bearing events
    tokens: list[int] = field(default_factory=list)
    chunk_source: str | None = None
    output: int | None = None
    output_source: str | None = "usage"
    prompt: int | None = 24
    cached: int | None = None
    finish_at: int | None = None
    finish: str | None = "length"
    marks: list[str] = field(default_factory=list)
    text: str = ""


_ROLE = {"role": "assistant", "content": ""}

STREAMS: dict[str, Case] = {
    "vllm: running usage": Case(
        "vllm",
        [vllm_text("a", None, 1), vllm_text("b", None, 2), vllm_text("c", None, 3), vllm_text("d", "length", 4),
         vllm_usage(24, 4), DONE],
        at=[0, 1, 2, 3], tokens=[1, 1, 1, 1], chunk_source="usage", output=4, finish_at=3, text="abcd",
    ),
    "vllm: token ids, half a character in one event": Case(
        "vllm",
        [vllm_text("aka", None, 1, [8]), vllm_text("", None, 2, [17]), vllm_text("\ufffd?", "length", 4, [71, 5]),
         vllm_usage(24, 4), DONE],
        at=[0, 1, 2], tokens=[1, 1, 2], chunk_source="ids", output=4, finish_at=2, text="aka\ufffd?",
    ),
    "vllm: final usage only, one event a token, the first without text": Case(
        "vllm",
        [vllm_text(""), vllm_text("b"), vllm_text("c"), vllm_text("d", "length"), vllm_usage(4, 4), DONE],
        at=[0, 1, 2, 3], tokens=[1, 1, 1, 1], chunk_source="inferred", output=4, prompt=4, finish_at=3, text="bcd",
    ),
    "vllm: final usage only, tokens merged": Case(
        "vllm",
        [vllm_text("a"), vllm_text("bc"), vllm_text("d", "length"), vllm_usage(24, 4), DONE],
        at=[0, 1, 2], tokens=[-1, -1, -1], output=4, finish_at=2, text="abcd",
    ),
    "vllm: no usage at all": Case(
        "vllm",
        [vllm_text("a"), vllm_text("b", "length"), DONE],
        at=[0, 1], tokens=[1, 1], chunk_source="inferred", output=2, output_source="inferred", prompt=None, finish_at=1,
        marks=["no-usage"], text="ab",
    ),
    "vllm: the end-of-sequence token has no text and counts": Case(
        "vllm",
        [vllm_text("a", None, 1, [8]), vllm_text("", "stop", 2, [2]), vllm_usage(24, 2), DONE],
        at=[0, 1], tokens=[1, 1], chunk_source="ids", output=2, finish_at=1, finish="stop", marks=["short-output"], text="a",
    ),
    "vllm: speculation, running usage": Case(
        "vllm",
        [vllm_text("a", None, 1), vllm_text("bc", None, 3), vllm_text("defg", None, 7), vllm_text("h", "length", 8),
         vllm_usage(24, 8), DONE],
        osl=8, at=[0, 1, 2, 3], tokens=[1, 2, 4, 1], chunk_source="usage", output=8, finish_at=3, text="abcdefgh",
    ),
    "vllm chat: role event, finish with the last token": Case(
        "vllm",
        [vllm_role(0), vllm_chat({"content": "a"}, None, 1), vllm_chat({"content": "b"}, "length", 2), vllm_usage(15, 2), DONE],
        api="chat", osl=2, at=[1, 2], tokens=[1, 1], chunk_source="usage", output=2, prompt=15, finish_at=2, text="ab",
    ),
    "vllm chat: stream interval 4": Case(
        "vllm",
        [vllm_role(0), vllm_chat({"content": "a"}, None, 1), vllm_chat({"content": " bcde"}, None, 5),
         vllm_chat({"content": "f"}, "length", 6), vllm_usage(15, 6), DONE],
        api="chat", osl=6, at=[1, 2, 3], tokens=[1, 4, 1], chunk_source="usage", output=6, prompt=15, finish_at=3,
        text="a bcdef",
    ),
    "sglang: usage null in each event": Case(
        "sglang",
        [sglang_text(""), sglang_text("b"), sglang_text("c"), sglang_text("d", "length"), sglang_usage(4, 4), DONE],
        at=[0, 1, 2, 3], tokens=[1, 1, 1, 1], chunk_source="inferred", output=4, prompt=4, finish_at=3, text="bcd",
    ),
    "sglang: token ids, two in one event": Case(
        "sglang",
        [sglang_text("a", None, 1, [8]), sglang_text("bc", None, 3, [49, 13]), sglang_text("d", "length", 4, [7]),
         sglang_usage(24, 4), DONE],
        at=[0, 1, 2], tokens=[1, 2, 1], chunk_source="ids", output=4, finish_at=2, text="abcd",
    ),
    "sglang chat: the finish event holds no token": Case(
        "sglang",
        [sglang_chat(_ROLE), sglang_chat({"content": "a"}, None, 1), sglang_chat({"content": "b"}, None, 2),
         sglang_chat({}, "length"), sglang_usage(15, 2), DONE],
        api="chat", osl=2, at=[1, 2], tokens=[1, 1], chunk_source="usage", output=2, prompt=15, finish_at=3, text="ab",
    ),
    "sglang chat: steps without text send no event": Case(
        "sglang",
        [sglang_chat(_ROLE), sglang_chat({"content": "a"}), sglang_chat({"content": "bc"}),
         sglang_chat({}, "length"), sglang_usage(15, 4), DONE],
        api="chat", at=[1, 2], tokens=[-1, -1], output=4, prompt=15, finish_at=3, text="abc",
    ),
    "sglang generate: cumulative": Case(
        "sglang",
        [sglang_generate("a", [8], 1), sglang_generate("abc", [8, 4, 6], 3),
         sglang_generate("abcd", [8, 4, 6, 9], 4, {"type": "length", "length": 4}), DONE],
        api="generate", at=[0, 1, 2], tokens=[1, 2, 1], chunk_source="usage", output=4, cached=23, finish_at=2, text="abcd",
    ),
    "sglang generate: incremental": Case(
        "sglang",
        [sglang_generate("a", [8], 1), sglang_generate("bc", [4, 6], 3),
         sglang_generate("d", [9], 4, {"type": "length", "length": 4}), DONE],
        api="generate", at=[0, 1, 2], tokens=[1, 2, 1], chunk_source="usage", output=4, cached=23, finish_at=2, text="abcd",
    ),
    "openai: llama.cpp, usage in an empty finish event": Case(
        "openai",
        [llama_text("a"), llama_text("b"), llama_text("", "length", 2), DONE],
        osl=2, at=[0, 1], tokens=[1, 1], chunk_source="inferred", output=2, cached=19, finish_at=2, text="ab",
    ),
    "vllm dialect before llama.cpp: the empty finish event is no third token": Case(
        "vllm",
        [llama_text("a"), llama_text("b"), llama_text("", "length", 2), DONE],
        osl=2, at=[0, 1], tokens=[1, 1], chunk_source="inferred", output=2, cached=19, finish_at=2, text="ab",
    ),
    "vllm dialect before Dynamo: the finish event adds nothing to the count": Case(
        "vllm",
        [dynamo_text("a", None, 1), dynamo_text("b", None, 2), dynamo_text("", "length", 2), vllm_usage(24, 2), DONE],
        osl=2, at=[0, 1], tokens=[1, 1], chunk_source="usage", output=2, finish_at=2, text="ab",
    ),
    "openai: Dynamo, the role rides on the first token": Case(
        "openai",
        [vllm_chat({"content": "a", "role": "assistant"}), vllm_chat({"content": "b"}), vllm_chat({}, "length"),
         vllm_usage(15, 2, prompt_tokens_details={"cached_tokens": 0}), DONE],
        api="chat", osl=2, at=[0, 1], tokens=[1, 1], chunk_source="inferred", output=2, prompt=15, cached=0, finish_at=2,
        text="ab",
    ),
    "trtllm: running usage": Case(
        "trtllm",
        [trtllm_text("a", None, 1), trtllm_text("b", "length", 2), vllm_usage(24, 2), DONE],
        osl=2, at=[0, 1], tokens=[1, 1], chunk_source="usage", output=2, finish_at=1, text="ab",
    ),
    "trtllm: not detokenised": Case(
        "trtllm",
        [trtllm_text("", None, None, [345]), trtllm_text("", "length", None, [346, 347]), vllm_usage(24, 3), DONE],
        osl=3, at=[0, 1], tokens=[1, 2], chunk_source="ids", output=3, finish_at=1, text="",
    ),
    "trtllm chat: a space before the line end of the role event": Case(
        "trtllm",
        [trtllm_chat({"role": "assistant"}, end=" \n\n"), trtllm_chat({"content": "a", "reasoning_content": ""}),
         trtllm_chat({"content": "", "reasoning_content": ""}, "length"), vllm_usage(15, 1), DONE],
        api="chat", osl=1, at=[1], tokens=[1], chunk_source="inferred", output=1, prompt=15, finish_at=2, text="a",
    ),
    "triton: counts of one event": Case(
        "triton",
        [triton_text("a", 1, 24), triton_text("b", 1, 24), triton_text("cd", 2, 24), triton_text("", 0, 24)],
        api="generate", at=[0, 1, 2], tokens=[1, 1, 2], chunk_source="usage", output=4, finish=None, text="abcd",
    ),
    "triton: running totals, and a last event without text": Case(
        "triton",
        [triton_text("a", 1, 24), triton_text("b", 2, 24), triton_text("cd", 4, 24), triton_text("", 4, 24)],
        api="generate", at=[0, 1, 2], tokens=[1, 1, 2], chunk_source="usage", output=4, finish=None, text="abcd",
    ),
    "triton: no counts": Case(
        "triton",
        [triton_text("a"), triton_text("b")],
        api="generate", at=[0, 1], tokens=[-1, -1], output=None, output_source=None, prompt=None, finish=None,
        marks=["no-usage"], text="ab",
    ),
}  # fmt: skip


def request(isl: int = 24, osl: int = 4, *, ignore_eos: bool = True, prompt: array[int] | str = "x") -> Request:
    return Request(7, "measured", 0, prompt, isl, osl, sampling=Sampling(ignore_eos=ignore_eos))


def decode(
    engine: str,
    script: Iterable[tuple[float, bytes]],
    *,
    api: Api | None = None,
    count: CountMode = "full",
    osl: int = 4,
    status: int = 200,
    headers: Mapping[str, str] = STREAM,
    ending: Ending = Ending.COMPLETE,
    keep_text: bool = False,
    ignore_eos: bool = True,
) -> Decoded:
    """Feed a script to a fresh decoder."""
    dialect = make_dialect(engine, api, count)
    decoder = dialect.decoder(request(osl=osl, ignore_eos=ignore_eos), keep_text=keep_text)
    decoder.start(status, headers)
    for at_ms, data in script:
        decoder.feed(data, ms(at_ms), 0)
    return decoder.finish(ending)


def ms(value: float) -> int:
    """Milliseconds as ns."""
    return round(value * 1e6)
