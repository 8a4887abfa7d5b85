"""The parts of a server's URL that programs on the same machine need."""

from __future__ import annotations

import pytest

from triton_sam.errors import ConfigurationError
from triton_sam.transport.url import parse_url


@pytest.mark.parametrize(
    ("url", "port", "is_local"),
    [
        ("localhost:8000", 8000, True),
        ("grpc://127.0.0.1", 8001, True),
        ("http://[::1]:9000/base/path", 9000, True),
        ("https://localhost/sam", 443, True),
        ("http://localhost/a:b", 8000, True),
        ("grpcs://example.org", 443, False),
        ("http://localhost.example.org:80", 80, False),
    ],
)
def test_port_and_machine(url: str, port: int, is_local: bool) -> None:
    parsed = parse_url(url)
    assert (parsed.port, parsed.is_local) == (port, is_local)


@pytest.mark.parametrize("url", ["localhost:abc", "http://localhost:65536", "grpc://[::1]:-1"])
def test_a_port_that_is_none_is_told_without_words_of_python(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_url(url)
    told = "is not a server URL: the port must be a number up to 65535, as in host:8000"
    assert str(caught.value) == f"'{url}' {told}"
