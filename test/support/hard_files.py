"""Writers of TIFF, PNG and OME-Zarr files, byte by byte, for files with exactly the properties that tests need."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

Page = tuple[list[bytes], dict[int, tuple[str, Any]]]
"""The strips of a page of a TIFF file, and its tags: the type (see _TYPES) and one or more values."""
_TYPES = {"s": 2, "H": 3, "I": 4}
_NUMBERS = {"subfile": 254, "description": 270, "orientation": 274, "palette": 320, "extra": 338, "nodata": 42113}


def tiff(*pages: Page) -> bytes:
    """Return a TIFF file in little-endian order."""
    content, link = b"II*\0" + bytes(4), 4
    for strips, tags in pages:
        places = []
        for strip in strips:
            places.append(len(content))
            content += strip + bytes(len(strip) % 2)
        lengths = tuple(map(len, strips))
        entries = sorted({**tags, 273: ("I", tuple(places)), 279: ("I", lengths)}.items())
        behind = len(content) + 2 + 12 * len(entries) + 4
        directory, extra = struct.pack("<H", len(entries)), b""
        for number, (kind, value) in entries:
            packed, count = _packed(kind, value)
            if len(packed) > 4:
                packed, extra = struct.pack("<I", behind + len(extra)), extra + packed + bytes(len(packed) % 2)
            directory += struct.pack("<HHI", number, _TYPES[kind], count) + packed.ljust(4, b"\0")
        content = content[:link] + struct.pack("<I", len(content)) + content[link + 4 :]
        link = len(content) + len(directory)
        content += directory + bytes(4) + extra
    return content


def _packed(kind: str, value: Any) -> tuple[bytes, int]:
    if kind == "s":
        return value.encode() + b"\0", len(value) + 1
    values = value if isinstance(value, tuple) else (value,)
    return struct.pack(f"<{len(values)}{kind}", *values), len(values)


def page(pixels: Any, photometric: int, bits: int = 0, data: bytes | None = None, planar: int = 1, **tags: Any) -> Page:
    """Return a page of a TIFF file.

    Args:
        pixels: (H,W) or (H,W,C).
        photometric: the tag PhotometricInterpretation.
        bits: bits of a value, if the data are packed.
        data: the packed data.
        planar: 1: the channels of a pixel are consecutive; 2: a plane for each channel.
        tags: further tags by the names in _NUMBERS.
    """
    count = pixels.shape[2] if pixels.ndim == 3 else 1
    form = {"u": 1, "i": 2, "f": 3, "c": 6}[pixels.dtype.kind]
    planes = list(np.moveaxis(pixels, -1, 0)) if planar == 2 else [pixels]
    entries: dict[int, tuple[str, Any]] = {
        256: ("I", pixels.shape[1]),
        257: ("I", pixels.shape[0]),
        258: ("H", (bits or pixels.dtype.itemsize * 8,) * count),
        259: ("H", 1),
        262: ("H", photometric),
        277: ("H", count),
        278: ("I", pixels.shape[0]),
        284: ("H", planar),
        339: ("H", (form,) * count),
    }
    kinds = {"subfile": "I", "description": "s", "nodata": "s"}
    entries |= {_NUMBERS[name]: (kinds.get(name, "H"), value) for name, value in tags.items()}
    return [
        plane.astype(plane.dtype.newbyteorder("<")).tobytes() if data is None else data for plane in planes
    ], entries


def packed_bits(values: Any, bits: int) -> bytes:
    """Return values (H,W) with some bits each; a row begins with a new byte."""
    shifts = np.arange(bits - 1, -1, -1)
    return np.packbits((values[:, :, None] >> shifts & 1).reshape(len(values), -1).astype(np.uint8), axis=1).tobytes()


Chunks = Iterable[tuple[bytes, bytes]]
"""Names and contents of chunks of a PNG file."""


def png(pixels: Any, before: Chunks = (), after: Chunks = (), size: tuple[int, int] | None = None) -> bytes:
    """Return a PNG file of 8 or 16 bits.

    Args:
        pixels: uint8 or uint16 (H,W), (H,W,2), (H,W,3) or (H,W,4).
        before: further chunks before the pixels.
        after: further chunks after the pixels.
        size: the width and the height that the file claims; None: the true ones.
    """
    count = pixels.shape[2] if pixels.ndim == 3 else 1
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[count]
    width, height = size or (pixels.shape[1], pixels.shape[0])
    rows = pixels.astype(pixels.dtype.newbyteorder(">"))
    data = b"".join(b"\0" + row.tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", width, height, pixels.dtype.itemsize * 8, kind, 0, 0, 0)
    chunks = [(b"IHDR", header), *before, (b"IDAT", zlib.compress(data)), *after, (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )


def zarr_files(folder: str, pixels: Any) -> dict[str, bytes]:
    """Return the files of an uncompressed OME-Zarr image of version 0.4 with one chunk."""
    shape = [pixels.shape[2], *pixels.shape[:2]]
    array = {
        "zarr_format": 2,
        "shape": shape,
        "chunks": shape,
        "dtype": pixels.dtype.str,
        "compressor": None,
        "fill_value": 0,
        "order": "C",
        "filters": None,
        "dimension_separator": "/",
    }
    axes = [{"name": "c", "type": "channel"}, *({"name": name, "type": "space"} for name in "yx")]
    scales = {"version": "0.4", "axes": axes, "datasets": [{"path": "0"}]}
    return {
        f"{folder}/.zgroup": b'{"zarr_format": 2}',
        f"{folder}/.zattrs": json.dumps({"multiscales": [scales]}).encode(),
        f"{folder}/0/.zarray": json.dumps(array).encode(),
        f"{folder}/0/0/0/0": np.moveaxis(pixels, -1, 0).tobytes(),
    }


def bioformats_files(name: str, pixels: Any, series: int) -> dict[str, bytes]:
    """Return the files of a folder in the layout of bioformats2raw."""
    files = {f"{name}/.zgroup": b'{"zarr_format": 2}', f"{name}/.zattrs": b'{"bioformats2raw.layout": 3}'}
    files |= {f"{name}/OME/.zgroup": b'{"zarr_format": 2}'}
    for number in range(series):
        files |= zarr_files(f"{name}/{number}", pixels)
    return files
