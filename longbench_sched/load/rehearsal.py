"""Rehearsal: a request or two before the run, to see that prompts and answers get the length asked for.

An endpoint that does not honour its length controls, or counts other prompt tokens than planned, spoils every number of a run
and answers each request with 200. One request shows it. The same answer also tells what the server's streams hold (the
capability record), so that counting need not be guessed from an engine's name.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import orjson

from longbench_sched.engine.dialect import Dialect, HttpRequest, StreamDecoder
from longbench_sched.errors import TargetError
from longbench_sched.load.messages import Messages
from longbench_sched.load.probe import Preflight
from longbench_sched.load.request_head import ssl_context
from longbench_sched.load.stamps import RealtimeOffset
from longbench_sched.load.timeouts import Timeouts
from longbench_sched.load.wire import WireOptions, WireTransport
from longbench_sched.plan import Plan, Request
from longbench_sched.record import UNKNOWN_TOKENS, Decoded, Ending, Reason, Status, StreamRecord
from longbench_sched.target import Target
from longbench_sched.transport import Transport

PROBE_OSL = 2048  # a model that ends its answers mostly does so within some hundred tokens; alone 2,048 take half a minute
ISL_TOLERANCE = 0.02
ISL_SLACK = 2  # tokens: what turning a text about its middle may change
LARGE_TEMPLATE = 256  # tokens; templates without a long system prompt add 5 to 50
KEPT_BYTES = 1 << 20  # of an answer's beginning, for the capability record
RUN_ID = "preflight"


def choose_request(plan: Plan) -> Request:
    """The plan's shortest request, with at most 2,048 tokens to come out and a prompt that warms no cache for the run.

    A prompt is turned about its middle: as long (a text within a token or two), with another beginning, so that no block of it
    is the first block of a prompt to come. The text of a warm-up is sent as it is: its length is exact, and no measured prompt
    begins like it.
    """
    shortest = min(plan.requests, key=lambda request: request.isl)
    osl = min(shortest.osl, PROBE_OSL)
    if isinstance(shortest.prompt, str) and plan.warmups:
        shortest = min(plan.warmups, key=lambda request: request.isl)
        prompt = shortest.prompt
    else:
        prompt = turned(shortest.prompt)
    return replace(shortest, index=0, phase="warmup", lane=-1, prompt=prompt, osl=osl, due_s=None)


def turned(prompt: array[int] | str) -> array[int] | str:
    """The second half of a prompt, then the first; a text is cut at a space."""
    middle = len(prompt) // 2
    if isinstance(prompt, str):
        space = prompt.find(" ", middle)
        middle = space if space >= 0 else middle
        return prompt[middle:] + prompt[:middle]
    return prompt[middle:] + prompt[:middle]


def rehearse(
    preflight: Preflight,
    target: Target,
    dialect: Dialect,
    requests: Sequence[Request],
    *,
    timeouts: Timeouts | None = None,
    ca_file: Path | None = None,
    insecure: bool = False,
    proxy: str | None = None,
) -> Preflight:
    """Send the requests, one after the other, and add what they show. Raises TargetError if one of them fails."""
    listening = _Listening(dialect)
    limits = timeouts or Timeouts()

    async def send() -> list[StreamRecord]:
        transport: Transport
        if proxy is None:
            tls = ssl_context(ca_file, insecure) if target.endpoint.scheme == "https" else None
            messages = Messages(requests, listening, target, preflight.model, RUN_ID)
            options = WireOptions(stamps="user", timeouts=limits, tls=tls)
            transport = WireTransport(target.endpoint, listening, messages, lambda _: RUN_ID, RealtimeOffset(), options)
        else:
            from longbench_sched.load.http import HttpTransport  # aiohttp is loaded only where it is used

            transport = HttpTransport(
                target,
                listening,
                preflight.model,
                run_id=RUN_ID,
                timeouts=limits,
                ca_file=ca_file,
                insecure=insecure,
                proxy=proxy,
            )
        try:
            return [(await transport.stream(request, 0, 0)).record() for request in requests]
        finally:
            await transport.aclose()

    records = asyncio.run(send())
    sent = [
        _Sent(record, request, dialect.encode(request, preflight.model))
        for record, request in zip(records, requests, strict=True)
    ]
    for one in sent:
        if one.record.status is not Status.OK:
            raise _failure(one, target)
    overhead = _template_overhead(records) if target.api == "chat" else None
    lengths = [finding for one in sent if (finding := _length_finding(one)) is not None]
    prompts = [finding for record in records if (finding := _isl_finding(record, overhead or 0)) is not None]
    prompts += _template_findings(min(record.isl for record in records), overhead or 0)
    capability = read_capability(records[0], listening.bodies[0])
    return replace(
        preflight,
        findings=(*preflight.findings, *lengths, *prompts),
        template_overhead=overhead,
        capability={**capability, "length_control": "none" if lengths else sent[0].length_control},
    )


@dataclass(frozen=True, slots=True)
class _Sent:
    """One rehearsed request and what became of it."""

    record: StreamRecord
    request: Request
    http_request: HttpRequest

    @property
    def length_control(self) -> str:
        """The field by which a fixed length was asked for. JSON escapes quotes inside a prompt, so none is found there."""
        for name in ("ignore_eos", "min_tokens", "min_new_tokens"):
            if f'"{name}"'.encode() in self.http_request.body:
                return name
        return "max_tokens"


def _failure(sent: _Sent, target: Target) -> TargetError:
    decoded, url, path = sent.record.decoded, target.endpoint.url, sent.http_request.path
    words = f": {decoded.detail.rstrip('.')}" if decoded.detail else ""
    is_status = decoded.reason is Reason.HTTP_STATUS
    if is_status and sent.record.http_status == 404:
        return TargetError(
            f"{url} answers 404 to POST {path}{words}.\n"
            f"It does not speak {target.engine}'s {target.api} API, or serves no such model. "
            "Check --engine, --api and --model. No measured request was sent."
        )
    said = f"{decoded.reason} {sent.record.http_status}" if is_status else str(decoded.reason)
    return TargetError(
        f"a first request to {url}{path} failed ({said}){words}.\n"
        "Mend that, or go on without this check by --no-preflight. No measured request was sent."
    )


def _template_overhead(records: Sequence[StreamRecord]) -> int | None:
    """Prompt tokens that the server counts beyond the content, by the shortest request."""
    counted = [(record.isl, record.decoded.prompt_tokens) for record in records if record.decoded.prompt_tokens is not None]
    if not counted:
        return None
    isl, prompt_tokens = min(counted)
    return max(0, (prompt_tokens or 0) - isl)


def _isl_finding(record: StreamRecord, overhead: int) -> Mapping[str, str] | None:
    counted, expected = record.decoded.prompt_tokens, record.isl + overhead
    if counted is None or abs(counted - expected) <= max(ISL_TOLERANCE * expected, ISL_SLACK):
        return None
    return {
        "id": "ISL-MISMATCH",
        "text": f"The server counted {counted} prompt tokens where {expected} were planned (limit 2 %).",
        "cause": "Another tokenizer made the prompt, or the server cut it.",
        "next_step": "Give the model's own tokenizer with --tokenizer, or look for truncation in the server's settings.",
    }


def _template_findings(isl: int, overhead: int) -> list[Mapping[str, str]]:
    """One request cannot tell a long template from a prompt that is counted otherwise; both want to be looked at."""
    if overhead <= max(ISL_TOLERANCE * isl, LARGE_TEMPLATE):
        return []
    return [
        {
            "id": "TEMPLATE-OVERHEAD",
            "text": f"The server counted {overhead} tokens more than the {isl} of the message.",
            "cause": "A long system prompt in the chat template, or another tokenizer made the prompt.",
            "next_step": "Give the model's own tokenizer with --tokenizer, or use --api completions.",
        }
    ]


def _length_finding(sent: _Sent) -> Mapping[str, str] | None:
    made, asked = sent.record.decoded.output_tokens, sent.record.osl
    if made is None or made == asked or (made < asked and not sent.request.sampling.ignore_eos):
        return None
    control = sent.length_control
    cause = f"The endpoint does not honour {control}."
    if made < asked and control == "max_tokens":
        cause = "The model ended its answer, and this dialect has no field that forbids it."
    finish = sent.record.decoded.finish_reason
    return {
        "id": "LENGTH-CONTROL",
        "text": f"POST {sent.http_request.path} was asked for {asked} tokens and made {made} (finish reason {finish}).",
        "cause": cause,
        "next_step": "Output lengths of this run are the model's own; compare it only with runs that have them too.",
    }


def read_capability(record: StreamRecord, body: bytes) -> dict[str, object]:
    """What one answer shows of the server's streams. `None` where it does not show it. Times in ms."""
    decoded = record.decoded
    tokens = [n for n in decoded.chunk_tokens if n != UNKNOWN_TOKENS]
    first_ns = decoded.chunk_at_ns[0] if decoded.chunk_at_ns else None
    events = [line.partition(b":")[2].strip() for line in body.splitlines() if line.startswith(b"data:")]
    payloads = [event for event in events if event not in (b"", b"[DONE]")]
    return {
        "header_ms": _ms(record.sent_ns, record.header_ns),
        "first_token_ms": _ms(record.sent_ns, first_ns),
        "role_chunk": any(b'"role"' in event and b'"assistant"' in event for event in payloads[:1]),
        "usage": decoded.output_token_source == "usage",
        "usage_per_chunk": sum(b'"completion_tokens"' in event for event in payloads) > 1,
        "token_ids": any(b'"token_ids":[' in event or b'"output_ids":[' in event for event in payloads),
        "cumulative": _is_cumulative(payloads),
        "done": b"[DONE]" in events,
        "comments": decoded.n_comments,
        "token_events": len(decoded.chunk_at_ns),
        "tokens_per_event_max": max(tokens) if tokens else None,
        "prompt_tokens": decoded.prompt_tokens,
        "output_tokens": decoded.output_tokens,
        "cached_tokens": decoded.cached_tokens,
        "finish_reason": decoded.finish_reason,
    }


def _ms(start_ns: int | None, end_ns: int | None) -> float | None:
    return None if start_ns is None or end_ns is None else round((end_ns - start_ns) / 1e6, 3)


def _is_cumulative(payloads: Sequence[bytes]) -> bool | None:
    """Whether each event repeats the text of those before: the native form of SGLang's /generate."""
    texts: list[str] = []
    for payload in payloads:
        try:
            event = orjson.loads(payload)
        except orjson.JSONDecodeError:
            continue
        text = event.get("text", event.get("text_output")) if isinstance(event, dict) else None
        if isinstance(text, str):
            texts.append(text)
    if len(texts) < 2 or not texts[0]:
        return None
    return all(later.startswith(earlier) for earlier, later in pairwise(texts))


class _Listening:
    """A dialect that also keeps the beginning of each body it decodes."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._kept: list[bytearray] = []
        self.engine = dialect.engine
        self.api = dialect.api
        self.takes_token_ids = dialect.takes_token_ids
        self.encode = dialect.encode
        self.sent_options = dialect.sent_options

    @property
    def bodies(self) -> list[bytes]:
        """In the order in which the requests were made."""
        return [bytes(body) for body in self._kept]

    def decoder(self, request: Request, *, keep_text: bool = False) -> StreamDecoder:
        """A decoder whose bytes are overheard."""
        self._kept.append(bytearray())
        return _Overheard(self._dialect.decoder(request, keep_text=keep_text), self._kept[-1])


class _Overheard:
    """A decoder of which the bytes are kept."""

    def __init__(self, decoder: StreamDecoder, kept: bytearray) -> None:
        self._decoder = decoder
        self._kept = kept

    def start(self, status: int, headers: Mapping[str, str]) -> None:
        self._decoder.start(status, headers)

    def feed(self, data: bytes, at_ns: int, lateness_ns: int) -> None:
        self._kept += data[: KEPT_BYTES - len(self._kept)]
        self._decoder.feed(data, at_ns, lateness_ns)

    @property
    def n_token_events(self) -> int:
        return self._decoder.n_token_events

    def finish(self, ending: Ending, detail: str | None = None) -> Decoded:
        return self._decoder.finish(ending, detail)
