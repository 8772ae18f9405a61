"""Dialect: how one engine wants to be asked, and how its answers read. Bytes in, counts out; no sockets.

A dialect is pure. `encode` turns a request into the bytes of an HTTP request; `decoder` gives a `StreamDecoder` that is fed the
body of one answer in the pieces in which it was read, each with the stamp of that read, and says at the end what came. How the
bytes were cut into pieces never changes what is decoded, only the stamps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from longbench_sched.plan import Request, Sampling
from longbench_sched.record import Decoded, Ending
from longbench_sched.target import Api, CountMode

MAX_EVENT_BYTES = 64 << 20
MAX_KEPT_ERROR_BYTES = 500


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """An HTTP request less what the transport adds (Host, Content-Length, Connection, Accept-Encoding, X-Request-Id)."""

    method: str
    path: str  # absolute, without the endpoint's prefix: /v1/completions
    headers: tuple[tuple[str, str], ...]
    body: bytes


class StreamDecoder(Protocol):
    """Reads one answer as it came. Calls: start, feed..., finish."""

    def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Take the status and the headers (names in lower case)."""
        ...

    def feed(self, data: bytes, at_ns: int, lateness_ns: int) -> None:
        """Take the next piece of the body (transfer coding removed) and the stamp of the read that completed it."""
        ...

    @property
    def n_token_events(self) -> int:
        """Token-bearing events so far: above 0, the first-token deadline has been met."""
        ...

    def finish(self, ending: Ending, detail: str | None = None) -> Decoded:
        """Say what came. Called once; also without `start` when no answer came (ending says why)."""
        ...


class Dialect(Protocol):
    """One engine's way of speaking one API."""

    @property
    def engine(self) -> str:
        """A key of `engine.ENGINES`."""
        ...

    @property
    def api(self) -> Api:
        """Which of the engine's APIs."""
        ...

    @property
    def takes_token_ids(self) -> bool:
        """The prompt may be token ids; else it must be text."""
        ...

    def encode(self, request: Request, model: str) -> HttpRequest:
        """The HTTP request that asks for this."""
        ...

    def decoder(self, request: Request, *, keep_text: bool = False) -> StreamDecoder:
        """A fresh decoder for the answer to this request."""
        ...

    def sent_options(self, sampling: Sampling = ...) -> Mapping[str, object]:
        """What is sent beside prompt and lengths, for the record: include_usage, temperature, ignore_eos..."""
        ...


class MakeDialect(Protocol):
    """Row of the table of engines."""

    def __call__(self, api: Api, count: CountMode) -> Dialect:
        """The dialect for one API of the engine."""
        ...


@dataclass(frozen=True, slots=True)
class EngineEntry:
    """One engine of the table `engine.ENGINES`."""

    name: str
    title: str  # for people: "vLLM"
    apis: tuple[Api, ...]  # the first is the default
    make: MakeDialect
    default_port: int
    evidence: str  # "run against 0.32.0" or "from source, not yet run against a live server"
