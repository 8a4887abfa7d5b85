"""Requests to the session model of a model pair: send an image once, and then only its id and a prompt."""

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
"""Returns the embeddings of an image file: prepares it on this machine and calls the encoder. Waits for the server."""


def upload(pair: ModelPair, source: ImageSource) -> tuple[Request, bytes]:
    """Build the request that encodes an image; also return the image file that the request carries.

    Raises:
        ImageError: the source is not a usable image. This is checked only as far as possible without decoding it.
    """
    content = image_bytes(source)
    outputs = (contract.IMAGE_ID, contract.IMAGE_SIZE)
    return Request(pair.session_model, {contract.IMAGE: text(content)}, outputs), content


def read_upload(pair: ModelPair, outputs: Tensors, content: bytes, fetch: Fetch) -> SessionImage:
    """Read the answer to upload().

    Args:
        pair: the model pair.
        outputs: the answer.
        content: the image file that was sent.
        fetch: fetches the embeddings once a caller reads them on this side.
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
    """Whether the prompts stay within the limits of objects and points for one request to a session model."""
    points = prompts.coords.size // 2 + (0 if prompts.boxes is None else 2 * len(prompts.boxes))
    return len(prompts) <= contract.MAX_OBJECTS and points <= contract.MAX_POINTS
