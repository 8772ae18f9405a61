"""What came back, and when: one StreamRecord a request, whatever became of it.

All instants are integers in ns on one monotonic clock (CLOCK_MONOTONIC, or virtual time in a simulated run). `None` means that
there is no such instant or that the server did not say; 0 never stands for it. Only token-bearing events are in `chunk_at_ns`:
role, comment, usage and error events are not (see docs/metrics.md, "token-bearing event").
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import StrEnum

UNKNOWN_TOKENS = -1  # in `chunk_tokens`; null in Parquet


class Status(StrEnum):
    """What became of a request."""

    OK = "ok"
    FAILED = "failed"  # the server or the connection said no; see `reason`
    TIMEOUT = "timeout"  # a limit of ours passed: a censored outcome, kept with what had arrived
    CANCELLED = "cancelled"  # we stopped it: interrupt, end of the drain
    LOST = "lost"  # the tool itself died while it was in flight (recovered from a journal)


class Reason(StrEnum):
    """Why a request is not ok: fixed slugs, one a cause, so that they can be counted."""

    CONNECT_REFUSED = "connect-refused"
    CONNECT_FAILED = "connect-failed"  # any other failure to connect: name, route, proxy
    TLS = "tls"
    RESET = "reset"  # connection reset or broken while sending or reading
    CUT = "cut"  # the body ended before its framing or its terminator said so
    HTTP_STATUS = "http-status"  # any answer but 200; code in `http_status`
    REDIRECT = "redirect"
    NOT_JSON = "not-json"  # 200 with something that is no answer: a gateway's page
    IN_BAND_ERROR = "in-band-error"  # 200, then an error object
    EMPTY_STREAM = "empty-stream"  # 200 and a clean end, but no token
    NO_FINISH = "no-finish"  # tokens, but no finish reason where the dialect always sends one
    BAD_FINISH = "bad-finish"  # finish_reason abort, error, repetition
    UNPARSED = "unparsed"  # usage counts tokens that no known field showed
    MALFORMED = "malformed"  # HTTP or SSE framing broken
    TOO_LARGE = "too-large"  # a header, size line or event over its bound
    TIMEOUT_CONNECT = "timeout-connect"
    TIMEOUT_FIRST_TOKEN = "timeout-first-token"
    TIMEOUT_IDLE = "timeout-idle"
    TIMEOUT_TOTAL = "timeout-total"
    INTERRUPTED = "interrupted"


class Ending(StrEnum):
    """How the exchange ended on the wire, before anyone looks at what it says."""

    COMPLETE = "complete"  # the framing said so
    EOF = "eof"  # the peer closed; complete only where the framing is "until the end"
    RESET = "reset"
    REFUSED = "refused"
    CONNECT_FAILED = "connect-failed"
    TLS = "tls"
    MALFORMED = "malformed"
    TOO_LARGE = "too-large"
    TIMEOUT_CONNECT = "timeout-connect"
    TIMEOUT_FIRST_TOKEN = "timeout-first-token"
    TIMEOUT_IDLE = "timeout-idle"
    TIMEOUT_TOTAL = "timeout-total"
    CANCELLED = "cancelled"


class TokenSource(StrEnum):
    """Where a token count came from, best first."""

    IDS = "ids"  # lengths of token id lists
    USAGE = "usage"  # the server's own counters, in the stream or at its end
    INFERRED = "inferred"  # one token an event, where the dialect sends one event a token
    LOCAL = "local"  # our tokenizer over the joined text: an estimate


class Kind(StrEnum):
    """What an event of a stream is."""

    TOKEN = "token"  # carries generated tokens (text, reasoning, tool-call arguments, or tokens without text)
    ROLE = "role"
    FINISH = "finish"  # a finish reason without tokens
    USAGE = "usage"
    ERROR = "error"
    META = "meta"  # anything else: sglext, prompt progress, unknown
    DONE = "done"


@dataclass(slots=True)
class Decoded:
    """What a dialect read in one answer. Lists are parallel, one entry a token-bearing event."""

    chunk_at_ns: array[int] = field(default_factory=lambda: array("q"))
    chunk_tokens: array[int] = field(default_factory=lambda: array("i"))  # UNKNOWN_TOKENS where unknown
    chunk_lateness_ns: array[int] = field(default_factory=lambda: array("q"))  # user stamp - kernel stamp
    chunk_token_source: TokenSource | None = None
    answer_at_ns: int | None = None  # first event with answer content (TTFA): not reasoning
    first_byte_ns: int | None = None  # first byte of the body, comments and all
    finish_ns: int | None = None  # the event with the finish reason
    n_shared_reads: int = 0  # token-bearing events that came in the same read as the one before
    n_comments: int = 0
    prompt_tokens: int | None = None
    prompt_token_source: TokenSource | None = None
    output_tokens: int | None = None
    output_token_source: TokenSource | None = None
    cached_tokens: int | None = None
    cached_token_source: TokenSource | None = None
    reasoning_tokens: int | None = None
    finish_reason: str | None = None
    status: Status = Status.OK
    reason: Reason | None = None
    detail: str | None = None  # for people: the server's words, at most 500 bytes
    error_code: int | None = None  # of an in-band error
    marks: list[str] = field(default_factory=list)
    text: str | None = None  # the generated text, only if it was asked to be kept


@dataclass(slots=True)
class StreamRecord:
    """One request: what was planned, what was sent, what came back. A row of the Parquet file (docs/columns.md)."""

    request_id: str  # as sent in X-Request-Id
    index: int
    phase: str
    lane: str
    due_ns: int
    slot_ns: int  # when a place in flight was free
    isl: int  # planned prompt tokens
    osl: int  # asked output tokens
    sent_ns: int | None = None  # just before the first byte was handed to the kernel; None: never sent
    body_sent_ns: int | None = None  # when the kernel had taken the last byte
    header_ns: int | None = None  # end of the response's header block
    end_ns: int | None = None  # end of the answer by its framing, or the moment it was given up
    http_status: int | None = None
    decoded: Decoded = field(default_factory=Decoded)
    n_body_bytes: int = 0
    clock: str = "user"  # whose stamps chunk_at_ns holds: kernel, user, virtual; mixed: both (see the mark user-stamps)

    @property
    def status(self) -> Status:
        """What became of the request."""
        return self.decoded.status
