"""What the embedded engine itself costs: CPU per streamed token and how late its tokens leave, under the headline load.

    python benchmarks/embedded.py [vllm|sglang|trtllm ...] [--requests 128] [--concurrency 64] [--isl 30000] [--scale 6]

The client is one thread over plain sockets that counts events and keeps nothing, so that what is left of the machine is the
server's. Lateness is in wall milliseconds, at the last token of a step; multiply by the scale for engine time.
"""

from __future__ import annotations

import argparse
import json
import random
import selectors
import socket
import time
import urllib.request

from longbench_sched.launch.process import EmbeddedOptions, EmbeddedServer

FLAGS = {"trtllm": ("--enable_chunked_prefill",)}


def bodies(args: argparse.Namespace, model: str, engine: str) -> list[bytes]:
    """Whole requests, encoded ahead."""
    rng = random.Random(1)
    made = []
    for _ in range(args.requests):
        body = {
            "model": model,
            "prompt": [rng.randrange(1000, 30000) for _ in range(args.isl)],
            "max_tokens": args.osl,
            "ignore_eos": True,
            "stream": True,
            "temperature": 0,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        if engine != "trtllm":
            body["return_token_ids"] = False
        payload = json.dumps(body, separators=(",", ":")).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        made.append(head % len(payload) + payload)
    return made


class Client:
    """A closed loop over plain sockets."""

    def __init__(self, port: int, requests: list[bytes], concurrency: int) -> None:
        self.selector = selectors.DefaultSelector()
        self.left = list(reversed(requests))
        self.n_live = 0
        self.n_events = 0
        self.n_done = 0
        for _ in range(concurrency):
            sock = socket.create_connection(("127.0.0.1", port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.next(sock)

    def next(self, sock: socket.socket) -> None:
        """Send the next request on this connection, or close it."""
        if not self.left:
            sock.close()
            return
        sock.setblocking(True)
        sock.sendall(self.left.pop())
        sock.setblocking(False)
        self.selector.register(sock, selectors.EVENT_READ)
        self.n_live += 1

    def run(self) -> None:
        """Until all are answered."""
        while self.n_live:
            for key, _ in self.selector.select():
                sock = key.fileobj
                data = sock.recv(1 << 18)
                self.n_events += data.count(b"data: {")
                if not data or data.endswith(b"\r\n0\r\n\r\n"):
                    self.selector.unregister(sock)
                    self.n_live -= 1
                    self.n_done += bool(data)
                    self.next(sock)


def fetch(url: str, method: str = "GET") -> dict:
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10) as answer:
        return json.load(answer)


def measure(engine: str, args: argparse.Namespace) -> None:
    options = EmbeddedOptions(engine=engine, time_scale=args.scale, flags=FLAGS.get(engine, ()))
    with EmbeddedServer(options) as server:
        requests = bodies(args, str(server.facts["model"]), engine)
        before = fetch(f"{server.base_url}/longbench/info")
        begun, cpu = time.monotonic(), time.process_time()
        client = Client(server.port, requests, args.concurrency)
        client.run()
        wall, own = time.monotonic() - begun, time.process_time() - cpu
        after = fetch(f"{server.base_url}/longbench/info")
    spent = after["cpu_s"] - before["cpu_s"]
    late = after["lateness"]
    steps = after["counters"]["n_steps"]
    print(
        f"{engine:7} {client.n_done} requests {wall:6.1f} s  {client.n_events} events  "
        f"server {spent:5.2f} s CPU = {spent / client.n_events * 1e6:5.1f} us/event, {spent / wall:4.0%} of a core  "
        f"late p50 {late['p50_ms']:.2f} p99 {late['p99_ms']:.2f} max {late['max_ms']:.2f} ms over {steps} steps  "
        f"(client {own / wall:.0%})",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="*", default=["vllm", "sglang", "trtllm"])
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--isl", type=int, default=30_000)
    parser.add_argument("--osl", type=int, default=500)
    parser.add_argument("--scale", type=float, default=6.0)
    args = parser.parse_args()
    for engine in args.engines:
        measure(engine, args)


if __name__ == "__main__":
    main()
