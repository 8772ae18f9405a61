"""Which proxy the environment names, by the rules of curl."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from longbench_sched.errors import UsageError
from longbench_sched.load.proxy import environment_proxy
from longbench_sched.target import Endpoint

P, Q = "http://proxy:3128", "http://other:3128"


@pytest.mark.parametrize(
    ("url", "environ", "expected"),
    [
        ("http://gpu7:8000", {}, None),
        ("http://gpu7:8000", {"http_proxy": P}, P),
        ("http://gpu7:8000", {"HTTP_PROXY": P}, P),
        ("http://gpu7:8000", {"http_proxy": P, "HTTP_PROXY": Q}, P),
        ("http://gpu7:8000", {"https_proxy": P}, None),
        ("https://gpu7", {"https_proxy": P, "http_proxy": Q}, P),
        ("https://gpu7", {"all_proxy": P}, P),
        ("https://gpu7", {"ALL_PROXY": P}, P),
        ("http://gpu7:8000", {"http_proxy": ""}, None),
        ("http://gpu7:8000", {"http_proxy": "proxy:3128"}, P),
        ("http://gpu7:8000", {"http_proxy": P, "no_proxy": "gpu7"}, None),
        ("http://gpu7:8000", {"http_proxy": P, "NO_PROXY": "localhost, gpu7:8000"}, None),
        ("http://gpu7:8000", {"http_proxy": P, "no_proxy": "gpu7:8001"}, P),
        ("http://gpu7.lab.test", {"http_proxy": P, "no_proxy": ".lab.test"}, None),
        ("http://gpu7.lab.test", {"http_proxy": P, "no_proxy": "*.lab.test"}, None),
        ("http://gpu7.lab.test", {"http_proxy": P, "no_proxy": "LAB.test"}, None),
        ("http://notlab.test", {"http_proxy": P, "no_proxy": "lab.test"}, P),
        ("http://gpu7", {"http_proxy": P, "no_proxy": "*"}, None),
        ("http://[::1]:8000", {"http_proxy": P, "no_proxy": "::1"}, None),
    ],
)
def test_the_environments_proxy(url: str, environ: Mapping[str, str], expected: str | None) -> None:
    assert environment_proxy(Endpoint.parse(url), environ) == expected


@pytest.mark.parametrize(
    "proxy",
    [
        *("socks5://proxy:1080", "http://", "ftp://u:word@proxy", "http://u:word@a..b", "http://u:word@proxy:port"),
        *("http://u:word@proxy:99999", "http://u:word@proxy:0", "http://[::1"),
    ],
)
def test_a_proxy_of_another_kind_is_refused_without_its_password(proxy: str) -> None:
    with pytest.raises(UsageError) as error:
        environment_proxy(Endpoint.parse("http://gpu7"), {"http_proxy": proxy})
    assert "word" not in str(error.value)
