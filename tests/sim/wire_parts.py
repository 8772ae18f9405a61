"""What the tests of the three dialects share: an engine to ask, and the events of a stream as text."""

from __future__ import annotations

import json

from checked_engine import H200, QWEN

from longbench_sched.sim.engine import build_engine
from longbench_sched.sim.wire.base import Ask, Context, ServerDialect

MODEL = "tiny-llama"
CREATED = 1796034769


def context(name: str, options) -> Context:
    return Context(build_engine(name, H200, QWEN, options), MODEL, CREATED)


def body(**fields) -> bytes:
    return json.dumps(fields).encode()


def events(dialect: ServerDialect, ask: Ask, n: int, finish: str = "length", request_id: str = "R") -> list[list[str]]:
    """The payloads written at each token; the chunked framing is checked and taken off, and the last one must end the body."""
    stream = dialect.stream(ask, request_id, CREATED)
    written = [stream.token(i, finish if i == n else None) for i in range(1, n + 1)]
    return [_payloads(data, i == len(written) - 1) for i, data in enumerate(written)]


def _payloads(data: bytes, is_last: bool) -> list[str]:
    found = []
    while data:
        size, _, rest = data.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            assert is_last
            assert rest == b"\r\n"
            return found
        payload, end = rest[:length], rest[length : length + 2]
        assert end == b"\r\n"
        text = payload.decode()
        assert text.startswith("data: ")
        assert text.endswith("\n\n")
        found.append(text.removeprefix("data: ").removesuffix("\n\n"))
        data = rest[length + 2 :]
    assert not is_last, "the body is not ended"
    return found
