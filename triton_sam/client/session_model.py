"""The session model of a pair of models: an image goes out once, then an id and a prompt."""

from __future__ import annotations

from collections.abc import Callable

from ..inputs.embeddings import ImageEmbeddings
from ..inputs.images import ImageSource, image_bytes
from ..inputs.prompts import Prompts
from ..transport.base import Tensors
from ..wire import contract
from ..wire.pair import ModelPair, Request
from .session_image import LazyTensors, RemoteImage, SessionImage, read_id, text

Fetch = Callable[[bytes], ImageEmbeddings]
"""Has an image encoded for this side: it is prepared here and goes through the encoder model. Waits for the server."""


def upload(pair: ModelPair, source: ImageSource) -> tuple[Request, bytes]:
    """Build the request that encodes an image; also return the bytes that go out.

    Raises:
        ImageError: no usable image, as far as can be told without decoding it.
    """
    content = image_bytes(source)
    outputs = (contract.IMAGE_ID, contract.IMAGE_SIZE)
    return Request(pair.session_model, {contract.IMAGE: text(content)}, outputs), content


def read_upload(pair: ModelPair, outputs: Tensors, content: bytes, fetch: Fetch) -> SessionImage:
    """Read the answer to upload().

    Args:
        pair: the pair.
        outputs: the answer.
        content: the bytes that went out.
        fetch: gets embeddings when somebody wants them on this side.
    """
    width, height = (int(side) for side in outputs[contract.IMAGE_SIZE])
    return SessionImage(
        family=pair.family.name,
        model=pair.encoder,
        image_size=(width, height),
        tensors=LazyTensors(pair.family.encoder.output_names, lambda: fetch(content)),
        remote=RemoteImage(content, read_id(outputs)),
    )


def fits(prompts: Prompts) -> bool:
    """Whether a session model takes that many objects and points in one request."""
    points = prompts.coords.size // 2 + (0 if prompts.boxes is None else 2 * len(prompts.boxes))
    return len(prompts) <= contract.MAX_OBJECTS and points <= contract.MAX_POINTS
