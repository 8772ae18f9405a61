"""Token counts: what the server said, where it said it, and nothing that it did not say.

Best first: the server's final count; the counts of single events (token ids, or differences of a running count); one token an
event, only where the final count proves it or the engine is known for it, and then labelled `inferred`. The tokens that were
asked for are never taken for tokens that came.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

from longbench_sched.record import UNKNOWN_TOKENS, Decoded, TokenSource

MAX_TOKENS = 2**31 - 1  # a larger count is no count, and fits no column


def whole(values: object, key: str) -> int | None:
    """The count under a key of a dict, or None: absent, null, no whole number, impossible."""
    value = values.get(key) if isinstance(values, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS else None


def count_output(decoded: Decoded, usage: Mapping[str, Any] | None, n_by_ids: int, *, infers_tokens: bool) -> None:
    """Fill in the output tokens, of the whole and of each event, and where they came from.

    With n events and n tokens in all, each event held one: no event is token-bearing without a token.
    """
    tokens, n, total = decoded.chunk_tokens, len(decoded.chunk_tokens), whole(usage, "completion_tokens")
    knows_all, knows_any = UNKNOWN_TOKENS not in tokens, max(tokens, default=UNKNOWN_TOKENS) >= 0
    if n and not knows_any and (total == n or (total is None and infers_tokens)):
        tokens[:] = array("i", [1]) * n
        decoded.chunk_token_source = TokenSource.INFERRED
        knows_all = True
    elif knows_any:
        decoded.chunk_token_source = TokenSource.IDS if n_by_ids >= n or (not knows_all and n_by_ids) else TokenSource.USAGE
    if total is not None:
        decoded.output_tokens, decoded.output_token_source = total, TokenSource.USAGE
    elif n and knows_all:
        decoded.output_tokens, decoded.output_token_source = sum(tokens), decoded.chunk_token_source


def count_prompt(decoded: Decoded, usage: Mapping[str, Any] | None, n_prompt_ids: int | None) -> None:
    """Fill in prompt, cached and reasoning tokens."""
    prompt = whole(usage, "prompt_tokens")
    if prompt is not None:
        decoded.prompt_tokens, decoded.prompt_token_source = prompt, TokenSource.USAGE
    elif n_prompt_ids is not None:
        decoded.prompt_tokens, decoded.prompt_token_source = n_prompt_ids, TokenSource.IDS
    said = usage or {}
    cached = whole(said.get("prompt_tokens_details"), "cached_tokens")
    cached = whole(said, "cached_tokens") if cached is None else cached
    if cached is not None:
        decoded.cached_tokens, decoded.cached_token_source = cached, TokenSource.USAGE
    reasoning = whole(said.get("completion_tokens_details"), "reasoning_tokens")
    decoded.reasoning_tokens = whole(said, "reasoning_tokens") if reasoning is None else reasoning
