"""One answer, read as it came: framing, events and stamps, the same for every dialect.

A dialect's own decoder is a subclass that says what one JSON event holds (`_read`). What an event with generated tokens is, how
tokens are counted and what success is are explained in docs/engines.md.

Speed matters here: this runs on the client's one core beside the timed path, once for every event. The usual piece, one whole
event in one read, is recognised by a few comparisons of bytes and parsed at once; everything else goes through the splitter,
with the same result.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping
from typing import Any

import orjson

from longbench_sched.engine import marks
from longbench_sched.engine.counts import MAX_TOKENS, count_output, count_prompt, whole
from longbench_sched.engine.dialect import MAX_EVENT_BYTES
from longbench_sched.engine.error_body import ServerError, clean, read_error
from longbench_sched.engine.sse import EventSplitter
from longbench_sched.engine.verdict import Rules, Seen, judge
from longbench_sched.plan import Request
from longbench_sched.record import UNKNOWN_TOKENS, Decoded, Ending, Status, TokenSource

_KEPT_HEAD_BYTES = 64 << 10  # of a body that is no stream of events
_DONE = b"[DONE]"


class AnswerDecoder(ABC):
    """Reads one answer. Calls: start, feed..., finish. Subclasses say what an event holds."""

    __slots__ = (
        "_add_at", "_add_lateness", "_add_tokens", "_answer_at_ns", "_at", "_body", "_body_at", "_body_size", "_counted",
        "_done", "_error", "_finish_error", "_finish_ns", "_finish_reason", "_first_byte_ns", "_headers", "_http_status",
        "_is_bare_finish_last", "_is_document", "_is_stream", "_lateness", "_malformed", "_marks", "_n_by_ids", "_n_events",
        "_prompt_ids", "_request", "_rules", "_splitter", "_texts", "_tokens", "_unknown_field", "_usage",
    )  # fmt: skip

    def __init__(self, request: Request, rules: Rules, *, keep_text: bool = False) -> None:
        self._request = request
        self._rules = rules
        self._texts: list[str] | None = [] if keep_text else None
        self._splitter = EventSplitter()
        self._http_status: int | None = None
        self._headers: Mapping[str, str] = {}
        self._is_stream = False
        self._body: list[bytes] = []  # of a body that is no stream, or may turn out to be none
        self._body_at = (0, 0)  # stamp and lateness of its last piece
        self._body_size = 0
        self._is_document = False  # the answer was one JSON document
        self._n_events = 0  # complete events with a payload
        self._done = False
        self._error: ServerError | None = None
        self._malformed: str | None = None
        self._at: array[int] = array("q")
        self._tokens: array[int] = array("i")
        self._lateness: array[int] = array("q")
        self._add_at = self._at.append
        self._add_tokens = self._tokens.append
        self._add_lateness = self._lateness.append
        self._first_byte_ns: int | None = None
        self._answer_at_ns: int | None = None
        self._finish_ns: int | None = None
        self._finish_reason: str | None = None
        self._finish_error: ServerError | None = None
        self._is_bare_finish_last = False  # the last token-bearing event is a finish event with empty text and no counts
        self._n_by_ids = 0
        self._counted: int | None = 0  # output tokens up to here; None while unknown
        self._usage: dict[str, Any] | None = None  # the latest one
        self._prompt_ids: int | None = None
        self._unknown_field: str | None = None  # a field of unknown name that held text where no known one did
        self._marks: list[str] = []

    def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Take the status and the headers (names in lower case)."""
        self._http_status = status
        self._headers = headers
        # A missing type is read as a stream: it was asked for, and a body without events is looked at again at the end.
        kind = headers.get("content-type", "text/event-stream").lower()
        self._is_stream = status == 200 and kind.startswith("text/event-stream")

    def feed(self, data: bytes, at_ns: int, lateness_ns: int) -> None:
        """Take the next piece of the body and the stamp of the read that completed it."""
        if self._splitter.idle and data[:6] == b"data: " and data[-2:] == b"\n\n" and not self._done:
            payload = data[6:-2]
            if 10 not in payload and 13 not in payload:  # no line end inside: exactly one event
                try:
                    event = orjson.loads(payload)
                except orjson.JSONDecodeError:
                    event = None  # looked at again below
                if event.__class__ is dict:
                    self._n_events += 1
                    if event.get("error"):
                        self._error = self._error or read_error(event)
                    else:
                        self._read(event, at_ns, lateness_ns)
                    return
        if not data:
            return
        if self._first_byte_ns is None:
            self._first_byte_ns = at_ns
        if not self._n_events:
            self._keep_body(data, at_ns, lateness_ns)
        if self._is_stream:
            for payload, name in self._splitter.feed(data):
                self._take(payload, name, at_ns, lateness_ns)

    @property
    def n_token_events(self) -> int:
        """Token-bearing events so far."""
        return len(self._at)

    def finish(self, ending: Ending, detail: str | None = None) -> Decoded:
        """Say what came. Called once; also without `start` when no answer came."""
        ending = self._true_ending(ending)
        if ending is Ending.COMPLETE and self._http_status == 200 and not self._n_events:
            self._read_document()
        self._settle()
        status, reason, words = judge(self._seen(), ending, self._rules)
        decoded = Decoded(
            chunk_at_ns=self._at,
            chunk_tokens=self._tokens,
            chunk_lateness_ns=self._lateness,
            answer_at_ns=self._answer_at_ns,
            first_byte_ns=self._first_byte_ns,
            finish_ns=self._finish_ns,
            n_shared_reads=len(self._at) - len(set(self._at)),  # a read has one stamp, and no two reads share one
            n_comments=self._splitter.n_comments,
            finish_reason=self._finish_reason,
            status=status,
            reason=reason,
            detail=clean(words or detail or "") or None if status is not Status.OK else None,
            error_code=self._error_code(),
            marks=self._marks,
            text=self._text(),
        )
        count_output(decoded, self._usage, self._n_by_ids, infers_tokens=self._rules.infers_tokens)
        count_prompt(decoded, self._usage, self._prompt_ids)
        self._mark(decoded, is_complete=ending is Ending.COMPLETE)
        return decoded

    # What subclasses provide and use

    @abstractmethod
    def _read(self, event: dict[str, Any], at_ns: int, lateness_ns: int) -> None:
        """Take one JSON event that is no error."""

    def _text(self) -> str | None:
        return None if self._texts is None else "".join(self._texts)

    def _count(self, ids: object, usage: object) -> int:
        """Tokens of an event by its token ids or its running usage; UNKNOWN_TOKENS if neither says.

        A running count gives a difference only if the count up to the event before is known: a usage that comes for the first
        time in a finish event (llama.cpp) counts the whole answer, not that event.
        """
        n = UNKNOWN_TOKENS
        known = self._counted
        if ids.__class__ is list:
            n = len(ids)
            self._n_by_ids += n > 0
            if known is not None:
                self._counted = known + n
        if usage.__class__ is dict:
            self._usage = usage
            total = usage.get("completion_tokens")
            if total.__class__ is int and 0 <= total <= MAX_TOKENS:
                if n < 0 and known is not None and total >= known:
                    n = total - known
                self._counted = total
        return n

    def _lose_count(self, usage: object) -> None:
        """After an event of unknown tokens, the count up to there is known only if that event said it."""
        if usage is None or whole(usage, "completion_tokens") is None:
            self._counted = None

    def _add(self, at_ns: int, lateness_ns: int, tokens: int) -> None:
        """Note a token-bearing event."""
        self._add_at(at_ns)
        self._add_tokens(tokens)
        self._add_lateness(lateness_ns)

    def _read_rest(self, event: dict[str, Any]) -> None:
        """Take an event without choices: final usage, a flat error, or something of no interest."""
        usage = event.get("usage")
        if isinstance(usage, dict):
            self._usage = usage
        elif not self._error:
            self._error = read_error(event)

    # Events

    def _take(self, payload: bytes, name: bytes, at_ns: int, lateness_ns: int) -> None:
        """Take one event as the splitter gives it."""
        if not payload or self._done:  # what follows [DONE] is no part of the answer
            return
        self._n_events += 1
        if self._body:
            self._body.clear()
        if payload == _DONE:
            self._done = True
            return
        try:
            event = orjson.loads(payload)
        except orjson.JSONDecodeError:
            event = _loads_leniently(payload)
        if not isinstance(event, dict):
            if name == b"error":
                self._error = self._error or ServerError(clean(payload))
            elif self._malformed is None:
                self._malformed = f"an event that is no JSON object: {clean(payload[:100])}"
        elif event.get("error") or name == b"error":
            self._error = self._error or read_error(event) or ServerError(clean(payload))
        else:
            self._read(event, at_ns, lateness_ns)

    def _keep_body(self, data: bytes, at_ns: int, lateness_ns: int) -> None:
        """Keep the body of an error or of a document, as far as its bound."""
        limit = _KEPT_HEAD_BYTES if self._is_stream or self._http_status != 200 else MAX_EVENT_BYTES
        if self._body_size < limit:
            self._body.append(data[: limit - self._body_size])
        self._body_size += len(data)
        self._body_at = (at_ns, lateness_ns)

    def _read_document(self) -> None:
        """Read a 200 answer that held no event: the non-streamed form of an answer, an error, or a page of some gateway."""
        raw = b"".join(self._body).strip()
        if not raw or (self._is_stream and not raw.startswith(b"{")):
            return  # comments only, or nothing at all: an empty stream
        self._is_document = True
        document = _loads_leniently(raw)
        if not isinstance(document, dict):
            return
        self._n_events = 1
        if document.get("error"):
            self._error = read_error(document)
            return
        self._marks.append(marks.NOT_A_STREAM)
        self._read(document, *self._body_at)

    # Verdict

    def _true_ending(self, ending: Ending) -> Ending:
        """EOF is a complete end where neither a length nor chunks frame the body (HTTP/1.0)."""
        is_framed = "content-length" in self._headers or "chunked" in self._headers.get("transfer-encoding", "").lower()
        return Ending.COMPLETE if ending is Ending.EOF and self._http_status is not None and not is_framed else ending

    def _seen(self) -> Seen:
        return Seen(
            http_status=self._http_status,
            headers=self._headers,
            body=b"".join(self._body),
            n_events=self._n_events,
            n_token_events=len(self._at),
            output_tokens=whole(self._usage, "completion_tokens"),
            is_document=self._is_document,
            is_done=self._done,
            is_too_large=self._splitter.too_large or (not self._is_stream and self._body_size > MAX_EVENT_BYTES),
            error=self._error,
            malformed=self._malformed,
            finish_reason=self._finish_reason,
            finish_error=self._finish_error,
            unknown_field=self._unknown_field,
        )

    def _error_code(self) -> int | None:
        error = self._error or self._finish_error
        return error.code if error else None

    # Counts and marks

    def _settle(self) -> None:
        """Put right what only the end can tell: n events cannot share fewer than n tokens, so a bare finish event held none."""
        total = whole(self._usage, "completion_tokens")
        if self._is_bare_finish_last and total is not None and 0 < total < len(self._at):
            self._drop_last()

    def _drop_last(self) -> None:
        self._at.pop()
        self._tokens.pop()
        self._lateness.pop()

    def _mark(self, decoded: Decoded, *, is_complete: bool) -> None:
        found = self._marks
        n, total, is_ok = len(self._at), decoded.output_tokens, decoded.status is Status.OK
        if is_ok and n == 1 and total != 1:
            found.append(marks.SINGLE_CHUNK)
        if n and self._tokens[0] > 1:
            found.append(marks.MULTI_TOKEN_FIRST_CHUNK)
        if is_ok and total is not None and decoded.output_token_source is not TokenSource.INFERRED:
            if total < self._request.osl and self._request.sampling.ignore_eos:
                found.append(marks.SHORT_OUTPUT)
            if total > self._request.osl:
                found.append(marks.LONG_OUTPUT)
        knows_all = total is not None and UNKNOWN_TOKENS not in self._tokens
        if n and knows_all and sum(self._tokens) != total:
            found.append(marks.COUNT_MISMATCH)
        if is_ok and self._unknown_field is not None and not (knows_all and sum(self._tokens) == total):
            found.append(marks.UNKNOWN_FIELD)
        if is_ok and self._rules.sends_usage and self._usage is None:
            found.append(marks.NO_USAGE)
        if is_complete and self._is_stream and not self._is_document and self._splitter.is_unfinished:
            found.append(marks.UNFINISHED_EVENT)


def _loads_leniently(raw: bytes) -> Any:
    """Parse JSON; None if it is none.

    Lone surrogates and NaN, which orjson refuses and servers send, are let through. So are bytes that are no UTF-8, as U+FFFD:
    that is how the standard of these streams has them read.
    """
    try:
        return json.loads(raw.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
