"""trtllm-serve, from its published source (about 1.2); not checked against a live server.

Unknown fields are refused with an error that is a plain string. The role event of a chat has no content and a space before
its end; nulls are left out in chat and kept in completions. There is no way to learn the context length or the scheduler's
settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from longbench_sched.sim.policy.trtllm import TrtllmOptions
from longbench_sched.sim.wire.base import (
    END,
    WHOLE_JSON,
    WHOLE_TEXT,
    Aborted,
    Answer,
    Ask,
    Context,
    Events,
    Refused,
    Route,
    Stream,
    check_one_choice,
    finish_json,
    frame,
    head_of_whole,
    ids_until,
    load,
    model_card,
    opening,
    prefixed,
    read_chat_length,
    read_end,
    read_int,
    read_messages,
    read_prompt,
    speech_start,
    spoken,
    spoken_ids,
    text_until,
    tokenize,
)

VERSION = "1.2.1+simulated"
_ROUTES: Mapping[str, Route] = {"/v1/completions": "completions", "/v1/chat/completions": "chat"}

_SHARED_FIELD_NAMES = (
    "model max_tokens min_tokens ignore_eos stop stop_token_ids seed temperature top_p top_k min_p "
    "repetition_penalty presence_penalty frequency_penalty stream stream_options add_special_tokens "
    "truncate_prompt_tokens n best_of logprobs use_beam_search lora_request response_format disaggregated_params "
    "user logit_bias skip_special_tokens spaces_between_special_tokens length_penalty early_stopping "
    "include_stop_str_in_output echo"
)
_SHARED_FIELDS = frozenset(_SHARED_FIELD_NAMES.split())
_FIELDS: Mapping[Route, frozenset[str]] = {
    "completions": _SHARED_FIELDS | {"prompt", "suffix", "detokenize", "return_context_logits"},
    "chat": _SHARED_FIELDS
    | {
        "messages",
        "prompt_token_ids",
        "max_completion_tokens",
        "cache_salt",
        "tools",
        "tool_choice",
        "reasoning_effort",
        "top_logprobs",
        "chat_template",
        "chat_template_kwargs",
        "add_generation_prompt",
        "documents",
        "parallel_tool_calls",
    },
}


def _schema(message: str) -> Answer:
    return Answer.json({"error": message}, 400)


def error(message: str, kind: str = "BadRequestError", status: int = 400) -> Answer:
    """The flat body of anything that fails before streaming starts."""
    return Answer.json({"object": "error", "message": message, "type": kind, "param": None, "code": status}, status)


def _usage(isl: int, n: int, cached: int) -> bytes:
    return b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}' % (
        isl,
        isl + n,
        n,
        cached,
    )


class _CompletionStream(Events):
    """Events of /v1/completions; with `detokenize: false` ids and no text."""

    __slots__ = ()

    def token(self, n: int, finish: str | None, k: int = 1) -> bytes:
        ask = self.ask
        text = spoken(ask, n, k, WHOLE_JSON) if ask.detokenize else b""
        ids = b"null" if ask.detokenize else spoken_ids(ask, n, k)
        event = frame(
            b'%b"choices":[{"index":0,"text":"%b","token_ids":%b,"logprobs":null,"finish_reason":%b,"stop_reason":null,"avg_decoded_tokens_per_iter":1.0}],"usage":%b}\n\n'
            % (
                self.opening,
                text,
                ids,
                finish_json(finish),
                _usage(ask.isl, n, self.cached) if ask.continuous_usage else b"null",
            )
        )
        if finish is None:
            return event
        if ask.include_usage:
            event += frame(b'%b"choices":[],"usage":%b}\n\n' % (self.opening, _usage(ask.isl, n, self.cached)))
        return event + END


class _ChatStream(Events):
    """Events of /v1/chat/completions: a role event, one a token, then a finish event with empty content."""

    __slots__ = ()

    def token(self, n: int, finish: str | None, k: int = 1) -> bytes:
        ask = self.ask
        text = spoken(ask, n, k, WHOLE_JSON)
        usage = b',"usage":%b' % _usage(ask.isl, n, self.cached) if ask.continuous_usage else b""
        out = frame(b'%b"choices":[{"index":0,"delta":{"role":"assistant"}}]} \n\n' % self.opening) if n == k else b""
        out += frame(
            b'%b"choices":[{"index":0,"delta":{"content":"%b","reasoning_content":""},"avg_decoded_tokens_per_iter":1.0}]%b}\n\n'
            % (self.opening, text, usage)
        )
        if finish is None:
            return out
        out += frame(
            b'%b"choices":[{"index":0,"delta":{"content":"","reasoning_content":""},"finish_reason":"%b","avg_decoded_tokens_per_iter":1.0}]%b}\n\n'
            % (self.opening, finish.encode(), usage)
        )
        if ask.include_usage:
            out += frame(b'%b"choices":[],"usage":%b}\n\n' % (self.opening, _usage(ask.isl, n, self.cached)))
        return out + END


class TrtllmDialect:
    """The server side of trtllm-serve."""

    def route(self, path: str) -> Route | None:
        """The generation route of a path."""
        return _ROUTES.get(path)

    def holds_head(self, route: Route) -> bool:
        """The head goes out as soon as the request is in the queue."""
        return False

    def failure(self, status: int, message: str) -> Answer:
        """A flat body."""
        return error(message, "InternalServerError", status)

    def read(self, context: Context, route: Route, body: bytes) -> Ask:
        """Understand a request; fields it does not know are an error."""
        asked = load(body, _schema)
        unknown = sorted(asked.keys() - _FIELDS[route])
        if unknown:
            raise Refused(_schema("; ".join(f"Extra inputs are not permitted: body.{name}" for name in unknown)))
        if not isinstance(asked.get("model"), str):
            raise Refused(_schema("Field required: body.model"))
        check_one_choice(asked, error)
        engine = context.engine
        bos, limit = engine.model.has_bos, engine.context

        def check(at_least: int) -> None:
            if at_least + 1 > limit:
                raise Refused(error(f"The prompt length (at least {at_least}) should not exceed max_seq_len ({limit})."))

        if route == "chat":
            if "max_tokens" in asked and "max_completion_tokens" in asked:
                raise Refused(_schema("max_tokens and max_completion_tokens are one field: give one of them"))
            if not isinstance(asked.get("messages"), list):
                raise Refused(_schema("Field required: body.messages"))
            ids = asked.get("prompt_token_ids")
            if ids is not None:
                prompt = read_prompt(ids, engine.model.vocab, False, error, check)
            else:
                prompt = read_messages(asked["messages"], bos and asked.get("add_special_tokens") is True, _schema, check)
            wanted = read_chat_length(asked, _schema, 1)
        else:
            prompt = read_prompt(
                asked.get("prompt"), engine.model.vocab, bos and asked.get("add_special_tokens") is not False, error, check
            )
            wanted = read_int(asked, "max_tokens", _schema, 1)
        isl = len(prompt)
        if isl + (wanted or 1) > limit:
            raise Refused(
                error(
                    f"The sum of prompt length ({isl}) and max_tokens ({wanted or 1}) should not exceed max_seq_len ({limit})."
                )
            )
        max_new = wanted or limit - isl
        if reason := engine.policy.refusal(isl, max_new):
            raise Refused(error(reason))
        options = asked.get("stream_options")
        include_usage = isinstance(options, dict) and options.get("include_usage", True) is True
        ignore_eos = asked.get("ignore_eos") is True
        return Ask(
            route=route,
            model=asked["model"],
            isl=len(prompt),
            prompt=prompt,
            max_new=max_new,
            stop_at=read_end(asked, prompt, _schema),
            to_length=ignore_eos,
            start=speech_start(prompt),
            is_stream=asked.get("stream") is True,
            include_usage=include_usage,
            continuous_usage=include_usage and isinstance(options, dict) and options.get("continuous_usage_stats") is True,
            detokenize=asked.get("detokenize") is not False,
        )

    def check_room(self, context: Context, ask: Ask) -> None:
        """The queue has no end."""

    def stream(self, ask: Ask, request_id: str | None, created: int) -> Stream:
        """The encoder of a streamed answer."""
        kind = _ChatStream if ask.route == "chat" else _CompletionStream
        return kind(ask, opening(ask, prefixed(ask, request_id), created))

    def aborted(self, path: str, body: bytes) -> Aborted | None:
        """There is no such route: a client that leaves aborts."""
        return None

    def whole(self, ask: Ask, request_id: str | None, created: int, n: int, finish: str, cached: int = 0) -> bytes:
        """An answer in one piece."""
        choice: dict[str, Any] = {"index": 0}
        if ask.route == "chat":
            choice["message"] = {
                "role": "assistant",
                "content": text_until(ask, n, WHOLE_TEXT),
                "reasoning_content": "",
                "tool_calls": [],
            }
        else:
            choice["text"] = text_until(ask, n, WHOLE_TEXT) if ask.detokenize else ""
            choice["token_ids"] = None if ask.detokenize else ids_until(ask, n)
        choice |= {"logprobs": None, "finish_reason": finish, "stop_reason": None, "avg_decoded_tokens_per_iter": 1.0}
        answer = head_of_whole(ask, prefixed(ask, request_id), created)
        return orjson.dumps(answer | {"choices": [choice], "usage": orjson.Fragment(_usage(ask.isl, n, cached))})

    def get(self, context: Context, path: str, query: Mapping[str, str]) -> Answer | None:
        """Health, version, models without a context length; iteration records only if they were asked for at the start."""
        match path:
            case "/health":
                return Answer(b"", content_type="")
            case "/version":
                return Answer.json({"version": VERSION})
            case "/v1/models":
                return Answer.json({"object": "list", "data": [model_card(context, "tensorrt_llm")]})
            case "/server_info":
                return Answer.json({"disaggregated_params": {}})
            case "/metrics":
                return Answer.json(_iteration_records(context))
        return None

    def post(self, context: Context, path: str, body: bytes) -> Answer | None:
        """The internal tokenizer route of newer releases."""
        if path != "/_internal/tokenize":
            return None
        asked = load(body, _schema)
        ids = tokenize(context, {"prompt": asked.get("prompt")}, _schema, chat_bos=True)
        return Answer.json({"count": len(ids), "tokens": ids})


def _iteration_records(context: Context) -> list[dict[str, object]]:
    """The newest iteration; an empty list unless `enable_iter_perf_stats` is set, as in the engine."""
    engine = context.engine
    options = engine.options
    assert isinstance(options, TrtllmOptions)
    if not options.enable_iter_perf_stats:
        return []
    state, kv = engine.state, engine.state.kv
    plan = engine.step
    batching = {
        "numContextRequests": len(plan.chunks) if plan else 0,
        "numGenRequests": len(plan.decodes) if plan else 0,
        "numPausedRequests": 0,
        "numScheduledRequests": len(plan.chunks) + len(plan.decodes) if plan else 0,
        "numCtxTokens": sum(chunk.n_tokens for chunk in plan.chunks) if plan else 0,
        "avgNumDecodedTokensPerIter": 1.0,
        "microBatchId": 0,
    }
    cache = {"maxNumBlocks": kv.total, "usedNumBlocks": kv.held, "freeNumBlocks": kv.free, "tokensPerBlock": kv.block_tokens}
    finished = engine.counters.finished
    record: dict[str, object] = {
        "iter": engine.counters.n_steps,
        "numActiveRequests": len(state.running),
        "numQueuedRequests": len(state.waiting),
        "numCompletedRequests": finished["stop"] + finished["length"],
        "maxBatchSizeStatic": options.max_batch_size,
        "maxNumTokensRuntime": options.max_num_tokens,
        "kvCacheStats": cache | {"cacheHitRate": 0.0, "missedBlocks": 0, "reusedBlocks": 0},
        "inflightBatchingStats": batching,
    }
    return [record]
