"""Pictures that were uploaded, within a number of bytes. Lives on the event loop alone: no locks."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

from ..embeddings import ImageEmbeddings
from ..families.base import Size
from ..session_calls import SessionImage

ID_LENGTH = 32


@dataclass(eq=False)
class StoredImage:
    """One uploaded picture.

    Args:
        image_id: hash of the bytes, so that equal uploads are one.
        content: encoded bytes as they came.
        size: width and height, upright, pixels.
        embeddings: by name of the pair that made them. Where Triton keeps them, this is but an id.
    """

    image_id: str
    content: bytes
    size: Size
    embeddings: dict[str, ImageEmbeddings] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        held = (part for part in self.embeddings.values() if not isinstance(part, SessionImage))
        return len(self.content) + sum(part.nbytes for part in held)


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

    def __len__(self) -> int:
        return len(self._images)

    @property
    def nbytes(self) -> int:
        """Memory that all take."""
        return sum(image.nbytes for image in self._images.values())

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
        self.shrink()
        return kept

    def remove(self, image_id: str) -> bool:
        """Forget a picture; False when there is none."""
        return self._images.pop(image_id, None) is not None

    def shrink(self) -> None:
        """Forget what was used longest ago until the limit holds. To be called when a picture has grown, too."""
        while len(self._images) > 1 and self.nbytes > self._limit:
            self._images.popitem(last=False)


class HandedOut:
    """Which picture an embedding came from that went out as plain numbers.

    The plain form holds one of SAM2's three embeddings; with the picture's bytes, the others can be made again.

    Args:
        limit: bytes of pictures to remember.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sources: OrderedDict[bytes, tuple[str, bytes]] = OrderedDict()

    def remember(self, embedding: bytes, model: str, content: bytes) -> None:
        """Note that ``content``, encoded by the pair ``model``, gave this embedding."""
        key = hashlib.sha256(embedding).digest()
        self._sources[key] = (model, content)
        self._sources.move_to_end(key)
        while len(self._sources) > 1 and sum(len(content) for _, content in self._sources.values()) > self._limit:
            self._sources.popitem(last=False)

    def source(self, embedding: bytes) -> tuple[str, bytes] | None:
        """Return (name of the pair, bytes of the picture), None when it is not remembered."""
        return self._sources.get(hashlib.sha256(embedding).digest())
