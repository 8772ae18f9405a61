"""SGLang's server, as captured from 0.5.23.

The OpenAI routes send no header before the first event. Chat ends with a finish event that holds no token; a step without new
text sends no chat event at all. /generate is cumulative: each event repeats the whole text and all ids. A model name is never
checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from longbench_sched.sim import tokens
from longbench_sched.sim.policy.sglang import SglangOptions
from longbench_sched.sim.wire import prometheus
from longbench_sched.sim.wire.base import (
    DONE,
    END,
    EVENTS,
    N_SPEECH,
    SPEECH_JSON,
    SPEECH_TEXT,
    TEXT,
    Aborted,
    Answer,
    Ask,
    Check,
    Context,
    Events,
    Refused,
    Route,
    Stream,
    check_one_choice,
    detokenize,
    finish_json,
    frame,
    head_of_whole,
    id_list,
    ids_until,
    load,
    model_card,
    natural_end,
    opening,
    read_chat_length,
    read_end,
    read_int,
    read_messages,
    read_priority,
    read_prompt,
    speech_start,
    spoken,
    spoken_ids,
    text_until,
    tokenize,
)
from longbench_sched.sim.wire.sglang_facts import loads, model_info, server_info

_DEFAULT_MAX_TOKENS = 16
_DEFAULT_MAX_NEW_TOKENS = 128
_ROUTES: Mapping[str, Route] = {
    "/v1/completions": "completions",
    "/v1/chat/completions": "chat",
    "/generate": "generate",
}


def error(status: int, kind: str, message: str) -> Answer:
    """SGLang's flat error body."""
    return Answer.json({"object": "error", "message": message, "type": kind, "param": None, "code": status}, status)


def _bad(message: str) -> Answer:
    return error(400, "BadRequestError", message)


def _invalid(message: str) -> Answer:
    return error(400, "Bad Request", message)


def _native_bad(message: str) -> Answer:
    return Answer.json({"error": {"message": message}}, 400)


def _usage(ask: Ask, n: int, cached: int) -> bytes:
    return (
        b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":%b,"reasoning_tokens":0,'
        b'"completion_tokens_details":null}' % (ask.isl, ask.isl + n, n, _details(ask, cached) or b"null")
    )


def _details(ask: Ask, cached: int) -> bytes:
    """Cached prompt tokens as usage tells them: with --enable-cache-report, and where there are any; else empty."""
    return b'{"cached_tokens":%d}' % cached if ask.cache_report and cached else b""


class _CompletionStream(Events):
    """Events of /v1/completions: the last one carries token and finish reason."""

    __slots__ = ()

    def token(self, n: int, finish: str | None, k: int = 1) -> bytes:
        ask = self.ask
        is_eos = n == ask.stop_at
        text = spoken(ask, n, k, SPEECH_JSON)
        ids = b""
        if ask.return_ids:
            ids = b',"token_ids":%b' % spoken_ids(ask, n, k)
            if n == k:
                ids += b',"prompt_token_ids":%b' % id_list(ask.prompt)
        event = frame(
            b'%b"choices":[{"index":0,"text":"%b","logprobs":null,"finish_reason":%b,"matched_stop":%b%b}],"usage":%b}\n\n'
            % (
                self.opening,
                text,
                finish_json(finish),
                b"%d" % tokens.EOS if is_eos else b"null",
                ids,
                _usage(ask, n, self.cached) if ask.continuous_usage else b"null",
            )
        )
        if finish is None:
            return event
        if ask.include_usage:
            details = _details(ask, self.cached)
            usage = b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d%b,"reasoning_tokens":0}' % (
                ask.isl,
                ask.isl + n,
                n,
                b',"prompt_tokens_details":' + details if details else b"",
            )
            event += frame(b'%b"choices":[],"usage":%b}\n\n' % (self.opening, usage))
        return event + END


class _ChatStream(Events):
    """Events of /v1/chat/completions."""

    __slots__ = ()

    def token(self, n: int, finish: str | None, k: int = 1) -> bytes:
        ask = self.ask
        is_eos = n == ask.stop_at
        text = spoken(ask, n, k, SPEECH_JSON)
        out = b""
        if n == k:
            out = frame(
                b'%b"choices":[{"index":0,"delta":{"reasoning_content":null,"role":"assistant","content":""},"logprobs":null,'
                b'"finish_reason":null,"matched_stop":null}]}\n\n' % self.opening
            )
        if text:
            out += frame(
                b'%b"choices":[{"index":0,"delta":{"reasoning_content":null,"content":"%b"},"logprobs":null,"finish_reason":null,'
                b'"matched_stop":null}]%b}\n\n'
                % (self.opening, text, b',"usage":%b' % _usage(ask, n, self.cached) if ask.continuous_usage else b"")
            )
        if finish is None:
            return out
        out += frame(
            b'%b"choices":[{"index":0,"delta":{"reasoning_content":null},"logprobs":null,"finish_reason":"%b","matched_stop":%b}]}\n\n'
            % (self.opening, finish.encode(), b"%d" % tokens.EOS if is_eos else b"null")
        )
        if ask.include_usage:
            out += frame(b'%b"choices":[],"usage":%b}\n\n' % (self.opening, _usage(ask, n, self.cached)))
        return out + END


@dataclass(slots=True)
class _GenerateStream:
    """Events of /generate: everything so far, every time."""

    ask: Ask
    id: str
    text: str = ""
    cached: int = 0

    def token(self, n: int, finish: str | None, k: int = 1) -> bytes:
        ask = self.ask
        last = n - 1 if n == ask.stop_at else n
        self.text += "".join(SPEECH_TEXT[(ask.start + i) % N_SPEECH] for i in range(n - k, last))
        event = frame(b"data: " + orjson.dumps(_native(ask, self.id, self.text, n, finish, self.cached)) + b"\n\n")
        return event if finish is None else event + END


def _native(ask: Ask, request_id: str, text: str, n: int, finish: str | None, cached: int) -> dict[str, object]:
    reason: dict[str, object] | None = None
    if finish == "length":
        reason = {"type": "length", "length": n}
    elif finish == "stop":
        reason = {"type": "stop", "matched": tokens.EOS}
    elif finish == "abort":
        reason = {"type": "abort", "message": "Aborted by AbortReq.", "status_code": None, "err_type": None}
    meta: dict[str, object] = {"id": request_id, "finish_reason": reason, "prompt_tokens": ask.isl, "weight_version": "default"}
    meta |= {"num_retractions": 0, "reasoning_tokens": 0, "completion_tokens": n, "cached_tokens": cached, "dp_rank": None}
    return {"text": text, "output_ids": ids_until(ask, n), "meta_info": meta}


class SglangDialect:
    """The server side of SGLang."""

    def route(self, path: str) -> Route | None:
        """The generation route of a path."""
        return _ROUTES.get(path)

    def holds_head(self, route: Route) -> bool:
        """The OpenAI routes wait for the first event, so that an error can still have its own status."""
        return route != "generate"

    def failure(self, status: int, message: str) -> Answer:
        """An HTTPException: the type is the status as a text."""
        return error(status, str(status), message)

    def read(self, context: Context, route: Route, body: bytes) -> Ask:
        """Understand a request. Prompt and output together must fit into the context; else it is refused, not clamped."""
        if route == "generate":
            return self._read_native(context, body)
        asked = load(body, _invalid)
        options = asked.get("stream_options")
        options = options if isinstance(options, dict) else {}
        engine = context.engine
        is_stream = asked.get("stream") is True
        check_one_choice(asked, _bad)
        check = _check_room(engine.context, _bad)
        if route == "chat":
            if asked.get("return_token_ids") and is_stream:
                raise Refused(_bad("return_token_ids is not supported with streaming chat completions"))
            if isinstance(asked.get("input_ids"), list):
                prompt = read_prompt(asked["input_ids"], engine.model.vocab, False, _bad, check)
            else:
                prompt = read_messages(asked.get("messages"), engine.model.has_bos, _invalid, check)
            wanted = read_chat_length(asked, _invalid)
        else:
            prompt = read_prompt(asked.get("prompt"), engine.model.vocab, engine.model.has_bos, _bad, check)
            wanted = read_int(asked, "max_tokens", _invalid, 1)
            wanted = _DEFAULT_MAX_TOKENS if wanted is None else wanted
        max_new = self._fit(len(prompt), wanted, engine.context, _bad)
        ignore_eos = asked.get("ignore_eos") is True
        return Ask(
            route=route,
            model=str(asked.get("model") or context.served_model),
            isl=len(prompt),
            prompt=prompt,
            max_new=max_new,
            stop_at=read_end(asked, prompt, _invalid, -(2**63)),
            to_length=ignore_eos,
            start=speech_start(prompt),
            is_stream=is_stream,
            include_usage=options.get("include_usage") is True,
            continuous_usage=options.get("continuous_usage_stats") is True,
            return_ids=asked.get("return_token_ids") is True,
            cache_report=_reports_cache(context),
            priority=read_priority(asked, _invalid),
        )

    def check_room(self, context: Context, ask: Ask) -> None:
        """`--max-queued-requests`: streams are told in their first event, with status 200; others by status 503."""
        if (full := context.engine.full_queue(ask.isl)) is not None:
            raise Refused(_queue_full(ask, full.words), full.limit)

    def stream(self, ask: Ask, request_id: str | None, created: int) -> Stream:
        """The encoder of a streamed answer."""
        if ask.route == "generate":
            return _GenerateStream(ask, request_id or "")
        kind = _ChatStream if ask.route == "chat" else _CompletionStream
        return kind(ask, opening(ask, request_id, created))

    def aborted(self, path: str, body: bytes) -> Aborted | None:
        """By its id, or all of them."""
        if path != "/abort_request":
            return None
        asked = load(body or b"{}", _invalid)
        return "all" if asked.get("abort_all") is True else (str(asked.get("rid", "")),)

    def whole(self, ask: Ask, request_id: str | None, created: int, n: int, finish: str, cached: int = 0) -> bytes:
        """An answer in one piece."""
        if ask.route == "generate":
            return orjson.dumps(_native(ask, request_id or "", text_until(ask, n), n, finish, cached))
        matched = tokens.EOS if finish == "stop" else None
        choice: dict[str, Any]
        if ask.route == "chat":
            message = {"role": "assistant", "content": text_until(ask, n), "reasoning_content": None}
            choice = {"index": 0, "message": message}
        else:
            choice = {"index": 0, "text": text_until(ask, n)}
        choice |= {"logprobs": None, "finish_reason": finish, "matched_stop": matched}
        if ask.return_ids:
            choice |= {"token_ids": ids_until(ask, n), "prompt_token_ids": list(ask.prompt or ())}
        versions = [{"version": "default", "start": 0, "end": n}]
        answer = head_of_whole(ask, request_id, created) | {
            "choices": [choice],
            "usage": orjson.Fragment(_usage(ask, n, cached)),
            "metadata": {"weight_version": "default", "weight_versions": versions},
        }
        return orjson.dumps(answer)

    def get(self, context: Context, path: str, query: Mapping[str, str]) -> Answer | None:
        """Health, models, server and model facts, loads; /metrics only with --enable-metrics."""
        match path:
            case "/health" | "/health_generate" | "/ready":
                return Answer(b"", content_type="")
            case "/v1/models":
                model = model_card(context, "sglang")
                model |= {"root": context.served_model, "parent": None, "max_model_len": context.engine.context}
                return Answer.json({"object": "list", "data": [model]})
            case "/model_info" | "/get_model_info":
                return Answer.json(model_info(context))
            case "/server_info" | "/get_server_info":
                return Answer.json(server_info(context))
            case "/v1/loads":
                return Answer.json(loads(context))
            case "/metrics" | "/metrics/":
                options = context.engine.options
                assert isinstance(options, SglangOptions)
                return Answer(prometheus.sglang(context), content_type=TEXT) if options.enable_metrics else None
        return None

    def post(self, context: Context, path: str, body: bytes) -> Answer | None:
        """Tokenizer routes and the cache flush."""
        match path:
            case "/tokenize" | "/v1/tokenize":
                asked = load(body, _invalid)
                ids = tokenize(context, asked, _invalid, chat_bos=True)
                return Answer.json({"tokens": ids, "count": len(ids), "max_model_len": context.engine.model.context})
            case "/detokenize" | "/v1/detokenize":
                return detokenize(body, "text", _invalid)
            case "/flush_cache":
                state = context.engine.state
                if state.running or state.waiting:
                    return Answer(b"Cache flush failed: requests are running or queued.\n", 400, "text/plain; charset=utf-8")
                return Answer(b"Cache flushed.\n", 200, "text/plain; charset=utf-8")
        return None

    def _read_native(self, context: Context, body: bytes) -> Ask:
        asked = load(body, lambda message: Answer.json({"error": message}, 400))
        engine = context.engine
        sampling = asked.get("sampling_params")
        sampling = sampling if isinstance(sampling, dict) else {}
        is_stream = asked.get("stream") is True
        refuse = _native_stream_error if is_stream else _native_bad
        given = [key for key in ("text", "input_ids") if asked.get(key) is not None]
        if len(given) != 1:
            raise Refused(refuse("Either text, input_ids or input_embeds should be provided."))
        check = _check_room(engine.context, refuse)
        prompt = read_prompt(asked[given[0]], engine.model.vocab, engine.model.has_bos, refuse, check)
        wanted = read_int(sampling, "max_new_tokens", refuse, 1)
        max_new = self._fit(len(prompt), _DEFAULT_MAX_NEW_TOKENS if wanted is None else wanted, engine.context, refuse)
        ignore_eos = sampling.get("ignore_eos") is True
        seed, min_new = read_int(sampling, "sampling_seed", refuse), read_int(sampling, "min_new_tokens", refuse) or 0
        return Ask(
            route="generate",
            model=context.served_model,
            isl=len(prompt),
            prompt=prompt,
            max_new=max_new,
            stop_at=natural_end(prompt, seed, min_new, ignore_eos),
            to_length=ignore_eos,
            start=speech_start(prompt),
            is_stream=is_stream,
            priority=read_priority(asked, refuse),
        )

    @staticmethod
    def _fit(isl: int, wanted: int | None, context: int, refuse: Callable[[str], Answer]) -> int:
        if isl >= context:
            raise Refused(refuse(f"The input ({isl} tokens) is longer than the model's context length ({context} tokens)."))
        if wanted is None or wanted == 0:
            return context - isl
        if isl + wanted > context:
            message = (
                f"Requested token count exceeds the model's maximum context length of {context} tokens. You requested a total "
                f"of {isl + wanted} tokens: {isl} tokens from the input messages and {wanted} tokens for the completion."
            )
            raise Refused(refuse(message))
        return wanted


def _check_room(context: int, refuse: Callable[[str], Answer]) -> Check:
    def check(at_least: int) -> None:
        if at_least >= context:
            words = f"The input (at least {at_least} tokens) is longer than the model's context length ({context} tokens)."
            raise Refused(refuse(words))

    return check


def _reports_cache(context: Context) -> bool:
    options = context.engine.options
    assert isinstance(options, SglangOptions)
    return options.enable_cache_report


def _queue_full(ask: Ask, message: str) -> Answer:
    if ask.route == "generate":
        if not ask.is_stream:
            return Answer.json({"error": {"message": message}}, 503)
        reason = {"type": "abort", "message": message, "status_code": 503, "err_type": "SERVICE_UNAVAILABLE"}
        meta = {"finish_reason": reason, "prompt_tokens": ask.isl, "completion_tokens": 0, "cached_tokens": 0}
        body: dict[str, object] = {"text": "", "output_ids": [], "meta_info": meta}
    else:
        if not ask.is_stream:
            return error(503, "503", message)
        flat = {"object": "error", "message": message, "type": "SERVICE_UNAVAILABLE", "param": None, "code": 503}
        body = {"error": flat}
    return Answer(b"data: " + orjson.dumps(body) + b"\n\n" + DONE, 200, EVENTS)


def _native_stream_error(message: str) -> Answer:
    """A streamed /generate has sent its head before it looks at the request: the error is an event."""
    body = {"error": {"message": message, "type": "invalid_request_error", "code": 400, "retryable": False}}
    return Answer(b"data: " + orjson.dumps(body) + b"\n\n" + DONE, 200, EVENTS)
