"""The client's handle of an image whose embeddings the session model keeps on the server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..families.base import FloatArray
from ..inputs.embeddings import ImageEmbeddings
from ..transport.base import Tensors
from ..wire import contract


@dataclass(repr=False)
class RemoteImage:
    """The data that a client keeps about an image on the server.

    Args:
        content: the encoded image file, to send it again if the server loses it.
        image_id: the id that the server gave it.
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
        """Refuse, because the tensors are on the server."""
        self._refuse()

    def keep_id(self, outputs: Tensors) -> None:
        """Store the id from an answer. It changes when the server restarts with other weights."""
        self.remote.image_id = read_id(outputs)

    def _refuse(self) -> NoReturn:
        raise InputError(
            f"the embeddings of this image stay on the server, in the session model of {self.model}: "
            "encode_here(image) of the client returns them"
        )


def read_id(outputs: Tensors) -> str:
    """Return the image id that an answer contains."""
    return bytes(outputs[contract.IMAGE_ID][0]).decode()


def text(content: bytes) -> npt.NDArray[np.object_]:
    """Return bytes as a BYTES tensor of shape (1,)."""
    return np.array([content], np.object_)
