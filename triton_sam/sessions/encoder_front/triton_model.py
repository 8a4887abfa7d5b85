"""The entry of the front end of an encoder in Triton. It calls the encoder by BLS (Business Logic Scripting).

``execute`` prepares one request while the encoder works on the one before. All others stay in Triton's queue, where
those with priority 1 overtake, and where a cancelled one is dropped. A request that is cancelled between the queue and
the encoder is not computed either, because ``_encode`` asks once more when the encoder is free.

Parameters in config.pbtxt: ``family``, ``alias_of`` (name of the encoder), ``pixels`` (see wire.encoder_front).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from ...errors import ConfigurationError, InputError
from ...families import get_family
from ...repository.names import ALIAS_KEY
from ...wire.encoder_front import JPEG_IMAGE, PIXELS, VALID_SIZE, FrontOptions, check_pixels, read_options
from .. import bls
from ..metrics import FRONT_COUNTERS, TritonMetrics, TritonTimes
from ..reply import Reply
from ..times import Clock, Reports, RequestTimes
from .pixels import from_jpeg, from_raw, read_valid_size

_KIND = "encode"
"""Kind of all requests, a label of metrics."""


@dataclass(frozen=True)
class _Job:
    """One request with the encoder's input.

    Args:
        sender: its response sender.
        wanted: the requested outputs, under the names of the front end.
        options: its parameters.
        tensor: the encoder's input, a tensor of Triton.
        trace: the trace that it belongs to, or None.
        clock: its clock.
    """

    sender: Any
    wanted: frozenset[str]
    options: FrontOptions
    tensor: Any
    trace: Any
    clock: Clock


class TritonPythonModel:
    """One front end. Triton requires this class name."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the configuration. The encoder cannot be called yet, because it may still be loading."""
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        family = get_family(parameters["family"].lower())
        (self._raw,) = family.encoder.input_names
        side = next(int(tensor["dims"][-1]) for tensor in config["input"] if tensor["name"] == self._raw)
        self._family = family.at(side)
        self._encoder = parameters[ALIAS_KEY]
        try:
            self._pixels = check_pixels(parameters[PIXELS])
        except ConfigurationError as error:
            raise pb_utils.TritonModelException(str(error)) from error
        names = (tensor["name"] for tensor in config["output"])
        self._outputs = dict(zip(names, family.encoder.output_names, strict=True))
        self._device = bls.gpu(args)
        self._caller = bls.Caller()
        self._reports = Reports()
        name = args["model_name"]
        self._metrics = TritonMetrics(pb_utils, name, counters=FRONT_COUNTERS, gauges={})
        self._times = RequestTimes(TritonTimes(pb_utils, name, [_KIND]), self._reports, [_KIND])
        self._encoder_is_free = threading.Semaphore()
        self._threads = ThreadPoolExecutor(2, "encode")  # one encodes, one sends the embeddings of the call before

    def execute(self, requests: list[Any]) -> None:
        """Prepare each request, wait for the encoder, and let a thread do the rest. Wait for traced requests."""
        for request in requests:
            sender, wanted = request.get_response_sender(), frozenset(request.requested_output_names())
            clock = self._times.arrived(_KIND)
            try:
                job = self._prepare(request, sender, wanted, clock)
            except Exception as error:  # noqa: BLE001 - damaged images make Pillow raise errors of any type
                with clock:
                    self._fail(error, sender, wanted, clock)
                continue
            self._encoder_is_free.acquire()
            try:
                served = self._threads.submit(self._encode, job)
            except Exception as error:  # noqa: BLE001 - no thread can be started, or the server stops
                self._encoder_is_free.release()
                with clock:
                    self._fail(error, sender, wanted, clock)
                continue
            if job.trace is not None:  # Triton frees the trace when this method returns
                served.result()

    def finalize(self) -> None:
        """Wait for the running requests."""
        self._threads.shutdown()
        self._reports.close()

    def _prepare(self, request: Any, sender: Any, wanted: frozenset[str], clock: Clock) -> _Job:
        """Read one request.

        Raises:
            InputError: its inputs or parameters are wrong.
        """
        options = read_options(request.parameters(), self._pixels)
        inputs = {tensor.name(): tensor for tensor in request.inputs()}
        if (self._raw in inputs) == (JPEG_IMAGE in inputs):
            raise InputError(f"send exactly one of {self._raw} and {JPEG_IMAGE}")
        valid = inputs.get(VALID_SIZE)
        size = read_valid_size(None if valid is None else valid.as_numpy())
        if JPEG_IMAGE in inputs:
            content = inputs[JPEG_IMAGE].as_numpy().reshape(-1)[0]
            tensor = pb_utils.Tensor(self._raw, from_jpeg(bytes(content), self._family, size))
        else:
            sent = inputs[self._raw].as_numpy()
            pixels = from_raw(sent, self._family, options.pixels, size)
            # The tensor of the request lies in shared memory already, so it is handed on without a copy.
            tensor = inputs[self._raw] if pixels is sent else pb_utils.Tensor(self._raw, pixels)
        return _Job(sender, wanted, options, tensor, bls.trace_of(request), clock)

    def _encode(self, job: _Job) -> None:
        """Encode and answer one request, unless it was cancelled while it waited for the encoder."""
        with job.clock:
            try:
                if job.sender.is_cancelled():
                    bls.send_cancelled(job.sender)
                    return
                answer = self._call(job)
            except Exception as error:  # noqa: BLE001 - one failure must not affect other requests
                self._fail(error, job.sender, job.wanted, job.clock)
                return
            finally:
                self._encoder_is_free.release()
            self._send(answer, job)

    def _call(self, job: _Job) -> dict[str, Any]:
        """Return the requested embeddings by the names of the front end, as tensors of Triton."""
        names = {ours: theirs for ours, theirs in self._outputs.items() if ours in job.wanted}
        # Embeddings stay on the GPU, unless numpy must convert them.
        memory = bls.cpu() if self._device is None or job.options.fp16 else self._device
        with self._caller.traced(job.trace):
            outputs = self._caller.call(self._encoder, [job.tensor], tuple(names.values()), memory)
        return {ours: outputs[theirs] for ours, theirs in names.items()}

    def _send(self, answer: Mapping[str, Any], job: _Job) -> None:
        try:
            if job.options.fp16:
                tensors = [
                    pb_utils.Tensor(name, tensor.as_numpy().astype(np.float16)) for name, tensor in answer.items()
                ]
            else:
                tensors = [bls.named(name, tensor) for name, tensor in answer.items()]
            job.sender.send(pb_utils.InferenceResponse(tensors), flags=bls.FINAL)
            job.clock.answered()
        except Exception as error:  # noqa: BLE001 - Triton's module documents no error types
            self._fail(error, job.sender, job.wanted, job.clock)

    def _fail(self, error: Exception, sender: Any, wanted: frozenset[str], clock: Clock) -> None:
        reply = Reply(error=error.with_traceback(None))
        reply.counts["failures"] = 1
        bls.send(reply, sender, wanted)
        clock.answered()
        self._reports.submit(self._metrics.add_all, reply.counts)
