"""Read the header of an image file: format, orientation, number of pages, and meaning of the values.

Unexpected changes to an image are logged once for each kind of change.
"""

from __future__ import annotations

import contextlib
import io
import logging
import mmap
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import ExifTags, Image, UnidentifiedImageError

from .._common.extras import find_package, install
from .formats import HEIF, register_opener, starts_heic
from .samples import BITS, KINDS, PHOTOMETRIC, PLANAR, SAMPLE_FORMAT

_LOGGER = logging.getLogger(__name__)
_SAID: set[str] = set()


def say_once(kind: str, text: str) -> None:
    """Log a line, unless this process has already logged one of this kind."""
    if kind not in _SAID:
        _SAID.add(kind)
        _LOGGER.warning(text)


def say_pages(image: Image.Image, name: str) -> None:
    """Log that only the first page or frame of an opened file is used, if it has several."""
    if "pages" not in _SAID and (pages := count_pages(image)) > 1:
        count = f"{pages} or more" if pages == MANY_PAGES else str(pages)
        say_once(
            "pages",
            f"{name} has {count} pages or frames, and only the first is used. For another one, save it as a file of "
            "its own, or (TIFF pages of one size) use `triton-sam large --index`.",
        )


def say_transparency(image: Image.Image, name: str) -> None:
    """Log that transparent pixels keep their colours, if an image has any."""
    if image.mode.endswith("A") and "transparency" not in _SAID and image.getchannel("A").getextrema()[0] < 255:  # type: ignore[operator]
        say_once(
            "transparency",
            f"{name} has transparent pixels, and they count with the colours stored in them. To change that, lay the "
            "image on a background first.",
        )


def say_stretch(low: float, high: float, name: str) -> None:
    """Log which values of an image become black and white."""
    say_once(
        "stretch",
        f"{name} has values of more than 8 bits: {low:.8g} becomes black, and {high:.8g} white. For another range, "
        "scale the image to 8 bits first, or (TIFF) use `triton-sam large --stretch`.",
    )


def say_channels(count: int, name: str) -> None:
    """Log that an image has more channels than are shown."""
    say_once(
        "channels",
        f"{name} has {count} channels, and the first three are taken for red, green and blue. For others, use "
        "`triton-sam large --channels`.",
    )


def say_upper_bits(name: str) -> None:
    """Log that only the upper 8 bits of colours are used, because packages are missing or the image is too large."""
    has_package = find_package("tifffile") is not None
    how = "use `triton-sam large`" if has_package else f"install the extra tiles: {install('tiles')}"
    say_once(
        "upper bits",
        f"{name} has colours of more than 8 bits, of which only the upper 8 are used. To stretch them from their "
        f"range, {how}",
    )


Stream = io.BytesIO | Path

UPRIGHT_OPERATIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""The operation that turns an image upright, by its EXIF orientation."""
TURNED = (5, 6, 7, 8)
"""EXIF orientations whose images are stored with width and height swapped."""
ORIENTATION_METADATA = ("exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp")
"""The keys of ``Image.info`` that may hold the orientation."""

_JPEG = b"\xff\xd8"
_PNG = b"\x89PNG\r\n\x1a\n"
_TEXTS = (b"tEXt", b"zTXt", b"iTXt", b"iCCP")
_KEPT_TEXT = 1 << 20
"""Maximum number of bytes of a text with the orientation, which is Pillow's limit."""
MANY_PAGES = 100
"""Maximum number of pages that are counted, because counting reads the header of each page."""
_ANIMATED = ("GIF", "WEBP", "PNG", "AVIF")
SMALLER_OR_MASK = 0b101
"""The bits of the tag NewSubfileType of pages that are not separate images: levels of a pyramid, and masks."""
_SUBFILE_TYPE, _WIDTH, _HEIGHT, _SUB_IFDS = 254, 256, 257, 330


def open_header(stream: Stream, formats: tuple[str, ...] | None = None) -> Image.Image:
    """Open an image with Pillow, without reading its pixels. HEIC photographs need the extra `heic`.

    Args:
        formats: the accepted formats; None accepts all. HEIC photographs need HEIF among them, or None.
    """
    known = [each for each in formats if each != HEIF] if formats else None
    try:
        image = Image.open(stream, formats=known)
        if image.format == "TIFF" and orientation(image) in TURNED:
            image.filename = ""  # otherwise, Pillow 13 maps the file into memory with width and height swapped
        return image
    except UnidentifiedImageError:
        if (formats and HEIF not in formats) or not starts_heic(stream):
            raise
    except ValueError:  # Pillow refuses PNG files with long texts or ICC profiles
        lean = without_texts(stream)
        if lean is None:
            raise
        return Image.open(lean, formats=known)
    register_opener()
    return Image.open(stream, formats=(HEIF,))


def content_of(stream: Stream) -> bytes:
    return stream.read_bytes() if isinstance(stream, Path) else stream.getvalue()


def without_texts(stream: Stream) -> io.BytesIO | None:
    """Return a PNG file without its ICC profile and texts, except EXIF and XMP data; None for other formats."""
    content = content_of(stream)
    if not content.startswith(_PNG):
        return None
    needed = (content[part] for kind, part in _chunks(content) if kind not in _TEXTS or _turns(kind, content[part]))
    return io.BytesIO(_PNG + b"".join(needed))


def _chunks(content: bytes | mmap.mmap) -> Iterator[tuple[bytes, slice]]:
    """Yield the kind and the place of each chunk of a PNG file."""
    place = len(_PNG)
    while place + 8 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, place)
        yield kind, slice(place, place + length + 12)
        place += length + 12


def _turns(kind: bytes, chunk: bytes) -> bool:
    """Return whether a text chunk of a PNG file holds EXIF or XMP data of a usual size."""
    data = chunk[8:-4]
    keyword, _, rest = data.partition(b"\0")
    if keyword.decode("latin-1") not in ORIENTATION_METADATA or len(data) > _KEPT_TEXT:
        return False
    if kind != b"zTXt":
        return kind == b"tEXt" or rest[:1] == b"\0"  # iTXt counts only if it is not compressed
    unpacked = zlib.decompressobj()
    try:
        unpacked.decompress(rest[1:], _KEPT_TEXT)
    except zlib.error:
        return False
    return not unpacked.unconsumed_tail


def orientation(image: Image.Image) -> int:
    """Return the EXIF orientation of an opened image, 1..8; 1 (upright) if EXIF data is missing or damaged."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # noqa: BLE001 - damaged EXIF data raises almost any exception, but the pixels are usable
        return 1


def size_of(image_file: bytes | Path, formats: tuple[str, ...] | None = None) -> tuple[int, int]:
    """Return width and height of an image file after upright(), without decoding its pixels."""
    stream = image_file if isinstance(image_file, Path) else io.BytesIO(image_file)
    with open_header(stream, formats) as image:
        width, height = image.size
        if image.format == "TIFF" and (tag(image, _WIDTH), tag(image, _HEIGHT)) != (width, height):
            return width, height  # newer versions of Pillow turn TIFF files themselves
        if image.format != "PNG":
            turn = orientation(image)
        elif isinstance(image_file, Path):
            with image_file.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                turn = png_turn(content)
        else:
            turn = png_turn(image_file)
    return (height, width) if turn in TURNED else (width, height)


def png_turn(content: bytes | mmap.mmap) -> int:
    """Return the EXIF orientation of a PNG file, which may follow its pixels."""
    metadata = [
        content[part]
        for kind, part in _chunks(content)
        if kind in (b"IHDR", b"eXIf", b"IEND") or (kind in _TEXTS and _turns(kind, content[part]))
    ]
    try:
        with Image.open(io.BytesIO(_PNG + b"".join(metadata)), formats=("PNG",)) as image:
            # Not image.getexif(), which reads the pixels.
            return int(Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1))
    except Exception:  # noqa: BLE001 - as in orientation()
        return 1


def upright(image: Image.Image, turn: int) -> Image.Image:
    """Turn an image upright by its EXIF orientation, and drop the metadata with the orientation."""
    operation = UPRIGHT_OPERATIONS.get(turn)
    if operation is None:
        return image
    turned = image.transpose(operation)
    for name in ORIENTATION_METADATA:
        turned.info.pop(name, None)
    return turned


def as_stored(content: bytes) -> tuple[bytes, int]:
    """Remove the EXIF orientation of a PNG or JPEG file, whose pixels stay the same.

    Returns:
        The file, and the orientation that only another encoding removes; 1 without one, or if Pillow itself turns the
        image.
    """
    if content.startswith(_PNG):  # metadata behind the pixels counts
        chunks = _chunks(content)
        return _PNG + b"".join(content[part] for kind, part in chunks if kind not in (b"eXIf", *_TEXTS)), 1
    turn = _turn_of(content)
    if turn != 1 and content.startswith(_JPEG):
        lying = _lying_jpeg(content)
        if _turn_of(lying) == 1:
            return lying, 1
    return content, turn


def _turn_of(content: bytes) -> int:
    try:
        with open_header(io.BytesIO(content)) as image:
            turn = 1 if image.format in ("TIFF", HEIF) else orientation(image)
    except Exception:  # noqa: BLE001 - Pillow's parsers raise almost any exception
        return 1
    return turn if turn in UPRIGHT_OPERATIONS else 1


def _lying_jpeg(content: bytes) -> bytes:
    """Return a JPEG file with orientation 1 in its EXIF data, or unchanged if several segments hold this data."""
    with open_header(io.BytesIO(content)) as image:
        exif: bytes = image.info.get("exif", b"")
    order = {b"II": "<", b"MM": ">"}.get(exif[6:8])  # after b"Exif\0\0"
    if order is None or content.count(exif) != 1:
        return content
    entry = struct.pack(f"{order}HHI", ExifTags.Base.Orientation, 3, 1)  # one number of 16 bits
    changed = re.sub(re.escape(entry) + b"..", entry + struct.pack(f"{order}H", 1), exif, flags=re.DOTALL)
    return content.replace(exif, changed)


def turned_back(image: Image.Image, turn: int) -> Image.Image:
    """Turn an upright image to the way in which its file stores it."""
    operation = UPRIGHT_OPERATIONS.get({6: 8, 8: 6}.get(turn, turn))
    return image if operation is None else image.transpose(operation)


def count_pages(image: Image.Image) -> int:
    """Return the number of pages of a TIFF file or frames of an animation, at most 100.

    Smaller pyramid levels, masks, and the further images of a photograph (MPO, HEIC) do not count.
    """
    if image.format in _ANIMATED:
        return min(MANY_PAGES, int(getattr(image, "n_frames", 1)))
    if image.format != "TIFF":
        return 1
    count = 1
    with contextlib.suppress(Exception):  # EOFError after the last page; a damaged page raises almost any exception
        for number in range(1, MANY_PAGES):
            image.seek(number)
            count += not int(tag(image, _SUBFILE_TYPE, 0)) & SMALLER_OR_MASK
    image.seek(0)
    return count


def tag(image: Image.Image, number: int, default: Any = None) -> Any:
    """Return the value of a tag of an opened TIFF file."""
    tags = getattr(image, "tag_v2", None) or {}
    return tags.get(number, default)


def kind_of(image: Image.Image) -> str:
    """Return the kind of values of an opened TIFF file, see samples.KINDS; "grey" for other files."""
    return KINDS.get(int(tag(image, PHOTOMETRIC, 1)), "rgb") if image.format == "TIFF" else "grey"


def is_deep(image: Image.Image) -> bool:
    """Return whether Pillow reads grey values of more than 8 bits."""
    return image.mode in ("I", "F") or image.mode.startswith("I;16")


def has_deep_colours(image: Image.Image) -> bool:
    """Return whether an opened file has colours of more than 8 bits. Pillow reads only their upper 8 bits."""
    if image.format == "PNG":
        return image.mode in ("RGB", "RGBA", "LA") and "16" in str(_raw_mode(image))
    return image.format == "TIFF" and image.mode in ("RGB", "RGBA", "RGBX") and max(_bits(image)) > 8


def is_garbled(image: Image.Image) -> bool:
    """Return whether Pillow reads an opened TIFF file wrongly: planes of values of more than 8 bits."""
    return (
        image.format == "TIFF" and int(tag(image, PLANAR, 1)) == 2 and len(_bits(image)) > 1 and max(_bits(image)) > 8
    )


def number_type(image: Image.Image) -> str | None:
    """Return the NumPy dtype of an opened file's values; None if it equals Pillow's."""
    if image.format != "TIFF" or len(_bits(image)) != 1:
        return None
    form = tag(image, SAMPLE_FORMAT, (1,))
    signed = int(form[0] if isinstance(form, tuple) else form) == 2
    return {("L", True): "i1", ("I", False): "u4"}.get((image.mode, signed)) if _bits(image)[0] in (8, 32) else None


def is_preview(image: Image.Image) -> bool:
    """Return whether an opened TIFF file is a raw photograph (DNG, NEF, ARW), of which Pillow reads the preview."""
    return image.format == "TIFF" and bool(int(tag(image, _SUBFILE_TYPE, 0)) & 1) and tag(image, _SUB_IFDS) is not None


def _bits(image: Image.Image) -> tuple[int, ...]:
    bits = tag(image, BITS, (1,))
    return tuple(map(int, bits)) if isinstance(bits, tuple) else (int(bits),)


def _raw_mode(image: Image.Image) -> Any:
    tiles = getattr(image, "tile", None)
    return tiles[0][3] if tiles else ""
