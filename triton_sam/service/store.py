"""Uploaded images, within a limit of bytes. Only the event loop uses the store, so it needs no locks."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from .._common.lru import ByteLru
from ..client.session_image import SessionImage
from ..families.base import Size
from ..inputs.embeddings import ImageEmbeddings

ID_LENGTH = 32
PER_IMAGE = 2048
"""Bytes of an image in addition to its content: 1400 measured, with an id at Triton."""

Origin = tuple[str, str, bool]
"""The origin and location of embeddings: name of the pair, version of its encoder, whether they are kept at Triton."""


@dataclass(eq=False)
class StoredImage:
    """An uploaded image.

    Args:
        image_id: hash of ``content``, so that equal uploads share one image.
        content: encoded bytes as uploaded, or the PNG of a HEIC photograph.
    """

    image_id: str
    content: bytes
    size: Size
    embeddings: dict[Origin, ImageEmbeddings] = field(default_factory=dict)
    preview: bytes = b""

    @property
    def nbytes(self) -> int:
        held = (part for part in self.embeddings.values() if not isinstance(part, SessionImage))
        return PER_IMAGE + len(self.content) + len(self.preview) + sum(part.nbytes for part in held)

    @property
    def models(self) -> list[str]:
        return sorted(name for name, *_ in self.embeddings)

    def keep(self, origin: Origin, embeddings: ImageEmbeddings) -> None:
        """Store embeddings; they replace earlier ones of the same pair."""
        others = {known: made for known, made in self.embeddings.items() if known[0] != origin[0]}
        self.embeddings = {**others, origin: embeddings}


def id_of(content: bytes) -> str:
    """Return the id of an uploaded image. This takes a millisecond per MiB: call it in a thread."""
    return hashlib.sha256(content).hexdigest()[:ID_LENGTH]


class ImageStore(ByteLru[str, StoredImage]):
    """The most recently used images, by id."""

    def add(self, image: StoredImage) -> StoredImage:
        """Store an image; return the stored image of its id."""
        kept = self.peek(image.image_id) or image
        self.put(kept.image_id, kept, kept.nbytes)
        return kept

    def grown(self, image: StoredImage) -> None:
        """Update the size of an image, unless it was removed; evict the least recently used images above the limit."""
        if self.peek(image.image_id) is image:
            self.resize(image.image_id, image.nbytes)


class LegacyEmbeddingIndex(ByteLru[bytes, tuple[str, bytes]]):
    """The pair's name and the image of each embedding that a client received as plain numbers, by key_of().

    The plain form has one of SAM2's three embeddings; the others can be recomputed from the image.
    """

    def remember(self, key: bytes, model: str, content: bytes) -> None:
        """Record that ``content``, encoded by the pair ``model``, gave an embedding."""
        self.put(key, (model, content), PER_IMAGE + len(content))


def key_of(embedding: bytes) -> bytes:
    """Return the key of an embedding. This takes milliseconds: call it in a thread."""
    return hashlib.sha256(embedding).digest()
