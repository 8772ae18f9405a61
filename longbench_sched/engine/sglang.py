"""SGLang: the OpenAI routes, and its own /generate, whose events repeat what came before unless told otherwise.

Completions send one event a scheduler step, with empty text too, and the last tokens come with the finish reason. A chat
sends no event for a step without text, and its finish event holds no token. `meta_info.completion_tokens` of /generate is
cumulative whether the text is or not, and is the only count used there.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import orjson

from longbench_sched.engine.answer import AnswerDecoder
from longbench_sched.engine.dialect import MAX_KEPT_ERROR_BYTES, Dialect, HttpRequest
from longbench_sched.engine.error_body import ServerError, read_code, read_word
from longbench_sched.engine.openai import DEFAULT_SAMPLING, HEADERS, Fields, OpenAiDialect, prompt_value
from longbench_sched.engine.verdict import Rules
from longbench_sched.plan import Request, Sampling
from longbench_sched.target import Api, CountMode

_COMPLETIONS = Rules(empty_text_is_token=True)
_CHAT = Rules(infers_tokens=False)  # steps without text send no event, so events under-count
_GENERATE = Rules(infers_tokens=False)
_FIELDS = Fields()


class GenerateDialect:
    """SGLang's own /generate."""

    engine = "sglang"
    api: Api = "generate"
    takes_token_ids = True

    def encode(self, request: Request, model: str) -> HttpRequest:
        """The HTTP request that asks for this; the model is the one served, so its name is not sent."""
        key = "text" if isinstance(request.prompt, str) else "input_ids"
        options = self.sent_options(request.sampling)
        sampling = {"max_new_tokens": request.osl, **{k: v for k, v in options.items() if k != "stream"}}
        body: dict[str, object] = {key: prompt_value(request.prompt), "sampling_params": sampling, "stream": True}
        if request.priority:
            body["priority"] = request.priority
        return HttpRequest("POST", "/generate", HEADERS, orjson.dumps(body))

    def decoder(self, request: Request, *, keep_text: bool = False) -> AnswerDecoder:
        """A fresh decoder for the answer to this request."""
        return GenerateDecoder(request, _GENERATE, keep_text=keep_text)

    def sent_options(self, sampling: Sampling = DEFAULT_SAMPLING) -> Mapping[str, object]:
        """The fields sent beside prompt and length."""
        options: dict[str, object] = {"stream": True, "temperature": sampling.temperature, "top_p": sampling.top_p}
        if sampling.ignore_eos:
            options["ignore_eos"] = True
        if sampling.seed is not None:
            options["sampling_seed"] = sampling.seed
        return options


class GenerateDecoder(AnswerDecoder):
    """Reads /generate, cumulative or incremental."""

    __slots__ = ()

    def _read(self, event: dict[str, Any], at_ns: int, lateness_ns: int) -> None:
        meta = event.get("meta_info")
        if not isinstance(meta, dict):
            self._read_rest(event)
            return
        tokens = self._count(None, meta)
        text = event.get("text")
        if tokens > 0:
            self._add(at_ns, lateness_ns, tokens)
            if text and self._answer_at_ns is None:
                self._answer_at_ns = at_ns
            if text and self._texts is not None:
                self._texts.append(str(text))
        finish = meta.get("finish_reason")
        if finish is not None:
            self._finish_ns = at_ns
            self._read_finish(finish)

    def _read_finish(self, finish: object) -> None:
        """An object here, `{"type": "length", "length": 6}`; a string in case another version says it so."""
        if not isinstance(finish, dict):
            self._finish_reason = read_word(finish)
            return
        self._finish_reason = read_word(finish.get("type"))
        message, code = finish.get("message"), finish.get("status_code")
        if message:
            self._finish_error = ServerError(read_word(message, MAX_KEPT_ERROR_BYTES), code=read_code(code))

    def _text(self) -> str | None:
        return None if self._texts is None else join_texts(self._texts)


def join_texts(texts: list[str]) -> str:
    """The whole text of a stream that repeats what came before in each event, or does not: nothing else tells."""
    is_cumulative = all(later.startswith(earlier) for earlier, later in pairwise(texts))
    return texts[-1] if texts and is_cumulative else "".join(texts)


def make(api: Api, count: CountMode) -> Dialect:
    """The dialect of SGLang for one API. /generate always sends its counts."""
    if api == "generate":
        return GenerateDialect()
    return OpenAiDialect("sglang", api, count, _CHAT if api == "chat" else _COMPLETIONS, _FIELDS)
