"""A loopback server of known truth: streams on an absolute schedule and logs when the kernel got each event.

    python benchmarks/truth_server.py --port 0 --ttft-ms 200 --itl-ms 20 --log truth.json

The first line on stdout is the port. SIGTERM writes the log: by X-Request-Id the instant of the last request byte and those of
the token events (CLOCK_MONOTONIC, ns), and how late the server itself was. A log whose verdict is VOID proves nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import time

import uvloop

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LATE_LIMIT_MS = 5.0


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Truth:
    """What was really sent, by request."""

    def __init__(self) -> None:
        self.requests: dict[str, dict[str, object]] = {}
        self.late_ns: list[int] = []


class Connection(asyncio.Protocol):
    def __init__(self, truth: Truth, ttft_ns: int, itl_ns: int) -> None:
        self.truth, self.ttft_ns, self.itl_ns = truth, ttft_ns, itl_ns
        self.buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in self.buffer[:end].decode("latin-1").split("\r\n")[1:])
        }
        n_body = int(headers.get("content-length", 0))
        if len(self.buffer) < end + 4 + n_body:
            return
        read_ns = time.monotonic_ns()
        body = json.loads(bytes(self.buffer[end + 4 : end + 4 + n_body]) or b"{}")
        del self.buffer[: end + 4 + n_body]
        self.answering = asyncio.ensure_future(self.answer(headers.get("x-request-id", ""), body, read_ns))

    async def answer(self, request_id: str, body: dict[str, object], read_ns: int) -> None:
        n_prompt, n_out = len(body.get("prompt", "")), int(body.get("max_tokens", 16))
        sent: list[int] = []
        self.truth.requests[request_id] = {"last_byte_ns": read_ns, "sent_ns": sent}
        due = read_ns + self.ttft_ns
        out = HEAD
        for i in range(1, n_out + 1):
            while (left := due - time.monotonic_ns()) > 0:
                await asyncio.sleep(left / 1e9 if left > 2e6 else 0)
            finish = '"length"' if i == n_out else "null"
            event = (
                'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"truth","choices":[{"index":0,'
                f'"text":" word","logprobs":null,"finish_reason":{finish}}}],"usage":{{"prompt_tokens":{n_prompt},'
                f'"total_tokens":{n_prompt + i},"completion_tokens":{i}}}}}\n\n'
            )
            now = time.monotonic_ns()
            self.transport.write(out + chunk(event.encode()))
            out = b""
            sent.append(now)
            self.truth.late_ns.append(now - due)
            due += self.itl_ns
        self.transport.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def serve(args: argparse.Namespace) -> None:
    truth = Truth()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Connection(truth, round(args.ttft_ms * 1e6), round(args.itl_ms * 1e6)), "127.0.0.1", args.port, backlog=4096
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = loop.create_future()
    loop.add_signal_handler(signal.SIGTERM, lambda: ended.done() or ended.set_result(None))
    await ended
    late = sorted(truth.late_ns)
    late_p99_ms = late[int(0.99 * len(late))] / 1e6 if late else 0.0
    verdict = "OK" if late_p99_ms <= LATE_LIMIT_MS else "VOID"
    with open(args.log, "w") as file:
        json.dump({"verdict": verdict, "late_p99_ms": late_p99_ms, "requests": truth.requests}, file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ttft-ms", type=float, default=200)
    parser.add_argument("--itl-ms", type=float, default=20)
    parser.add_argument("--log", required=True)
    uvloop.install()
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
