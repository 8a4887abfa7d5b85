"""Triton's module for Python models in this process, with its classes and rules, and failures on demand.

Inside of Triton, the C++ part of the Python backend creates this module. Here, `Triton` creates one for each test. It
loads the program of a model, sends it requests, and computes the models that the program calls.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
from support.conditions import PATIENCE
from support.custom_metrics import Series
from support.fuzzing import Dice

from triton_sam._common.bundle import bundled

Arrays = Mapping[str, npt.NDArray[Any]]
Compute = Callable[[str, dict[str, npt.NDArray[Any]], tuple[str, ...]], Arrays]
"""Computes a model from its name, its inputs by name, and the names of the requested outputs."""
_NAME = "triton_python_backend_utils"
_BLS = "triton_sam.sessions.bls"
_CPU, _GPU = "cpu", "gpu"
_FINAL = 1

_IMPORTS: ContextVar[bool] = ContextVar("whether this thread imports the program of a model", default=False)
_EARLY = ("TRITONSERVER_RESPONSE_COMPLETE_FINAL", "get_input_tensor_by_name")
"""The names in Triton's Python file. The C++ part adds the others after the import of the model's program."""


class _Module(ModuleType):
    def __getattribute__(self, name: str) -> Any:
        if _IMPORTS.get() and not name.startswith("__") and name not in _EARLY:
            raise AttributeError(f"module {_NAME!r} has no attribute {name!r}")
        return super().__getattribute__(name)


class TritonModelException(Exception):  # noqa: N818 - Triton's name
    """An error of the module, or of a model that refuses to start."""


class TritonError(Exception):
    """The error of a response. Triton's class is not an exception, but nothing depends on that."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG = "UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG"
    UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED"

    def __init__(self, message: str, code: str = INTERNAL) -> None:
        super().__init__(message)
        self._message, self._code = message, code

    def message(self) -> str:
        return self._message

    def code(self) -> str:
        return self._code


class Tensor:
    """A tensor. Elements of type BYTES become bytes, as in the transfer through shared memory."""

    def __init__(self, name: str, array: npt.NDArray[Any]) -> None:
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{name} must be an array, not {type(array).__name__}")
        self._name, self._array = name, _in_shared_memory(array)
        self._memory, self._dice = _CPU, Dice()

    @classmethod
    def of(cls, name: str, array: npt.NDArray[Any], *, memory: str = _CPU, dice: Dice | None = None) -> Tensor:
        """Return a tensor of a request, or a model's output in some memory."""
        made = cls(name, array)
        made._memory, made._dice = memory, dice or made._dice
        return made

    def name(self) -> str:
        return self._name

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def is_cpu(self) -> bool:
        return self._memory == _CPU

    def as_numpy(self) -> npt.NDArray[Any]:
        self._dice.roll("as_numpy")
        if not self.is_cpu():
            raise TritonModelException("Tensor is stored in GPU and cannot be converted to NumPy.")
        return self._array

    @staticmethod
    def from_dlpack(name: str, tensor: Tensor) -> Tensor:
        """Share the memory of another tensor, which must be numeric."""
        if tensor._array.dtype == np.object_:
            raise TritonModelException("DLPack does not have support for string tensors.")
        shared = Tensor.__new__(Tensor)
        shared._name, shared._array = name, tensor._array
        shared._memory, shared._dice = tensor._memory, Dice()
        return shared

    @property
    def content(self) -> npt.NDArray[Any]:
        """The array in any memory, for tests and for models that are computed here."""
        return self._array

    @property
    def memory(self) -> str:
        return self._memory


def _in_shared_memory(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if array.dtype.kind not in "OSU":
        return array
    content = np.empty(array.shape, np.object_)
    content.ravel()[:] = [each if isinstance(each, bytes) else str(each).encode() for each in array.ravel().tolist()]
    return content


class InferenceResponse:
    """The answer of a model."""

    def __init__(self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None) -> None:
        if not all(isinstance(tensor, Tensor) for tensor in output_tensors):
            raise TypeError("output_tensors must be tensors")
        self._tensors, self._error = list(output_tensors), error

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error


@dataclass(frozen=True)
class Answer:
    """The answer that a client receives: the outputs by name, or an error with its status."""

    tensors: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    code: str = ""
    message: str = ""


class Request:
    """A request to a Python model, which is its own response sender and accepts one answer.

    Args:
        wanted: the requested outputs.
        tensors: the inputs by name.
        parameters: the parameters, as the JSON text that Triton forwards.
        trace: the OpenTelemetry context of its trace.
        dice: decides which calls fail.

    Attributes:
        cancelled: whether the client has disconnected.
        unsent: the next answers that cannot be sent because shared memory is full.
        is_lost: whether an answer was not sent because of the dice.
    """

    def __init__(
        self,
        wanted: Sequence[str],
        tensors: Arrays,
        *,
        parameters: str = "",
        trace: str | None = None,
        dice: Dice | None = None,
    ) -> None:
        self._wanted, self._tensors, self._parameters = list(wanted), dict(tensors), parameters
        self._trace = SimpleNamespace(get_context=lambda: trace)
        self._dice = dice or Dice()
        self._answered = threading.Event()
        self._responses: list[InferenceResponse] = []
        self.cancelled = self.is_lost = False
        self.unsent = 0

    def inputs(self) -> list[Tensor]:
        self._dice.roll("inputs")
        return [Tensor.of(name, array, dice=self._dice) for name, array in self._tensors.items()]

    def requested_output_names(self) -> list[str]:
        return self._wanted

    def parameters(self) -> str:
        return self._parameters

    def trace(self) -> SimpleNamespace:
        return self._trace

    def get_response_sender(self) -> Request:
        return self

    def is_cancelled(self) -> bool:
        self._dice.roll("is_cancelled")
        return self.cancelled or self._dice.hits("a cancellation")

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Receive the answer. Triton corrupts its heap if an answer has outputs that were not requested."""
        if flags != _FINAL or response is None:
            raise TritonModelException("Non-decoupled model cannot send complete final before sending a response.")
        if self._responses:
            raise TritonModelException("Unable to send response. Response sender has been closed.")
        unwanted = {tensor.name() for tensor in response.output_tensors()} - set(self._wanted)
        assert not unwanted, f"nobody asked for {', '.join(sorted(unwanted))}"
        is_full, self.unsent = self.unsent > 0, max(0, self.unsent - 1)
        if self._dice.hits("send"):
            is_full = self.is_lost = True
            self._answered.set()
        if is_full:
            raise TritonModelException("Failed to increase the shared memory pool size")
        self._responses.append(response)
        self._answered.set()

    @property
    def is_answered(self) -> bool:
        return self._answered.is_set()

    def answer(self) -> Answer:
        """Wait for the answer and return it; a lost answer is empty."""
        assert self._answered.wait(PATIENCE), "a request was left without an answer"
        if self.is_lost and not self._responses:
            return Answer(code="LOST")
        (response,) = self._responses
        error = response.error()
        if error is not None:
            return Answer(code=error.code(), message=error.message())
        return Answer({tensor.name(): tensor.content for tensor in response.output_tensors()})


@dataclass(frozen=True)
class Call:
    """A call to another model."""

    model: str
    inputs: dict[str, npt.NDArray[Any]]
    wanted: tuple[str, ...]
    memory: tuple[str, int]
    trace: Any = None


class Triton:
    """A Triton in this process, with Python models and the models that they call.

    Args:
        compute: computes the other models.
        dice: decides what fails.

    Attributes:
        gate: each call to another model waits until it is set.
        calls: the calls to other models.
        failures: messages with which the next calls fail, last one first.
        lacks: outputs that the next answers lack, first one first.
        missing: models that are not ready.
        series: the metrics.
        warnings: lines of the log.
    """

    def __init__(self, compute: Compute, dice: Dice | None = None) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.calls: list[Call] = []
        self.failures: list[str] = []
        self.lacks: list[tuple[str, ...]] = []
        self.missing: set[str] = set()
        self.series = Series()
        self.warnings: list[str] = []
        self.dice = dice or Dice()
        self._compute = compute
        self.module = self._make_module()

    def load(self, entry: str) -> Any:
        """Import the program of a model, for example "image.triton_model", in this Triton; return its module.

        Each Triton has its own copies of the modules that import Triton's module.
        """
        hidden = {name: module for name, module in sys.modules.items() if _knows_triton(name, module)}
        for name in hidden:
            _forget(name)
        sys.modules[_NAME] = self.module
        importing = _IMPORTS.set(True)
        try:
            importlib.import_module(_BLS)
            return importlib.import_module(f"triton_sam.sessions.{entry}")
        finally:
            _IMPORTS.reset(importing)
            for name in [name for name, module in sys.modules.items() if _knows_triton(name, module)]:
                _forget(name)
            sys.modules.pop(_NAME, None)
            sys.modules.update(hidden)

    @contextlib.contextmanager
    def serving(self, entry: str, arguments: Mapping[str, str]) -> Iterator[Any]:
        """Yield an initialized model, and finalize it afterwards."""
        model = self.load(entry).TritonPythonModel()
        model.initialize(arguments)
        try:
            yield model
        finally:
            self.gate.set()
            model.finalize()

    def _make_module(self) -> ModuleType:
        triton: Any = self
        utils: Any = _Module(_NAME)

        class InferenceRequest:
            """A call to another model (BLS)."""

            def __init__(
                self,
                *,
                model_name: str,
                inputs: list[Tensor],
                requested_output_names: list[str],
                preferred_memory: tuple[str, int] = (_CPU, 0),
                trace: Any = None,
            ) -> None:
                arrays = {tensor.name(): tensor.content for tensor in inputs}
                self._call = Call(model_name, arrays, tuple(requested_output_names), preferred_memory, trace)

            def exec(self) -> InferenceResponse:
                answer: InferenceResponse = triton._run(self._call)
                return answer

        class Response(InferenceResponse):
            def __init__(self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None) -> None:
                if output_tensors:  # an error needs no memory
                    triton.dice.roll("InferenceResponse")
                super().__init__(output_tensors, error)

        utils.Tensor, utils.TritonError, utils.TritonModelException = Tensor, TritonError, TritonModelException
        utils.InferenceRequest, utils.InferenceResponse = InferenceRequest, Response
        utils.MetricFamily = self.series.family()
        utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL = _FINAL
        utils.TRITONSERVER_MEMORY_CPU, utils.TRITONSERVER_MEMORY_GPU = _CPU, _GPU
        utils.PreferredMemory = lambda kind, device=0: (kind, device)
        utils.Logger = SimpleNamespace(log_warn=self.warnings.append, log_info=lambda text: None)
        utils.is_model_ready = lambda model_name: model_name not in self.missing
        utils.get_input_tensor_by_name = _by_name
        return utils

    def _run(self, call: Call) -> InferenceResponse:
        self.dice.roll("a call")
        assert self.gate.wait(PATIENCE)
        self.calls.append(call)
        if self.dice.hits("a model"):
            reasons = ["failed to allocate memory", "Exceeds maximum queue size", "node X failed"]
            return InferenceResponse(error=TritonError(random.choice(reasons)))
        if self.failures:
            return InferenceResponse(error=TritonError(self.failures.pop()))
        try:
            arrays = self._compute(call.model, dict(call.inputs), call.wanted)
        except TritonError as error:
            return InferenceResponse(error=error)
        lacks = self.lacks.pop(0) if self.lacks else ()
        kind = call.memory[0]
        names = [name for name in call.wanted if name in arrays and name not in lacks]
        return InferenceResponse([Tensor.of(name, arrays[name], memory=kind) for name in names])


def _by_name(request: Request, name: str) -> Tensor | None:
    return next((tensor for tensor in request.inputs() if tensor.name() == name), None)


def _knows_triton(name: str, module: ModuleType | None) -> bool:
    return name == _BLS or (
        name.startswith("triton_sam.sessions.") and bool({"pb_utils", "bls"} & set(getattr(module, "__dict__", ())))
    )


def _forget(name: str) -> None:
    """Drop a module, also as an attribute of its package, which `from .. import bls` would return."""
    sys.modules.pop(name, None)
    package, _, child = name.rpartition(".")
    vars(sys.modules.get(package, ModuleType(""))).pop(child, None)


def arguments(model: str, *, kind: str = "CPU", repository: str = "", **parameters: str) -> dict[str, str]:
    """Return the arguments of initialize() for a model with some parameters, by default in the project's repository."""
    return {
        "model_config": json.dumps({"parameters": {key: {"string_value": text} for key, text in parameters.items()}}),
        "model_name": model,
        "model_repository": str(Path(repository or bundled("model_repository")) / model),
        "model_instance_kind": kind,
        "model_instance_device_id": "0",
    }
