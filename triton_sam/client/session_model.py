"""Requests to the session model of a model pair: send an image once, and then only its id and a prompt."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from typing import Any

from ..errors import PromptError
from ..inputs.images import ImageSource, image_bytes
from ..inputs.prompts import Prompts
from ..transport.base import Tensors
from ..wire import contract
from ..wire.pair import ConfigRequest, ModelPair, Request
from .lacks import ASK_AGAIN_SECONDS
from .session_image import RemoteImage, SessionImage, read_id, text


def upload(pair: ModelPair, source: ImageSource) -> tuple[Request, bytes]:
    """Build the request that encodes an image; also return the image file that the request carries.

    Raises:
        ImageError: the source is not a usable image. This is checked only as far as possible without decoding it.
    """
    content = image_bytes(source)
    outputs = (contract.IMAGE_ID, contract.IMAGE_SIZE)
    return Request(pair.session_model, {contract.IMAGE: text(content)}, outputs), content


def read_upload(pair: ModelPair, outputs: Tensors, content: bytes) -> SessionImage:
    """Read the answer to upload().

    Args:
        pair: the model pair.
        outputs: the answer.
        content: the image file that was sent.
    """
    width, height = (int(side) for side in outputs[contract.IMAGE_SIZE])
    return SessionImage(
        family=pair.family.name,
        model=pair.encoder,
        image_size=(width, height),
        tensors={},
        remote=RemoteImage(content, read_id(outputs)),
    )


def fitting_parts(prompts: Prompts) -> list[Prompts]:
    """Split prompts into parts of as many objects as one request to a session model may have.

    Raises:
        PromptError: a single object has more points than that.
    """
    points = prompts.coords.shape[1] + (0 if prompts.boxes is None else 2)
    if points > contract.MAX_POINTS:
        raise PromptError(
            f"an object has {points} points, and the session model accepts {contract.MAX_POINTS} (a box counts as "
            "two): give fewer points, or image=client.encode_here(...), which sends the embeddings to the decoder"
        )
    return prompts.parts(min(contract.MAX_OBJECTS, contract.MAX_POINTS // max(1, points)))


class Capabilities:
    """The inputs that the session model of a server has, by its configuration.

    Servers of earlier versions have fewer. A missing one is looked for again after a while.

    Args:
        model: name of the session model.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._inputs: frozenset[str] = frozenset()
        self._asked: float | None = None

    def has(self, name: str) -> Generator[Request, Mapping[str, Any], bool]:
        """Return whether the session model has an input. This is a flow; usually, it asks nothing.

        Raises:
            ServerError: the request for the configuration failed.
        """
        is_old = self._asked is None or time.monotonic() > self._asked + ASK_AGAIN_SECONDS
        if name not in self._inputs and is_old:
            config = yield ConfigRequest(self._model)
            self._inputs = frozenset(tensor["name"] for tensor in config.get("input", ()))
            self._asked = time.monotonic()
        return name in self._inputs
