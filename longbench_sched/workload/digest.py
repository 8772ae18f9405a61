"""Digests: what tells whether two plans are the same, on whatever machines they were built.

The schedule (lengths, due times, loops) has a digest of its own: plans that go to different engines may send other prompts,
as token ids or as text, yet offer the same load. Everything is hashed in one fixed form: little-endian numbers, times in
ns, -1 for none.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from collections.abc import Iterable, Sequence

from longbench_sched.plan import ClosedLoop, Loop, Request


def lane_bytes(
    loop: Loop,
    duration_s: float | None,
    isl: Sequence[int],
    osl: Sequence[int],
    due_ns: Sequence[int] | None,
    priority: int = 0,
) -> bytes:
    """The schedule of one lane."""
    if isinstance(loop, ClosedLoop):
        words = ["closed", *(f"{_ns(step.from_s)}:{step.concurrency}" for step in loop.steps)]
    else:
        words = ["open", loop.process, str(loop.max_in_flight or -1)]
    if priority:
        words.append(f"priority {priority}")
    head = " ".join(["lane", *words, str(_ns(duration_s))]).encode() + b"\n"
    due = due_ns if due_ns is not None else [-1] * len(isl)
    return head + b"".join(struct.pack("<qqq", *row) for row in zip(isl, osl, due, strict=True))


def plan_digest(schedule: bytes, requests: Iterable[Request]) -> str:
    """Sha256 over the schedule and what every request says, warm-ups included."""
    digest = hashlib.sha256(schedule)
    for request in requests:
        sampling = request.sampling
        settings = f"{sampling.temperature} {sampling.top_p} {sampling.ignore_eos} {sampling.seed}"
        raw = _prompt_bytes(request.prompt)
        digest.update(f"{request.phase} {request.isl} {request.osl} {settings} {len(raw)}\n".encode())
        digest.update(raw)
    return digest.hexdigest()


def _ns(time_s: float | None) -> int:
    return -1 if time_s is None else round(time_s * 1e9)


def _prompt_bytes(prompt: array[int] | str) -> bytes:
    if isinstance(prompt, str):
        return prompt.encode("utf-8")
    if sys.byteorder == "big":
        prompt = array("I", prompt)
        prompt.byteswap()
    return prompt.tobytes()
