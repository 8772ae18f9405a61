"""The verdict on one answer: strict success, or the one cause that explains best why not.

Success is a 200 whose body is complete by its framing, with at least one token, no error, a good finish reason and the
terminator, each where the engine always sends it. Anything less has a status and a reason that can be counted, and keeps the
tokens that came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from longbench_sched.engine.dialect import MAX_EVENT_BYTES
from longbench_sched.engine.error_body import ServerError, clean, read_error_body
from longbench_sched.record import Ending, Reason, Status
from longbench_sched.target import mask_url

Verdict = tuple[Status, Reason | None, str | None]  # with words for people where the answer has some

_TIMEOUTS = {
    Ending.TIMEOUT_CONNECT: Reason.TIMEOUT_CONNECT,
    Ending.TIMEOUT_FIRST_TOKEN: Reason.TIMEOUT_FIRST_TOKEN,
    Ending.TIMEOUT_IDLE: Reason.TIMEOUT_IDLE,
    Ending.TIMEOUT_TOTAL: Reason.TIMEOUT_TOTAL,
}
_FAILURES = {
    Ending.REFUSED: Reason.CONNECT_REFUSED,
    Ending.CONNECT_FAILED: Reason.CONNECT_FAILED,
    Ending.TLS: Reason.TLS,
    Ending.RESET: Reason.RESET,
    Ending.MALFORMED: Reason.MALFORMED,
    Ending.TOO_LARGE: Reason.TOO_LARGE,
}


@dataclass(frozen=True, slots=True)
class Rules:
    """What may be relied on in the streams of one engine and API."""

    sends_done: bool = True  # `data: [DONE]` ends every good stream: without it the stream was cut
    sends_finish: bool = True  # a good stream has a finish reason
    sends_usage: bool = True  # token counts come if they are asked for
    empty_text_is_token: bool = False  # without counts: an event with empty text, but for a role event, holds a token
    infers_tokens: bool = True  # without any counts: one token an event is a fair estimate
    good_finish: frozenset[str] = frozenset({"stop", "length", "tool_calls"})


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of one answer when it had ended."""

    http_status: int | None  # None: no answer came
    headers: Mapping[str, str]
    body: bytes  # the start of a body that holds no events
    n_events: int
    n_token_events: int
    output_tokens: int | None  # by the server's final count
    is_document: bool  # one JSON document, or a page, in place of a stream
    is_done: bool  # [DONE] came
    is_too_large: bool
    error: ServerError | None
    malformed: str | None
    finish_reason: str | None
    finish_error: ServerError | None
    unknown_field: str | None = None  # held text where no known field did


def judge(seen: Seen, ending: Ending, rules: Rules) -> Verdict:
    """What became of the request."""
    if ending is Ending.CANCELLED:
        return Status.CANCELLED, Reason.INTERRUPTED, None
    if seen.error is not None:
        return Status.FAILED, Reason.IN_BAND_ERROR, seen.error.detail
    if seen.http_status is not None and seen.http_status != 200:
        return _judge_refusal(seen)
    if ending in _TIMEOUTS:
        return Status.TIMEOUT, _TIMEOUTS[ending], None
    if seen.is_too_large:
        return Status.FAILED, Reason.TOO_LARGE, f"an event of more than {MAX_EVENT_BYTES} bytes"
    if ending in _FAILURES:
        return Status.FAILED, _FAILURES[ending], None
    if seen.http_status is None:
        return Status.FAILED, Reason.RESET, "the server closed the connection before it answered"
    if ending is Ending.EOF:
        return Status.FAILED, Reason.CUT, "the connection was closed before the body was complete"
    reason, words = _judge_complete(seen, rules)
    return (Status.FAILED if reason else Status.OK), reason, words


def _judge_refusal(seen: Seen) -> Verdict:
    if str(seen.http_status).startswith("3") and "location" in seen.headers:
        return Status.FAILED, Reason.REDIRECT, f"to {mask_url(seen.headers['location'])}"
    return Status.FAILED, Reason.HTTP_STATUS, read_error_body(seen.body)


def _judge_complete(seen: Seen, rules: Rules) -> tuple[Reason | None, str | None]:
    """A 200 answer whose body is complete."""
    if seen.malformed is not None:
        return Reason.MALFORMED, seen.malformed
    if seen.is_document and not seen.n_events:
        return Reason.NOT_JSON, clean(seen.body)
    if seen.finish_reason is not None and seen.finish_reason not in rules.good_finish:
        return Reason.BAD_FINISH, seen.finish_error.detail if seen.finish_error else f"finish_reason {seen.finish_reason}"
    if seen.n_events and not seen.is_document and rules.sends_done and not seen.is_done:
        return Reason.CUT, "the stream ended without [DONE]"
    if not seen.n_token_events:
        coding = seen.headers.get("content-encoding", "identity").lower()
        if coding != "identity":
            return Reason.MALFORMED, f"content coding {clean(coding, 40)}, which was not asked for"
        return _judge_tokenless(seen)
    if rules.sends_finish and seen.finish_reason is None:
        return Reason.NO_FINISH, "the stream ended without a finish reason"
    return None, None


def _judge_tokenless(seen: Seen) -> tuple[Reason, str]:
    total = seen.output_tokens or 0
    where = "" if seen.unknown_field is None else f"; {seen.unknown_field!r} held text"
    if total > 1 or (total == 1 and seen.finish_reason != "stop"):
        return Reason.UNPARSED, f"usage counts {total} output tokens, but no known field held any{where}"
    if where:
        return Reason.UNPARSED, f"no known field held a token{where}"
    if total == 1:
        return Reason.EMPTY_STREAM, "the model stopped at once: one token, no text"
    return Reason.EMPTY_STREAM, "no event held a token"
