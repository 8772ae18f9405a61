"""Marks: what a reader of a record should know beyond its status. One word each, listed here with its meaning.

The decoders set the marks of the first group; the rest are set where the fact is known.
"""

from __future__ import annotations

SINGLE_CHUNK = "single-chunk"
SHORT_OUTPUT = "short-output"
LONG_OUTPUT = "long-output"
COUNT_MISMATCH = "count-mismatch"
MULTI_TOKEN_FIRST_CHUNK = "multi-token-first-chunk"
NO_USAGE = "no-usage"
UNFINISHED_EVENT = "unfinished-event"
NOT_A_STREAM = "not-a-stream"
UNKNOWN_FIELD = "unknown-field"

ISL_MISMATCH = "isl-mismatch"
RETRIED = "retried"
USER_STAMPS = "user-stamps"

MARKS: dict[str, str] = {
    SINGLE_CHUNK: "all tokens came in one event: TPOT, ITL and ICG are not defined",
    SHORT_OUTPUT: "fewer output tokens than asked for, though the run asked to ignore the end-of-sequence token",
    LONG_OUTPUT: "more output tokens than asked for: the server did not honour the length",
    COUNT_MISMATCH: "the tokens of the single events do not add up to the server's final count",
    MULTI_TOKEN_FIRST_CHUNK: "the first event held more than one token; TTFT is valid and TPOT leaves that event's tokens out",
    NO_USAGE: "the server sent no token counts although they were asked for; see the token sources",
    UNFINISHED_EVENT: "the body ended inside an event, which was dropped",
    NOT_A_STREAM: "the answer came as one JSON document though a stream was asked for",
    UNKNOWN_FIELD: "some text came in a field of unknown name and was not taken for tokens: TTFT may be too late",
    ISL_MISMATCH: "the server counted other prompt tokens than planned, beyond the tolerance",
    RETRIED: "sent again on a fresh connection: the reused one had been closed before any byte of an answer",
    USER_STAMPS: "the kernel's stamps could not be used for some reads; those have the client's own",
}

ISL_TOLERANCE = 0.02  # of the planned prompt: beyond it the server did not get the prompt that was meant


def is_isl_mismatch(planned: int, counted: int | None) -> bool:
    """Whether the server counted another prompt than planned; in chat `planned` includes what the template adds."""
    return counted is not None and abs(counted - planned) > ISL_TOLERANCE * planned
