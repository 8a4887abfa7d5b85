"""Writes a video of the images with the masks drawn in: MP4 by PyAV, or an animated GIF by Pillow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from .._common.extras import missing
from .._common.files import atomic_path
from ..errors import InputError
from ..masks.drawing import PALETTE, overlay
from .records import MaskRecord

DEFAULT_RATE = Fraction(25)
"""Images per second if the source has no rate, such as a folder of images."""

_CODECS = ("libx264", "mpeg4")
"""Encoders by preference. Every build of FFmpeg has the second."""
_QUALITY = {"libx264": {"crf": "20", "preset": "veryfast"}, "mpeg4": {"qscale": "3"}}
_LARGEST_DENOMINATOR = 1001  # of the frame rate: 30000/1001 is the rate of NTSC, and mpeg4 takes at most 65535
_GIF_COLORS = 128


def draw_records(image: Image.Image, records: Iterable[MaskRecord]) -> Image.Image:
    """Return the image with the masks of its objects. An object has the same colour in all images."""
    ordered = sorted(records, key=lambda record: record.object_id)
    colors = [PALETTE[(record.object_id - 1) % len(PALETTE)] for record in ordered]
    return overlay(image, [record.mask for record in ordered], colors=colors or None)


def encoder_name() -> str:
    """Return the name of the best video encoder of this machine.

    Raises:
        MissingDependencyError: PyAV is not installed.
    """
    av = _av()
    for name in _CODECS:
        try:
            av.codec.Codec(name, "w")
        except Exception:  # noqa: BLE001, S112 - versions of PyAV raise different errors for a missing encoder
            continue
        return name
    return _CODECS[-1]


def write_mp4(
    path: Path,
    images: Iterable[Image.Image],
    rate: Fraction,
    pixel_ratio: Fraction = Fraction(1),
) -> int:
    """Write images of one size as an MP4 file, atomically.

    Encoders need an even number of columns and rows. If it is odd, the last column or row is repeated.

    Args:
        path: the file, with the suffix .mp4.
        images: RGB images.
        rate: images per second.
        pixel_ratio: width of a pixel on a screen, divided by its height; players then stretch the images.

    Returns:
        The number of images.

    Raises:
        MissingDependencyError: PyAV is not installed.
        InputError: the images differ in size, or there are none.
        OSError: the file cannot be written.
    """
    av, count, stream, size = _av(), 0, None, (0, 0)
    with atomic_path(path) as temporary, av.open(str(temporary), "w") as container:
        for image in images:
            if stream is None:
                stream, size = _video_stream(container, image.size, rate, encoder_name()), image.size
                stream.codec_context.sample_aspect_ratio = pixel_ratio
            elif image.size != size:
                has, first = (f"{width} x {height}" for width, height in (image.size, size))
                raise InputError(f"frame {count} has {has} pixels, but the first has {first}: {path} needs one size")
            for packet in stream.encode(av.VideoFrame.from_ndarray(_even(image), format="rgb24")):
                container.mux(packet)
            count += 1
        if stream is None:
            raise InputError(f"there is no image for {path}")
        for packet in stream.encode():
            container.mux(packet)
    return count


def write_gif(path: Path, images: Sequence[Image.Image], rate: Fraction) -> int:
    """Write images as an endless animated GIF, atomically. Return the number of images.

    Raises:
        InputError: there are no images.
        OSError: the file cannot be written.
    """
    if not images:
        raise InputError(f"there is no image for {path}")
    first, *others = [image.quantize(_GIF_COLORS) for image in images]
    milliseconds = max(20, round(1000 / rate))  # browsers slow down images that are shown for less time
    with atomic_path(path) as temporary:
        first.save(temporary, format="GIF", save_all=True, append_images=others, duration=milliseconds, loop=0)
    return len(images)


def has_av() -> bool:
    """Return whether PyAV is installed."""
    try:
        import av  # noqa: F401 - only checks whether it is installed
    except ImportError:
        return False
    return True


def _av() -> Any:
    try:
        import av
    except ImportError as error:
        raise missing("video files need", "video", error) from error
    return av


def _video_stream(container: Any, size: tuple[int, int], rate: Fraction, encoder: str) -> Any:
    stream = container.add_stream(
        encoder, rate=rate.limit_denominator(_LARGEST_DENOMINATOR), options=_QUALITY.get(encoder, {})
    )
    stream.width, stream.height = (side + side % 2 for side in size)
    stream.pix_fmt = "yuv420p"
    return stream


def _even(image: Image.Image) -> Any:
    """Return the pixels uint8 (H,W,3) with an even number of rows and columns."""
    pixels = np.asarray(image.convert("RGB"))
    height, width = pixels.shape[:2]
    return np.ascontiguousarray(np.pad(pixels, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge"))
