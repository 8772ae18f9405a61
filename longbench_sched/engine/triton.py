"""Triton's generate_stream before TensorRT-LLM. From its source; not yet run against a live server.

Prompts are text. There is no `[DONE]` and no finish reason: the end of the body is the end of the answer. `num_output_tokens`
is asked for, and whether it counts one event or all so far is told from the numbers themselves at the end. There is no
`ignore_eos`; `min_tokens` is the only way to a fixed length.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import orjson

from longbench_sched.engine.answer import AnswerDecoder
from longbench_sched.engine.counts import MAX_TOKENS
from longbench_sched.engine.dialect import HttpRequest
from longbench_sched.engine.openai import DEFAULT_SAMPLING, HEADERS, no_priorities
from longbench_sched.engine.sglang import join_texts
from longbench_sched.engine.verdict import Rules
from longbench_sched.errors import PromptError, UsageError
from longbench_sched.plan import Request, Sampling
from longbench_sched.record import UNKNOWN_TOKENS
from longbench_sched.target import Api, CountMode

_RULES = Rules(sends_done=False, sends_finish=False, infers_tokens=False)


class TritonDialect:
    """Triton's generate_stream."""

    engine = "triton"
    api: Api = "generate"
    takes_token_ids = False

    def encode(self, request: Request, model: str) -> HttpRequest:
        """The HTTP request that asks for this. Raises PromptError for token ids and for priorities."""
        if not isinstance(request.prompt, str):
            raise PromptError("--engine triton takes prompts of text, not token ids.")
        if request.priority:
            raise no_priorities(self.engine)
        body: dict[str, object] = {"text_input": request.prompt, "max_tokens": request.osl}
        if request.sampling.ignore_eos:
            body["min_tokens"] = request.osl
        body |= self.sent_options(request.sampling)
        return HttpRequest("POST", f"/v2/models/{quote(model, safe='')}/generate_stream", HEADERS, orjson.dumps(body))

    def decoder(self, request: Request, *, keep_text: bool = False) -> AnswerDecoder:
        """A fresh decoder for the answer to this request."""
        return TritonDecoder(request, _RULES, keep_text=keep_text)

    def sent_options(self, sampling: Sampling = DEFAULT_SAMPLING) -> Mapping[str, object]:
        """The fields sent beside prompt and lengths."""
        options: dict[str, object] = {
            "stream": True,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "exclude_input_in_output": True,
            "return_num_input_tokens": True,
            "return_num_output_tokens": True,
        }
        if sampling.seed is not None:
            options["seed"] = sampling.seed
        return options


class TritonDecoder(AnswerDecoder):
    """Reads generate_stream: a flat object an event."""

    __slots__ = ("_has_text",)

    def __init__(self, request: Request, rules: Rules, *, keep_text: bool = False) -> None:
        super().__init__(request, rules, keep_text=keep_text)
        self._has_text: list[bool] = []

    def _read(self, event: dict[str, Any], at_ns: int, lateness_ns: int) -> None:
        text = _scalar(event.get("text_output"))
        if text is None:
            self._read_rest(event)
            return
        n_input, n_output = _scalar(event.get("num_input_tokens")), _scalar(event.get("num_output_tokens"))
        if isinstance(n_input, int) or isinstance(n_output, int):
            self._usage = {"prompt_tokens": n_input}
        tokens = n_output if isinstance(n_output, int) and 0 <= n_output <= MAX_TOKENS else UNKNOWN_TOKENS
        if text or tokens > 0:
            self._add(at_ns, lateness_ns, tokens)
            self._has_text.append(bool(text))
            if text and self._answer_at_ns is None:
                self._answer_at_ns = at_ns
            if self._texts is not None:
                self._texts.append(str(text))

    def _settle(self) -> None:
        """Turn running totals into counts an event, and drop a last event that held neither text nor tokens."""
        counts = self._tokens.tolist()
        if UNKNOWN_TOKENS not in counts and _is_cumulative(counts, self._request.osl):
            for i in reversed(range(1, len(counts))):
                self._tokens[i] = counts[i] - counts[i - 1]
            if not self._tokens[-1] and not self._has_text[-1]:
                self._drop_last()

    def _text(self) -> str | None:
        return None if self._texts is None else join_texts(self._texts)


def _is_cumulative(counts: list[int], osl: int) -> bool:
    """Whether the counts of single events are running totals.

    They never fall then. Of two readings that both fit, the one that gives the asked length is right; if neither does, totals
    rise with every event while counts of one event mostly stay at 1.
    """
    if len(counts) < 2 or any(later < earlier for earlier, later in pairwise(counts)):
        return False
    if (counts[-1] == osl) != (sum(counts) == osl):
        return counts[-1] == osl
    return all(later > earlier for earlier, later in pairwise(counts[:-1])) and counts[-1] > counts[0]


def _scalar(value: object) -> object:
    """Triton writes a tensor of one element as a scalar or as a list of one."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def make(api: Api, count: CountMode) -> TritonDialect:
    """The dialect of Triton's generate_stream. Raises UsageError for another API."""
    if api != "generate":
        raise UsageError(f"--engine triton has no --api {api}. Known: generate.")
    return TritonDialect()
