"""vLLM's OpenAI server, as captured from 0.32.0.

Completions: one event a token, the finish reason on the event of the last token, then usage (if asked for) and [DONE]. Chat:
a role event together with the first token; the last token carries the finish reason too. Continuous usage counts only with
`include_usage`; on the role event of a chat it says 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import orjson

from longbench_sched.sim.policy.vllm_v1 import VllmV1Options
from longbench_sched.sim.wire import prometheus
from longbench_sched.sim.wire.base import (
    END,
    SPEECH_JSON,
    TEXT,
    Aborted,
    Answer,
    Ask,
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
    opening,
    prefixed,
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

VERSION = "0.33.0+simulated"
_FINGERPRINT = "vllm-0.33.0-simulated"

_DEFAULT_MAX_TOKENS = 16
_ROUTES: Mapping[str, Route] = {"/v1/completions": "completions", "/v1/chat/completions": "chat"}


def error(status: int, kind: str, message: str, param: str | None = None) -> Answer:
    """The nested error body."""
    return Answer.json({"error": {"message": message, "type": kind, "param": param, "code": status}}, status)


def _invalid(message: str) -> Answer:
    return error(400, "Bad Request", f"1 validation error:\n  {message}")


def _bad(message: str) -> Answer:
    return error(400, "BadRequestError", message)


class _CompletionStream(Events):
    """Events of /v1/completions."""

    __slots__ = ()

    def token(self, n: int, finish: str | None, k: int = 1) -> bytes:
        ask = self.ask
        text = spoken(ask, n, k, SPEECH_JSON)
        if finish is None and n > k and not ask.return_ids and not ask.continuous_usage:  # nearly all there is to write
            return frame(
                b'%b"choices":[{"index":0,"text":"%b","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}\n\n'
                % (self.opening, text)
            )
        ids = spoken_ids(ask, n, k) if ask.return_ids else b"null"
        prompt_ids = id_list(ask.prompt) if ask.return_ids and n == k else b"null"
        payload = (
            b'%b"choices":[{"index":0,"text":"%b","logprobs":null,"finish_reason":%b,"stop_reason":null,"prompt_token_ids":%b,"token_ids":%b}]'
            % (
                self.opening,
                text,
                finish_json(finish),
                prompt_ids,
                ids,
            )
        )
        if ask.continuous_usage:
            payload += b',"usage":%b' % _usage(ask.isl, n)
        if finish is None:
            return frame(payload + b"}\n\n")
        if ask.include_usage:
            return frame(payload + b"}\n\n") + _total(self.opening, ask.isl, n) + END
        return frame(payload + b',"system_fingerprint":"%b"}\n\n' % _FINGERPRINT.encode()) + END


class _ChatStream(Events):
    """Events of /v1/chat/completions."""

    __slots__ = ()

    def token(self, n: int, finish: str | None, k: int = 1) -> bytes:
        ask = self.ask
        text = spoken(ask, n, k, SPEECH_JSON)
        ids = spoken_ids(ask, n, k) if ask.return_ids else b"null"
        usage = b',"usage":%b' % _chat_usage(ask.isl, n) if ask.continuous_usage else b""
        role = self._role() if n == k else b""
        if finish is None:
            return role + frame(
                b'%b"choices":[{"index":0,"delta":{"content":"%b"},"logprobs":null,"finish_reason":null,"token_ids":%b}]%b}\n\n'
                % (self.opening, text, ids, usage)
            )
        last = (
            b'%b"choices":[{"index":0,"delta":{"content":"%b"},"logprobs":null,"finish_reason":"%b","stop_reason":null,"token_ids":%b}]%b'
            % (self.opening, text, finish.encode(), ids, usage)
        )
        if ask.include_usage:
            return role + frame(last + b"}\n\n") + _total(self.opening, ask.isl, n) + END
        return role + frame(last + b',"system_fingerprint":"%b"}\n\n' % _FINGERPRINT.encode()) + END

    def _role(self) -> bytes:
        ask = self.ask
        usage = b',"usage":%b' % _chat_usage(ask.isl, 0) if ask.continuous_usage else b""
        prompt_ids = id_list(ask.prompt if ask.return_ids else None)
        return frame(
            b'%b"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]%b,"prompt_token_ids":%b,"prompt_text":null}\n\n'
            % (self.opening, usage, prompt_ids)
        )


def _usage(isl: int, n: int) -> bytes:
    return b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}' % (isl, isl + n, n)


def _total(start: bytes, isl: int, n: int) -> bytes:
    """The event before the end that has no choice, only the usage."""
    return frame(b'%b"choices":[],"usage":%b,"system_fingerprint":"%b"}\n\n' % (start, _usage(isl, n), _FINGERPRINT.encode()))


def _chat_usage(isl: int, n: int) -> bytes:
    return b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"completion_tokens_details":null}' % (isl, isl + n, n)


class VllmDialect:
    """The server side of vLLM."""

    def route(self, path: str) -> Route | None:
        """The generation route of a path."""
        return _ROUTES.get(path)

    def holds_head(self, route: Route) -> bool:
        """The head goes out as soon as the request is in the queue."""
        return False

    def failure(self, status: int, message: str) -> Answer:
        """A dead engine is 500, one that can be asked again 503."""
        return error(status, "ServiceUnavailableError" if status == 503 else "InternalServerError", message)

    def read(self, context: Context, route: Route, body: bytes) -> Ask:
        """Understand a request. Asking for more output than fits is not an error: it ends early, by length."""
        asked = load(body, _invalid)
        self._check_model(context, asked.get("model"))
        options = asked.get("stream_options")
        is_stream = asked.get("stream") is True
        if options is not None and not is_stream:
            raise Refused(_invalid("Stream options can only be defined when `stream=True`."))
        options = options if isinstance(options, dict) else {}
        check_one_choice(asked, _bad)
        model, bos = context.engine.model, context.engine.model.has_bos
        limit = context.engine.context

        def check(at_least: int) -> None:
            self._check_length(at_least, None, limit)

        if route == "chat":
            prompt = read_messages(asked.get("messages"), bos and asked.get("add_special_tokens") is True, _invalid, check)
            wanted = read_chat_length(asked, _invalid)
        else:
            prompt = read_prompt(
                asked.get("prompt"), model.vocab, bos and asked.get("add_special_tokens") is not False, _bad, check
            )
            wanted = read_int(asked, "max_tokens", _invalid)
            wanted = _DEFAULT_MAX_TOKENS if wanted is None else wanted
        self._check_length(len(prompt), wanted, limit)
        room = limit - len(prompt)
        priority = read_priority(asked, _invalid)
        if priority and not context.engine.state.is_by_priority:
            raise Refused(_bad(f"Got priority {priority} but Priority scheduling is not enabled."))
        ignore_eos = asked.get("ignore_eos") is True
        include_usage = options.get("include_usage") is True
        return Ask(
            route=route,
            model=context.served_model,
            isl=len(prompt),
            prompt=prompt,
            max_new=min(room, wanted) if wanted else room,
            stop_at=read_end(asked, prompt, _invalid, -(2**63)),
            to_length=ignore_eos,
            start=speech_start(prompt),
            is_stream=is_stream,
            include_usage=include_usage,
            continuous_usage=include_usage and options.get("continuous_usage_stats") is True,
            return_ids=asked.get("return_token_ids") is True,
            priority=priority,
        )

    def check_room(self, context: Context, ask: Ask) -> None:
        """`--max-num-queued-reqs` and `--max-num-queued-tokens`: 503 while so many wait; without them the queue has no end."""
        if (full := context.engine.full_queue(ask.isl)) is not None:
            raise Refused(error(503, "Service Unavailable", full.words), full.limit)

    def stream(self, ask: Ask, request_id: str | None, created: int) -> Stream:
        """The encoder of a streamed answer."""
        kind = _ChatStream if ask.route == "chat" else _CompletionStream
        return kind(ask, opening(ask, prefixed(ask, request_id), created))

    def aborted(self, path: str, body: bytes) -> Aborted | None:
        """As in dev mode: without ids, everything."""
        if path != "/abort_requests":
            return None
        ids = load(body or b"{}", _invalid).get("request_ids")
        return tuple(str(one) for one in ids) if isinstance(ids, list) else "all"

    def whole(self, ask: Ask, request_id: str | None, created: int, n: int, finish: str, cached: int = 0) -> bytes:
        """An answer in one piece. Cached tokens are not told: that takes a flag."""
        ids = ids_until(ask, n) if ask.return_ids else None
        prompt_ids = list(ask.prompt) if ask.prompt is not None and ask.return_ids else None
        choice: dict[str, Any]
        if ask.route == "chat":
            message = {"role": "assistant", "content": text_until(ask, n), "refusal": None, "annotations": None, "audio": None}
            message |= {"function_call": None, "reasoning": None}
            choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish, "stop_reason": None}
            choice |= {"token_ids": ids, "routed_experts": None}
        else:
            choice = {"index": 0, "text": text_until(ask, n), "logprobs": None, "finish_reason": finish, "stop_reason": None}
            choice |= {"token_ids": ids, "prompt_logprobs": None, "prompt_token_ids": prompt_ids, "routed_experts": None}
        usage = {"prompt_tokens": ask.isl, "total_tokens": ask.isl + n, "completion_tokens": n}
        usage_details = {"prompt_tokens_details": None, "completion_tokens_details": None}
        answer = head_of_whole(ask, prefixed(ask, request_id), created) | {
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": _FINGERPRINT,
            "usage": usage | usage_details,
        }
        if ask.route == "chat":
            answer |= {"prompt_logprobs": None, "prompt_token_ids": prompt_ids, "prompt_text": None}
        return orjson.dumps(answer | {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None})

    def get(self, context: Context, path: str, query: Mapping[str, str]) -> Answer | None:
        """Health, version, models, load, metrics; /server_info as in dev mode."""
        match path:
            case "/health" | "/ping":
                return Answer(b"", content_type="")
            case "/version":
                return Answer.json({"version": VERSION})
            case "/v1/models":
                return Answer.json(_models(context))
            case "/load":
                state = context.engine.state
                return Answer.json({"server_load": len(state.running) + len(state.waiting)})
            case "/metrics" | "/metrics/":
                return Answer(prometheus.vllm(context), content_type=TEXT)
            case "/server_info":
                return Answer.json(_server_info(context))
        return None

    def post(self, context: Context, path: str, body: bytes) -> Answer | None:
        """Tokenizer routes."""
        match path:
            case "/ping":
                return Answer(b"", content_type="")
            case "/tokenize":
                asked = load(body, _invalid)
                self._check_model(context, asked.get("model"))
                ids = tokenize(context, asked, _invalid, chat_bos=asked.get("add_special_tokens") is True)
                return Answer.json(
                    {"count": len(ids), "max_model_len": context.engine.context, "tokens": ids, "token_strs": None}
                )
            case "/detokenize":
                return detokenize(body, "prompt", _invalid)
        return None

    @staticmethod
    def _check_model(context: Context, model: object) -> None:
        if model and model != context.served_model:
            message = f"The model `{model}` does not exist. Valid aliases: {context.served_model}."
            raise Refused(error(404, "NotFoundError", message, "model"))

    @staticmethod
    def _check_length(isl: int, wanted: int | None, limit: int) -> None:
        if isl >= limit:
            message = (
                f"This model's maximum context length is {limit} tokens. However, your prompt contains at least {isl} input "
                "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input "
                f"prompt. (parameter=input_tokens, value={isl})"
            )
            raise Refused(error(400, "BadRequestError", message, "input_tokens"))
        if wanted is not None and wanted > limit:
            message = (
                f"This model's maximum context length is {limit} tokens. However, you requested {wanted} output tokens. "
                f"Please reduce the number of requested output tokens. (parameter=max_tokens, value={wanted})"
            )
            raise Refused(error(400, "BadRequestError", message, "max_tokens"))


def _models(context: Context) -> dict[str, object]:
    permission = {
        "id": "modelperm-simulated",
        "object": "model_permission",
        "created": context.started,
        "allow_create_engine": False,
    }
    permission |= {"allow_sampling": True, "allow_logprobs": False, "allow_search_indices": False, "allow_view": True}
    permission |= {"allow_fine_tuning": False, "organization": "*", "group": None, "is_blocking": False}
    model = model_card(context, "vllm")
    model |= {"root": context.served_model, "parent": None, "max_model_len": context.engine.context, "permission": [permission]}
    return {"object": "list", "data": [model]}


def _server_info(context: Context) -> dict[str, object]:
    options = context.engine.options
    if not isinstance(options, VllmV1Options):  # an engine that only borrows this interface: its flags as they are
        config = {"scheduler_config": asdict(options), "parallel_config": {}, "cache_config": {}, "speculative_config": None}
        return {"vllm_config": config | {"kv_transfer_config": None}, "vllm_env": {}, "system_env": {}}
    scheduler = {
        "max_num_batched_tokens": options.max_num_batched_tokens,
        "max_num_seqs": options.max_num_seqs,
        "max_model_len": options.max_model_len,
        "enable_chunked_prefill": options.enable_chunked_prefill,
        "long_prefill_token_threshold": options.long_prefill_token_threshold,
        "scheduler_reserve_full_isl": options.scheduler_reserve_full_isl,
        "watermark": options.watermark,
        "policy": options.scheduling_policy,
        "async_scheduling": options.async_scheduling,
        "max_num_queued_reqs": options.max_num_queued_reqs,
        "max_num_queued_tokens": options.max_num_queued_tokens,
        "stream_interval": 1,
    }
    parallel = {
        "tensor_parallel_size": options.tensor_parallel_size,
        "pipeline_parallel_size": options.pipeline_parallel_size,
        "data_parallel_size": 1,
    }
    cache = {
        "block_size": options.block_size,
        "gpu_memory_utilization": options.gpu_memory_utilization,
        "cache_dtype": options.kv_cache_dtype,
        "enable_prefix_caching": options.enable_prefix_caching,
    }
    speculative = None
    if options.num_speculative_tokens:
        speculative = {"method": options.speculative_method, "num_speculative_tokens": options.num_speculative_tokens}
    config = {"scheduler_config": scheduler, "parallel_config": parallel, "cache_config": cache}
    config["speculative_config"] = speculative
    return {"vllm_config": config | {"kv_transfer_config": None}, "vllm_env": {}, "system_env": {}}
