"""The interface of the session models to Triton: calls to other models (BLS, Business Logic Scripting), and answers.

Only the entries of the session models (``triton_model.py``) import this module, because it needs the module
``triton_python_backend_utils``, which exists only inside Triton.
"""

from __future__ import annotations

import shutil
from collections.abc import Container, Mapping
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from .._common.text import one_line
from ..errors import (
    InferenceError,
    InputError,
    ModelNotReadyError,
    ServerBusyError,
    ServerError,
    UnknownImageError,
    UnknownSessionError,
)
from ..repository.folder import version_folders
from ..wire import contract, triton_texts
from . import tasks
from .images import NoRoomError
from .messages import Reply

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where Triton's Python backend keeps tensors on the CPU
SHARED_MEMORY_OF_CALLS = 128 << 20
"""Bytes of shared memory that running requests use in the processes of the models, in addition to the cache."""
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def run(
    model: str,
    held: Mapping[str, Any],
    arrays: Mapping[str, npt.NDArray[Any]],
    outputs: tuple[str, ...],
    memory: Any | None = None,
) -> dict[str, Any]:
    """Run another model of this Triton, and return its outputs by name.

    Args:
        held: Triton tensors by the names of the inputs.
        memory: where the outputs stay, as Triton tensors; None: they become arrays.
    """
    tensors = [renamed(name, tensor) for name, tensor in held.items()] + to_tensors(arrays)
    answer = call(model, tensors, outputs, memory or cpu())
    if memory is not None:
        return answer
    # Copy the arrays: a view would keep the answer's block of shared memory occupied while it is in use.
    return {name: np.array(tensor.as_numpy()) for name, tensor in answer.items()}


def call(model: str, inputs: list[Any], outputs: tuple[str, ...], memory: Any) -> dict[str, Any]:
    """Run another model of this Triton, as a step of the trace of the current task; return its outputs by name."""
    task = tasks.CURRENT.get()
    options = {} if task is None or task.trace is None else {"trace": task.trace}
    request = pb_utils.InferenceRequest(
        model_name=model,
        inputs=inputs,
        requested_output_names=list(outputs),
        preferred_memory=memory,
        **options,
    )
    # In one hour of ten busy clients, one answer of Triton 24.10 lacked an output, so retry once.
    for _ in range(2):
        response = request.exec()
        if response.has_error():
            raise read_failure(f"{model} failed: {response.error().message()}")
        answer = {tensor.name(): tensor for tensor in response.output_tensors()}
        missing = [name for name in outputs if name not in answer]
        if not missing:
            return answer
        pb_utils.Logger.log_warn(f"{model} answered without {', '.join(missing)}")
    raise InferenceError(f"{model} failed: its answer lacks {', '.join(missing)}, which the request asked for")


def read_failure(text: str) -> ServerError:
    """Return the error for the message of a failed model: out of memory, queue full, or another error."""
    if triton_texts.NO_ROOM.search(text):
        return NoRoomError(text)
    return ServerBusyError(text) if triton_texts.QUEUE_IS_FULL.search(text) else InferenceError(text)


def weights_identity(folder: Path) -> str:
    """Return a hash that identifies an encoder's weights, equal on all replicas.

    It covers name, size, first 64 KiB and last 64 KiB of each file of the newest version.
    """
    version = newest_version(folder)
    digest = blake2b(folder.name.encode(), digest_size=16)
    for path in sorted(version.glob("*")) if version else ():
        if path.is_file():
            with path.open("rb") as stream:
                size = path.stat().st_size
                head = stream.read(1 << 16)
                stream.seek(max(0, size - (1 << 16)))
                digest.update(f"{path.name} {size}".encode() + head + stream.read())
    return digest.hexdigest()


def is_ready(model: str) -> bool:
    return bool(pb_utils.is_model_ready(model_name=model))


def check_ready(model: str, remedy: str) -> None:
    if not is_ready(model):
        raise ModelNotReadyError(f"this server does not have {model}: {remedy}")


def newest_version(folder: Path) -> Path | None:
    """Return the newest version folder of a model; None if there is none."""
    return next(reversed(version_folders(folder)), None) if folder.is_dir() else None


def trace_of(request: Any) -> Any:
    """Return the trace that a request belongs to; None if it belongs to none, or only to a trace file of Triton."""
    trace = request.trace() if hasattr(request, "trace") else None  # Triton 24.10 and newer have it
    return trace if trace is not None and trace.get_context() else None


def to_tensors(arrays: Mapping[str, npt.NDArray[Any]]) -> list[Any]:
    return [pb_utils.Tensor(name, array) for name, array in arrays.items()]


def renamed(name: str, tensor: Any) -> Any:
    """Return a tensor under another name, without copying."""
    return tensor if tensor.name() == name else pb_utils.Tensor.from_dlpack(name, tensor)


@cache  # Triton's module has PreferredMemory only after the program of a model was imported
def cpu() -> Any:
    return pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0)


def gpu(args: Mapping[str, str]) -> Any:
    """Return the memory of the GPU that Triton placed this model on; None on a CPU."""
    if args["model_instance_kind"] != "GPU":
        return None
    return pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, int(args["model_instance_device_id"]))


def fitting(limit: int, one_image: int, in_shared_memory: bool) -> int:
    """Return the limit of the cache in bytes: the configured one, or less if shared memory is too small."""
    if limit < one_image:
        raise pb_utils.TritonModelException(f"cache_bytes is {limit}, but the embeddings of one image take {one_image}")
    there = shutil.disk_usage(SHARED_MEMORY).total
    fits = max(one_image, there - SHARED_MEMORY_OF_CALLS)
    if not in_shared_memory or limit <= fits:
        return limit
    pb_utils.Logger.log_warn(
        f"cache_bytes is {limit}, {SHARED_MEMORY} has {there}: the cache keeps to {fits}; docker run --shm-size ..."
    )
    return fits


def response(reply: Reply, wanted: Container[str]) -> Any:
    """Return a reply as a Triton response with the requested outputs; without any of them, as an error."""
    # Send only requested outputs. Triton 24.10 frees others without holding Python's lock (fixed in 24.12), which may
    # corrupt memory, and crashes with Python 3.12.
    asked = {name: array for name, array in reply.tensors.items() if name in wanted}
    if asked:
        return pb_utils.InferenceResponse(to_tensors(asked))
    if reply.error is None:  # a response without outputs would look like success
        reply.counts["failures"] += 1
        reply.error = InputError(
            f"this request has none of the requested outputs: request some of {', '.join(reply.tensors)}"
        )
    return failure(f"{contract.code_of(reply.error)}: {one_line(reply.error)}", _status(reply.error))


def failure(message: str, code: Any) -> Any:
    """Return an error as a Triton response."""
    return pb_utils.InferenceResponse([], error=pb_utils.TritonError(message, code))


def send_cancelled(sender: Any) -> None:
    send_error(sender, "the request was cancelled", pb_utils.TritonError.CANCELLED)


def send_error(sender: Any, message: str, code: Any) -> None:
    """Answer a request with a Triton error. If that fails, the request stays without an answer."""
    try:
        sender.send(failure(message, code), flags=FINAL)
    except Exception as error:  # noqa: BLE001 - Triton's module documents no error types
        pb_utils.Logger.log_warn(f"a request was left without an answer: {one_line(error)}")


def send(reply: Reply, sender: Any, wanted: Container[str]) -> None:
    """Send an answer. If that fails, for example because shared memory is full, send an error instead.

    If the answer does not reach its client, undo the request: for example, close the session that it has opened.
    """
    try:
        if reply.undo is not None and sender.is_cancelled():
            reply.undo()
            send_cancelled(sender)
            return
        answer = response(reply, wanted)
        sender.send(answer, flags=FINAL)
        if reply.error is not None and contract.code_of(reply.error) == contract.INTERNAL:
            reply.counts["faults"] = 1
    except Exception as error:  # noqa: BLE001 - Triton's module documents no error types
        reply.counts["failures"] = reply.counts["faults"] = 1
        reply.error = error.with_traceback(None)
        text = f"{contract.INTERNAL}: the answer could not be sent: {one_line(error)}"
        send_error(sender, text, pb_utils.TritonError.INTERNAL)
    if reply.undo is not None and reply.error is not None:
        reply.undo()


def _status(error: Exception) -> Any:
    if isinstance(error, (ModelNotReadyError, UnknownImageError, UnknownSessionError)):
        return pb_utils.TritonError.NOT_FOUND
    if isinstance(error, ServerBusyError):
        return pb_utils.TritonError.UNAVAILABLE
    return pb_utils.TritonError.INVALID_ARG if isinstance(error, InputError) else pb_utils.TritonError.INTERNAL
