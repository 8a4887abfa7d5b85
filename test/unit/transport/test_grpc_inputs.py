"""What a gRPC request carries is what its arrays held when it was made."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tritonclient.grpc")

from triton_sam.transport.grpc_client import LARGE, _Inputs


def test_an_array_that_its_owner_changes_is_copied_each_time() -> None:
    inputs, array = _Inputs(), np.zeros(LARGE, np.uint8)
    first = inputs.get("x", array)
    array[:] = 7
    assert first._get_content() == bytes(LARGE)
    assert inputs.get("x", array)._get_content() == bytes([7]) * LARGE


def test_embeddings_of_an_answer_are_copied_once_and_forgotten_with_them() -> None:
    inputs, array = _Inputs(), np.frombuffer(bytes(LARGE), np.uint8)
    assert inputs.get("x", array) is inputs.get("x", array)
    del array
    assert inputs._large == {}
