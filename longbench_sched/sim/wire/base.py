"""What all dialects share: a request as understood, answers, and the framing of streams."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import orjson

from longbench_sched.sim import tokens
from longbench_sched.sim.engine import Engine

MEAN_NATURAL_LENGTH = 200  # output tokens of a request that may end by itself
MOST_CONTEXTS = 4  # of text are tokenized at once: everybody waits meanwhile

JSON = "application/json"
EVENTS = "text/event-stream; charset=utf-8"
TEXT = "text/plain; version=0.0.4; charset=utf-8"

DONE = b"data: [DONE]\n\n"
LAST_CHUNK = b"0\r\n\r\n"

Route = Literal["completions", "chat", "generate"]


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP answer."""

    body: bytes
    status: int = 200
    content_type: str = JSON

    @classmethod
    def json(cls, value: object, status: int = 200) -> Answer:
        """An answer whose body is compact JSON."""
        return cls(orjson.dumps(value), status)


class Refused(Exception):
    """The request is answered without running it; `limit` names the limit of the queue that was met, if that is why."""

    def __init__(self, answer: Answer, limit: str | None = None) -> None:
        super().__init__(answer.status)
        self.answer = answer
        self.limit = limit


@dataclass(frozen=True, slots=True)
class Ask:
    """A generation request as the engine understood it."""

    route: Route
    model: str  # as it is echoed
    isl: int
    prompt: array[int] | None  # None once nobody needs its ids any more: thousands of long prompts may be in flight
    max_new: int
    stop_at: int | None  # output tokens after which it ends by itself
    to_length: bool  # ignore_eos was given
    start: int  # where in the speech it begins
    is_stream: bool = True
    include_usage: bool = False
    continuous_usage: bool = False
    return_ids: bool = False
    detokenize: bool = True
    cache_report: bool = False  # usage tells cached prompt tokens
    priority: int = 0


Aborted = Literal["all"] | tuple[str, ...]  # request ids


class Stream(Protocol):
    """The answer to one request, token by token, as bytes for the wire (chunked framing included)."""

    cached: int  # prompt tokens found in a cache; known with the first token

    def token(self, n: int, finish: str | None, k: int = 1) -> bytes:
        """What is written when `k` tokens came together, the last of them output token `n` (from 1).

        `finish` is the reason if it is the last of all; with `k` 0 the answer ends without a further token.
        """
        ...


@dataclass(slots=True)
class Tally:
    """What the server has counted beside the engine's own counters."""

    cached_tokens: int = 0  # of prompts whose first token has come
    rejected: dict[str, int] = field(default_factory=dict)  # refused since the queue was full, by the limit that was met


@dataclass(frozen=True, slots=True)
class Context:
    """What a dialect may know of the server when it answers."""

    engine: Engine
    served_model: str
    started: int  # unix seconds
    now_s: float = 0.0  # engine time
    tally: Tally = field(default_factory=Tally)


class ServerDialect(Protocol):
    """One engine's HTTP interface."""

    def read(self, context: Context, route: Route, body: bytes) -> Ask:
        """Understand a request body. Raises Refused."""
        ...

    def stream(self, ask: Ask, request_id: str | None, created: int) -> Stream:
        """The encoder of a streamed answer."""
        ...

    def whole(self, ask: Ask, request_id: str | None, created: int, n: int, finish: str, cached: int = 0) -> bytes:
        """The body of an answer in one piece; `cached` prompt tokens were found in a cache."""
        ...

    def aborted(self, path: str, body: bytes) -> Aborted | None:
        """Which requests a POST to this path aborts; None if that is no such path."""
        ...

    def check_room(self, context: Context, ask: Ask) -> None:
        """Refuse a request where the queue is limited and full. Raises Refused."""
        ...

    def get(self, context: Context, path: str, query: Mapping[str, str]) -> Answer | None:
        """Answer a GET; None for a path that does not exist."""
        ...

    def post(self, context: Context, path: str, body: bytes) -> Answer | None:
        """Answer a POST that generates nothing; None for a path that does not exist. May raise Refused."""
        ...

    def route(self, path: str) -> Route | None:
        """The generation route of a path."""
        ...

    def holds_head(self, route: Route) -> bool:
        """Whether the head of a streamed answer waits for the first event."""
        ...

    def failure(self, status: int, message: str) -> Answer:
        """What the engine answers when it has failed itself, in its own form."""
        ...


SPEECH_IDS = tuple(utterance.id for utterance in tokens.SPEECH)
SPEECH_TEXT = tuple(utterance.text for utterance in tokens.SPEECH)
# JSON strings without their quotes.
SPEECH_JSON = tuple(orjson.dumps(text)[1:-1] for text in SPEECH_TEXT)
# For an engine that never shows an empty text: the two halves of the split character are said as dashes.
WHOLE_TEXT = tuple("-" if utterance.id in tokens.SPLIT_IDS else utterance.text for utterance in tokens.SPEECH)
WHOLE_JSON = tuple(orjson.dumps(text)[1:-1] for text in WHOLE_TEXT)
N_SPEECH = len(SPEECH_IDS)


def frame(payload: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


END = frame(DONE) + LAST_CHUNK  # of every stream


@dataclass(slots=True)
class Events:
    """The events of a streamed answer."""

    ask: Ask
    opening: bytes  # how each begins
    cached: int = 0


def opening(ask: Ask, answer_id: str | None, created: int) -> bytes:
    """How each event of a streamed answer begins: `data:`, then its object up to the comma behind the model."""
    kind = "chat.completion.chunk" if ask.route == "chat" else "text_completion"
    start = orjson.dumps({"id": answer_id, "object": kind, "created": created, "model": ask.model})
    return b"data: " + start[:-1] + b","


def prefixed(ask: Ask, request_id: str | None) -> str:
    """The id of an answer where it names the route: `cmpl-...`, `chatcmpl-...`."""
    return f"{'chatcmpl' if ask.route == 'chat' else 'cmpl'}-{request_id}"


def head_of_whole(ask: Ask, answer_id: str | None, created: int) -> dict[str, Any]:
    """How an answer in one piece begins."""
    kind = "chat.completion" if ask.route == "chat" else "text_completion"
    return {"id": answer_id, "object": kind, "created": created, "model": ask.model}


def finish_json(finish: str | None) -> bytes:
    """A finish reason as JSON."""
    return b'"%b"' % finish.encode() if finish else b"null"


def spoken(ask: Ask, n: int, k: int, texts: Sequence[bytes]) -> bytes:
    """The last `k` of the first `n` output tokens as text; EOS says nothing."""
    if k == 1:
        return b"" if n == ask.stop_at else texts[(ask.start + n - 1) % N_SPEECH]
    last = n - 1 if n == ask.stop_at else n
    return b"".join(texts[(ask.start + i) % N_SPEECH] for i in range(n - k, last))


def spoken_ids(ask: Ask, n: int, k: int) -> bytes:
    """Their ids as JSON."""
    ids = [SPEECH_IDS[(ask.start + i) % N_SPEECH] for i in range(n - k, n)]
    if n == ask.stop_at:
        ids[-1] = tokens.EOS
    return b"[%b]" % b",".join(b"%d" % one for one in ids)


def ids_until(ask: Ask, n: int) -> list[int]:
    """The first `n` output ids; the last is EOS where the request ended by itself."""
    ids = [SPEECH_IDS[(ask.start + i) % N_SPEECH] for i in range(n)]
    if n and n == ask.stop_at:
        ids[-1] = tokens.EOS
    return ids


def text_until(ask: Ask, n: int, texts: Sequence[str] = SPEECH_TEXT) -> str:
    """The text of the first `n` output tokens."""
    n_shown = n - 1 if n == ask.stop_at else n
    return "".join(texts[(ask.start + i) % N_SPEECH] for i in range(n_shown))


def load(body: bytes, refuse: Callable[[str], Answer]) -> dict[str, Any]:
    """The body as a JSON object. Raises Refused."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refused(refuse(f"JSON decode error: {error}")) from None
    if not isinstance(value, dict):
        raise Refused(refuse("Input should be a valid dictionary"))
    return value


Check = Callable[[int], object]  # raises Refused where so many prompt tokens cannot fit


def read_prompt(prompt: object, vocab: int, bos: bool, refuse: Callable[[str], Answer], check: Check) -> array[int]:
    """One prompt: text, token ids, or a list with one of these. Raises Refused.

    `check` hears before the work how many tokens there are at least: a text of many MB would take long to encode.
    """
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        check(tokens.fewest(prompt))
        ids = array("I", ([tokens.BOS] if bos else []) + tokens.encode(prompt))
    elif isinstance(prompt, list):
        try:
            ids = array("I", prompt)  # checks every element on its way
        except (TypeError, OverflowError):
            raise Refused(refuse("prompt must be a string, a list of token ids, or a list with one of these")) from None
        if ids and (largest := max(prompt)) >= vocab:  # over the list: an array would make each number anew
            raise Refused(refuse(f"Token id {largest} is out of vocabulary"))
    else:
        raise Refused(refuse("prompt must be a string, a list of token ids, or a list with one of these"))
    if not ids:
        raise Refused(refuse("prompt is empty"))
    return ids


def read_messages(messages: object, bos: bool, refuse: Callable[[str], Answer], check: Check) -> array[int]:
    """A conversation after the chat template. Raises Refused; `check` as in `read_prompt`."""
    turns: list[tuple[str, str]] = []
    if not isinstance(messages, list) or not messages:
        raise Refused(refuse("messages must be a list with at least one message"))
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise Refused(refuse("each message needs a role and content"))
        content = message.get("content")
        if isinstance(content, list):
            content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        if not isinstance(content, str):
            raise Refused(refuse("content must be a string or a list of text parts"))
        turns.append((message["role"], content))
    check(sum(tokens.fewest(role) + tokens.fewest(content) for role, content in turns))
    return array("I", ([tokens.BOS] if bos else []) + tokens.encode_chat(turns))


def read_int(body: Mapping[str, Any], key: str, refuse: Callable[[str], Answer], least: int = 0) -> int | None:
    """A whole number of the body, None if absent or null. Raises Refused."""
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise Refused(refuse(f"{key} must be a whole number of at least {least}, got {value!r}"))
    return value


def read_priority(body: Mapping[str, Any], refuse: Callable[[str], Answer]) -> int:
    """The priority of a request, 0 where none is given. Raises Refused."""
    return read_int(body, "priority", refuse, -(2**63)) or 0


def check_one_choice(body: Mapping[str, Any], refuse: Callable[[str], Answer]) -> None:
    """Refuse more than one answer to a prompt. Raises Refused."""
    if body.get("n") not in (None, 1):
        raise Refused(refuse("the embedded engine answers with one choice (n=1)"))


def read_chat_length(body: Mapping[str, Any], refuse: Callable[[str], Answer], least: int = 0) -> int | None:
    """How many tokens a chat asks for, by its new name or its old one. Raises Refused."""
    return read_int(body, "max_completion_tokens", refuse, least) or read_int(body, "max_tokens", refuse, least)


def read_end(body: Mapping[str, Any], prompt: array[int], refuse: Callable[[str], Answer], least_seed: int = 0) -> int | None:
    """Output tokens after which the answer ends by itself, from `seed`, `min_tokens` and `ignore_eos`. Raises Refused."""
    seed, min_new = read_int(body, "seed", refuse, least_seed), read_int(body, "min_tokens", refuse) or 0
    return natural_end(prompt, seed, min_new, body.get("ignore_eos") is True)


def natural_end(prompt: array[int], seed: int | None, min_new: int, ignore_eos: bool) -> int | None:
    """Output tokens after which a request ends by itself: geometric, decided by prompt and seed; never before `min_new`."""
    if ignore_eos:
        return None
    rng = random.Random(tokens.fingerprint(prompt) * 1_000_003 + (seed or 0))
    return max(min_new, 0) + 1 + int(rng.expovariate(1.0 / MEAN_NATURAL_LENGTH))


def speech_start(prompt: array[int]) -> int:
    """Where the answer to this prompt begins."""
    return tokens.STARTS[tokens.fingerprint(prompt) % len(tokens.STARTS)]


def id_list(ids: Sequence[int] | array[int] | None) -> bytes:
    """Token ids as compact JSON."""
    return orjson.dumps(None if ids is None else list(ids))


def model_card(context: Context, owner: str) -> dict[str, Any]:
    """What every engine says of its model in the list of models."""
    return {"id": context.served_model, "object": "model", "created": context.started, "owned_by": owner}


def tokenize(context: Context, body: Mapping[str, Any], refuse: Callable[[str], Answer], chat_bos: bool) -> list[int]:
    """The ids that a tokenizer route tells: of messages, else of the text under `prompt`. Raises Refused."""

    def check(at_least: int) -> None:
        most = MOST_CONTEXTS * context.engine.context
        if at_least > most:
            raise Refused(refuse(f"the text has at least {at_least} tokens; the embedded engine tokenizes up to {most}"))

    bos = context.engine.model.has_bos
    if "messages" in body:
        return list(read_messages(body["messages"], bos and chat_bos, refuse, check))
    if not isinstance(body.get("prompt"), str):
        raise Refused(refuse("prompt must be a string"))
    check(tokens.fewest(body["prompt"]))
    return ([tokens.BOS] if bos and body.get("add_special_tokens") is not False else []) + tokens.encode(body["prompt"])


def detokenize(body: bytes, key: str, refuse: Callable[[str], Answer]) -> Answer:
    """The answer of a route that turns ids into text, which stands under `key`. Raises Refused."""
    asked = load(body, refuse)
    try:
        return Answer.json({key: tokens.decode([int(i) for i in asked["tokens"]])})
    except (KeyError, TypeError, ValueError):
        return refuse("tokens must be a list of token ids")
