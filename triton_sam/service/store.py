"""Uploaded images: checks of their headers, previews, and the store, which has a limit of bytes.

Only the event loop uses the store, so it needs no locks.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
from dataclasses import dataclass, field

from PIL import Image

from .._common.checks import is_base64
from .._common.lru import ByteLru
from ..client.session_image import SessionImage
from ..errors import MissingDependencyError
from ..families.base import Size
from ..inputs.deep import hint, tiff_size
from ..inputs.embeddings import ImageEmbeddings
from ..inputs.formats import FORMATS, UPLOADS, is_heic
from ..inputs.header import as_stored, size_of
from ..inputs.images import open_image, servers_read, to_png
from .budgets import MEGA, Workers
from .problems import Problem

PREVIEW_SIDE = 4096
AS_JPEG = "save it as JPEG (on an iPhone: Settings, Camera, Formats, Most Compatible)"


def check_image(content: bytes, max_megapixels: float) -> Size:
    """Return width and height, upright, after reading only the header."""
    if not content:
        raise Problem(400, "the image is empty (0 bytes)")
    limit = Image.MAX_IMAGE_PIXELS
    try:
        size = _size_of(content)
    except Image.DecompressionBombError:
        raise Problem(413, f"the image has more than {2 * (limit or 0) / MEGA:.0f} million pixels") from None
    except MissingDependencyError as error:
        raise Problem(415, f"{error}; or {AS_JPEG}") from None
    except Exception:  # noqa: BLE001 - Pillow's parsers raise almost any exception
        if is_heic(content):
            raise Problem(415, f"the HEIC image is damaged: {AS_JPEG}") from None
        if is_base64(content):
            raise Problem(415, "these bytes are base64: send those of the image file itself") from None
        known = ", ".join(UPLOADS)
        raise Problem(415, f"unsupported or damaged image; supported: {known}{hint(io.BytesIO(content))}") from None
    check_size("the image has", size, max_megapixels)
    return size


def check_size(what: str, size: Size, max_megapixels: float) -> None:
    width, height = size
    if width * height > max_megapixels * MEGA:
        raise Problem(413, f"{what} {width} x {height} pixels; at most {max_megapixels:g} million are accepted")


def _size_of(content: bytes) -> Size:
    try:
        return size_of(content, UPLOADS)
    except Image.DecompressionBombError:
        raise
    except Exception:
        size = tiff_size(io.BytesIO(content))
        if size is None:
            raise
        return size


async def accept_image(
    content: bytes, max_megapixels: float, workers: Workers, *, upright: bool = True
) -> tuple[bytes, Size]:
    """Check an image; return the bytes to store and to send to Triton, with width and height, upright.

    An image that Triton cannot read, or reads differently than this project (see open_image()), becomes a PNG with all
    its pixels, for example a HEIC photograph. Other images stay unchanged.

    Args:
        upright: whether the caller's coordinates follow the EXIF orientation; otherwise, an image loses it: a JPEG or
            PNG stays as it is otherwise, another format becomes a PNG that lies as it is stored.
    """

    def look() -> tuple[bytes, Size, int, bool]:
        kept, turn = (content, 1) if upright else as_stored(content)
        return kept, check_image(kept, max_megapixels), turn, turn == 1 and servers_read(kept)

    kept, size, turn, is_readable = await asyncio.to_thread(look)
    if is_readable:
        return kept, size

    def convert() -> tuple[bytes, Size]:
        converted = to_png(kept, UPLOADS, turn)
        return converted, check_image(converted, max_megapixels)  # there may be more pixels than the header says

    return await workers.call(size[0] * size[1], convert)


def to_jpeg(content: bytes) -> bytes:
    """Return an image as JPEG, its sides at most PREVIEW_SIDE."""
    image = open_image(content, FORMATS)
    image.thumbnail((PREVIEW_SIDE, PREVIEW_SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


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
        self.put(key, (model, content), PER_IMAGE + len(content))


def key_of(embedding: bytes) -> bytes:
    """Return the key of an embedding. This takes milliseconds: call it in a thread."""
    return hashlib.sha256(embedding).digest()
