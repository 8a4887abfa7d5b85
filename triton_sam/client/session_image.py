"""Encodes images. The session model keeps the embeddings; the client keeps a handle with the image file."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from ..errors import InputError, ModelNotReadyError, UnknownImageError
from ..families.base import FloatArray
from ..inputs.embeddings import ImageEmbeddings
from ..inputs.images import ImageSource, image_bytes, plain_source
from ..transport.base import Tensors
from ..wire import contract
from ..wire.pair import ModelPair, Request
from .flows import ASK_AGAIN_SECONDS, Flow, Notice

MANY_MISSES = 4
"""Successive misses after which a warning says that the server loses images. Two servers in turn cause two misses."""
_LOSES_IMAGES = Notice()


@dataclass(repr=False)
class RemoteImage:
    """The data that a client keeps about an image on the server.

    Args:
        content: the encoded image file, to send it again if the server loses it.
        image_id: the server's id of the image.
        misses: number of successive clicks for which the server did not have it.
    """

    content: bytes
    image_id: str
    misses: int = 0

    def __repr__(self) -> str:
        return f"RemoteImage({self.image_id}, {len(self.content)} bytes)"


@dataclass(frozen=True, eq=False, repr=False)
class SessionImage(ImageEmbeddings):
    """The handle of an image whose embeddings stay on the server. It has no tensors; encode_here() returns them.

    Args:
        remote: the server's id of the image, and the image file to send it again.

    Raises:
        InputError: (when a tensor is read, or saved) the tensors are on the server.
    """

    remote: RemoteImage

    def __bool__(self) -> bool:
        return True  # a mapping without items would be false

    def __getitem__(self, name: str) -> FloatArray:
        self._refuse()

    def __iter__(self) -> Iterator[str]:
        self._refuse()

    def save(self, path: str | os.PathLike[str]) -> None:  # noqa: ARG002 - as in the base class
        """Raise an InputError, because the tensors are on the server."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise InputError(
            f"the embeddings of this image stay on the server, in the session model of {self.model}: "
            "encode_here(image) of the client returns them"
        )


class EncodeFlows:
    """Flows that encode an image.

    Args:
        may_fall_back: whether to send images to the encoder instead while the server has no session model.
    """

    def __init__(self, pair: ModelPair, *, uses_session_model: bool, may_fall_back: bool) -> None:
        self._pair = pair
        self._uses_session_model = uses_session_model
        self._may_fall_back = may_fall_back
        self._falls_back_until = -math.inf
        self._notice = Notice()

    def encode(self, source: ImageSource) -> Flow[ImageEmbeddings]:
        """Encode an image, and keep the embeddings on the server or in this process.

        Raises:
            ImageError: the source is not a usable image.
            ServerError: the request failed.
        """
        source = plain_source(source)  # an open file can be read only once, and a fallback needs it again
        if self._uses_session_model and time.monotonic() >= self._falls_back_until:
            try:
                return (yield from upload(self._pair, source))
            except ModelNotReadyError as error:
                if not self._may_fall_back:
                    raise
                missing = error
            embeddings = yield from self.encode_here(source)  # without the pair too, its error is all that users see
            self._fall_back(missing)
            return embeddings
        return (yield from self.encode_here(source))

    def encode_here(self, source: ImageSource) -> Flow[ImageEmbeddings]:
        """Encode an image and keep the embeddings in this process.

        Raises:
            ImageError: the source is not a usable image.
            ServerError: the request failed.
        """
        request, size = self._pair.encode(source)
        outputs = yield request
        return self._pair.read_embeddings(outputs, size)

    def _fall_back(self, error: ModelNotReadyError) -> None:
        """Switch to the encoder for a while."""
        self._falls_back_until = time.monotonic() + ASK_AGAIN_SECONDS
        megabytes = contract.embedding_bytes(self._pair.family) / 1e6
        self._notice.log(
            f"the server has no session model {self._pair.session_model!r} ready: this client keeps the embeddings and "
            f"sends them with each click ({megabytes:.1f} MB). Serve the session model, or pass embeddings='client' to "
            f"keep it so ({error})"
        )


def upload(pair: ModelPair, source: ImageSource) -> Flow[SessionImage]:
    """Send an image to the session model, which encodes it.

    Raises:
        ImageError: the source is not a usable image. This is checked only as far as possible without decoding it.
        ServerError: the request failed.
    """
    content = image_bytes(source)
    wanted = (contract.IMAGE_ID, contract.IMAGE_SIZE)
    return read_upload(pair, (yield Request(pair.session_model, {contract.IMAGE: text(content)}, wanted)), content)


def read_upload(pair: ModelPair, outputs: Tensors, content: bytes) -> SessionImage:
    """Read the answer to a request that sent the image file ``content``."""
    width, height = (int(side) for side in outputs[contract.IMAGE_SIZE])
    remote = RemoteImage(content, read_id(outputs))
    return SessionImage(pair.family.name, pair.encoder, (width, height), tensors={}, remote=remote)


def ask_about(image: RemoteImage, request: Request) -> Flow[Tensors]:
    """Send a request with the id of an image; send it again with the image itself if the server has lost it.

    Usually this is one more request. If a proxy distributes requests over two servers in turn, one server can receive
    every id and the other every image, so that each request misses. After repeated misses the image is therefore sent
    twice, so that both servers receive it, but only at every doubling of the misses, because a cache that is too small
    causes repeated misses.

    Raises:
        ServerError: the request failed for another reason.
    """
    try:
        outputs = yield request
    except UnknownImageError:
        image.misses += 1
        if image.misses == MANY_MISSES:
            _LOSES_IMAGES.log(
                f"{request.model} lost an image {MANY_MISSES} times in a row, so clicks on it carry the image file. "
                "Raise cache_bytes in the config.pbtxt of the session model if many images are in use; if several "
                "servers share the requests, let one server answer all requests of a client"
            )
        others = {name: array for name, array in request.inputs.items() if name != contract.IMAGE_ID}
        again = replace(request, inputs={contract.IMAGE: text(image.content), **others})
        if image.misses > 1 and image.misses & (image.misses - 1) == 0:  # a power of two: 2, 4, 8, ...
            yield again
        outputs = yield again
    else:
        image.misses = 0
    image.image_id = read_id(outputs)  # changes when the server restarts with other weights
    return outputs


def read_id(outputs: Tensors) -> str:
    """Return the image id that an answer contains."""
    return bytes(outputs[contract.IMAGE_ID][0]).decode()


def text(content: bytes) -> npt.NDArray[np.object_]:
    """Return bytes as a BYTES tensor of shape (1,)."""
    return np.array([content], np.object_)
