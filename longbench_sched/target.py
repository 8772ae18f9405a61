"""Target: which engine, where, and how to talk to it.

The base URL may end in `/v1` or not, may have a path prefix (a gateway) and an IPv6 host. A user and password in it are sent as
Basic credentials and are masked wherever the URL is shown or stored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote, unquote, urlsplit

from longbench_sched.errors import UsageError

Api = Literal["completions", "chat", "generate"]
CountMode = Literal["full", "final"]

DEFAULT_PORTS = {"http": 80, "https": 443}
_IN_A_PATH = "/%:@!$&'()*+,;=~"  # as it is, like letters and digits (RFC 3986, 3.3); the rest is percent-encoded
_PATH_OF_A_REQUEST = re.compile(r"/(v1/(chat/)?completions|v1/models|generate)$")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an engine listens, taken from a base URL."""

    scheme: Literal["http", "https"]
    host: str  # without brackets
    port: int
    prefix: str  # "" or "/path", without a trailing slash and without the final /v1
    userinfo: str | None = None  # "user:password", decoded; never shown

    @classmethod
    def parse(cls, base_url: str) -> Endpoint:
        """Read a base URL. Raises UsageError with a remedy."""
        try:
            parts = urlsplit(base_url)
            port, host = parts.port, ascii_host(parts.hostname or "")
        except ValueError as error:
            raise UsageError(f"--base-url {mask_url(base_url)!r}: {error}. Give for example http://127.0.0.1:8000.") from None
        if parts.scheme not in ("http", "https") or not host:
            raise UsageError(
                f"--base-url {mask_url(base_url)!r} is not an http:// or https:// address. Give for example http://127.0.0.1:8000."
            )
        if parts.query or parts.fragment or " " in base_url or not base_url.isprintable():
            raise UsageError(
                f"--base-url {mask_url(base_url)!r} has a query, a fragment, white space or control characters; leave them out."
            )
        prefix = parts.path.rstrip("/")
        if found := _PATH_OF_A_REQUEST.search(prefix):
            shorter = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{prefix[: found.start()]}"
            raise UsageError(
                f"--base-url {mask_url(base_url)!r} is where one kind of request goes. Give what stands before it: {shorter}; "
                "--api says which kind is sent."
            )
        prefix = quote(prefix.removesuffix("/v1").rstrip("/"), safe=_IN_A_PATH)
        userinfo = None
        if parts.username is not None:
            userinfo = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        scheme: Literal["http", "https"] = "https" if parts.scheme == "https" else "http"
        if port == 0:
            raise UsageError(f"--base-url {mask_url(base_url)!r}: port 0 is no port to connect to.")
        return cls(scheme, host, port or DEFAULT_PORTS[scheme], prefix, userinfo)

    @property
    def netloc(self) -> str:
        """Host and port as in a Host header: IPv6 in brackets, the scheme's default port left out."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The base URL without /v1 and without credentials."""
        return f"{self.scheme}://{self.netloc}{self.prefix}"


def ascii_host(host: str) -> str:
    """A host as it is looked up and sent: other letters as IDNA has them. Raises ValueError for what is no name."""
    try:
        encoded = host.encode("idna")
        encoded.decode("idna")  # an "xn--" that stands for nothing
    except UnicodeError:
        raise ValueError(f"{host!r} is no name of a host") from None
    return encoded.decode("ascii")


def mask_url(url: str) -> str:
    """The URL with the password (and the user) before the host replaced by ***."""
    head, at, tail = url.rpartition("@")
    scheme, sep, _ = head.partition("://")
    return f"{scheme}{sep}***@{tail}" if at and sep else url


@dataclass(frozen=True, slots=True)
class Target:
    """An engine to be measured."""

    engine: str  # a key of engine.ENGINES
    endpoint: Endpoint
    model: str | None  # None: the first one that the server lists
    api: Api = "completions"
    count: CountMode = "full"  # full: counts in every chunk where the dialect offers them; final: only at the end
    headers: tuple[tuple[str, str], ...] = ()  # from --header; names are stored, values never
    api_key: str | None = field(default=None, repr=False)
    name: str | None = None
