"""What a server says when it refuses: one reading of all the shapes that error bodies and error events have.

{"error": {"message", "type", "param", "code"}} vLLM; SGLang in a stream; llama.cpp {"object": "error", "message", "type",
"code"} SGLang, trtllm-serve, older vLLM {"message", "type", "code"} Dynamo {"error": "text"} trtllm-serve on schema errors,
Triton, vLLM without an API key {"detail": "text"} or {"detail": [{"msg", "loc"}]} FastAPI: unknown paths, Triton's OpenAI
front end
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import orjson

from longbench_sched.engine.dialect import MAX_KEPT_ERROR_BYTES

MAX_WORD_BYTES = 80

# Terminal escapes (CSI, OSC and the rest), then control characters, then marks that reorder text.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?|\x9b[0-?]*[ -/]*[@-~]")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]+")


@dataclass(frozen=True, slots=True)
class ServerError:
    """An error in the server's words."""

    message: str
    type: str | None = None
    code: int | None = None

    @property
    def detail(self) -> str:
        """Type and message for people, safe to print."""
        return clean(f"{self.type}: {self.message}" if self.type and self.type not in self.message else self.message)


def clean(text: str | bytes, limit: int = MAX_KEPT_ERROR_BYTES) -> str:
    """A server's words, safe to print and to store: no terminal escapes, no control characters, at most `limit` bytes."""
    if isinstance(text, bytes):
        text = text[: 4 * limit].decode("utf-8", "replace")
    text = _CONTROLS.sub(" ", _ESCAPES.sub("", text[: 4 * limit])).strip()
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw.decode("utf-8", "replace")
    return raw[: limit - 3].decode("utf-8", "ignore") + "…"


def read_word(value: object, limit: int = MAX_WORD_BYTES) -> str:
    """A value that should be a short text, such as a finish reason, safe to print and to store whatever it is."""
    return clean(value if isinstance(value, str) else _dump(value), limit)


def read_error(body: object) -> ServerError | None:
    """The error that a decoded JSON body or event holds, or None if it has none of the known shapes."""
    if not isinstance(body, dict):
        return None
    error = body.get("error")
    if isinstance(error, dict):
        return _from_object(error) or ServerError(_dump(error), code=_code(error))
    if isinstance(error, str) and error:
        return ServerError(error, code=_code(body))
    if error:
        return ServerError(_dump(error), code=_code(body))
    return _from_object(body) or _from_detail(body.get("detail"))


def read_error_body(raw: bytes) -> str:
    """What an error answer says, for people: the message if the body has a known shape, else the start of the body."""
    try:
        error = read_error(orjson.loads(raw))
    except orjson.JSONDecodeError:
        error = None
    return error.detail if error else clean(raw)


def _from_object(error: dict[str, Any]) -> ServerError | None:
    message = error.get("message")
    if not isinstance(message, str) or not message:
        return None
    kind = error.get("type")
    return ServerError(message, kind if isinstance(kind, str) and kind else None, _code(error))


def _from_detail(detail: object) -> ServerError | None:
    if isinstance(detail, str) and detail:
        return ServerError(detail)
    if isinstance(detail, list) and detail:
        parts = [
            f"{_path(item)}{item['msg']}" for item in detail if isinstance(item, dict) and isinstance(item.get("msg"), str)
        ]
        return ServerError("; ".join(parts) or _dump(detail))
    return None


def _path(item: dict[str, Any]) -> str:
    where = item.get("loc")
    return f"{'.'.join(map(str, where))}: " if isinstance(where, list) and where else ""


def _code(error: dict[str, Any]) -> int | None:
    return read_code(error.get("code", error.get("status_code")))


def read_code(code: object) -> int | None:
    """An error code: a small whole number, also as a text; None for anything else."""
    if isinstance(code, str) and code.isascii() and code.isdigit() and len(code) <= 9:
        return int(code)
    return code if isinstance(code, int) and not isinstance(code, bool) and abs(code) < 2**31 else None


def _dump(value: object) -> str:
    """JSON of what a server sent. Not by orjson, which refuses half surrogates, numbers over 64 bits and deep nesting."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        return "an error nested too deep to be shown"
