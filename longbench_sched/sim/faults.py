"""Faults on purpose: what a server does wrong, to which requests, so that a client can be held to its words.

    stall:every=10,after=20,for=30s     the 10th, 20th, ... answer goes silent after 20 tokens, for 30 s, then goes on
    cut:p=0.1,after=5                   one answer in ten ends after 5 tokens, connection closed, nothing terminated
    5xx:every=4,status=503              every fourth request is answered with an error in the engine's own words
    slow:every=3,for=200ms              each write of these answers is held back until 200 ms after the one before
    malformed:every=2,after=3,what=json one event among the good ones is not JSON (what=framing: the chunk's size is none)

Requests are counted as they arrive, from 1, generation requests only. Which of them are hit is decided by that number and the
seed alone, so a run can be repeated. Where two faults would hit one request, the first one given does. Times are wall time.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from longbench_sched.errors import UsageError
from longbench_sched.quantity import count, duration_s
from longbench_sched.sim.wire.base import frame

Kind = Literal["stall", "cut", "5xx", "slow", "malformed"]
KINDS: tuple[Kind, ...] = ("stall", "cut", "5xx", "slow", "malformed")

_SETTINGS: dict[Kind, tuple[str, ...]] = {
    "stall": ("after", "for"),
    "cut": ("after",),
    "5xx": ("status",),
    "slow": ("for",),
    "malformed": ("after", "what"),
}
_DEFAULT_FOR_S = {"stall": 30.0, "slow": 0.2}
GARBAGE = frame(b'data: {"id":"cmpl-broken","choices":[{"index":0,"te\n\n')
BROKEN_FRAMING = b"zz\r\n"


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault and the requests that it hits."""

    kind: Kind
    every: int | None = None  # every so many requests
    probability: float | None = None
    after: int = 1  # tokens that are still sent as they should be
    for_s: float = 0.0
    status: int = 503
    what: Literal["json", "framing"] = "json"

    def hits(self, number: int, seed: int) -> bool:
        """Whether request `number` (from 1) is hit."""
        if self.every is not None:
            return number % self.every == 0
        return random.Random(f"{seed} {self.kind} {number}").random() < (self.probability or 0.0)


def read_fault(text: str) -> Fault:
    """Read one `--fault`: `cut`, `cut:every=10,after=5`. Without every or p each request is hit. Raises UsageError."""
    name, _, rest = text.partition(":")
    kind = next((kind for kind in KINDS if kind == name.strip().casefold()), None)
    if kind is None:
        raise UsageError(f"--fault {text!r}: no fault named {name!r}. Known: {', '.join(KINDS)}.")
    given: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = part.partition("=")
        allowed = ("every", "p", *_SETTINGS[kind])
        if not equals or key not in allowed:
            raise UsageError(f"--fault {text!r}: {part!r} is no setting of {kind}. Known: {', '.join(allowed)}.")
        given[key] = value
    if "every" in given and "p" in given:
        raise UsageError(f"--fault {text!r}: every and p both say which requests are hit. Give one of them.")
    return _fault(kind, given, text)


def _fault(kind: Kind, given: dict[str, str], text: str) -> Fault:
    probability = None
    if "p" in given:
        try:
            probability = float(given["p"])
        except ValueError:
            probability = -1.0
        if not 0 <= probability <= 1:
            raise UsageError(f"--fault {text!r}: p={given['p']} is no probability. Give a number from 0 to 1.")
    every = None if probability is not None else count(given.get("every", "1"), f"--fault {text!r}: every")
    status = count(given.get("status", "503"), f"--fault {text!r}: status")
    what = given.get("what", "json")
    if every is not None and every < 1:
        raise UsageError(f"--fault {text!r}: every={every} hits nothing. Give 1 or more.")
    if not 500 <= status <= 599:
        raise UsageError(f"--fault {text!r}: status={status} is no server error. Give 500 to 599.")
    if what not in ("json", "framing"):
        raise UsageError(f"--fault {text!r}: what={what} is not known. Give json or framing.")
    return Fault(
        kind,
        every,
        probability,
        after=count(given.get("after", "1"), f"--fault {text!r}: after"),
        for_s=duration_s(given["for"], f"--fault {text!r}: for") if "for" in given else _DEFAULT_FOR_S.get(kind, 0.0),
        status=status,
        what="framing" if what == "framing" else "json",
    )


@dataclass(slots=True)
class FaultPlan:
    """Which request meets which fault."""

    faults: Sequence[Fault] = ()
    seed: int = 0
    n_requests: int = 0
    n_hit: int = 0

    def next(self) -> Fault | None:
        """The fault of the request that has just arrived, if any."""
        self.n_requests += 1
        for fault in self.faults:
            if fault.hits(self.n_requests, self.seed):
                self.n_hit += 1
                return fault
        return None


class Wire(Protocol):
    """A connection, as far as an answer needs it."""

    def write(self, data: bytes) -> None:
        """Send bytes."""
        ...

    def answered(self) -> None:
        """The answer is complete."""
        ...

    def cut(self) -> None:
        """Close now, whatever the answer lacks."""
        ...


class FaultyWire:
    """A connection whose answer goes wrong. Writes are counted as tokens, the head that comes with none apart."""

    def __init__(self, wire: Wire, fault: Fault, loop: asyncio.AbstractEventLoop) -> None:
        self._wire = wire
        self._fault = fault
        self._loop = loop
        self._n_tokens = 0
        self._held: deque[Callable[[], None]] = deque()
        self._opens_s = 0.0  # nothing is sent before
        self._is_over = False

    def write(self, data: bytes) -> None:
        """Send the bytes of a token, or do what the fault wants instead."""
        fault = self._fault
        self._n_tokens += 1
        if self._is_over:
            return
        match fault.kind:
            case "cut" if self._n_tokens > fault.after:
                self._is_over = True
                self._wire.cut()
            case "malformed" if self._n_tokens == fault.after + 1:
                self._send(GARBAGE if fault.what == "json" else BROKEN_FRAMING)
                self._send(data)
            case "stall":
                self._later(data, fault.for_s if self._n_tokens == fault.after + 1 else 0.0)
            case "slow":
                self._later(data, fault.for_s)
            case _:
                self._send(data)

    def answered(self) -> None:
        """The engine is done; the answer is when everything that was held back has been sent."""
        if not self._is_over:
            self._put(self._wire.answered)

    def cut(self) -> None:
        """Close now."""
        self._is_over = True
        self._wire.cut()

    def _send(self, data: bytes) -> None:
        self._put(lambda: self._wire.write(data))

    def _later(self, data: bytes, delay_s: float) -> None:
        """Send not before `delay_s` after what was sent last."""
        now_s = self._loop.time()
        self._opens_s = max(self._opens_s, now_s) + delay_s if delay_s else max(self._opens_s, now_s)
        self._put(lambda: self._wire.write(data))

    def _put(self, act: Callable[[], None]) -> None:
        """Act when it may, and never before what came earlier."""
        if self._opens_s <= self._loop.time() and not self._held:
            act()
            return
        self._held.append(act)
        self._loop.call_at(self._opens_s, self._release)

    def _release(self) -> None:
        if self._held and not self._is_over:
            self._held.popleft()()
