"""A stored run of awkward answers, and the very events that it was made of.

A server on loopback answers by script, our client measures it, and each event of the script gets the stamp that the client
stored for it: the stamp of its token, of the first byte (a role event), of the finish reason, or of the end (usage, `[DONE]`).
What comes of it can be fed to the code of any other tool, which then reads the same events at the same instants.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longbench_sched.run import NONE, Run
from longbench_sched.store.parquet import read_run

ASKED = 6  # tokens that every request asks for; some answers have fewer
PROMPT = 24
IDLE_LIMIT = "400ms"


@dataclass(frozen=True)
class Event:
    """Something that the server says, so long after what it said before."""

    what: str  # role, token, finish, usage, done, comment or error
    after_ms: float = 0.0
    tokens: int = 0
    is_last: bool = False  # a token that has the finish reason with it
    reason: str = "length"


@dataclass(frozen=True)
class Answer:
    """One answer: its events, and how it ends."""

    name: str
    events: Sequence[Event]
    ending: str = "complete"  # or cut: the connection is closed; silent: nothing more comes; refused: 503


def token(after_ms: float = 8.0, tokens: int = 1, *, is_last: bool = False) -> Event:
    return Event("token", after_ms, tokens, is_last)


ROLE, DONE = Event("role"), Event("done")
USAGE, LAST = Event("usage"), token(is_last=True)

ANSWERS = (
    Answer("one token a chunk", (ROLE, token(30), token(), token(), token(), LAST, USAGE, DONE)),
    Answer("packed", (ROLE, token(40, 2), token(16, 3), token(9, is_last=True), USAGE, DONE)),
    Answer("an early role event", (Event("role", 25), token(20), token(12), token(12, 2), LAST, USAGE, DONE)),
    Answer("a single chunk", (ROLE, token(45, 5, is_last=True), USAGE, DONE)),
    Answer("a single token", (ROLE, token(35, is_last=True), USAGE, DONE)),
    Answer("refused", (), "refused"),
    Answer("a finish reason apart", (ROLE, token(30), token(), token(), Event("finish", 22), USAGE, DONE)),
    Answer("a late end", (ROLE, token(30), token(), LAST, Event("usage", 30), Event("done", 15))),
    Answer("cut", (ROLE, token(30), token()), "cut"),
    Answer("a comment first", (Event("comment", 10), Event("role", 25), token(0), token(), LAST, USAGE, DONE)),
    Answer("an error in the stream", (ROLE, token(30), token(), Event("error", 8), DONE)),
    Answer("silence", (ROLE, token(30), token()), "silent"),
    Answer("no token", (ROLE, Event("finish", 30), USAGE, DONE)),
    Answer("no finish reason", (ROLE, token(30), token(), token(11), USAGE, DONE)),
    Answer("aborted", (ROLE, token(30), token(), Event("finish", 8, reason="abort"), USAGE, DONE)),
    Answer("counted, not shown", (ROLE, Event("finish", 30), Event("usage", tokens=5), DONE)),
)

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions", "generate": "/generate"}


def render(event: Event, api: str, n_tokens: int) -> bytes:
    """The bytes of an event, after which the answer has so many tokens; empty where the route has no such event."""
    if event.what == "comment":
        return b": keep-alive\n\n"
    if event.what == "done":
        return b"data: [DONE]\n\n"
    if event.what == "error":
        return _data({"error": {"message": "it broke", "type": "InternalServerError", "code": 500}})
    usage = {"prompt_tokens": PROMPT, "total_tokens": PROMPT + n_tokens, "completion_tokens": n_tokens}
    if api == "generate":
        finish = {"type": event.reason, "length": n_tokens} if event.is_last or event.what == "finish" else None
        meta = {"id": "1", "finish_reason": finish, "prompt_tokens": PROMPT, "completion_tokens": n_tokens, "cached_tokens": 0}
        return b"" if event.what in ("role", "usage") else _data({"text": "tok " * n_tokens, "meta_info": meta})
    if event.what == "role" and api != "chat":
        return b""
    kind = "chat.completion.chunk" if api == "chat" else "text_completion"
    about = {"id": "1", "object": kind, "created": 1, "model": "awkward"}
    if event.what == "usage":
        return _data({**about, "choices": [], "usage": usage})
    text = "tok " * event.tokens
    delta = {"role": "assistant", "content": ""} if event.what == "role" else {"content": text}
    said = {"delta": delta} if api == "chat" else {"text": text}
    finish_reason = event.reason if event.is_last or event.what == "finish" else None
    choice = {"index": 0, **said, "logprobs": None, "finish_reason": finish_reason}
    return _data({**about, "choices": [choice], "usage": usage})


def _data(value: object) -> bytes:
    return f"data: {json.dumps(value, separators=(',', ':'))}\n\n".encode()


@contextmanager
def scripted(api: str) -> Iterator[tuple[str, dict[str, Answer]]]:
    """A server that gives the answers in turn: its URL, and which answer each request (by its id) got."""
    given: dict[str, Answer] = {}
    ready, loop = threading.Event(), asyncio.new_event_loop()
    ports: list[int] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await _converse(reader, writer, api, given):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
        ready.set()
        await stop.wait()
        server.close()

    stop = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    ready.wait(10)
    try:
        yield f"http://127.0.0.1:{ports[0]}", given
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)


async def _converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, api: str, given: dict[str, Answer]) -> bool:
    """One request and its answer; whether the connection may be used again."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    lines = [line.partition(":") for line in head.split("\r\n")[1:] if line]
    headers = {name.lower(): value.strip() for name, _, value in lines}
    await reader.readexactly(int(headers.get("content-length", "0")))
    if head.split(" ", 2)[1] != PATHS[api]:
        card = {"object": "list", "data": [{"id": "awkward", "object": "model", "max_model_len": 4096}]}
        writer.write(_whole(200 if "/models" in head.split("\r\n")[0] else 404, card))
        return True
    answer = given.setdefault(headers["x-request-id"], ANSWERS[len(given) % len(ANSWERS)])
    if answer.ending == "refused":
        writer.write(_whole(503, {"error": {"message": "busy", "code": 503}}))
        return True
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    n_tokens = 0
    for event in answer.events:
        await asyncio.sleep(event.after_ms / 1e3)
        n_tokens += event.tokens
        data = render(event, api, n_tokens)
        if data:
            writer.write(b"%x\r\n%b\r\n" % (len(data), data))
            await writer.drain()
    if answer.ending == "silent":
        await reader.read(1)  # until the client gives up
    if answer.ending != "complete":
        return False
    writer.write(b"0\r\n\r\n")
    return True


def _whole(status: int, value: object) -> bytes:
    body = json.dumps(value).encode()
    return b"HTTP/1.1 %d Said\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


def measure(engine: str, api: str, rounds: int = 1) -> tuple[Run, dict[str, Any]]:
    """Run our client against the script: the stored run, and its events as other tools are given them (see `events_of`)."""
    with tempfile.TemporaryDirectory() as folder, scripted(api) as (url, given):
        command = [sys.executable, "-m", "longbench_sched", "run", "smoke", "--engine", engine, "--api", api, "--base-url", url]
        prompts = [] if api == "chat" else ["--prompts", "ids"]
        sizes = [f"--isl={PROMPT}", f"--osl={ASKED}", f"--num-prompts={rounds * len(ANSWERS)}", "--num-warmups=0"]
        limits = ["--concurrency=3", "--timeout-idle", IDLE_LIMIT, "--min-success=0", "--no-preflight", "--model=awkward"]
        ended = subprocess.run(
            [*command, *prompts, *sizes, *limits, "--output-dir", folder], check=False, capture_output=True, text=True
        )
        stored = list(Path(folder).glob("*.parquet"))
        if len(stored) != 1:
            raise RuntimeError(f"the run ended with code {ended.returncode}: {ended.stderr[-2000:]}")
        run = read_run(stored[0])
        return run, events_of(run, api, given)


def events_of(run: Run, api: str, given: dict[str, Answer]) -> dict[str, Any]:
    """The run as its events: {"api", "duration_s", "requests": [{"sent_s", "end_s", "status", "is_broken", "events"}]}.

    `events` are pairs of an instant and the text of an event. Instants are in seconds after the first send. `is_broken` says
    that the answer did not come to its end: the tool sees the connection fail at `end_s`.
    """
    table = run.table
    origin_ns = int(min(table.ints["sent_ns"]))
    order = sorted(range(table.n), key=lambda i: table.ints["sent_ns"][i])
    requests = []
    for i in order:
        row = {name: int(table.ints[name][i]) for name in ("sent_ns", "end_ns", "first_byte_ns", "finish_ns", "http_status")}
        answer = given[str(table.texts["request_id"][i])]
        stamps = map(int, table.lists["chunk_at_ns"][table.offsets[i] : table.offsets[i + 1]])
        events = [
            [(at_ns - origin_ns) / 1e9, text] for at_ns, text in _stamped(answer, api, row, stamps, answer.ending == "complete")
        ]
        requests.append(
            {
                "answer": answer.name,
                "sent_s": (row["sent_ns"] - origin_ns) / 1e9,
                "end_s": (row["end_ns"] - origin_ns) / 1e9,
                "status": 503 if answer.ending == "refused" else 200,
                "is_broken": answer.ending in ("cut", "silent"),
                "isl": int(table.ints["isl"][i]),
                "osl": int(table.ints["osl"][i]),
                "events": events,
            }
        )
    duration_s = max(request["end_s"] for request in requests)
    return {"api": api, "duration_s": duration_s, "requests": requests}


def _stamped(
    answer: Answer, api: str, row: dict[str, int], stamps: Iterator[int], is_complete: bool
) -> Iterator[tuple[int, str]]:
    """Each event of an answer with the stamp that the run has for it."""
    n_tokens, last_ns = 0, row["sent_ns"]
    pending: list[str] = []  # role events behind a comment: they came with the token that follows
    for event in answer.events:
        n_tokens += event.tokens
        text = render(event, api, n_tokens).decode()
        if not text:
            continue
        if event.what == "role" and answer.events[0].what == "comment":
            pending.append(text)
            continue
        if event.what == "token":
            last_ns = next(stamps)
        elif event.what in ("role", "comment"):
            last_ns = row["first_byte_ns"]
        elif event.what == "finish":
            last_ns = row["finish_ns"]
        else:
            last_ns = row["end_ns"]
        assert last_ns != NONE
        yield from ((last_ns, early) for early in pending)
        pending.clear()
        yield last_ns, text
    assert not is_complete or next(stamps, None) is None
