"""Flags that say which engine, where, and with which headers: read once, refused with a remedy.

The key for the API comes from the environment, never from the command line or a file, and is sent to no embedded engine. Values of
headers are sent and not stored.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

from longbench_sched.errors import UsageError
from longbench_sched.target import Api, CountMode, Endpoint, Target

DEFAULT_KEY_ENV = "OPENAI_API_KEY"
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2: token


def one_of(value: str, known: Iterable[str], what: str) -> str:
    """The value if it is known. Raises UsageError that lists the known ones and the likely one."""
    known = list(known)
    if value in known:
        return value
    close = difflib.get_close_matches(value, known, n=1, cutoff=0.5)
    hint = f"\nDid you mean {close[0]}?" if close else ""
    raise UsageError(f"no {what} named {value!r}. Known: {', '.join(known)}.{hint}")


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
    from longbench_sched.engine import ENGINES

    entry = ENGINES[one_of(engine, ENGINES, "engine")]
    spoken: Api = entry.apis[0]
    if api is not None:
        asked = one_of(api, ("completions", "chat", "generate"), "API")
        if asked not in entry.apis:
            raise UsageError(f"{entry.name} has no {asked} API here. Known for it: {', '.join(entry.apis)}.")
        spoken = next(known for known in entry.apis if known == asked)
    mode: CountMode = "final" if one_of(count, ("full", "final"), "--count") == "final" else "full"
    return Target(
        engine=entry.name,
        endpoint=Endpoint.parse(base_url),
        model=model,
        api=spoken,
        count=mode,
        headers=read_headers(headers),
        api_key=api_key,
    )
