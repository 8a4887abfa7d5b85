"""Pictures that were uploaded, within a number of bytes. Lives on the event loop alone: no locks."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

from ..client.session_image import SessionImage
from ..families.base import Size
from ..inputs.embeddings import ImageEmbeddings

ID_LENGTH = 32
PER_IMAGE = 2048
"""Bytes that a picture takes besides its content: 1400 measured, with an id at Triton."""

Origin = tuple[str, str, bool]
"""What made embeddings, and where they are: name of the pair, version of its encoder, whether Triton keeps them."""


@dataclass(eq=False)
class StoredImage:
    """One uploaded picture.

    Args:
        image_id: hash of the bytes, so that equal uploads are one.
        content: encoded bytes as they came.
        size: width and height, upright, pixels.
        embeddings: by what made them. Where Triton keeps them, this is but an id.
    """

    image_id: str
    content: bytes
    size: Size
    embeddings: dict[Origin, ImageEmbeddings] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        held = (part for part in self.embeddings.values() if not isinstance(part, SessionImage))
        return PER_IMAGE + len(self.content) + sum(part.nbytes for part in held)

    @property
    def models(self) -> list[str]:
        """Names of the pairs that have encoded it."""
        return sorted(name for name, *_ in self.embeddings)

    def keep(self, origin: Origin, embeddings: ImageEmbeddings) -> None:
        """Keep embeddings, in place of those that the same pair made before."""
        others = {known: made for known, made in self.embeddings.items() if known[0] != origin[0]}
        self.embeddings = {**others, origin: embeddings}


def id_of(content: bytes) -> str:
    """Return the id of an uploaded picture."""
    return hashlib.sha256(content).hexdigest()[:ID_LENGTH]


class ImageStore:
    """The pictures used last; never more than ``limit`` bytes, one picture aside.

    Args:
        limit: bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._images: OrderedDict[str, StoredImage] = OrderedDict()
        self._counted: dict[str, int] = {}
        self._nbytes = 0

    def __len__(self) -> int:
        return len(self._images)

    @property
    def nbytes(self) -> int:
        """Memory that all take."""
        return self._nbytes

    def get(self, image_id: str) -> StoredImage | None:
        """Return a picture, which makes it the one used last."""
        image = self._images.get(image_id)
        if image is not None:
            self._images.move_to_end(image_id)
        return image

    def add(self, image: StoredImage) -> StoredImage:
        """Keep a picture and return the one that is kept under its id."""
        kept = self._images.setdefault(image.image_id, image)
        self._images.move_to_end(image.image_id)
        self.grown(kept)
        return kept

    def remove(self, image_id: str) -> bool:
        """Forget a picture; False when there is none."""
        self._nbytes -= self._counted.pop(image_id, 0)
        return self._images.pop(image_id, None) is not None

    def grown(self, image: StoredImage) -> None:
        """Count a picture anew, unless it is forgotten, and forget what was used longest ago until the limit holds."""
        if self._images.get(image.image_id) is not image:
            return
        self._nbytes += image.nbytes - self._counted.get(image.image_id, 0)
        self._counted[image.image_id] = image.nbytes
        while len(self._images) > 1 and self._nbytes > self._limit:
            self.remove(next(iter(self._images)))


class LegacyEmbeddingIndex:
    """Which picture an embedding came from that went out as plain numbers.

    The plain form holds one of SAM2's three embeddings; with the picture's bytes, the others can be made again.

    Args:
        limit: bytes of pictures to remember.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sources: OrderedDict[bytes, tuple[str, bytes]] = OrderedDict()
        self._nbytes = 0

    def remember(self, embedding: bytes, model: str, content: bytes) -> None:
        """Note that ``content``, encoded by the pair ``model``, gave this embedding."""
        key = hashlib.sha256(embedding).digest()
        self._forget(key)
        self._sources[key] = (model, content)
        self._nbytes += PER_IMAGE + len(content)
        while len(self._sources) > 1 and self._nbytes > self._limit:
            self._forget(next(iter(self._sources)))

    def source(self, embedding: bytes) -> tuple[str, bytes] | None:
        """Return (name of the pair, bytes of the picture), None when it is not remembered."""
        return self._sources.get(hashlib.sha256(embedding).digest())

    def _forget(self, key: bytes) -> None:
        if key in self._sources:
            _, content = self._sources.pop(key)
            self._nbytes -= PER_IMAGE + len(content)
