"""A folder of pictures with label masks as a data set."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..errors import ConfigurationError, ImageError, InputError
from ..inputs.images import TURNED, open_image, orientation
from .samples import Dataset, Sample

PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".webp")
LABEL_SUFFIXES = (".png", ".tif", ".tiff")
LABEL_MARK = "_labels"
LABEL_FOLDER = "labels"

LAYOUT = "NAME.jpg (or png, tif, bmp, webp) with NAME_labels.png (or tif) beside it, or with labels/NAME.png (or tif)"
"""The layout of a folder, in words."""


def open_folder(folder: Path, count: int | None = None, seed: int = 0) -> Dataset:
    """Pair the pictures of a folder with their label masks and check their sizes.

    A label mask holds integers of the picture's size: 0 background, any other value an object. Each picture
    NAME.jpg (png, tif, bmp, webp) has its mask in NAME_labels.png (tif) beside it, or in labels/NAME.png (tif).

    Args:
        folder: the folder; other folders in it than ``labels`` are not looked into.
        count: most pictures; more are thinned out at random.
        seed: for the choice.

    Raises:
        ConfigurationError: no such folder.
        ImageError: a file is damaged.
        InputError: not one pair, two files for one picture, or a mask of another size than its picture.
    """
    if not folder.is_dir():
        raise ConfigurationError(f"no data set {folder}: give synthetic, coins, cells or a folder of pictures")
    pairs, unused = _pairs(folder)
    if not pairs:
        raise InputError(f"{folder} holds no picture with a label mask: expected {LAYOUT}")
    for picture, labels in pairs:
        _check_sizes(picture, labels)
    if count is not None and count < len(pairs):
        chosen = np.random.default_rng(seed).permutation(len(pairs))[:count]
        pairs = [pairs[index] for index in sorted(chosen)]
    loaders = tuple(partial(_load, picture, labels) for picture, labels in pairs)
    name = folder.resolve().name
    return Dataset(name, f"pictures with label masks in {folder}", loaders, tuple(unused))


def _pairs(folder: Path) -> tuple[list[tuple[Path, Path]], list[str]]:
    """Return (picture, label mask) pairs in the order of names, and the names of files without a partner."""
    files = _files(folder, PICTURE_SUFFIXES)
    below = _files(folder / LABEL_FOLDER, LABEL_SUFFIXES)
    masks = _by_name([*filter(_is_label, files), *below])
    pictures = _by_name(path for path in files if not _is_label(path))
    pairs = [(picture, masks[stem]) for stem, picture in pictures.items() if stem in masks]
    alone = [path for own, other in ((pictures, masks), (masks, pictures)) for s, path in own.items() if s not in other]
    return pairs, sorted(str(path.relative_to(folder)) for path in alone)


def _by_name(paths: Iterable[Path]) -> dict[str, Path]:
    """Return files by the name that a picture and its mask share.

    Raises:
        InputError: two files have it.
    """
    named: dict[str, Path] = {}
    for path in paths:
        name = path.stem.removesuffix(LABEL_MARK) if _is_label(path) else path.stem
        if name in named:
            raise InputError(f"{named[name]} and {path} are both for {name!r}: remove or rename one of them")
        named[name] = path
    return named


def _files(folder: Path, suffixes: Iterable[str]) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in suffixes and path.is_file())


def _is_label(path: Path) -> bool:
    return path.stem.endswith(LABEL_MARK) and path.suffix.lower() in LABEL_SUFFIXES


def _check_sizes(picture: Path, labels: Path) -> None:
    """Compare the sizes that the headers tell: a fault is found before anything is measured."""
    picture_size, label_size = _size(picture, upright=True), _size(labels, upright=False)
    if picture_size != label_size:
        raise InputError(
            f"{labels} has {label_size[0]}x{label_size[1]} pixels, but {picture.name} {picture_size[0]}x"
            f"{picture_size[1]}: make the label mask as large as its picture"
        )


def _size(path: Path, upright: bool) -> tuple[int, int]:
    try:
        with Image.open(path) as image:
            turned = upright and orientation(image) in TURNED
            return image.size[::-1] if turned else image.size
    except Exception as error:  # Pillow's decoders let almost any exception through for damaged data
        raise ImageError(f"{path} is not an image that Pillow can read: replace or remove it") from error


def _load(picture: Path, labels: Path) -> Sample:
    return Sample(picture.name, open_image(picture), read_labels(labels))


def read_labels(path: Path) -> NDArray[np.integer[Any]]:
    """Read a label mask: one channel of integers (H,W), of 1, 8, 16 or 32 bits, or palette indices.

    Raises:
        ImageError: the file is damaged, has several channels, or holds fractions.
    """
    try:
        with Image.open(path) as image:
            values = np.asarray(image)
    except Exception as error:  # Pillow's decoders let almost any exception through for damaged data
        raise ImageError(f"{path} cannot be read as a label mask: replace or remove it") from error
    if values.ndim != 2:
        raise ImageError(f"{path} is a picture in colour: a label mask has one channel with an integer for each object")
    if values.dtype.kind == "f":
        raise ImageError(f"{path} holds fractions: save the label mask with 8-, 16- or 32-bit integers")
    return values.astype(np.uint8) if values.dtype.kind == "b" else values
