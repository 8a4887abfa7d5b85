"""The entry of the front end of an encoder in Triton. It calls the encoder by BLS (Business Logic Scripting).

``execute`` prepares one request while the encoder computes the previous one. All others stay in Triton's queue, where
requests with priority 1 overtake, and where cancelled requests are dropped. A request that is cancelled between the
queue and the encoder is not computed either, because ``_encode`` checks again when the encoder is free.

Parameters in config.pbtxt: ``family``, ``alias_of`` (name of the encoder), ``pixels`` (see wire.encoder_front).
"""

from __future__ import annotations

import threading
from collections.abc import Container, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from ...errors import ConfigurationError, InputError
from ...repository.config import ALIAS_KEY
from ...wire.encoder_front import JPEG_IMAGE, PIXELS, VALID_SIZE, FrontOptions, check_pixels, read_options
from .. import bls
from ..messages import Reply
from ..python_model import FRONT_COUNTERS, PythonModel
from ..tasks import Pool, Task
from .pixels import from_jpeg, from_raw, read_valid_size


@dataclass(frozen=True)
class _Job:
    """One request with the encoder's input."""

    task: Task
    options: FrontOptions
    tensor: Any


class TritonPythonModel(PythonModel):
    """One front end. Triton requires this class name."""

    def initialize(self, args: Mapping[str, str]) -> None:
        super().initialize(args)
        (self._raw,) = self.family.encoder.input_names
        side = next(int(tensor["dims"][-1]) for tensor in self.config["input"] if tensor["name"] == self._raw)
        names = (tensor["name"] for tensor in self.config["output"])
        self._outputs = dict(zip(names, self.family.encoder.output_names, strict=True))
        self.family = self.family.at(side)
        self._encoder = self.parameters[ALIAS_KEY]
        try:
            self._pixels = check_pixels(self.parameters[PIXELS])
        except ConfigurationError as error:
            raise pb_utils.TritonModelException(str(error)) from error
        self._encoder_is_free = threading.Semaphore()
        self._pool = Pool("encode", 2, 2)  # one thread encodes, one sends the embeddings of the previous call
        self.measure([self._pool], FRONT_COUNTERS, {})

    def admit(
        self, request: Any, inputs: Mapping[str, Any], sender: Any, wanted: Container[str]
    ) -> Future[None] | None:
        """Prepare a request, wait for the encoder, and pass the request to a thread; see PythonModel."""
        task = Task(self._pool.name, self.waiting, sender, wanted, bls.trace_of(request))
        try:
            job = self._prepare(request, inputs, task)
        except Exception as error:  # noqa: BLE001 - damaged images make Pillow raise errors of any type
            with task:
                self._fail(error, task)
            return None
        self._encoder_is_free.acquire()
        try:
            running = self._pool.threads.submit(self._encode, job)
        except BaseException:  # no thread can be started, or the server stops
            self._encoder_is_free.release()
            task.release()
            raise
        return None if task.trace is None else running

    def _prepare(self, request: Any, inputs: Mapping[str, Any], task: Task) -> _Job:
        options = read_options(request.parameters(), self._pixels)
        if (self._raw in inputs) == (JPEG_IMAGE in inputs):
            raise InputError(f"send exactly one of {self._raw} and {JPEG_IMAGE}")
        valid = inputs.get(VALID_SIZE)
        size = read_valid_size(None if valid is None else valid.as_numpy())
        if JPEG_IMAGE in inputs:
            content = inputs[JPEG_IMAGE].as_numpy().reshape(-1)[0]
            tensor = pb_utils.Tensor(self._raw, from_jpeg(bytes(content), self.family, size))
        else:
            sent = inputs[self._raw].as_numpy()
            pixels = from_raw(sent, self.family, options.pixels, size)
            # The tensor of the request is already in shared memory, so it is passed on without a copy.
            tensor = inputs[self._raw] if pixels is sent else pb_utils.Tensor(self._raw, pixels)
        return _Job(task, options, tensor)

    def _encode(self, job: _Job) -> None:
        """Encode and answer one request, unless it was cancelled while it waited for the encoder."""
        with job.task as task:
            try:
                if task.sender.is_cancelled():
                    bls.send_cancelled(task.sender)
                    self.report(Reply(), task)
                    return
                answer = self._call(job)
            except Exception as error:  # noqa: BLE001 - one failure must not affect other requests
                self._fail(error, task)
                return
            finally:
                self._encoder_is_free.release()
            self._send(answer, job)

    def _call(self, job: _Job) -> dict[str, Any]:
        """Return the requested embeddings by the names of the front end, as Triton tensors."""
        names = {ours: theirs for ours, theirs in self._outputs.items() if ours in job.task.wanted}
        # Embeddings stay on the GPU, unless numpy must convert them.
        memory = bls.cpu() if job.options.fp16 else self.memory
        outputs = bls.call(self._encoder, [job.tensor], tuple(names.values()), memory)
        return {ours: outputs[theirs] for ours, theirs in names.items()}

    def _send(self, answer: Mapping[str, Any], job: _Job) -> None:
        try:
            if job.options.fp16:
                tensors = [
                    pb_utils.Tensor(name, tensor.as_numpy().astype(np.float16)) for name, tensor in answer.items()
                ]
            else:
                tensors = [bls.renamed(name, tensor) for name, tensor in answer.items()]
            job.task.sender.send(pb_utils.InferenceResponse(tensors), flags=bls.FINAL)
        except Exception as error:  # noqa: BLE001 - Triton's module documents no error types
            self._fail(error, job.task)
            return
        job.task.answered()
        self.report(Reply(), job.task)

    def _fail(self, error: Exception, task: Task) -> None:
        reply = Reply().fail(error)
        bls.send(reply, task.sender, task.wanted)
        task.answered()
        self.report(reply, task)
