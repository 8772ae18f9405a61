"""Base URLs: what is taken, what is refused, and what goes over the wire."""

from __future__ import annotations

import pytest

from longbench_sched.errors import UsageError
from longbench_sched.target import Endpoint


@pytest.mark.parametrize(
    ("url", "host", "prefix"),
    [
        ("http://gpu7:8000/v1", "gpu7", ""),
        ("http://gpu7/a/b/v1/", "gpu7", "/a/b"),
        ("http://[::1]:8000", "::1", ""),
        ("http://gpu7/%2Fx;y=1", "gpu7", "/%2Fx;y=1"),
        ("http://gpu7/\u65e5/v1", "gpu7", "/%E6%97%A5"),
        ("http://b\u00fccher.example", "xn--bcher-kva.example", ""),
    ],
)
def test_an_address_is_kept_as_it_goes_over_the_wire(url: str, host: str, prefix: str) -> None:
    endpoint = Endpoint.parse(url)
    assert (endpoint.host, endpoint.prefix) == (host, prefix)
    endpoint.url.encode("ascii")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://a..b:8000", "'a..b' is no name of a host"),
        ("http://" + "a" * 64, "is no name of a host"),
        ("http://xn--a:8000", "'xn--a' is no name of a host"),
        ("http://\u202egpu7", "is no name of a host"),
        ("http://gpu7/\x01", "control characters; leave them out"),
        ("http://gpu7?x=1", "a query"),
        ("http://gpu7:port", "Port could not be cast"),
        ("http://[::1", "Invalid IPv6 URL"),
        ("http://u:word@", "is not an http:// or https:// address"),
    ],
)
def test_what_is_no_address_is_refused_in_one_error(url: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        Endpoint.parse(url)
    assert words in str(caught.value)
    assert str(caught.value).isprintable()
    assert "word@" not in str(caught.value)
