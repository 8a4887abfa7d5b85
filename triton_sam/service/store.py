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


class ImageStore:
    """The most recently used images, at most ``limit`` bytes unless a single image is larger."""

    def __init__(self, limit: int) -> None:
        self._images: ByteLru[str, StoredImage] = ByteLru(limit)

    def __len__(self) -> int:
        return len(self._images)

    @property
    def nbytes(self) -> int:
        return self._images.nbytes

    def get(self, image_id: str) -> StoredImage | None:
        """Return an image and mark it as the most recently used."""
        return self._images.get(image_id)

    def add(self, image: StoredImage) -> StoredImage:
        """Store an image; return the stored image of its id."""
        kept = self._images.peek(image.image_id) or image
        self._images.put(kept.image_id, kept, kept.nbytes)
        return kept

    def remove(self, image_id: str) -> bool:
        """Remove an image; return False if there is none."""
        return self._images.remove(image_id)

    def grown(self, image: StoredImage) -> None:
        """Update the size of an image, unless it was removed; evict the least recently used images above the limit."""
        if self._images.peek(image.image_id) is image:
            self._images.resize(image.image_id, image.nbytes)


class LegacyEmbeddingIndex:
    """Finds the image of an embedding that a client received as plain numbers.

    The plain form has one of SAM2's three embeddings; the others can be recomputed from the image's bytes.
    """

    def __init__(self, limit: int) -> None:
        self._sources: ByteLru[bytes, tuple[str, bytes]] = ByteLru(limit)

    def remember(self, key: bytes, model: str, content: bytes) -> None:
        """Record that ``content``, encoded by the pair ``model``, gave the embedding with this key_of()."""
        self._sources.put(key, (model, content), PER_IMAGE + len(content))

    def source(self, key: bytes) -> tuple[str, bytes] | None:
        """Return (name of the pair, bytes of the image), or None if the key is unknown."""
        return self._sources.peek(key)


def key_of(embedding: bytes) -> bytes:
    """Return the key of an embedding. This takes milliseconds: call it in a thread."""
    return hashlib.sha256(embedding).digest()
