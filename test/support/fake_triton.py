"""Triton's module for Python models, whose every call may fail: for tests of what a model gives back on each way out.

`Dice` decides which calls fail. Everything else is done as Triton does it, in this process.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from support.custom_metrics import Series

from triton_sam._common.bundle import bundled


class Dice:
    """Lets calls fail at random, each with a probability; counts the failures by the place where they happened.

    Args:
        seed: of the random numbers.
        share: the probability of a failure at each place.
    """

    def __init__(self, seed: int, share: float) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.share = share
        self.failures: Counter[str] = Counter()

    def roll(self, place: str, error: type[Exception] = RuntimeError) -> None:
        """Raise an error, or do nothing."""
        if self.hits(place):
            raise error(f"{place} failed")

    def hits(self, place: str) -> bool:
        """Return whether a call fails."""
        with self._lock:
            hit = self._random.random() < self.share
            self.failures[place] += hit
        return hit


class Tensor:
    """pb_utils.Tensor."""

    def __init__(self, name: str, array: Any, dice: Dice | None = None) -> None:
        self._name, self._array, self._dice = name, array, dice

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Any:
        if self._dice is not None:
            self._dice.roll("as_numpy")
        return self._array

    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self._array.shape
        return shape

    @staticmethod
    def from_dlpack(name: str, tensor: Tensor) -> Tensor:
        return Tensor(name, tensor._array)


class TritonError(Exception):
    """pb_utils.TritonError."""

    INVALID_ARG, NOT_FOUND, UNAVAILABLE = "INVALID_ARG", "NOT_FOUND", "UNAVAILABLE"
    CANCELLED, INTERNAL = "CANCELLED", "INTERNAL"

    def __init__(self, message: str, code: str = "INTERNAL") -> None:
        super().__init__(message)
        self.code = code


class Request:
    """A request from Triton, which is its own response sender. It takes one answer, as Triton does.

    Args:
        dice: decides what fails.
        wanted: the requested outputs.
        tensors: the inputs by name.
    """

    def __init__(self, dice: Dice, wanted: list[str], tensors: dict[str, Any]) -> None:
        self._dice, self._wanted, self._tensors = dice, wanted, tensors
        self.answers: list[Any] = []
        self.lost = 0
        """Answers that could not be sent."""
        self.answered = threading.Event()

    def inputs(self) -> list[Tensor]:
        self._dice.roll("inputs")
        return [Tensor(name, array, self._dice) for name, array in self._tensors.items()]

    def requested_output_names(self) -> list[str]:
        return self._wanted

    def get_response_sender(self) -> Request:
        return self

    def is_cancelled(self) -> bool:
        self._dice.roll("is_cancelled")
        return self._dice.hits("a cancellation")

    def send(self, response: Any, flags: int) -> None:
        assert flags == 1
        if self.answers:
            raise RuntimeError("the final response was sent already")
        if self._dice.hits("send"):
            self.lost += 1
            self.answered.set()
            raise RuntimeError("Failed to increase the shared memory pool size")
        self.answers.append(response)
        self.answered.set()


@contextlib.contextmanager
def fake_triton(compute: Callable[[str, dict[str, Any]], dict[str, Any]], dice: Dice, package: str) -> Iterator[Any]:
    """Import the program of a model inside of what it takes for Triton; yield its module.

    Args:
        compute: runs a model, by name and inputs; returns the outputs by name.
        dice: decides what fails.
        package: a package in triton_sam.sessions, "image" or "video".
    """

    class Bls:
        """pb_utils.InferenceRequest."""

        def __init__(self, model_name: str, inputs: list[Tensor], requested_output_names: list[str], **_: Any) -> None:
            self._model, self._wanted = model_name, requested_output_names
            self._inputs = {tensor.name(): tensor._array for tensor in inputs}

        def exec(self) -> Any:
            dice.roll("a call")
            if dice.hits("a model"):
                message = random.choice(["failed to allocate memory", "Exceeds maximum queue size", "node X failed"])
                return SimpleNamespace(has_error=lambda: True, error=lambda: SimpleNamespace(message=lambda: message))
            arrays = compute(self._model, self._inputs)
            names = [name for name in self._wanted if name in arrays]
            return SimpleNamespace(
                has_error=lambda: False, output_tensors=lambda: [Tensor(name, arrays[name]) for name in names]
            )

    def respond(tensors: list[Tensor], error: TritonError | None = None) -> Any:
        if tensors:  # an error takes no memory
            dice.roll("InferenceResponse")
        return SimpleNamespace(tensors={tensor.name(): tensor._array for tensor in tensors}, error=error)

    utils: Any = ModuleType("triton_python_backend_utils")
    utils.Tensor, utils.TritonError, utils.InferenceRequest = Tensor, TritonError, Bls
    utils.MetricFamily = Series().family()
    utils.TritonModelException = type("TritonModelException", (Exception,), {})
    utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL, utils.TRITONSERVER_MEMORY_CPU = 1, 0
    utils.PreferredMemory = lambda kind, device: (kind, device)
    utils.Logger = SimpleNamespace(log_warn=lambda text: None)
    utils.InferenceResponse = respond
    utils.is_model_ready = lambda model_name: True
    names = ("triton_sam.sessions.bls", f"triton_sam.sessions.{package}.triton_model")
    before = {name: sys.modules.pop(name, None) for name in (utils.__name__, *names)}
    sys.modules[utils.__name__] = utils
    try:
        yield [importlib.import_module(name) for name in names][-1]
    finally:
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module


def arguments(model: str, **parameters: str) -> dict[str, str]:
    """Return what Triton hands to initialize()."""
    return {
        "model_config": json.dumps({"parameters": {key: {"string_value": text} for key, text in parameters.items()}}),
        "model_name": model,
        "model_repository": str(bundled("model_repository") / model),
        "model_instance_kind": "CPU",
        "model_instance_device_id": "0",
    }


def text(content: bytes) -> Any:
    """Return a tensor of type BYTES and shape [1]."""
    return np.array([content], np.object_)
