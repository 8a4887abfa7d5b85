"""Images from other programs, one file for each kind, and the table of expected results.

The files are in test/data/hard.zip. After a change here, rewrite it: PYTHONPATH=test python -m support.hard_inputs

Each image has 24 x 16 pixels with four quarters of one colour each: top left, top right, bottom left, bottom right.
"""

from __future__ import annotations

import atexit
import io
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from .hard_files import bioformats_files, packed_bits, page, png, tiff, zarr_files

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
WIDTH, HEIGHT = SIZE = (24, 16)

Quarters = tuple[tuple[int, int, int], ...]
COLOURS: Quarters = ((200, 30, 40), (30, 160, 60), (40, 60, 200), (230, 220, 90))
DEEP = (300, 1100, 2000, 3900)
"""Values of 12 bits."""
DEEP_COLOURS = tuple((value, value // 2, value // 3) for value in DEEP)
NAN, HOLE = float("nan"), -9999


def grey(*values: int) -> Quarters:
    return tuple((value,) * 3 for value in values)


STRETCHED = grey(0, 57, 120, 255)
"""DEEP, from 300..3900 to 0..255."""
STRETCHED_COLOURS: Quarters = ((13, 3, 0), (67, 30, 18), (128, 60, 38), (255, 124, 81))
"""DEEP_COLOURS, from 100..3900."""
WITH_HOLE = grey(0, 57, 255, 0)
"""300, 1100 and 3900, and a quarter without a measurement."""


def quarters(values: Sequence[Any], dtype: Any = np.uint8, size: tuple[int, int] = SIZE) -> np.ndarray[Any, Any]:
    """Return (H,W) or (H,W,C) with one value in each quarter."""
    places = (np.arange(size[1])[:, None] >= size[1] // 2) * 2 + (np.arange(size[0]) >= size[0] // 2)
    return np.asarray(values, dtype)[places]


RGB = quarters(COLOURS)


def encoded(form: str, pixels: Any = RGB, mode: str | None = None, **options: Any) -> Callable[[], bytes]:
    """Return a function that encodes pixels with Pillow."""

    def make() -> bytes:
        buffer = io.BytesIO()
        image = Image.fromarray(np.asarray(pixels))
        (image.convert(mode) if mode else image).save(buffer, form, **options)
        return buffer.getvalue()

    return make


def heic() -> bytes:
    import pillow_heif

    pillow_heif.register_heif_opener()
    return encoded("HEIF", quality=90)()


def turned(form: str, orientation: int, **options: Any) -> Callable[[], bytes]:
    """Return a function that encodes the rotated colours, with the EXIF orientation that turns them upright."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(form, ON_SIDE[orientation], exif=exif, **options)


ON_SIDE = {6: np.rot90(RGB), 8: np.rot90(RGB, -1), 3: RGB[::-1, ::-1]}
"""The colours as a camera stores them, by the EXIF orientation."""
LONG = (b"zTXt", b"Comment\0\0" + zlib.compress(bytes(3_000_000)))
PROFILE = (b"iCCP", b"printer\0\0" + zlib.compress(bytes(2_000_000)))


def _exif_chunk(orientation: int) -> tuple[bytes, bytes]:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return b"eXIf", exif.tobytes().removeprefix(b"Exif\0\0")


def _palette(bits: int) -> tuple[int, ...]:
    """Return the tag ColorMap with COLOURS as its last entries."""
    table = np.zeros((3, 2**bits), int)
    table[:, -4:] = np.array(COLOURS).T * 257
    return tuple(table.ravel().tolist())


def _palette_png() -> bytes:
    buffer = io.BytesIO()
    image = Image.frombytes("P", SIZE, quarters((0, 1, 2, 3)).tobytes())
    image.putpalette([value for colour in COLOURS for value in colour])
    image.save(buffer, "PNG", transparency=b"\0\xff\x80\xff")
    return buffer.getvalue()


def _frames(form: str, **options: Any) -> Callable[[], bytes]:
    """Return a function that encodes the colours, and two black frames."""
    black = Image.new("RGB", SIZE)
    return encoded(form, save_all=True, append_images=[black, black.point(lambda _: 9)], **options)


@dataclass(frozen=True)
class Hard:
    """A file.

    Args:
        name: its name.
        make: returns its content.
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
    make: Callable[[], bytes]
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


def _tiffs() -> Iterable[Hard]:
    deep, colours = quarters(DEEP, np.uint16), quarters(DEEP_COLOURS, np.uint16)
    hole = quarters((300, 1100, 3900, HOLE), np.int16)
    inks = quarters([*((255 - r, 255 - g, 255 - b, 0) for r, g, b in COLOURS[:3]), (0, 0, 0, 55)])
    indices = quarters((12, 13, 14, 15))
    floats = quarters((300, 1100, 3900, NAN), np.float32)
    floats[-1, -1] = np.inf

    def row(name: str, pixels: Any, photometric: int, *more: Any, **options: Any) -> Hard:
        named = {key: options.pop(key) for key in list(options) if key in Hard.__dataclass_fields__}
        return Hard(name, lambda: tiff(page(pixels, photometric, **options)), *more, **named)

    gdal: Any = {"reference": "gdal"}
    alone: Any = {"by_pillow": False, **gdal}
    yield row("white_is_zero.tif", quarters((18, 68, 125, 243)), 0, grey(237, 187, 130, 12))
    yield row("white_is_zero_16.tif", deep, 0, grey(255, 198, 135, 0), **gdal)
    one = quarters((0, 1, 0, 1))
    yield row("white_is_zero_1.tif", one, 0, grey(255, 0, 255, 0), bits=1, data=packed_bits(one, 1))
    yield row("grey_4.tif", indices, 1, grey(204, 221, 238, 255), bits=4, data=packed_bits(indices, 4))
    yield row("palette.tif", indices + 240, 3, palette=_palette(8))
    yield row("palette_4.tif", indices, 3, palette=_palette(4), bits=4, data=packed_bits(indices, 4))
    yield row("cmyk.tif", inks, 5, (*COLOURS[:3], (200, 200, 200)))
    yield row("cmyk_16.tif", inks.astype(np.uint16) << 8, 5, (*COLOURS[:3], (200, 200, 200)), reference="")
    yield row("lab.tif", quarters([(255, 0, 0), (0, 0, 0)] * 2), 8, grey(255, 0, 255, 0), tolerance=1)
    yield row("planes.tif", RGB, 2, planar=2)
    premultiplied = np.dstack([RGB // 2, np.full((HEIGHT, WIDTH), 128, np.uint8)])
    yield row("premultiplied.tif", premultiplied, 2, extra=1, tolerance=2)
    yield row("transparent.tif", np.dstack([RGB, quarters((0, 255, 255, 0))]), 2, extra=2)
    yield row("orientation_8.tif", ON_SIDE[8], 2, orientation=8)
    yield row("grey_12_in_16.tif", deep, 1, STRETCHED, **gdal)
    yield row("grey_12.tif", deep, 1, STRETCHED, bits=12, data=packed_bits(deep, 12), **gdal)
    yield row("int8.tif", quarters((-60, -35, -6, 52), np.int8), 1, grey(0, 57, 123, 255), **gdal)
    yield row("int16.tif", quarters((-700, 100, 1000, 2900), np.int16), 1, STRETCHED, **gdal)
    yield row("uint32.tif", quarters([1_000_000 * value for value in DEEP], np.uint32), 1, STRETCHED, **gdal)
    yield row("nodata_65535.tif", quarters((300, 1100, 3900, 65535), np.uint16), 1, WITH_HOLE, nodata="65535", **gdal)
    yield row("nodata_minus_9999.tif", hole, 1, WITH_HOLE, nodata="-9999", **gdal)
    yield row("nodata_float.tif", hole.astype(np.float32), 1, WITH_HOLE, nodata="-9999.0", **gdal)
    lowest = np.where(hole == HOLE, np.finfo(np.float32).min, hole).astype(np.float32)
    yield row("nodata_lowest.tif", lowest, 1, WITH_HOLE, nodata="-3.4028234663852886e+38", **gdal)
    yield row("nan.tif", floats, 1, WITH_HOLE, **gdal)
    yield row("float64.tif", quarters(DEEP, np.float64), 1, STRETCHED, **alone)
    yield row(
        "float16.tif", quarters([value / 4 for value in DEEP], np.float16), 1, STRETCHED, by_pillow=False, reference=""
    )
    yield row("rgb_12_in_16.tif", colours, 2, STRETCHED_COLOURS, **alone)
    yield row("rgb_16_planes.tif", colours, 2, STRETCHED_COLOURS, **alone, planar=2)
    yield row("rgb_float.tif", colours.astype(np.float32), 2, STRETCHED_COLOURS, **alone)
    four = np.dstack([colours, deep])
    yield row("bands_4_16.tif", four, 1, STRETCHED_COLOURS, **alone, extra=(0, 0, 0))
    holes = np.where(four == 3900, 65535, four)[:, :, :3].copy()
    yield row("bands_3_nodata.tif", holes, 1, HOLES, **alone, extra=(0, 0), nodata="65535")
    yield row("bands_5.tif", np.dstack([RGB, RGB[:, :, :2]]), 1, by_pillow=False, extra=(0, 0, 0, 0), reference="")
    yield row("bands_2.tif", RGB[:, :, :2].copy(), 1, grey(200, 30, 40, 230), extra=0)
    yield row("complex.tif", deep.astype(np.complex64), 1, None, "complex64 are neither grey values", reference="")
    black = np.zeros_like(RGB)
    pages = [page(each, 2) for each in (RGB, black, black)]
    yield Hard("pages.tif", lambda: tiff(*pages), pages=3)
    channels = [page(RGB[:, :, number].copy(), 1, description=OME) for number in range(3)]
    yield Hard("channels.ome.tif", lambda: tiff(*channels), grey(200, 30, 40, 230), large=COLOURS, pages=3)
    yield Hard("lzw.tif", encoded("TIFF", compression="tiff_lzw"))
    yield Hard("jpeg_inside.tif", encoded("TIFF", compression="jpeg", quality=95), tolerance=8)
    yield Hard("big.tif", encoded("TIFF", big_tiff=True))
    yield Hard("jpeg2000_inside.tif", _jpeg2000_inside, by_pillow=False, reference="", tolerance=3)
    smaller = page(np.ascontiguousarray(RGB[::2, ::2]), 2, subfile=1)
    yield Hard("pyramid.tif", lambda: tiff(page(RGB, 2), smaller))


HOLES: Quarters = ((27, 7, 0), (134, 60, 36), (255, 121, 76), (0, 248, 161))
"""DEEP_COLOURS from 100..2000, without the 3900."""


OME = """<?xml version="1.0" encoding="UTF-8"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06">
<Image ID="Image:0"><Pixels ID="Pixels:0" DimensionOrder="XYCZT" Type="uint8" SizeX="24" SizeY="16" SizeC="3" SizeZ="1"
SizeT="1"><TiffData/></Pixels></Image></OME>"""
"""The description of three pages that are the channels of one image."""


def _jpeg2000_inside() -> bytes:
    import tifffile

    buffer = io.BytesIO()
    tifffile.imwrite(buffer, RGB, photometric="rgb", compression="jpeg2000", metadata=None, software=False)
    return buffer.getvalue()


def _others() -> Iterable[Hard]:
    deep, colours = quarters(DEEP, np.uint16), quarters(DEEP_COLOURS, np.uint16)
    yield Hard("grey_16.png", lambda: png(deep), STRETCHED)
    yield Hard("grey_16_alpha.png", lambda: png(np.dstack([deep, deep])), STRETCHED, by_pillow=False, reference="")
    yield Hard("rgb_16.png", lambda: png(colours), STRETCHED_COLOURS, by_pillow=False, reference="")
    yield Hard("transparent.png", lambda: png(np.dstack([RGB, quarters((0, 255, 255, 0))])))
    yield Hard("palette.png", _palette_png)
    yield Hard("icc.png", lambda: png(RGB, [PROFILE]), reference="")
    yield Hard("text.png", lambda: png(RGB, [LONG]), reference="")
    yield Hard("text_behind.png", lambda: png(RGB, after=[LONG]), reference="")
    on_side = np.ascontiguousarray(ON_SIDE[6])
    yield Hard("text_orientation_6.png", lambda: png(on_side, [LONG, _exif_chunk(6)], [PROFILE]), reference="")
    yield Hard("orientation_6.jpg", turned("JPEG", 6, quality=95), tolerance=6)
    yield Hard("orientation_3.webp", turned("WEBP", 3, lossless=True))
    yield Hard("cmyk.jpg", encoded("JPEG", mode="CMYK", quality=95), tolerance=10)
    yield Hard("progressive.jpe", encoded("JPEG", progressive=True, quality=95), tolerance=6)
    yield Hard("photo.jfif", encoded("JPEG", quality=95), tolerance=6)
    other = Image.new("RGB", SIZE)
    yield Hard("two.mpo", encoded("MPO", save_all=True, append_images=[other], quality=95), tolerance=6)
    yield Hard("windows.bmp", encoded("BMP"))
    yield Hard("frames.gif", _frames("GIF"), pages=3)
    yield Hard("frames.webp", _frames("WEBP", lossless=True), pages=3)
    yield Hard("frames.apng", _frames("PNG"), pages=3)
    served: Any = {"by_pillow": False}
    yield Hard("photo.avif", encoded("AVIF", quality=95), tolerance=6, **served)
    yield Hard("photo.heic", heic, tolerance=8, **served, reference="")
    yield Hard("lossless.jp2", encoded("JPEG2000"), large=COLOURS, **served)
    yield Hard("codestream.j2k", encoded("JPEG2000", no_jp2=True), large=COLOURS, **served)
    local: Any = {"by_pillow": False, "uploaded": False}
    yield Hard("plain.ppm", lambda: _plain_ppm(RGB), **local)
    yield Hard("grey_12.pgm", lambda: b"P5 24 16 4095\n" + deep.astype(">u2").tobytes(), STRETCHED, **local)
    yield Hard("windows.dib", encoded("DIB"), **local)
    yield Hard("image.tga", encoded("TGA"), **local)
    yield Hard("image.qoi", encoded("QOI"), **local)
    yield Hard("image.pcx", encoded("PCX"), **local)
    yield Hard("image.sgi", encoded("SGI"), **local)
    yield Hard("png_inside.jpg", encoded("PNG"))
    yield Hard("one_pixel.png", encoded("PNG", RGB[:1, :1]), COLOURS[:1] * 4, size=(1, 1))
    yield Hard("empty.png", bytes, None, "is empty (0 bytes)")
    yield Hard("page.jpg", lambda: b"<!doctype html><title>404</title>", None, "is not an image")
    yield Hard("cut.png", lambda: png(quarters(COLOURS, size=(90, 80)))[:150], None, "truncated")
    yield Hard("bomb.png", lambda: png(RGB, size=(60_000, 60_000)), None, "too large")


def _plain_ppm(pixels: Any) -> bytes:
    return b"P3 24 16 255\n" + " ".join(map(str, pixels.ravel().tolist())).encode()


IMAGES: tuple[Hard, ...] = (*_tiffs(), *_others())


def _vrt(source: str) -> bytes:
    """Return a mosaic of GDAL over one file with a palette."""
    table = "".join(f'<Entry c1="{r}" c2="{g}" c3="{b}" c4="255"/>' for r, g, b in [(0, 0, 0)] * 12 + [*COLOURS])
    band = f"""<ColorInterp>Palette</ColorInterp><ColorTable>{table}</ColorTable>
<SimpleSource><SourceFilename relativeToVRT="1">{source}</SourceFilename><SourceBand>1</SourceBand></SimpleSource>"""
    return f"""<VRTDataset rasterXSize="24" rasterYSize="16"><VRTRasterBand dataType="Byte" band="1">
{band}
</VRTRasterBand></VRTDataset>
""".encode()


LARGE: dict[str, Quarters | str] = {
    "plain.zarr": COLOURS,
    "bits.zarr": grey(0, 255, 0, 255),
    "one_series.zarr": COLOURS,
    "two_series.zarr": r"holds several OME-Zarr images: give .*two_series.zarr/0 or .*two_series.zarr/1",
    "palette.vrt": COLOURS,
}
"""Other files opened as large images: their colours, or a pattern of the error."""
LARGE_FILES = {
    **zarr_files("plain.zarr", RGB),
    **zarr_files("bits.zarr", np.repeat(quarters((0, 1, 0, 1), bool)[:, :, None], 3, axis=2)),
    **bioformats_files("one_series.zarr", RGB, 1),
    **bioformats_files("two_series.zarr", RGB, 2),
    "palette.vrt": _vrt("palette_4.tif"),
}


def write() -> None:
    """Write all files. Equal contents result in an equal archive."""
    with zipfile.ZipFile(ARCHIVE, "w") as archive:
        for name, content in {**{each.name: each.make() for each in IMAGES}, **LARGE_FILES}.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    write()
