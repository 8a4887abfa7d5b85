"""A request has the headers of its protocol, and the values that its arrays had when it was made."""

import numpy as np
import pytest

pytest.importorskip("tritonclient.grpc")

from triton_sam.errors import ConfigurationError
from triton_sam.transport.grpc_client import LARGE, GrpcClient, _Inputs
from triton_sam.transport.options import check_headers
from triton_sam.transport.timed_sockets import Call
from triton_sam.transport.url import parse_url


def test_header_names_are_lower_case_for_grpc():
    client = GrpcClient(parse_url("grpc://host"), headers={"Authorization": "Bearer X"})
    options = client._options(Call(1e9, {"X-B3-TraceId": "Mixed"}))
    assert options["headers"] == {"authorization": "Bearer X", "x-b3-traceid": "Mixed"}
    client.close()


def test_an_array_that_its_owner_changes_is_copied_each_time():
    inputs, array = _Inputs(), np.zeros(LARGE, np.uint8)
    first = inputs.get("x", array)
    array[:] = 7
    assert first._get_content() == bytes(LARGE)
    assert inputs.get("x", array)._get_content() == bytes([7]) * LARGE


def test_embeddings_of_an_answer_are_copied_once_and_forgotten_with_them():
    inputs, array = _Inputs(), np.frombuffer(bytes(LARGE), np.uint8)
    assert inputs.get("x", array) is inputs.get("x", array)
    assert inputs.get("y", array).name() == "y"
    del array
    assert inputs._large == {}


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"a": b"secret"}, "headers must be a mapping of names to texts; the value of 'a' is not a string"),
        ("secret", "headers must be a mapping of names to texts, not str"),
        ({"Authorization:": "secret"}, "the header name 'Authorization:' is not valid"),
    ],
)
def test_headers_of_a_wrong_type_are_refused_and_not_shown(headers, words):
    with pytest.raises(ConfigurationError, match=words) as caught:
        check_headers(headers)
    assert "secret" not in str(caught.value)
