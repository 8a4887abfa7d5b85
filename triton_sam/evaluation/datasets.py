"""Images and videos with known objects.

The images are generated scenes, photographs from Python packages, or your own folder. The videos are folders in the
layout of the data set DAVIS, and drawn clips.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .._common.extras import missing
from ..errors import ConfigurationError, ImageError, InputError, MissingDependencyError
from ..inputs.formats import SUFFIXES
from ..inputs.header import open_header, size_of
from ..inputs.images import ImageSource, open_image
from ..inputs.names import is_hidden

SCENE_SIZE = 512
"""Side of a synthetic scene in pixels."""

_DEFAULT_SCENES = 50
_SCENES_PER_SEED = 10_000
_GOLDEN_RATIO = 0.6180339887  # its multiples modulo 1 are evenly spread over 0..1 for every range of numbers
_MIN_COIN_AREA = 100  # pixels; the smallest of the 24 coins has 1077, a speck of dust as bright as a coin has 2

LABEL_SUFFIXES = (".png", ".tif", ".tiff")
LABEL_SUFFIX = "_labels"
LABEL_FOLDER = "labels"

LAYOUT = "NAME.jpg (or png, tif, bmp, webp) with NAME_labels.png (or tif) beside it, or with labels/NAME.png (or tif)"
"""The expected layout of a folder, for error messages."""


@dataclass(frozen=True, eq=False)
class Sample:
    """One image and its objects: labels are integers (H,W), 0 for the background, every other value for one object."""

    name: str
    image: Image.Image
    labels: NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Dataset:
    """A data set. Iterating over it loads the samples one at a time.

    Args:
        unused: names of unused files, whose counterpart (image or label mask) is missing.
    """

    name: str
    about: str
    loaders: tuple[Callable[[], Sample], ...]
    unused: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.loaders)

    def __iter__(self) -> Iterator[Sample]:
        return (load() for load in self.loaders)


def open_dataset(name: str, count: int | None = None, seed: int = 0) -> Dataset:
    """Open a data set without loading its images.

    Args:
        count: maximum number of images. None: 50 generated scenes, or all images of another data set.
        seed: selects the generated scenes, or the ``count`` images of a folder. At least 0.
    """
    if seed < 0 or (count is not None and count < 1):
        raise ConfigurationError("the seed must be at least 0 and the count at least 1")
    if name == "synthetic":
        count = _DEFAULT_SCENES if count is None else count
        if count > _SCENES_PER_SEED:
            raise ConfigurationError(f"a seed has {_SCENES_PER_SEED} generated scenes: give at most that many as count")
        scenes = (partial(synthetic, seed * _SCENES_PER_SEED + number) for number in range(count))
        return Dataset(name, "generated scenes that were never used for training, exact labels", tuple(scenes))
    if name == "coins":
        return Dataset(name, "scikit-image's photograph of 24 coins, labels by its watershed tutorial", (coins,))
    if name == "cells":
        return Dataset(name, "scikit-image's micrograph of one cell, label by Otsu's threshold", (cell,))
    return open_folder(Path(name), count, seed)


def synthetic(number: int) -> Sample:
    """Draw one of the held-out scenes. Its labels number the objects, not their parts.

    The difficulties of consecutive numbers are evenly spread over 0..1, so that even a few scenes cover the range.
    """
    from ..scenes.scenes import HELD_OUT_SEED, generate_scene

    seed = HELD_OUT_SEED + number
    scene = generate_scene(seed, SCENE_SIZE, difficulty=number * _GOLDEN_RATIO % 1)
    return Sample(f"scene {seed}", Image.fromarray(scene.image), scene.labels)


def coins() -> Sample:
    """Return scikit-image's photograph of Greek coins, 384x303 pixels, with 24 visually checked labels.

    The labels follow scikit-image's tutorial "Comparing edge-based and region-based segmentation": a watershed of the
    Sobel gradient that starts from certain background (< 30) and certain coin (> 150), with holes filled. The borders
    are accurate to about a pixel.
    """
    filters, segmentation, ndimage, photographs = _scikit_image()
    photograph = photographs.coins()
    markers = np.zeros(photograph.shape, np.int32)
    markers[photograph < 30] = 1
    markers[photograph > 150] = 2
    regions = segmentation.watershed(filters.sobel(photograph), markers)
    labels, _ = ndimage.label(ndimage.binary_fill_holes(regions == 2))
    large = np.bincount(labels.ravel()) >= _MIN_COIN_AREA
    large[0] = False
    labels, _ = ndimage.label(large[labels])
    return Sample("coins", Image.fromarray(photograph).convert("RGB"), labels)


def cell() -> Sample:
    """Return scikit-image's micrograph of one floating cell, 550x660 pixels, labelled by Otsu's threshold."""
    filters, _, _, photographs = _scikit_image()
    micrograph = photographs.cell()
    labels = (micrograph > filters.threshold_otsu(micrograph)).astype(np.uint8)
    return Sample("cell", Image.fromarray(micrograph).convert("RGB"), labels)


def _scikit_image() -> tuple[Any, Any, Any, Any]:
    """Import the packages for the photographs, which are part of scikit-image's wheel and need no download."""
    try:
        from scipy import ndimage
        from skimage import data, filters, segmentation
    except ImportError as error:
        raise missing("this data set needs", "evaluate", error) from error
    return filters, segmentation, ndimage, data


def open_folder(folder: Path, count: int | None = None, seed: int = 0) -> Dataset:
    """Pair the images of a folder with their label masks and check that their sizes match.

    The label mask of NAME.jpg (png, tif, bmp, webp) is NAME_labels.png (tif) beside it, or labels/NAME.png (tif). It
    has the size of its image and holds integers: 0 is background, every other value is one object.

    Args:
        folder: the folder. Of its subfolders, only ``labels`` is searched.
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

    def load(image: Path, labels: Path) -> Sample:
        return Sample(image.name, open_image(image), read_labels(labels))

    loaders = tuple(partial(load, image, labels) for image, labels in pairs)
    name = folder.resolve().name
    return Dataset(name, f"images with label masks in {folder}", loaders, tuple(unused))


def _pairs(folder: Path) -> tuple[list[tuple[Path, Path]], list[str]]:
    """Return (image, label mask) pairs sorted by name, and the names of files without a counterpart."""
    files = files_in(folder, SUFFIXES)
    in_subfolder = files_in(folder / LABEL_FOLDER, LABEL_SUFFIXES)
    masks = _by_name([*filter(_is_label, files), *in_subfolder])
    images = _by_name(path for path in files if not _is_label(path))
    pairs = [(image, masks[name]) for name, image in images.items() if name in masks]
    unpaired = [path for name, path in images.items() if name not in masks]
    unpaired += [path for name, path in masks.items() if name not in images]
    return pairs, sorted(str(path.relative_to(folder)) for path in unpaired)


def _by_name(paths: Iterable[Path]) -> dict[str, Path]:
    """Return the files by the name that an image and its label mask share."""
    named: dict[str, Path] = {}
    for path in paths:
        name = path.stem.removesuffix(LABEL_SUFFIX) if _is_label(path) else path.stem
        if name in named:
            raise InputError(f"{named[name]} and {path} both belong to {name!r}: remove or rename one of them")
        named[name] = path
    return named


def files_in(folder: Path, suffixes: Iterable[str] = SUFFIXES) -> list[Path]:
    """Return the files with one of the suffixes that are not hidden, sorted; empty without the folder."""
    if not folder.is_dir():
        return []
    files = (path for path in folder.iterdir() if path.suffix.lower() in suffixes and path.is_file())
    return sorted(path for path in files if not is_hidden(path.name))


def _is_label(path: Path) -> bool:
    return path.stem.endswith(LABEL_SUFFIX) and path.suffix.lower() in LABEL_SUFFIXES


def _check_sizes(image: Path, labels: Path) -> None:
    """Compare the sizes in the files' headers, to detect a mismatch before the measurement."""
    image_size, label_size = _size(image, upright=True), _size(labels, upright=False)
    if image_size != label_size:
        raise InputError(
            f"{labels} has {label_size[0]}x{label_size[1]} pixels, but {image.name} has {image_size[0]}x"
            f"{image_size[1]}: make the label mask as large as its image"
        )


def _size(path: Path, upright: bool) -> tuple[int, int]:
    try:
        if upright:
            return size_of(path)
        with open_header(path) as image:
            return image.size
    except MissingDependencyError:
        raise
    except Exception as error:  # for damaged data, Pillow's decoders raise almost any exception
        raise ImageError(f"{path} is not an image that Pillow can read: replace or remove it") from error


def read_labels(path: Path) -> NDArray[np.integer[Any]]:
    """Read a label mask: one channel of integers with 1, 8, 16 or 32 bits, or of palette indices.

    Returns:
        (H,W), with the integer type of the file; uint8 for a file of 1 bit.
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


CLIPS = "clips"
DAVIS = "davis:"
"""Prefix of a folder in the layout of DAVIS."""

VIDEO_LAYOUT = "JPEGImages/NAME/00000.jpg ... and Annotations/NAME/00000.png ..., also with a folder 480p between"

_DEFAULT_CLIPS = 4
_RESOLUTIONS = ("", "480p", "Full-Resolution", "1080p")
_VOID = 255
"""Value of DAVIS pixels that are neither object nor background, which count as background.

In data sets of one object, such as DAVIS 2016, this is the object.
"""


@dataclass(frozen=True, eq=False)
class KnownVideo:
    """One video, and functions that load the label map of a frame, integers (H,W), for some of its frames."""

    name: str
    images: Sequence[ImageSource]
    truth: dict[int, Callable[[], NDArray[np.integer[Any]]]]


@dataclass(frozen=True)
class VideoDataset:
    """A data set of videos, which are opened when needed."""

    name: str
    about: str
    loaders: tuple[tuple[str, Callable[[], KnownVideo]], ...]


def is_video_dataset(name: str) -> bool:
    """Return whether a data set consists of videos: "clips" or "davis:FOLDER"."""
    return name == CLIPS or name.startswith(DAVIS)


def open_videos(name: str, count: int | None = None, seed: int = 0) -> VideoDataset:
    """Open a data set of videos without loading frames.

    Args:
        count: maximum number of videos. None: 4 clips, or all videos of a folder.
        seed: selects the clips. At least 0.
    """
    if seed < 0 or (count is not None and count < 1):
        raise ConfigurationError("the seed must be at least 0 and the count at least 1")
    if name == CLIPS:
        number = _DEFAULT_CLIPS if count is None else count
        first = seed * 1000
        _check_held_out(first + number)
        loaders = tuple((f"clip {clip}", partial(_clip, clip)) for clip in range(first, first + number))
        return VideoDataset(CLIPS, "drawn clips with exact labels", loaders)
    return _davis(Path(name.removeprefix(DAVIS)), count)


def _check_held_out(end: int) -> None:
    from ..scenes.clip import TRAINING_CLIPS

    if end > TRAINING_CLIPS:
        raise ConfigurationError(f"the seed must be smaller: clips from {TRAINING_CLIPS} on are those of the training")


def _clip(seed: int) -> KnownVideo:
    from ..scenes.clip import generate_clip

    clip = generate_clip(seed)
    truth: dict[int, Callable[[], NDArray[np.integer[Any]]]] = {
        frame: partial(lambda number: clip.labels[number], frame) for frame in range(len(clip.images))
    }
    return KnownVideo(f"clip {seed}", [Image.fromarray(image) for image in clip.images], truth)


def _davis(folder: Path, count: int | None) -> VideoDataset:
    if not folder.is_dir():
        raise ConfigurationError(f"there is no data set {folder}: give davis:FOLDER with {VIDEO_LAYOUT}")
    images, annotations = _with_videos(folder / "JPEGImages"), _with_videos(folder / "Annotations")
    names = sorted(set(images) & set(annotations))
    if not names:
        raise InputError(f"{folder} has no video with annotations: expected {VIDEO_LAYOUT}")
    loaders = tuple((name, partial(_sequence, name, images[name], annotations[name])) for name in names[:count])
    return VideoDataset(folder.resolve().name, f"videos with annotations in {folder}", loaders)


def _with_videos(folder: Path) -> dict[str, Path]:
    """Return the folders of videos by name, from the first resolution with videos."""
    for resolution in _RESOLUTIONS:
        base = folder / resolution
        if base.is_dir():
            found = {path.name: path for path in base.iterdir() if files_in(path)}
            if found:
                return found
    return {}


def _sequence(name: str, images: Path, annotations: Path) -> KnownVideo:
    frames = files_in(images)
    labels = {path.stem: path for path in files_in(annotations)}
    truth: dict[int, Callable[[], NDArray[np.integer[Any]]]] = {
        number: partial(read_labels, labels[path.stem]) for number, path in enumerate(frames) if path.stem in labels
    }
    if not truth:
        raise InputError(
            f"{annotations} has no label map with the name of an image in {images}: expected {VIDEO_LAYOUT}"
        )
    if all(set(np.unique(load()).tolist()) <= {0, _VOID} for load in truth.values()):
        return KnownVideo(name, frames, truth)
    return KnownVideo(name, frames, {number: partial(_without_void, load) for number, load in truth.items()})


def _without_void(load: Callable[[], NDArray[np.integer[Any]]]) -> NDArray[np.integer[Any]]:
    labels = load()
    return np.where(labels == _VOID, 0, labels)
