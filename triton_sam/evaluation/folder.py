"""A data set from a folder of images with label masks."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigurationError, ImageError, InputError, MissingDependencyError
from ..inputs.formats import SUFFIXES
from ..inputs.header import open_header, upright_size
from ..inputs.images import open_image
from .samples import Dataset, Sample

LABEL_SUFFIXES = (".png", ".tif", ".tiff")
LABEL_SUFFIX = "_labels"
LABEL_FOLDER = "labels"

LAYOUT = "NAME.jpg (or png, tif, bmp, webp) with NAME_labels.png (or tif) beside it, or with labels/NAME.png (or tif)"
"""The expected layout of a folder, for error messages."""


def open_folder(folder: Path, count: int | None = None, seed: int = 0) -> Dataset:
    """Pair the images of a folder with their label masks and check that their sizes match.

    The label mask of NAME.jpg (png, tif, bmp, webp) is NAME_labels.png (tif) beside it, or labels/NAME.png (tif). It
    has the size of its image and holds integers: 0 is background, and every other value is one object.

    Args:
        folder: the folder. Its only subfolder that is searched is ``labels``.
        count: maximum number of images; if there are more, a random subset is used.
        seed: seed of the random subset.

    Raises:
        ConfigurationError: the folder does not exist.
        ImageError: a file is damaged.
        InputError: there is no pair, an image has two files, or a label mask and its image differ in size.
    """
    if not folder.is_dir():
        raise ConfigurationError(f"there is no data set {folder}: give synthetic, coins, cells or a folder of images")
    pairs, unused = _pairs(folder)
    if not pairs:
        raise InputError(f"{folder} contains no image with a label mask: expected {LAYOUT}")
    for image, labels in pairs:
        _check_sizes(image, labels)
    if count is not None and count < len(pairs):
        chosen = np.random.default_rng(seed).permutation(len(pairs))[:count]
        pairs = [pairs[index] for index in sorted(chosen)]
    loaders = tuple(partial(_load, image, labels) for image, labels in pairs)
    name = folder.resolve().name
    return Dataset(name, f"images with label masks in {folder}", loaders, tuple(unused))


def _pairs(folder: Path) -> tuple[list[tuple[Path, Path]], list[str]]:
    """Return (image, label mask) pairs in the order of their names, and the names of files without a partner."""
    files = _files(folder, SUFFIXES)
    in_subfolder = _files(folder / LABEL_FOLDER, LABEL_SUFFIXES)
    masks = _by_name([*filter(_is_label, files), *in_subfolder])
    images = _by_name(path for path in files if not _is_label(path))
    pairs = [(image, masks[name]) for name, image in images.items() if name in masks]
    unpaired = [path for name, path in images.items() if name not in masks]
    unpaired += [path for name, path in masks.items() if name not in images]
    return pairs, sorted(str(path.relative_to(folder)) for path in unpaired)


def _by_name(paths: Iterable[Path]) -> dict[str, Path]:
    """Return the files by the name that an image and its label mask share.

    Raises:
        InputError: two files have the same name.
    """
    named: dict[str, Path] = {}
    for path in paths:
        name = path.stem.removesuffix(LABEL_SUFFIX) if _is_label(path) else path.stem
        if name in named:
            raise InputError(f"{named[name]} and {path} both belong to {name!r}: remove or rename one of them")
        named[name] = path
    return named


def _files(folder: Path, suffixes: Iterable[str]) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in suffixes and path.is_file())


def _is_label(path: Path) -> bool:
    return path.stem.endswith(LABEL_SUFFIX) and path.suffix.lower() in LABEL_SUFFIXES


def _check_sizes(image: Path, labels: Path) -> None:
    """Compare the sizes in the files' headers, so that a mismatch is found before anything is measured."""
    image_size, label_size = _size(image, upright=True), _size(labels, upright=False)
    if image_size != label_size:
        raise InputError(
            f"{labels} has {label_size[0]}x{label_size[1]} pixels, but {image.name} has {image_size[0]}x"
            f"{image_size[1]}: make the label mask as large as its image"
        )


def _size(path: Path, upright: bool) -> tuple[int, int]:
    try:
        with open_header(path) as image:
            return upright_size(image) if upright else image.size
    except MissingDependencyError:
        raise
    except Exception as error:  # for damaged data, Pillow's decoders raise almost any exception
        raise ImageError(f"{path} is not an image that Pillow can read: replace or remove it") from error


def _load(image: Path, labels: Path) -> Sample:
    return Sample(image.name, open_image(image), read_labels(labels))


def read_labels(path: Path) -> NDArray[np.integer[Any]]:
    """Read a label mask: one channel of integers with 1, 8, 16 or 32 bits, or of palette indices.

    Returns:
        (H,W), with the integer type of the file; uint8 for a file of 1 bit.

    Raises:
        ImageError: the file is damaged, has several channels, or contains floating-point values.
    """
    try:
        with open_header(path) as image:
            values = np.asarray(image)
    except Exception as error:  # for damaged data, Pillow's decoders raise almost any exception
        raise ImageError(f"{path} cannot be read as a label mask: replace or remove it") from error
    if values.ndim != 2:
        raise ImageError(f"{path} is a colour image: a label mask has one channel with an integer for each object")
    if values.dtype.kind == "f":
        raise ImageError(f"{path} contains floating-point values: save the label mask with 8-, 16- or 32-bit integers")
    return values.astype(np.uint8) if values.dtype.kind == "b" else values
