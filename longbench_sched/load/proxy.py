"""Which proxy the environment names for an endpoint. Asked only with --proxy-from-env: a proxy may hold chunks back.

The rules are those of curl: `http_proxy` for http and `https_proxy` for https (lower case first, then upper), else `all_proxy`;
`no_proxy` lists hosts, domains or `host:port` that are reached directly, `*` all.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from longbench_sched.errors import UsageError
from longbench_sched.target import Endpoint, ascii_host, mask_url


def environment_proxy(endpoint: Endpoint, environ: Mapping[str, str]) -> str | None:
    """The URL of the proxy for this endpoint, or None to go directly. Raises UsageError for a proxy that cannot be used."""
    url = _variable(environ, f"{endpoint.scheme}_proxy") or _variable(environ, "all_proxy")
    if url is None:
        return None
    if _is_direct(endpoint, _variable(environ, "no_proxy") or ""):
        return None
    url = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(ascii_host(parts.hostname or "")) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable or not url.isprintable():
        raise UsageError(
            f"the environment's proxy {mask_url(url)!r} is not an http:// address. Unset it, or leave the proxy out."
        )
    return url


def _variable(environ: Mapping[str, str], name: str) -> str | None:
    return environ.get(name) or environ.get(name.upper()) or None


def _is_direct(endpoint: Endpoint, no_proxy: str) -> bool:
    host = endpoint.host.lower()
    for entry in no_proxy.lower().replace(",", " ").split():
        name = entry.removeprefix("*").removeprefix(".")
        if entry == "*" or name in (host, f"{host}:{endpoint.port}") or host.endswith(f".{name}"):
            return True
    return False
