"""The KServe v2 protocol over HTTP, with Triton's extension `binary_tensor_data`: tensors as bytes behind the JSON."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import urllib3
from tritonclient.utils import InferenceServerException, np_to_triton_dtype, triton_to_np_dtype

from .._common import strict_json
from ..errors import InputError
from .base import Tensors
from .failures import ForeignAnswerError
from .timed_pool import Body, TimedPool
from .timed_sockets import Call
from .url import ServerUrl

JSON_LENGTH = "Inference-Header-Content-Length"
"""This header gives the length of the JSON, after which the bytes of the tensors begin."""
SMALL = 1 << 16
"""Up to this many bytes, joining the parts of a body costs less than writing them one by one."""


class KServeClient:
    """Calls one server over HTTP, from any number of threads.

    Every method may raise these errors: InferenceServerException if the server answers with an error, OSError if the
    connection cannot be made or breaks, TimeoutError if the call reaches its deadline, ValueError if the answer does
    not follow this protocol, and urllib3's HTTPError if the answer is not valid HTTP or ends early.

    Args:
        url: of the server, with an optional base path.
        headers: sent with every call.
        ca_certs: PEM file with the certificates to trust, for https; None for the system's.
    """

    def __init__(
        self, url: ServerUrl, *, headers: Mapping[str, str] | None = None, ca_certs: str | None = None
    ) -> None:
        self._pool = TimedPool(url, ca_certs)
        self._headers = dict(headers or {})

    def infer(self, model: str, inputs: Tensors, outputs: Sequence[str], call: Call) -> dict[str, npt.NDArray[Any]]:
        """Run one inference with the newest version of a model.

        Args:
            model: name of the model.
            inputs: arrays by tensor name; bool, integers, floats, or bytes (dtype object or S).
            outputs: names of the outputs to send back.
            call: the call that this request belongs to; it has the deadline.

        Returns:
            Read-only arrays by output name. Outputs that the server did not send are missing.

        Raises:
            InputError: the protocol does not support the dtype of an array.
        """
        description, tensors = _request(inputs, outputs)
        body: Body = [description, *tensors]
        if sum(len(part) for part in body) <= SMALL:
            body = [b"".join(body)]
        headers = {JSON_LENGTH: str(len(description)), "Content-Type": "application/octet-stream"}
        with self._request("POST", f"{_model(model)}/infer", body, call, headers) as answer:
            return _outputs(answer)

    def is_ready(self, call: Call) -> bool:
        """Return whether the server reports that it is ready."""
        with self._pool.request("GET", "v2/health/ready", self._headers, (), call) as answer:
            answer.read()
            return answer.status == 200

    def version(self, call: Call) -> str:
        """Return the version of the server."""
        return str(self._ask("GET", "v2", call)["version"])

    def index(self, call: Call) -> list[dict[str, str]]:
        """Return name, version and state of every model in the server's repository."""
        return list(self._ask("POST", "v2/repository/index", call))

    def load_model(self, model: str, config: str | None, call: Call) -> None:
        """Tell the server to load a model. ``config`` (JSON) replaces the config.pbtxt; None keeps it."""
        parameters = {} if config is None else {"parameters": {"config": config}}
        path = f"v2/repository/models/{quote(model, safe='')}/load"
        with self._request("POST", path, [strict_json.dumps(parameters).encode()], call) as answer:
            answer.read()

    def model_config(self, model: str, call: Call) -> dict[str, Any]:
        """Return the configuration with which the server runs a model."""
        return dict(self._ask("GET", f"{_model(model)}/config", call))

    def statistics(self, model: str, call: Call) -> dict[str, Any]:
        """Return Triton's statistics of a model: counts, and times in nanoseconds."""
        return dict(self._ask("GET", f"{_model(model)}/stats", call)["model_stats"][0])

    def close(self) -> None:
        """Close idle connections now, and connections in use as soon as their calls end."""
        self._pool.close()

    def _ask(self, method: str, path: str, call: Call) -> Any:
        with self._request(method, path, (), call) as answer:
            return json.loads(answer.read())

    @contextlib.contextmanager
    def _request(
        self, method: str, path: str, body: Body, call: Call, headers: Mapping[str, str] | None = None
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        every = urllib3.HTTPHeaderDict(self._headers)
        every.update({**call.headers, **(headers or {})})
        with self._pool.request(method, path, every, body, call) as answer:
            if answer.status != 200:
                raise _error(answer.status, answer.read())
            yield answer


def _model(name: str) -> str:
    return f"v2/models/{quote(name, safe='')}"


def _error(status: int, content: bytes) -> Exception:
    """Return the error of an answer without success, with Triton's message."""
    try:
        message = str(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError):
        return ForeignAnswerError(status)
    answer: Exception = InferenceServerException(message, status=str(status))
    return answer


def _request(inputs: Tensors, outputs: Sequence[str]) -> tuple[bytes, list[bytes | memoryview]]:
    """Return the JSON of a request and the bytes behind it. Large arrays are not copied."""
    described: list[dict[str, Any]] = []
    body: list[bytes | memoryview] = []
    for name, array in inputs.items():
        kind = np_to_triton_dtype(array.dtype)
        if kind is None:
            raise InputError(f"{name} is an array of {array.dtype}, a type that the server does not support")
        parts = _bytes_elements(array) if kind == "BYTES" else [_memory(array)]
        parameters = {"binary_data_size": sum(map(len, parts))}
        body += parts
        described.append({"name": name, "shape": array.shape, "datatype": kind, "parameters": parameters})
    wanted = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
    return strict_json.dumps({"inputs": described, "outputs": wanted}).encode(), body


def _memory(array: npt.NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _bytes_elements(array: npt.NDArray[Any]) -> list[bytes | memoryview]:
    """Return the elements of an array of bytes, each preceded by its length."""
    parts: list[bytes | memoryview] = []
    for element in array.ravel().tolist():
        content = element if isinstance(element, bytes) else str(element).encode()
        parts += [struct.pack("<I", len(content)), content]
    return parts


def _outputs(answer: urllib3.BaseHTTPResponse) -> dict[str, npt.NDArray[Any]]:
    length = answer.headers.get(JSON_LENGTH)
    if length is None or "Content-Encoding" in answer.headers:
        content = answer.read()
        end = len(content) if length is None else int(length)
        head, data = content[:end], content[end:]
    else:  # two reads, so that the arrays start at the beginning of a buffer and are aligned
        head, data = answer.read(int(length)), answer.read()
    try:
        return dict(_arrays(json.loads(head)["outputs"], memoryview(data)))
    except (KeyError, TypeError, AttributeError, struct.error) as error:
        raise ValueError("the answer is not one to an inference") from error


def _arrays(described: list[dict[str, Any]], data: memoryview) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    offset = 0
    for output in described:
        dtype = triton_to_np_dtype(output["datatype"])
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            array = np.array(output["data"], dtype)
        elif dtype is np.object_:
            array = _read_elements(data[offset : offset + size])
        else:
            array = np.frombuffer(data[offset : offset + size], dtype)
            array = array if array.flags.aligned else array.copy()
        offset += size or 0
        yield output["name"], array.reshape(output["shape"])


def _read_elements(data: memoryview) -> npt.NDArray[np.object_]:
    elements, offset = [], 0
    while offset < len(data):
        (size,) = struct.unpack_from("<I", data, offset)
        offset += 4 + size
        elements.append(bytes(data[offset - size : offset]))
    return np.array(elements, np.object_)
