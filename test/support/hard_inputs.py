"""Images from other programs, one file for each kind, and the table of expected results.

The files are in test/data/hard.zip, and their names say what is special. A new file needs a row here.

Each image has 24 x 16 pixels with four quarters of one colour each: top left, top right, bottom left, bottom right.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

ARCHIVE = Path(__file__).parents[1] / "data" / "hard.zip"


def _unpacked() -> Path:
    """Unpack the files into a folder that is removed when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="hard_inputs_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if ARCHIVE.is_file():
        with zipfile.ZipFile(ARCHIVE) as archive:
            archive.extractall(folder)
    return folder


FOLDER = _unpacked()
SIZE = (24, 16)

Quarters = tuple[tuple[int, int, int], ...]
COLOURS: Quarters = ((200, 30, 40), (30, 160, 60), (40, 60, 200), (230, 220, 90))


def grey(*values: int) -> Quarters:
    return tuple((value,) * 3 for value in values)


STRETCHED = grey(0, 57, 120, 255)
"""300, 1100, 2000 and 3900, from 300..3900 to 0..255."""
STRETCHED_COLOURS: Quarters = ((13, 3, 0), (67, 30, 18), (128, 60, 38), (255, 124, 81))
"""The same values as red, a half of them as green and a third as blue, from 100..3900."""
WITH_HOLE = grey(0, 57, 255, 0)
"""300, 1100 and 3900, and a quarter without a measurement."""
HOLES: Quarters = ((27, 7, 0), (134, 60, 36), (255, 121, 76), (0, 248, 161))
"""The same from 100..2000, without the 3900."""


@dataclass(frozen=True)
class Hard:
    """A file.

    Args:
        name: its name.
        quarters: the colours from every reader; None: readers refuse the file.
        words: a part of the error of readers that refuse the file.
        large: the same for large images: colours, or a part of the error; None: as for small images.
        size: width and height, upright.
        tolerance: maximum difference of colours, for lossy formats.
        pages: number of pages or frames.
        by_pillow: whether Pillow reads the file correctly without our code, so that servers receive it unchanged.
        reference: another reader with the results of this table: plain Pillow, or GDAL; "" if neither agrees.
        uploaded: whether the service accepts the file.
    """

    name: str
    quarters: Quarters | None = COLOURS
    words: str = ""
    large: Quarters | str | None = None
    size: tuple[int, int] = SIZE
    tolerance: int = 0
    pages: int = 1
    by_pillow: bool = True
    reference: str = "pillow"
    uploaded: bool = True


SMALL = "use `triton-sam predict`"
"""The error for large images that are not TIFF."""
IMAGES = (
    Hard("white_is_zero.tif", grey(237, 187, 130, 12)),
    Hard("white_is_zero_16.tif", grey(255, 198, 135, 0), reference="gdal"),
    Hard("white_is_zero_1.tif", grey(255, 0, 255, 0)),
    Hard("grey_4.tif", grey(204, 221, 238, 255)),
    Hard("palette.tif"),
    Hard("palette_4.tif"),
    Hard("cmyk.tif", (*COLOURS[:3], (200, 200, 200))),
    Hard("cmyk_16.tif", (*COLOURS[:3], (200, 200, 200)), reference=""),
    Hard("lab.tif", grey(255, 0, 255, 0), tolerance=1),
    Hard("planes.tif"),
    Hard("premultiplied.tif", tolerance=2),
    Hard("transparent.tif"),
    Hard("orientation_8.tif"),
    Hard("grey_12_in_16.tif", STRETCHED, reference="gdal"),
    Hard("grey_12.tif", STRETCHED, reference="gdal"),
    Hard("int8.tif", grey(0, 57, 123, 255), reference="gdal"),
    Hard("int16.tif", STRETCHED, reference="gdal"),
    Hard("uint32.tif", STRETCHED, reference="gdal"),
    Hard("nodata_65535.tif", WITH_HOLE, reference="gdal"),
    Hard("nodata_minus_9999.tif", WITH_HOLE, reference="gdal"),
    Hard("nodata_float.tif", WITH_HOLE, reference="gdal"),
    Hard("nodata_lowest.tif", WITH_HOLE, reference="gdal"),
    Hard("nan.tif", WITH_HOLE, reference="gdal"),
    Hard("float64.tif", STRETCHED, by_pillow=False, reference="gdal"),
    Hard("float16.tif", STRETCHED, by_pillow=False, reference=""),
    Hard("rgb_12_in_16.tif", STRETCHED_COLOURS, by_pillow=False, reference="gdal"),
    Hard("rgb_16_planes.tif", STRETCHED_COLOURS, by_pillow=False, reference="gdal"),
    Hard("rgb_float.tif", STRETCHED_COLOURS, by_pillow=False, reference="gdal"),
    Hard("bands_4_16.tif", STRETCHED_COLOURS, by_pillow=False, reference="gdal"),
    Hard("bands_3_nodata.tif", HOLES, by_pillow=False, reference="gdal"),
    Hard("bands_5.tif", by_pillow=False, reference=""),
    Hard("bands_2.tif", grey(200, 30, 40, 230)),
    Hard("complex.tif", None, words="complex64 are neither grey values", reference=""),
    Hard("pages.tif", pages=3),
    Hard("channels.ome.tif", grey(200, 30, 40, 230), large=COLOURS, pages=3),
    Hard("lzw.tif"),
    Hard("jpeg_inside.tif", tolerance=8),
    Hard("big.tif"),
    Hard("jpeg2000_inside.tif", tolerance=3, by_pillow=False, reference=""),
    Hard("pyramid.tif"),
    Hard("grey_16.png", STRETCHED),
    Hard("grey_16_alpha.png", STRETCHED, by_pillow=False, reference=""),
    Hard("rgb_16.png", STRETCHED_COLOURS, by_pillow=False, reference=""),
    Hard("transparent.png"),
    Hard("palette.png"),
    Hard("icc.png", reference=""),
    Hard("text.png", reference=""),
    Hard("text_behind.png", reference=""),
    Hard("text_orientation_6.png", reference=""),
    Hard("orientation_6.jpg", tolerance=6),
    Hard("orientation_3.webp"),
    Hard("cmyk.jpg", tolerance=10),
    Hard("progressive.jpe", tolerance=6),
    Hard("photo.jfif", tolerance=6),
    Hard("two.mpo", tolerance=6),
    Hard("windows.bmp"),
    Hard("frames.gif", pages=3),
    Hard("frames.webp", pages=3),
    Hard("frames.apng", pages=3),
    Hard("photo.avif", tolerance=6, by_pillow=False),
    Hard("photo.heic", tolerance=8, by_pillow=False, reference=""),
    Hard("lossless.jp2", large=COLOURS, by_pillow=False),
    Hard("codestream.j2k", large=COLOURS, by_pillow=False),
    Hard("plain.ppm", by_pillow=False, uploaded=False),
    Hard("grey_12.pgm", STRETCHED, by_pillow=False, uploaded=False),
    Hard("windows.dib", by_pillow=False, uploaded=False),
    Hard("image.tga", by_pillow=False, uploaded=False),
    Hard("image.qoi", by_pillow=False, uploaded=False),
    Hard("image.pcx", by_pillow=False, uploaded=False),
    Hard("image.sgi", by_pillow=False, uploaded=False),
    Hard("png_inside.jpg"),
    Hard("one_pixel.png", COLOURS[:1] * 4, size=(1, 1)),
    Hard("empty.png", None, words="is empty (0 bytes)"),
    Hard("page.jpg", None, words="is not an image"),
    Hard("cut.png", None, words="truncated"),
    Hard("bomb.png", None, words="too large"),
)
LARGE: dict[str, Quarters | str] = {
    "plain.zarr": COLOURS,
    "bits.zarr": grey(0, 255, 0, 255),
    "one_series.zarr": COLOURS,
    "two_series.zarr": r"holds several OME-Zarr images: give .*two_series.zarr/0 or .*two_series.zarr/1",
    "palette.vrt": COLOURS,
}
"""Other files opened as large images: their colours, or a pattern of the error."""
