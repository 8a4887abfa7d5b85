"""Tells whether two servers, or a server at two times, have the same encoder."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..inputs.embeddings import ImageEmbeddings
from .session_image import SessionImage

if TYPE_CHECKING:
    from .sync import SamTritonClient

FIXED_IMAGE = b"BM" + struct.pack("<IIIIiiHHIIiiII", 58, 0, 54, 40, 1, 1, 1, 24, 0, 4, 0, 0, 0, 0) + bytes(4)
"""A BMP file with one black pixel."""


@dataclass(frozen=True)
class EncoderIdentity:
    """The encoder of a server.

    Args:
        weights: the id that the session model gives to a fixed image; it depends on the weights, and is equal on all
            servers that have them. None without a session model.
    """

    family: str
    encoder: str
    weights: str | None

    @classmethod
    def of(cls, image: ImageEmbeddings) -> EncoderIdentity:
        """Return the encoder that has encoded FIXED_IMAGE."""
        return cls(image.family, image.model, weights_id(image))


def weights_id(image: ImageEmbeddings) -> str | None:
    """Return the id of the weights that have encoded FIXED_IMAGE; None if no session model has encoded it."""
    return image.remote.image_id if isinstance(image, SessionImage) else None


def encoder_of(client: SamTritonClient) -> EncoderIdentity:
    """Return the encoder that a client uses. The server encodes a fixed image; a session model keeps it."""
    return EncoderIdentity.of(client.encode(FIXED_IMAGE))
