"""Precomputed embeddings of the tiles of a large image.

The file is a Zarr folder in the layout of micro-sam (`micro_sam.util.precompute_image_embeddings`, version 1.8): the
group `features` has an array float32 (1,256,64,64) for each block, named by its number. Its attributes `shape`,
`tile_shape` and `halo` (height first) describe the tiles. Without tiles, `features` is one array. Families with several
tensors store the others in further groups. The attribute `triton_sam` has the data that only this project needs.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.extras import missing
from ..client.server_models import EncoderIdentity
from ..errors import ConfigurationError, InputError
from ..families import get_family
from ..families.base import FloatArray, Size
from ..families.sam1 import SAM1
from ..inputs.embeddings import ImageEmbeddings
from .folders import FEATURES
from .parts import Blocks, length_for
from .pyramid import Bytes, LargeImage, Level, Region, Window

OWN = "triton_sam"
"""The attribute that identifies the encoder. Files of micro-sam lack it."""
PIXELS = "triton_sam_pixels"
"""The attribute of a tile with the hash of its pixels."""
SUFFIX = ".embeddings.zarr"

_ROWS = 1024
"""Maximum number of rows per read for the signature of an image."""
_STRIP = 1 << 28
"""Maximum number of bytes per read of several rows for the signature of an image."""
_AGREES = 0.05
"""Maximum difference between the embeddings of a tile by two encoders (RMS of differences / RMS of values). The same
weights in another precision or on another processor give different values and must pass. The bound is a choice, not a
measurement of their differences."""


def default_path(image: str | os.PathLike[str], model: str) -> Path:
    """Return the default path of an image's embeddings by a model, beside the image."""
    path = Path(image)
    return path.with_name(f"{path.name}.{model}{SUFFIX}")


def group_of(family: str, tensor: str) -> str:
    """Return the group name of a tensor of the encoder. micro-sam reads only the first group."""
    return FEATURES if tensor == get_family(family).encoder.output_names[0] else tensor


def hash_of(pixels: Bytes) -> str:
    return hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=16).hexdigest()


def signature_of(level: Level) -> str:
    """Return the SHA-1 of all values of a level, row by row, as micro-sam's `data_signature`."""
    width, height = level.size
    read = level.values or level.read
    rows, row_bytes = _ROWS, width * read(0, 0, 1, 1).nbytes
    while rows > 1 and rows * row_bytes > _STRIP:
        rows //= 2  # a power of 2, which fits to the tiles of most files
    digest = hashlib.sha1(usedforsecurity=False)
    for top in range(0, height, rows):
        digest.update(np.ascontiguousarray(read(0, top, width, min(height, top + rows))).data)
    return digest.hexdigest()


class StoredTiles:
    """The embeddings of an image's tiles, thread-safe. Tiles that were not computed yet are missing.

    Attributes:
        length: pixels of the whole image along the side of a tile.
    """

    def __init__(self, path: str | os.PathLike[str], image: LargeImage) -> None:
        self.path = Path(path)
        self.image = image
        self._group = _opened(self.path)
        try:
            self.blocks, self._is_tiled = _blocks_of(self._group)
            self._own = dict(self._group.attrs.get(OWN) or {})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{self.path} has no embeddings of an image in two dimensions") from error
        self.level = self._level()
        self._scale = tuple(whole / part for whole, part in zip(image.size, self.blocks.size, strict=True))
        sides = (self.blocks.block[axis] + 2 * self.blocks.halo[axis] for axis in (0, 1))
        self.length = round(max(side * scale for side, scale in zip(sides, self._scale, strict=True)))
        if not self._own and self._group.attrs.get("data_signature") != signature_of(image.levels[self.level]):
            raise self._stale("the pixels of the image have changed")

    @property
    def family(self) -> str:
        return str(self._own.get("family", SAM1.name))

    def check_encoder(self, encoder: EncoderIdentity) -> bool:
        """Compare the names and fingerprints of encoders.

        Returns:
            Whether this was conclusive. If not, encode sample() and call check_sample().
        """
        made_by = (self.family, self._own.get("encoder", encoder.encoder))
        if made_by != (encoder.family, encoder.encoder):
            raise ConfigurationError(
                f"{self.path} has embeddings by {made_by[1]} ({made_by[0]}), not by {encoder.encoder}: give another "
                "file, or compute them with `triton-sam large precompute`"
            )
        weights = self._own.get("weights")
        if weights is None or encoder.weights is None:
            return False
        if weights != encoder.weights:
            raise self._other_weights(encoder.encoder)
        return True

    def sample(self) -> tuple[int, Bytes] | None:
        """Return the number of a stored tile and its pixels as given to the encoder; None without stored tiles."""
        number = next((number for number in range(len(self.blocks)) if self.has(number)), None)
        return None if number is None else (number, self._seen(number))

    def check_sample(self, number: int, tensors: Mapping[str, FloatArray], encoder: str) -> None:
        """Compare the embeddings of a tile with embeddings that the server computed from its pixels."""
        name = get_family(self.family).encoder.output_names[0]
        before, now = self._tensor(name, number), tensors[name]
        if before.shape != now.shape or _rms(before - now) > _AGREES * _rms(before):
            raise self._other_weights(encoder)

    def has(self, number: int) -> bool:
        return not self._is_tiled or (self.path / FEATURES / str(number)).is_dir()

    def around(self, points: npt.NDArray[Any]) -> Region | None:
        """Return the tile for prompts, in pixels of the whole image; None if no stored tile shows enough.

        Args:
            points: (N,2) points of the prompts and corners of their box, in pixels of the whole image.
        """
        if length_for(points, self.length) > self.length:
            return None
        low, high = points.min(axis=0), points.max(axis=0)
        number = self.blocks.at(*((low + high) / 2 / self._scale))
        region = self.region(number)
        inside = (low >= region[:2]).all() and (high <= region[2:]).all()
        return region if inside and self.has(number) else None

    def region(self, number: int) -> Region:
        """Return a tile in pixels of the whole image."""
        across, down = self._scale
        x1, y1, x2, y2 = self.blocks.region(number)
        return round(x1 * across), round(y1 * down), round(x2 * across), round(y2 * down)

    def number_of(self, region: Region) -> int | None:
        """Return the number of the tile with a region; None if no tile has the region."""
        across, down = self._scale
        number = self.blocks.at((region[0] + region[2]) / 2 / across, (region[1] + region[3]) / 2 / down)
        return number if self.region(number) == region and self.has(number) else None

    def window(self, number: int) -> Window:
        """Read the pixels of a tile from the image."""
        pixels = self.image.levels[self.level].read(*self.blocks.region(number))
        if self._own and self._array(FEATURES, number).attrs.get(PIXELS) != hash_of(pixels):
            raise self._stale(f"the pixels of tile {number}, or the channels, have changed")
        return Window(pixels, self.region(number))

    def embeddings(self, number: int, encoder: str) -> ImageEmbeddings:
        x1, y1, x2, y2 = self.blocks.region(number)
        names = get_family(self.family).encoder.output_names
        tensors = {name: self._tensor(name, number) for name in names}
        found = ImageEmbeddings(self.family, encoder, (x2 - x1, y2 - y1), tensors)
        found.check()
        return found

    def _seen(self, number: int) -> Bytes:
        region = self.blocks.region(number)
        level = self.image.levels[self.level]
        return level.read(*region) if self._own else stretched((level.values or level.read)(*region))

    def _tensor(self, name: str, number: int) -> FloatArray:
        try:
            return np.asarray(self._array(group_of(self.family, name), number)[:], np.float32)
        except (KeyError, TypeError, ValueError, OSError, RuntimeError) as error:
            raise InputError(f"tile {number} of {self.path} is damaged: remove the folder") from error

    def _array(self, group: str, number: int) -> Any:
        return self._group[f"{group}/{number}" if self._is_tiled else group]

    def _level(self) -> int:
        for number, level in enumerate(self.image.levels):
            if level.size == self.blocks.size:
                return number
        width, height = self.blocks.size
        raise self._stale(f"they are of {width} x {height} pixels, and no level of the image is")

    def _stale(self, why: str) -> InputError:
        return InputError(
            f"{self.path} does not fit {self.image.name}: {why}. Remove it, and compute it again with "
            "`triton-sam large precompute`"
        )

    def _other_weights(self, encoder: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self.path} has embeddings by other weights than those of {encoder} at the server: remove it, and "
            "compute it again with `triton-sam large precompute`"
        )


def stretched(values: npt.NDArray[Any]) -> Bytes:
    """Convert the values (h,w) or (h,w,c) of a tile to uint8 (h,w,3), as micro-sam does for an encoder.

    Each channel is stretched from its own range in the tile. One channel becomes grey, two channels get a third channel
    of zeros, and of more than three channels the first three are used.
    """
    values = values[:, :, None] if values.ndim == 2 else values
    if values.shape[2] == 1:
        values = np.repeat(values, 3, axis=2)
    elif values.shape[2] == 2:
        values = np.concatenate([values, np.zeros_like(values[:, :, :1])], axis=2)
    shown = values[:, :, :3].astype(np.float32)
    shown -= shown.min(axis=(0, 1))
    shown /= shown.max(axis=(0, 1)) + 1e-7
    return np.asarray(shown * 255, np.uint8)


def _opened(path: Path) -> Any:
    try:
        import zarr
    except ImportError as error:
        raise missing("embeddings of tiles need", "tiles", error) from error
    if not path.is_dir():
        raise InputError(f"there are no embeddings at {path}: make them with `triton-sam large precompute IMAGE`")
    try:
        return zarr.open_group(path, mode="r")
    except Exception as error:  # zarr raises almost any exception for damaged files
        raise InputError(f"{path} is not a Zarr folder with embeddings") from error


def _blocks_of(group: Any) -> tuple[Blocks, bool]:
    """Return the blocks, and whether the image was cut into tiles."""
    features = group[FEATURES]
    if hasattr(features, "ndim"):
        if features.ndim != 4:
            raise ValueError("volumes are not read")
        size = _turned(group.attrs["original_size"])
        return Blocks(size, size, (0, 0)), False
    size, block, halo = (_turned(features.attrs[name]) for name in ("shape", "tile_shape", "halo"))
    if min(*size, *block) < 1 or min(halo) < 0:
        raise ValueError("a size is out of range")
    return Blocks(size, block, halo), True


def _turned(values: Any) -> Size:
    """Convert height and width, micro-sam's order, to width and height."""
    height, width = (int(value) for value in values)
    return width, height


def _rms(values: FloatArray) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))
