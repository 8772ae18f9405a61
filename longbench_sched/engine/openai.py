"""The OpenAI API as serving engines speak it: completions and chat. Also a dialect of its own, for servers of unknown kind.

The engines differ in small data (`Rules`, `Fields`), not in code. The plain `openai` dialect is for llama.cpp, gateways and
anything else that speaks this API: it sends standard fields only, since strict servers refuse others, and so asks for a
length by `max_tokens` alone (a model that stops early gives the mark `short-output`). A server that takes vLLM's fields, as
Dynamo's frontend does, is better asked with `--engine vllm`.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from longbench_sched.engine.answer import AnswerDecoder
from longbench_sched.engine.dialect import HttpRequest
from longbench_sched.engine.error_body import read_word
from longbench_sched.engine.verdict import Rules
from longbench_sched.errors import PromptError, UsageError
from longbench_sched.plan import Request, Sampling
from longbench_sched.record import UNKNOWN_TOKENS
from longbench_sched.target import Api, CountMode

HEADERS = (("Content-Type", "application/json"), ("Accept", "text/event-stream"))
PATHS: Mapping[Api, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
DEFAULT_SAMPLING = Sampling()


@dataclass(frozen=True, slots=True)
class Fields:
    """Which fields an engine takes beyond the standard ones."""

    ignore_eos: bool = True
    continuous_usage: bool = True  # stream_options.continuous_usage_stats is honoured
    chat_length: str = "max_completion_tokens"
    priority: bool = True


class OpenAiDialect:
    """One engine's completions or chat API."""

    def __init__(self, engine: str, api: Api, count: CountMode, rules: Rules, fields: Fields) -> None:
        if api not in PATHS:
            raise UsageError(f"--engine {engine} has no --api {api}. Known: {', '.join(PATHS)}.")
        self.engine = engine
        self.api = api
        self.takes_token_ids = api == "completions"
        self._rules = rules
        self._fields = fields
        self._stream_options = {"include_usage": True}
        if fields.continuous_usage and count == "full":
            self._stream_options["continuous_usage_stats"] = True

    def encode(self, request: Request, model: str) -> HttpRequest:
        """The HTTP request that asks for this. Raises PromptError for token ids in a chat."""
        body: dict[str, object] = {"model": model}
        if self.api == "chat":
            if not isinstance(request.prompt, str):
                raise PromptError(f"--engine {self.engine} --api chat takes prompts of text, not token ids.")
            body["messages"] = [{"role": "user", "content": request.prompt}]
            body[self._fields.chat_length] = request.osl
        else:
            body["prompt"] = prompt_value(request.prompt)
            body["max_tokens"] = request.osl
        body |= self.sent_options(request.sampling)
        if request.priority:
            if not self._fields.priority:
                raise no_priorities(self.engine)
            body["priority"] = request.priority
        return HttpRequest("POST", PATHS[self.api], HEADERS, orjson.dumps(body))

    def decoder(self, request: Request, *, keep_text: bool = False) -> AnswerDecoder:
        """A fresh decoder for the answer to this request."""
        kind = ChatDecoder if self.api == "chat" else CompletionsDecoder
        return kind(request, self._rules, keep_text=keep_text)

    def sent_options(self, sampling: Sampling = DEFAULT_SAMPLING) -> Mapping[str, object]:
        """The fields sent beside model, prompt and length."""
        options: dict[str, object] = {
            "stream": True,
            "stream_options": self._stream_options,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        if sampling.ignore_eos and self._fields.ignore_eos:
            options["ignore_eos"] = True
        if sampling.seed is not None:
            options["seed"] = sampling.seed
        return options


def no_priorities(engine: str) -> PromptError:
    """What to raise where an engine takes no priorities."""
    return PromptError(f"--engine {engine} takes no priorities. Leave priority out of the workload's lanes.")


def prompt_value(prompt: array[int] | str) -> list[int] | str:
    """The prompt as JSON takes it."""
    return prompt if isinstance(prompt, str) else prompt.tolist()


class CompletionsDecoder(AnswerDecoder):
    """Reads /v1/completions."""

    __slots__ = ()

    def _read(self, event: dict[str, Any], at_ns: int, lateness_ns: int) -> None:
        choices = event.get("choices")
        if not choices or choices.__class__ is not list or choices[0].__class__ is not dict:
            self._read_rest(event)
            return
        choice = choices[0]
        text = choice.get("text")
        usage = event.get("usage")
        finish = choice.get("finish_reason")
        ids = choice.get("token_ids")
        tokens = UNKNOWN_TOKENS if usage is None and ids is None else self._count(ids, usage)
        if text or tokens > 0 or (tokens < 0 and text == "" and self._rules.empty_text_is_token):
            if tokens < 0:
                self._lose_count(usage)
                self._is_bare_finish_last = finish is not None and not text
            self._add(at_ns, lateness_ns, tokens)
            if text:
                if self._answer_at_ns is None:
                    self._answer_at_ns = at_ns
                if self._texts is not None:
                    self._texts.append(str(text))
        if finish is not None:
            self._finish_reason = read_word(finish)
            self._finish_ns = at_ns
        if self._n_events == 1:
            self._read_prompt_ids(choice.get("prompt_token_ids"))

    def _read_prompt_ids(self, ids: object) -> None:
        if isinstance(ids, list):
            self._prompt_ids = len(ids)


class ChatDecoder(CompletionsDecoder):
    """Reads /v1/chat/completions: role events, reasoning beside the answer, tool calls."""

    __slots__ = ()

    def _read(self, event: dict[str, Any], at_ns: int, lateness_ns: int) -> None:
        choices = event.get("choices")
        if not choices or choices.__class__ is not list or choices[0].__class__ is not dict:
            self._read_rest(event)
            return
        choice = choices[0]
        delta = choice.get("delta") or choice.get("message") or {}  # `message` in an answer that is no stream
        if delta.__class__ is not dict:
            delta = {}
        content = delta.get("content")
        reasoning = delta.get("reasoning") or delta.get("reasoning_content")
        answer = content or delta.get("tool_calls") or delta.get("function_call")
        usage = event.get("usage")
        finish = choice.get("finish_reason")
        ids = choice.get("token_ids")
        tokens = UNKNOWN_TOKENS if usage is None and ids is None else self._count(ids, usage)
        is_empty_token = tokens < 0 and content == "" and "role" not in delta and self._rules.empty_text_is_token
        if answer or reasoning or tokens > 0 or is_empty_token:
            if tokens < 0:
                self._lose_count(usage)
                self._is_bare_finish_last = finish is not None and not (answer or reasoning)
            self._add(at_ns, lateness_ns, tokens)
            if answer and self._answer_at_ns is None:
                self._answer_at_ns = at_ns
            if self._texts is not None:
                self._texts += [part for part in (reasoning, content) if isinstance(part, str)]
        elif self._unknown_field is None and not self._at:
            self._unknown_field = _unknown_text(delta)
        if finish is not None:
            self._finish_reason = read_word(finish)
            self._finish_ns = at_ns
        if self._n_events == 1:
            self._read_prompt_ids(event.get("prompt_token_ids"))


def _unknown_text(delta: dict[str, Any]) -> str | None:
    """A field of a delta without tokens that holds text all the same: a server's new name for its reasoning, say."""
    found = (key for key, value in delta.items() if isinstance(value, str) and value and key not in _NO_TEXT)
    return next((read_word(key) for key in found), None)


_NO_TEXT = frozenset({"role", "name", "id", "type", "object"})

# "[DONE]" and usage come from most such servers but not from all; what is missing is marked, not failed.
_RULES = Rules(sends_done=False, good_finish=frozenset({"stop", "length", "tool_calls", "function_call"}))
_FIELDS = Fields(ignore_eos=False, continuous_usage=False, chat_length="max_tokens")


def make(api: Api, count: CountMode) -> OpenAiDialect:
    """The dialect of a server of unknown kind."""
    return OpenAiDialect("openai", api, count, _RULES, _FIELDS)
