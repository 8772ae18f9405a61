"""Flags that say which engine, where, and with which headers: read once, refused with a remedy.

The key for the API comes from the environment, never from the command line or a file, and is sent to no embedded engine.
Values of headers are sent and not stored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from longbench_sched.errors import UsageError
from longbench_sched.target import Api, CountMode, Endpoint, Target

DEFAULT_KEY_ENV = "OPENAI_API_KEY"
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2: token


def one_of(value: str, known: Sequence[str], flag: str) -> str:
    """The value if the flag knows it. Raises UsageError."""
    if value not in known:
        raise UsageError(f"{flag} {value!r} is not known. Known: {', '.join(known)}.")
    return value


def read_headers(lines: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Read `Name: value` lines. Raises UsageError for a line break or a name that HTTP does not allow."""
    return tuple(_read_header(line) for line in lines)


def _read_header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    name, value = name.strip(), value.strip()
    if any(character in line for character in "\r\n\0"):
        raise UsageError(f"--header {name!r}: a line break inside a header is refused. Give one --header for each.")
    if not colon or not _HEADER_NAME.fullmatch(name):
        raise UsageError(f"--header {name!r} is not NAME:VALUE. Write for example --header 'X-Team: a'.")
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        raise UsageError(f"--header {name!r}: the value has characters that HTTP/1.1 cannot carry.") from None
    return name, value


def read_api_key(name: str | None, environ: Mapping[str, str]) -> str | None:
    """The key in the variable `name`; without a name that of OPENAI_API_KEY, if it is set. Raises UsageError."""
    key = environ.get(name or DEFAULT_KEY_ENV) or None
    if key is None and name is not None:
        raise UsageError(f"--api-key-env {name}: that variable is not set. Export it, or leave the flag out.")
    if key is not None and not (key.isascii() and key.isprintable()):
        raise UsageError(f"the key in {name or DEFAULT_KEY_ENV} has a line break or a character that no header can carry.")
    return key


def read_target(
    *,
    engine: str,
    base_url: str,
    model: str | None,
    api: str | None,
    count: str,
    headers: Sequence[str],
    api_key: str | None,
) -> Target:
    """The engine to be measured. Raises UsageError."""
    from longbench_sched.engine import find_engine

    entry = find_engine(engine)
    spoken: Api = entry.apis[0]
    if api is not None:
        spoken = _api(one_of(api, ("completions", "chat", "generate"), "--api"))
        if spoken not in entry.apis:
            raise UsageError(f"--engine {engine} has no --api {api}. Known: {', '.join(entry.apis)}.")
    mode: CountMode = "final" if one_of(count, ("full", "final"), "--count") == "final" else "full"
    return Target(
        engine=entry.name,
        endpoint=Endpoint.parse(_text(base_url, "--base-url")),
        model=None if model is None else _text(model, "--model"),
        api=spoken,
        count=mode,
        headers=read_headers(headers),
        api_key=api_key,
    )


def _text(word: str, flag: str) -> str:
    """A word of the command line as text, also where the locale has no letters for its bytes. Raises UsageError."""
    try:
        return word.encode("utf-8", "surrogateescape").decode()
    except UnicodeError:
        raise UsageError(f"{flag} {word!r} is not UTF-8 text. Write it in UTF-8.") from None


def _api(word: str) -> Api:
    return "chat" if word == "chat" else "generate" if word == "generate" else "completions"


def read_timestamps(word: str) -> Literal["kernel", "user", "auto"]:
    """Whose stamps are taken. Raises UsageError."""
    one_of(word, ("kernel", "user", "auto"), "--timestamps")
    return "kernel" if word == "kernel" else "user" if word == "user" else "auto"
