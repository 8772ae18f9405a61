"""Limits of the queue: `--max-num-queued-reqs` and `--max-num-queued-tokens` of vLLM, `--max-queued-requests` of SGLang."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from longbench_sched.sim.step import Sequence


@dataclass(frozen=True, slots=True)
class Full:
    """A queue that takes no more."""

    limit: str  # the option that says so
    words: str


def full_queue(options: object, waiting: Collection[Sequence], isl: int) -> Full | None:
    """Why a prompt of `isl` tokens finds no place beside those that wait; None if it does, or if the queue has no end."""
    places = getattr(options, "max_num_queued_reqs", None)
    if places is not None and len(waiting) >= places:
        return Full("max_num_queued_reqs", f"The server has {len(waiting)} queued requests, at the limit max_num_queued_reqs.")
    tokens = getattr(options, "max_num_queued_tokens", None)
    if tokens is not None and waiting:
        backlog = sum(sequence.left_to_compute for sequence in waiting)
        if backlog + isl > tokens:
            words = f"The server has {backlog} queued prompt tokens; {isl} more exceed max_num_queued_tokens."
            return Full("max_num_queued_tokens", words)
    places = getattr(options, "max_queued_requests", None)
    if places is not None and len(waiting) >= places:
        return Full("max_queued_requests", "The request queue is full.")
    return None


def is_limited(options: object) -> bool:
    """Whether the queue has an end."""
    return any(
        getattr(options, name, None) is not None
        for name in ("max_num_queued_reqs", "max_num_queued_tokens", "max_queued_requests")
    )
