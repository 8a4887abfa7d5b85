"""The session model without Triton and with empty networks, for fuzz tests.

A request runs through the same code as on a server.
"""

from __future__ import annotations

import base64
import json
import random
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from support.contents import encoded

from triton_sam.families import get_family
from triton_sam.families.tables import ENCODER
from triton_sam.sessions.image.session import SessionModel
from triton_sam.sessions.messages import Reply
from triton_sam.wire import contract
from triton_sam.wire.pair import ModelPair

REFUSALS = {*contract.CODES, contract.BAD_REQUEST}
"""The error codes for invalid input. Any other error is a bug in the session model."""
LIMIT = 1 << 20
"""Size of the image cache in bytes."""


class EmptyModels:
    """Networks that return zeros of the right shapes without computing anything."""

    objects_at_a_time = 1

    def run(
        self,
        role: str,
        held: Mapping[str, Any],
        arrays: Mapping[str, npt.NDArray[Any]],
        outputs: tuple[str, ...],
        _: bool,
    ) -> Mapping[str, npt.NDArray[Any]]:
        return self.encode(arrays) if role == ENCODER else self.decode(held, arrays, outputs)

    def encode(self, inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        (pixels,) = inputs.values()
        assert np.isfinite(pixels).all()
        assert pixels.min() >= 0
        assert pixels.max() <= 1.000001
        return {name: np.zeros(1, np.float32) for name in get_family("sam2").encoder.output_names}

    def decode(
        self, embeddings: Mapping[str, Any], inputs: Mapping[str, npt.NDArray[Any]], outputs: tuple[str, ...]
    ) -> dict[str, npt.NDArray[Any]]:
        assert all(np.isfinite(tensor).all() for tensor in inputs.values())
        objects = len(inputs["point_coords"])
        candidates = 3 if outputs[0].startswith("multimask") else 1
        shapes = [(objects, candidates, 256, 256), (objects, candidates)]
        return {name: np.zeros(shape, np.float32) for name, shape in zip(outputs, shapes, strict=True)}


PAIR = {"family": "SAM2", "encoder": "sam2_encoder", "decoder": "sam2_decoder"}
"""The parameters of a session model with the pair of compute()."""


def compute(model: str, inputs: Mapping[str, npt.NDArray[Any]], wanted: tuple[str, ...]) -> dict[str, npt.NDArray[Any]]:
    """Return what the models of PAIR in Triton return, from empty networks."""
    models = EmptyModels()
    return models.encode(inputs) if model == "sam2_encoder" else models.decode({}, inputs, wanted)


def session(models: EmptyModels | None = None, family: str = "sam2", *, limit: int = LIMIT) -> SessionModel:
    """Return a session model without Triton, by default with empty networks."""
    models = models or EmptyModels()
    return SessionModel(ModelPair(get_family(family)), models.run, models.objects_at_a_time, limit, "weights")


def image_file(form: str = "PNG") -> bytes:
    """Return a small valid image, encoded in a format of Pillow."""
    return encoded(Image.fromarray(np.arange(12 * 16 * 3, dtype=np.uint8).reshape(12, 16, 3)), form)


def text(content: bytes) -> npt.NDArray[np.object_]:
    """Return a tensor of type BYTES and shape [1]."""
    return np.array([content], np.object_)


def code(reply: Reply) -> str:
    """Return the error code of a refused request, or "" if it was answered.

    Raises:
        AssertionError: the reply is neither an answer nor a refusal with a documented code.
    """
    if reply.error is None:
        assert {"image_id", "image_size"} <= set(reply.tensors)
        assert "error" not in json.loads(reply.tensors.get("result_json", [b"{}"])[0])
        return ""
    error_code = contract.code_of(reply.error)
    assert error_code in REFUSALS, f"{type(reply.error).__name__}: {reply.error}"
    assert set(reply.tensors) <= {"result_json"}
    for tensor in reply.tensors.values():
        error = json.loads(tensor[0])["error"]
        assert error["code"] == error_code
        assert "\n" not in error["message"]
    return error_code


def once(data: bytes, model: SessionModel) -> str:
    """Serve one request made from bytes and return its error code, see code().

    The first byte selects the kind of request. The other bytes are its content.
    """
    kind, rest = (data[0] % 5, data[1:]) if data else (0, b"")
    prompt, _, image = rest.partition(b"\x00")
    tensors: dict[str, npt.NDArray[Any]] = [
        {"image": text(rest)},
        {"prompt_json": text(rest), "image_b64": text(GOOD_B64)},
        {"prompt_json": text(prompt), "image_b64": text(image)},
        {"prompt_json": text(rest)},
        {"image": text(image), "output_format": text(prompt), "image_id": text(prompt)},
    ][kind]
    return code(model.answer(tensors))


GOOD_B64 = base64.b64encode(image_file())


_NUMBERS = (0, 1, -1, 2, 3, 5, 10**9, -(10**30), 0.5, -0.5, 1.5, float("nan"), float("inf"), -float("inf"), 1e308)
_TEXTS = ("", "a", "cat", "\x00", "é", "null", "[1]", "x" * 300)


def junk(rng: random.Random, depth: int = 3) -> Any:
    """Return any JSON value, including NaN and infinity, which Python's parser accepts."""
    kind = rng.randrange(7 if depth else 5)
    if kind == 0:
        return rng.choice((None, True, False))
    if kind in (1, 2):
        return rng.choice(_NUMBERS)
    if kind in (3, 4):
        return rng.choice(_TEXTS)
    values = [junk(rng, depth - 1) for _ in range(rng.randrange(5))]
    return values if kind == 5 else {rng.choice(_TEXTS): value for value in values}


def spoil(rng: random.Random, request: Mapping[str, Any], names: Sequence[str] = ()) -> dict[str, Any]:
    """Return the request, in half of the cases with up to three wrong, missing or unknown members.

    The names are those of further possible members.
    """
    spoiled = dict(request)
    for _ in range(rng.choice((0, 0, 0, 1, 2, 3))):
        name = rng.choice((*request, *request, *names, "other"))
        if name in spoiled and rng.random() < 0.2:
            del spoiled[name]
        elif isinstance(spoiled.get(name), list) and rng.random() < 0.5:
            spoiled[name] = [junk(rng, 1) if rng.random() < 0.4 else each for each in spoiled[name]]
        else:
            spoiled[name] = junk(rng)
    return spoiled


class Dice:
    """Fails calls at random with a probability; counts the failures by place.

    Args:
        seed: seed of the random numbers.
        share: the probability of a failure at each place.
    """

    def __init__(self, seed: int = 0, share: float = 0.0) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.share = share
        self.failures: Counter[str] = Counter()

    def roll(self, place: str) -> None:
        """Raise an error at random."""
        if self.hits(place):
            raise RuntimeError(f"{place} failed")

    def hits(self, place: str) -> bool:
        """Return whether a call fails."""
        with self._lock:
            hit = self._random.random() < self.share
            self.failures[place] += hit
        return hit
