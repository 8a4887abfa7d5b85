"""Proxies between a client and its servers: foreign pages, header names."""

from __future__ import annotations

import pytest

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
    from tritonclient.utils import InferenceServerException

    from triton_sam.transport.triton import map_error

    page = InferenceServerException("An exception occurred in the client while decoding the response: <html>", status)
    assert words in str(map_error(page, parse_url("https://host")))


def test_header_names_are_lower_case_for_grpc_alone() -> None:
    from triton_sam.transport.triton import request_headers

    headers = {"Authorization": "Bearer X"}
    assert request_headers(parse_url("grpcs://host"), headers) == {"authorization": "Bearer X"}
    assert request_headers(parse_url("https://host"), headers) == headers
    assert request_headers(parse_url("https://host"), None) == {}


def test_headers_of_a_trace_are_lower_case_for_grpc() -> None:
    from triton_sam.transport.grpc_client import GrpcClient
    from triton_sam.transport.timed_sockets import Call

    client = GrpcClient(parse_url("grpc://host"), headers={"authorization": "Bearer X"})
    options = client._options(Call(1e9, {"X-B3-TraceId": "Mixed"}))
    assert options["headers"] == {"authorization": "Bearer X", "x-b3-traceid": "Mixed"}
    client.close()
