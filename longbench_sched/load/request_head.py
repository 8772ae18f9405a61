"""What both transports put in front of a body: header lines, credentials, TLS.

A header given by the user wins over ours of the same name, but for those that frame or identify the request: two lengths or two
request ids would make one request mean two things. Values with a line break are refused, whoever they come from: they would
begin a header, or a request, of their own.
"""

from __future__ import annotations

import base64
import os
import re
import ssl
from pathlib import Path

from longbench_sched import __version__
from longbench_sched.engine.dialect import HttpRequest
from longbench_sched.errors import UsageError
from longbench_sched.target import Target

REQUEST_ID = "X-Request-Id"
OURS = frozenset({"content-length", "transfer-encoding", "connection", "accept-encoding", "expect", REQUEST_ID.lower()})

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2: token
_REFUSED = re.compile(r"[\r\n\0]")


def request_path(target: Target, http_request: HttpRequest) -> str:
    """The path to ask for: the prefix of the base URL, then the dialect's."""
    return target.endpoint.prefix + http_request.path


def head_lines(target: Target, http_request: HttpRequest, request_id: str) -> list[tuple[str, str]]:
    """All header lines of a request, in the order sent. Raises UsageError for a header that cannot be sent."""
    lines = common_lines(target)
    given = {name.lower() for name, _ in lines}
    lines += [(name, value) for name, value in http_request.headers if name.lower() not in given]
    if http_request.body or http_request.method != "GET":
        lines.append(("Content-Length", str(len(http_request.body))))
    lines.append((REQUEST_ID, request_id))
    return lines


def common_lines(target: Target) -> list[tuple[str, str]]:
    """The header lines that are the same for every request to a target; the user's last. Raises UsageError."""
    ours = [
        ("Host", target.endpoint.netloc),
        ("User-Agent", f"longbench-sched/{__version__}"),
        ("Accept", "text/event-stream"),
        ("Accept-Encoding", "identity"),  # a compressor holds tokens back until its block is full
    ]
    if (credentials := authorization(target)) is not None:
        ours.append(("Authorization", credentials))
    for name, value in target.headers:
        check_header(name, value)
    given = {name.lower() for name, _ in target.headers}
    return [*((name, value) for name, value in ours if name.lower() not in given), *target.headers]


def authorization(target: Target) -> str | None:
    """Basic from the URL's user and password, else Bearer from the key: what was written into the URL was meant for it."""
    if target.endpoint.userinfo is not None:
        return "Basic " + base64.b64encode(target.endpoint.userinfo.encode()).decode("ascii")
    if target.api_key is None:
        return None
    if not (target.api_key.isascii() and target.api_key.isprintable()):
        raise UsageError("the API key has a line break or a character that no header can carry.")
    return f"Bearer {target.api_key}"


def check_header(name: str, value: str) -> None:
    """Refuse a header that cannot be sent, or that is ours to set. Its value is never quoted: it may be a secret."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"--header {name!r} is no name that HTTP allows. Write for example --header 'X-Team: a'.")
    if _REFUSED.search(value):
        raise UsageError(f"--header {name!r}: a line break inside a header is refused. Give one --header for each.")
    if name.lower() in OURS:
        raise UsageError(f"--header {name!r} frames or identifies a request and is set by this tool. Leave it out.")
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        raise UsageError(f"--header {name!r}: the value has characters that HTTP/1.1 cannot carry.") from None


def encode_head(method: str, path: str, lines: list[tuple[str, str]]) -> bytes:
    """Request line and headers as they go over the wire."""
    head = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in lines), "", ""]
    return "\r\n".join(head).encode("latin-1")


def ssl_context(ca_file: str | Path | None = None, insecure: bool = False) -> ssl.SSLContext:
    """TLS as asked for: the system's authorities, `ca_file` alone, or (`insecure`) no check at all. Raises UsageError."""
    if insecure and ca_file is not None:
        raise UsageError("--ca-file and --insecure contradict each other. Give one of them.")
    try:
        context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except OSError as error:  # ssl.SSLError is one
        why = error.strerror if error.strerror and not isinstance(error, ssl.SSLError) else "no certificate in PEM form in it"
        raise UsageError(f"--ca-file {str(ca_file)!r} cannot be used: {why}.") from None
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context


def tls_advice(detail: str) -> str:
    """What to say when TLS failed: the cause as OpenSSL names it, and the remedy where it is a matter of trust."""
    if "CERTIFICATE_VERIFY_FAILED" in detail or "certificate" in detail.lower():
        return f"{detail}. Give the authority with --ca-file FILE, or check nothing with --insecure"
    return f"{detail}. Is it an https address?"


def os_words(error: BaseException) -> str:
    """The system's words for an error, without addresses and class names: `connection refused`."""
    words = str(error)
    if not words:
        return type(error).__name__
    if isinstance(error, OSError) and error.errno is not None:  # below 0: a failed look-up of a name, not in strerror's table
        words = os.strerror(error.errno) if error.errno > 0 else error.strerror or words
    return one_line(words[:1].lower() + words[1:])


def one_line(text: str) -> str:
    """The text with line breaks and runs of white space made single spaces."""
    return " ".join(text.split())
