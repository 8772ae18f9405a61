"""The client one would write in an afternoon: httpx, one task a place in flight, json.loads per event, late stamps.

Prints one JSON line (CPU seconds between first send and last event) and writes what a run's Parquet file has: request_id,
sent_ns, body_sent_ns, chunk_at_ns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import time

import httpx
import pyarrow as pa
import pyarrow.parquet as pq


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def run(args: argparse.Namespace) -> None:
    rng = random.Random(1)
    rows: list[dict[str, object]] = []
    left = iter(range(args.requests))

    async def place(client: httpx.AsyncClient) -> None:
        for i in left:
            body = {
                "model": "truth",
                "prompt": [1000 + rng.randrange(7000) for _ in range(args.isl)],
                "max_tokens": args.osl,
                "stream": True,
                "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            }
            at: list[int] = []
            sent = time.monotonic_ns()
            async with client.stream("POST", args.url, json=body, headers={"X-Request-Id": f"h-{i}"}) as response:
                async for line in response.aiter_lines():  # as it is usually written
                    if line.startswith("data: {") and json.loads(line[6:])["choices"]:
                        at.append(time.monotonic_ns())  # noqa: PERF401  # a stamp an event
            rows.append({"request_id": f"h-{i}", "sent_ns": sent, "body_sent_ns": None, "chunk_at_ns": at})

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(timeout=None, limits=limits, trust_env=False) as client:
        before = cpu_s()
        await asyncio.gather(*(place(client) for _ in range(args.conns)))
        print(json.dumps({"cpu_s": cpu_s() - before}), flush=True)
    pq.write_table(pa.Table.from_pylist(rows), args.out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--out", required=True)
    for name in ("conns", "requests", "isl", "osl"):
        parser.add_argument(f"--{name}", type=int, required=True)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
