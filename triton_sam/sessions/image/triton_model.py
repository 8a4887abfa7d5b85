"""The entry of the session model in Triton. It calls the encoder and the decoder by BLS (Business Logic Scripting).

``execute`` passes each request to a thread, which answers through the response sender of the request, and returns at
once. One instance, and thus one cache, can therefore process many requests at a time. Requests with an image have
separate threads because they may wait for the encoder, so that a click never waits behind them.

Parameters in config.pbtxt: ``family``, ``encoder``, ``decoder`` (names of models), ``cache_bytes``, ``threads``,
``max_pending``.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
import threading
from collections.abc import Callable, Container, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from ..._common.text import one_line
from ...errors import InferenceError, InputError, ServerBusyError, ServerError, UnknownImageError
from ...families import get_family, variant_of
from ...families.base import Family, FloatArray
from ...wire import contract
from ...wire.pair import ModelPair
from ..cache import ImageCache
from ..metrics import TritonMetrics
from .answers import write_json_error
from .requests import wants_json
from .session import NoRoomError, Reply, SessionModel

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where Triton's Python backend keeps tensors on the CPU
SHARED_MEMORY_OF_CALLS = 128 << 20
"""Bytes of shared memory that running requests use besides the cache, in the processes of the three models."""
NO_ROOM = re.compile(r"shared memory pool|out of memory|failed to allocate", re.IGNORECASE)
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """One session model. Triton requires this class name."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the parameters. Other models cannot be called yet, because they may still be loading."""
        parameters = {
            key: value["string_value"] for key, value in json.loads(args["model_config"])["parameters"].items()
        }
        family = get_family(parameters["family"].lower())
        encoder, decoder = parameters["encoder"], parameters["decoder"]
        gpu = _gpu(args)
        limit = _number(parameters, "cache_bytes", contract.DEFAULT_CACHE_BYTES)
        cache = ImageCache(_fitting(limit, contract.embedding_bytes(family), in_shared_memory=gpu is None))
        self._model = SessionModel(
            ModelPair(family, variant_of(encoder)),
            BlsModels(family, encoder, decoder, gpu or _cpu(), 1 if gpu is None else contract.MAX_OBJECTS),
            cache,
            TritonMetrics(pb_utils, args["model_name"]),
            weights_identity(Path(args["model_repository"]).parent / encoder),
        )
        threads = _number(parameters, "threads", contract.DEFAULT_THREADS)
        pending = _number(parameters, "max_pending", contract.DEFAULT_MAX_PENDING)
        self._clicks = _Pool("click", threads, pending)
        self._images = _Pool("image", threads, pending)
        self._refused = self._refused_reported = 0
        self._report_waits = threading.Event()
        # One thread: Triton (24.10) crashes when several change custom metrics at the same time.
        self._reports = ThreadPoolExecutor(1, "report")

    def execute(self, requests: list[Any]) -> None:
        """Pass every request to a thread."""
        for request in requests:
            inputs = {tensor.name(): tensor for tensor in request.inputs()}
            sender, wanted = request.get_response_sender(), frozenset(request.requested_output_names())
            brings_image = contract.IMAGE in inputs or contract.IMAGE_B64 in inputs
            pool = self._images if brings_image else self._clicks
            if not pool.places.acquire(blocking=False):
                self._refuse(inputs, sender, wanted)
                continue
            tensors = {name: tensor.as_numpy() for name, tensor in inputs.items()}
            pool.threads.submit(self._serve, pool, tensors, sender, wanted)

    def _refuse(self, inputs: Container[str], sender: Any, wanted: Container[str]) -> None:
        """Answer at once that too many requests wait, instead of letting the queue grow.

        To cost the other requests little, this reads nothing of the refused request and reports refusals in batches.
        """
        error = ServerBusyError("too many requests wait here already: try again in a moment")
        self._send(Reply(write_json_error(error) if wants_json(inputs) else {}, error), sender, wanted)
        self._refused += 1
        if not self._report_waits.is_set():
            self._report_waits.set()
            self._submit_report(self._report_refusals)

    def _report_refusals(self) -> None:
        self._report_waits.clear()
        reply, refused = Reply(), self._refused
        reply.counts["refusals"] = refused - self._refused_reported
        self._refused_reported = refused
        self._model.report(reply)

    def finalize(self) -> None:
        """Wait for the running requests."""
        for threads in (self._clicks.threads, self._images.threads, self._reports):
            threads.shutdown(cancel_futures=True)

    def _serve(self, pool: _Pool, tensors: dict[str, npt.NDArray[Any]], sender: Any, wanted: Container[str]) -> None:
        try:
            if sender.is_cancelled():
                sender.send(_failure("the request was cancelled", pb_utils.TritonError.CANCELLED), flags=FINAL)
                return
            reply = self._model.answer(tensors)
        finally:
            pool.places.release()
        self._send(reply, sender, wanted)
        self._submit_report(self._model.report, reply)

    def _send(self, reply: Reply, sender: Any, wanted: Container[str]) -> None:
        """Send an answer. If that fails, for example because shared memory is full, send an error instead."""
        try:
            sender.send(_response(reply, wanted), flags=FINAL)
        except Exception as error:  # noqa: BLE001 - Triton's module documents no error types
            reply.counts["failures"] = 1
            text = f"{contract.INTERNAL}: the answer could not be sent: {one_line(error)}"
            sender.send(_failure(text, pb_utils.TritonError.INTERNAL), flags=FINAL)

    def _submit_report(self, report: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the server stops, and the metrics end with it
            self._reports.submit(report, *arguments)


class _Pool:
    """The threads for one kind of requests, and the places of those that run or wait.

    Clicks and images have a pool each, so that clicks are never refused because of uploads.

    Args:
        name: prefix of the names of the threads.
        threads: number of requests that run at a time.
        pending: number of requests that may run or wait.
    """

    def __init__(self, name: str, threads: int, pending: int) -> None:
        self.threads = ThreadPoolExecutor(threads, name)
        self.places = threading.BoundedSemaphore(pending)


class BlsModels:
    """Calls encoder and decoder through Triton. Embeddings stay Triton tensors where the encoder put them.

    Args:
        family: the SAM family, for names and shapes of tensors.
        encoder: Triton name of the encoder.
        decoder: Triton name of the decoder.
        memory: memory in which the encoder puts the embeddings.
        objects_at_a_time: maximum number of objects in one call of the decoder. A GPU is faster with many objects. A
            CPU is faster with one, because the data of one object fits into its caches and that of eight does not.
    """

    def __init__(self, family: Family, encoder: str, decoder: str, memory: Any, objects_at_a_time: int) -> None:
        self.objects_at_a_time = objects_at_a_time
        self._encoder_outputs = family.encoder.output_names
        self._encoder = encoder
        self._decoder = decoder
        self._memory = memory

    def encode(self, inputs: Mapping[str, FloatArray]) -> Mapping[str, Any]:
        """See session.Models."""
        return _call(self._encoder, _tensors(inputs), self._encoder_outputs, self._memory)

    def decode(
        self, embeddings: Mapping[str, Any], inputs: Mapping[str, npt.NDArray[Any]], outputs: tuple[str, ...]
    ) -> Mapping[str, FloatArray]:
        """See session.Models."""
        held = [_named(name, tensor) for name, tensor in embeddings.items()]
        answer = _call(self._decoder, held + _tensors(inputs), outputs, _cpu())
        # Copy the arrays: a view would keep the answer's block of shared memory occupied while it is in use.
        return {name: np.array(tensor.as_numpy()) for name, tensor in answer.items()}

    def nbytes(self, embeddings: Mapping[str, Any]) -> int:
        """See session.Models. In the wire contract, all embeddings are float32."""
        return sum(4 * math.prod(tensor.shape()) for tensor in embeddings.values())


def weights_identity(folder: Path) -> str:
    """Return a hash that identifies an encoder's weights and is equal on all replicas.

    It covers name, size, first 64 KiB and last 64 KiB of each file of the newest version.
    """
    versions = [path for path in folder.glob("*") if path.name.isdecimal() and path.is_dir()]
    digest = blake2b(folder.name.encode(), digest_size=16)
    for path in sorted(max(versions, key=lambda path: int(path.name)).glob("*")) if versions else ():
        if path.is_file():
            with path.open("rb") as stream:
                size = path.stat().st_size
                head = stream.read(1 << 16)
                stream.seek(max(0, size - (1 << 16)))
                digest.update(f"{path.name} {size}".encode() + head + stream.read())
    return digest.hexdigest()


def _call(model: str, inputs: list[Any], outputs: tuple[str, ...], memory: Any) -> dict[str, Any]:
    request = pb_utils.InferenceRequest(
        model_name=model, inputs=inputs, requested_output_names=list(outputs), preferred_memory=memory
    )
    response = request.exec()
    if response.has_error():
        raise _read_failure(f"{model} failed: {response.error().message()}")
    return {tensor.name(): tensor for tensor in response.output_tensors()}


def _read_failure(text: str) -> ServerError:
    """Convert the message of a failed model: out of memory, queue full, or another error."""
    if NO_ROOM.search(text):
        return NoRoomError(text)
    return ServerBusyError(text) if contract.QUEUE_IS_FULL in text else InferenceError(text)


def _tensors(arrays: Mapping[str, npt.NDArray[Any]]) -> list[Any]:
    return [pb_utils.Tensor(name, array) for name, array in arrays.items()]


def _named(name: str, tensor: Any) -> Any:
    """Return a tensor under the decoder's name for it, without copying."""
    return tensor if tensor.name() == name else pb_utils.Tensor.from_dlpack(name, tensor)


def _cpu() -> Any:
    return pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0)


def _gpu(args: Mapping[str, str]) -> Any:
    """Return the memory of the GPU that Triton placed this model on; None on a CPU."""
    if args["model_instance_kind"] != "GPU":
        return None
    return pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, int(args["model_instance_device_id"]))


def _fitting(limit: int, one_image: int, in_shared_memory: bool) -> int:
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


def _response(reply: Reply, wanted: Container[str]) -> Any:
    # Send only requested outputs. Triton 24.10 frees others without holding Python's lock (fixed in 24.12), which may
    # damage memory, and ends the process with Python 3.12.
    asked = {name: array for name, array in reply.tensors.items() if name in wanted}
    if asked:
        return pb_utils.InferenceResponse(_tensors(asked))
    if reply.error is None:  # an answer without outputs would look like success
        reply.counts["failures"] += 1
        reply.error = InputError(
            f"this request has none of the requested outputs: request some of {', '.join(reply.tensors)}"
        )
    return _failure(f"{contract.code_of(reply.error)}: {one_line(reply.error)}", _status(reply.error))


def _status(error: Exception) -> Any:
    if isinstance(error, UnknownImageError):
        return pb_utils.TritonError.NOT_FOUND
    if isinstance(error, ServerBusyError):
        return pb_utils.TritonError.UNAVAILABLE
    return pb_utils.TritonError.INVALID_ARG if isinstance(error, InputError) else pb_utils.TritonError.INTERNAL


def _failure(message: str, code: Any) -> Any:
    return pb_utils.InferenceResponse([], error=pb_utils.TritonError(message, code))


def _number(parameters: Mapping[str, str], key: str, default: int) -> int:
    text = parameters.get(key, str(default))
    if not text.isdecimal() or int(text) < 1:
        raise pb_utils.TritonModelException(f"parameter {key} must be a whole number above 0, not {text!r}")
    return int(text)
