"""Sends requests of graph_attacks.py to a server, over both protocols, with any sizes and any bytes."""

from __future__ import annotations

import math
from typing import Any

TRITON_TYPES = {
    "float64": "FP64", "float32": "FP32", "float16": "FP16", "int64": "INT64", "int32": "INT32", "uint8": "UINT8",
    "bool": "BOOL", "str": "BYTES",
}  # fmt: skip
WIDTHS = {"FP64": 8, "FP32": 4, "FP16": 2, "INT64": 8, "INT32": 4, "UINT8": 1, "BOOL": 1, "BYTES": 0}
LARGEST = 96 << 20
"""Maximum bytes of a tensor that is sent completely. A larger tensor is announced without content.

The finest map of SAM3 has 81 MiB."""


def send(protocol: Any, client: Any, model: str, request: list[dict]) -> str | None:
    """Send one request of zeros, see graph_runner.py, by a module of tritonclient. The shapes may have negative sizes.

    Returns:
        The status of the error, for example "500" or "StatusCode.INTERNAL"; None if the server answered.
    """
    from tritonclient.utils import InferenceServerException

    inputs = []
    for part in request:
        kind = TRITON_TYPES[part["dtype"]]
        size = math.prod(part["shape"]) * WIDTHS[kind] if all(side >= 0 for side in part["shape"]) else 0
        tensor = protocol.InferInput(part["name"], part["shape"], kind)
        content = bytes(size if size <= LARGEST else 0)
        # The client's own setters accept only arrays, which cannot have a negative size.
        if protocol.__name__.endswith("http"):
            tensor._raw_data = content
            tensor._parameters["binary_data_size"] = len(content)
        else:
            tensor._raw_content = content
        inputs.append(tensor)
    try:
        client.infer(model, inputs)
    except InferenceServerException as error:
        return str(error.status())
    return None
