"""Proxies between a client and its servers: foreign pages, header names."""

from __future__ import annotations

from typing import Any

import pytest

from triton_sam.errors import ConfigurationError
from triton_sam.transport.url import parse_url


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("401", "refuses access: HTTP status 401"),
        ("413", "takes no request of that size: HTTP status 413"),
        ("502", "is not available: HTTP status 502"),
        ("404", "does not answer like a Triton server"),
    ],
)
def test_a_foreign_page_of_a_proxy_is_told_by_its_status(status: str, words: str) -> None:
    from triton_sam.transport.failures import ForeignAnswerError, map_error

    assert words in str(map_error(ForeignAnswerError(int(status)), parse_url("https://host"), "sam2"))


def test_header_names_are_lower_case_for_grpc_alone() -> None:
    from triton_sam.transport.triton import request_headers

    headers = {"Authorization": "Bearer X"}
    assert request_headers(parse_url("grpcs://host"), headers) == {"authorization": "Bearer X"}
    assert request_headers(parse_url("https://host"), headers) == headers
    assert request_headers(parse_url("https://host"), None) == {}


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"a": 5}, "headers must be a mapping of names to texts; the value of 'a' is not a string"),
        ({"a": b"secret"}, "the value of 'a' is not a string"),
        ({5: "secret"}, "headers must be a mapping of names to texts; the name 5 is not a string"),
        (5, "headers must be a mapping of names to texts, not int"),
        ("secret", "headers must be a mapping of names to texts, not str"),
        ([("a", "secret")], "headers must be a mapping of names to texts, not list"),
    ],
)
def test_headers_of_a_wrong_type_are_refused_and_not_shown(headers: Any, words: str) -> None:
    from triton_sam.transport.triton import request_headers

    with pytest.raises(ConfigurationError, match=words) as caught:
        request_headers(parse_url("http://host"), headers)
    assert "secret" not in str(caught.value)


def test_headers_of_a_trace_are_lower_case_for_grpc() -> None:
    from triton_sam.transport.grpc_client import GrpcClient
    from triton_sam.transport.timed_sockets import Call

    client = GrpcClient(parse_url("grpc://host"), headers={"authorization": "Bearer X"})
    options = client._options(Call(1e9, {"X-B3-TraceId": "Mixed"}))
    assert options["headers"] == {"authorization": "Bearer X", "x-b3-traceid": "Mixed"}
    client.close()
