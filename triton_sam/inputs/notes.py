"""Log unexpected changes to an image, once for each kind of change."""

from __future__ import annotations

import logging

from PIL import Image

from .._common.extras import find_package, install
from .header import MANY_PAGES, count_pages

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
            "its own, or (TIFF) use `triton-sam large --index`.",
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
