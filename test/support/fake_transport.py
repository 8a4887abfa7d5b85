"""Transports without a server: they answer from a list, or by a function, and note what they were asked."""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np

from triton_sam.errors import InferenceError
from triton_sam.families import get_family
from triton_sam.wire import contract
from triton_sam.wire.pair import Request

NEVER = object()
"""An answer that does not come."""


class _Script:
    """Answers one by one.

    Args:
        answers: outputs by name, or errors to raise, in the order in which they are wanted; or a single function that
            gets each request and returns one of these.
    """

    def __init__(self, *answers):
        self._answers = answers[0] if answers and callable(answers[0]) else list(answers)
        self.requests = []
        self.configs = []  # the models whose configuration was asked for
        self.lacks = ()  # the inputs that the session model does not have, as one of an earlier version
        self.config_error = None
        self.is_closed = False

    def _config(self, model):
        self.configs.append(model)
        if self.config_error is not None:
            raise self.config_error
        family = get_family(model.partition("_")[0])
        if model == family.name:
            inputs, outputs = ([each.name for each in side(family)] for side in (contract.inputs, contract.outputs))
        else:
            spec = family.encoder if model.endswith("_encoder") else family.decoder
            inputs, outputs = list(spec.input_names), list(spec.output_names)
        return {
            "input": [{"name": name} for name in inputs if name not in self.lacks],
            "output": [{"name": name} for name in outputs],
        }

    def _next(self, model, inputs, outputs):
        request = Request(model, dict(inputs), tuple(outputs))
        self.requests.append(request)
        answer = self._answers(request) if callable(self._answers) else self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def models(self):
        """Names of the models that were asked."""
        return [request.model for request in self.requests]


class FakeTransport(_Script):
    """A BaseTransport of answers; `ready` is what it says the server has ready."""

    ready = ("sam2", "sam2_encoder", "sam2_decoder")

    def __init__(self, *answers):
        super().__init__(*answers)
        self.calls = []  # how many requests each call of the user took
        self._depth = 0

    @contextlib.contextmanager
    def one_call(self):
        before, self._depth = len(self.requests), self._depth + 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self.calls.append(len(self.requests) - before)

    def infer(self, model, inputs, outputs):
        return self._next(model, inputs, outputs)

    def is_ready(self):
        return True

    def ready_models(self):
        return dict.fromkeys(self.ready, "1")

    def model_config(self, model):
        return self._config(model)

    def close(self):
        self.is_closed = True


class AsyncFakeTransport(_Script):
    """An AsyncBaseTransport of answers; one that is NEVER can only be cancelled, which is counted."""

    def __init__(self, *answers):
        super().__init__(*answers)
        self.cancelled = 0
        self.ends = []
        self.ready = ("sam2", "sam2_encoder", "sam2_decoder")

    async def in_time(self, call, end=None):
        self.ends.append(end)
        return await call

    async def infer(self, model, inputs, outputs):
        answer = self._next(model, inputs, outputs)
        if answer is not NEVER:
            return answer
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def model_config(self, model):
        return self._config(model)

    async def is_ready(self, model):
        return model in self.ready

    async def close(self):
        self.is_closed = True


# Answers of the models of SAM2


def text(content):
    return np.array([content], np.object_)


def uploaded(image_id=b"id", size=(64, 48)):
    """The session model has encoded an image."""
    return {"image_id": text(image_id), "image_size": np.array(size)}


def clicked(image_id=b"id", value=1.0, objects=1):
    """The session model answers a click; all logits are `value`."""
    masks = np.full((objects, 1, 256, 256), value, np.float32)
    return {"masks": masks, "iou_predictions": np.full((objects, 1), 0.5, np.float32), "image_id": text(image_id)}


def encoded():
    """The encoder's answer."""
    return {
        spec.name: np.zeros((1, *map(int, spec.shape[1:])), np.float32) for spec in get_family("sam2").encoder.outputs
    }


def decoded(value=1.0, objects=1):
    """The decoder's answer; all logits are `value`."""
    masks = np.full((objects, 1, 256, 256), value, np.float32)
    return {"masks": masks, "iou_predictions": np.full((objects, 1), 0.5, np.float32)}


def refused(code):
    """The session model refuses a request with one of the codes of the contract."""
    return InferenceError(f"sam2 failed: {code}: words of the server")
