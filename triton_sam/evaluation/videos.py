"""Videos with known objects: folders in the layout of the data set DAVIS, and drawn clips."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..errors import ConfigurationError, InputError
from ..inputs.images import ImageSource
from .datasets import files_in, read_labels

CLIPS = "clips"
DAVIS = "davis:"
"""Prefix of a folder in the layout of DAVIS."""

LAYOUT = "JPEGImages/NAME/00000.jpg ... and Annotations/NAME/00000.png ..., also with a folder 480p between"

_DEFAULT_CLIPS = 4
_RESOLUTIONS = ("", "480p", "Full-Resolution", "1080p")
_VOID = 255
"""Value of DAVIS pixels that are neither object nor background. They count as background."""


@dataclass(frozen=True, eq=False)
class KnownVideo:
    """One video and its objects.

    Args:
        truth: functions that load the label map of a frame, integers (H,W), by frame number. Frames may be missing.
    """

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
        raise ConfigurationError(f"there is no data set {folder}: give davis:FOLDER with {LAYOUT}")
    images, annotations = _with_videos(folder / "JPEGImages"), _with_videos(folder / "Annotations")
    names = sorted(set(images) & set(annotations))
    if not names:
        raise InputError(f"{folder} has no video with annotations: expected {LAYOUT}")
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
        number: partial(_read, labels[path.stem]) for number, path in enumerate(frames) if path.stem in labels
    }
    if not truth:
        raise InputError(f"{annotations} has no label map with the name of an image in {images}: expected {LAYOUT}")
    return KnownVideo(name, frames, truth)


def _read(path: Path) -> NDArray[np.integer[Any]]:
    labels = read_labels(path)
    return np.where(labels == _VOID, 0, labels)
