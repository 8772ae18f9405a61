"""What decoding costs: microseconds an event, dialect by dialect, and milliseconds a body of 30,000 token ids.

    python benchmarks/decode.py [--events 500] [--rounds 41]

Each figure is the fastest of several rounds: the cost of the code, not of the machine's other work. `whole` feeds one event a
read, `pairs` two events a read, `cut` pieces of 700 bytes that end anywhere.
"""

from __future__ import annotations

import argparse
import time
from array import array
from collections.abc import Sequence

from longbench_sched.engine import ENGINES, make_dialect
from longbench_sched.engine.dialect import Dialect
from longbench_sched.plan import Request
from longbench_sched.record import Ending, Status
from longbench_sched.target import Api

_HEAD = '"id":"cmpl-9d11e67b824d12eb","object":"text_completion","created":1796035035,"model":"Qwen2.5-Coder-7B-Instruct"'
_CHAT = '"id":"chatcmpl-9d11e67b824d12eb","object":"chat.completion.chunk","created":1796035035,"model":"Qwen2.5-Coder-7B"'


def _usage(n: int) -> str:
    return f'"usage":{{"prompt_tokens":30000,"total_tokens":{30000 + n},"completion_tokens":{n}}}'


def _event(engine: str, api: Api, i: int, last: int) -> str:
    finish = '"length"' if i == last else "null"
    if engine == "triton":
        return f'{{"model_name":"ensemble","model_version":"1","sequence_id":0,"text_output":" word","num_output_tokens":{i}}}'
    if api == "generate":
        meta = f'"id":"x","finish_reason":null,"prompt_tokens":30000,"completion_tokens":{i},"cached_tokens":0'
        meta = meta.replace("null", '{"type":"length","length":1}') if i == last else meta
        return f'{{"text":" word","output_ids":[{i}],"meta_info":{{{meta}}}}}'
    if api == "chat":
        choice = f'{{"index":0,"delta":{{"content":" word"}},"logprobs":null,"finish_reason":{finish},"token_ids":null}}'
        return f'{{{_CHAT},"choices":[{choice}],{_usage(i)}}}'
    choice = f'{{"index":0,"text":" word","logprobs":null,"finish_reason":{finish},"stop_reason":null,"token_ids":null}}'
    return f'{{{_HEAD},"choices":[{choice}],{_usage(i)}}}'


def _events(engine: str, api: Api, n: int) -> list[bytes]:
    bodies = [_event(engine, api, i, n) for i in range(1, n + 1)]
    return [f"data: {body}\n\n".encode() for body in bodies]


def _decode_s(dialect: Dialect, request: Request, pieces: Sequence[bytes], n: int) -> float:
    decoder = dialect.decoder(request)
    started = time.perf_counter()
    decoder.start(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
    feed = decoder.feed
    at_ns = 0
    for piece in pieces:
        at_ns += 1000
        feed(piece, at_ns, 0)
    feed(b"data: [DONE]\n\n", at_ns, 0)
    decoded = decoder.finish(Ending.COMPLETE)
    taken = time.perf_counter() - started
    if decoded.status is not Status.OK or len(decoded.chunk_at_ns) != n:
        raise SystemExit(
            f"{dialect.engine} {dialect.api}: {decoded.status} {decoded.detail}, {len(decoded.chunk_at_ns)} events"
        )
    return taken


def _cuts(body: bytes, size: int) -> list[bytes]:
    return [body[i : i + size] for i in range(0, len(body), size)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=41)
    options = parser.parse_args()
    n = options.events
    request = Request(0, "measured", 0, "x", 30000, n)
    print(f"{'':20}{'bytes':>7}{'whole':>9}{'pairs':>9}{'cut':>9}   us/event")
    for entry in ENGINES.values():
        for api in entry.apis:
            dialect = make_dialect(entry.name, api)
            events = _events(entry.name, api, n)
            body = b"".join(events)
            shapes = (events, [b"".join(events[i : i + 2]) for i in range(0, n, 2)], _cuts(body, 700))
            costs = [min(_decode_s(dialect, request, s, n) for _ in range(options.rounds)) / n * 1e6 for s in shapes]
            print(f"{entry.name + ' ' + api:20}{len(body) // n:7}" + "".join(f"{cost:9.2f}" for cost in costs))
    ids = Request(0, "measured", 0, array("I", range(100_000, 130_000)), 30000, 500)
    dialect = make_dialect("vllm")
    taken = []
    for _ in range(options.rounds):
        started = time.perf_counter()
        size = len(dialect.encode(ids, "m").body)
        taken.append(time.perf_counter() - started)
    print(f"body of 30,000 ids: {min(taken) * 1e3:.2f} ms, {size} bytes")


if __name__ == "__main__":
    main()
