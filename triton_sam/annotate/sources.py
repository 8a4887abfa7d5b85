"""The images of a run: a file, a folder, a glob pattern, a list in a text file, a COCO data set, or a video."""

from __future__ import annotations

import glob
import json
import shutil
import tempfile
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..families.base import Size
from ..inputs.images import SUFFIXES, ImageSource
from ..inputs.remote import copy_of, is_remote, place_of
from ..inputs.video import FrameSource, open_frames
from .places import VIDEO_SUFFIXES, FramePlace, content_of, files_below, files_matching, remote_bytes

OBJECT = {1: "object"}
"""The categories of a run whose source and prompts name none."""


@dataclass(frozen=True)
class Skipped:
    """Something that is not annotated.

    Args:
        image: name of the image.
        what: the part that is skipped, for example "image" or "box 3".
        why: the reason, as one line for people.
    """

    image: str
    what: str
    why: str


@dataclass(frozen=True)
class ImageItem:
    """One image of a run.

    Args:
        id: number of the image in the results.
        name: name in the results: the path relative to its folder, with "/" between the parts.
        path: the file, which may lie at a URL, or the frame of a video.
        size: width and height that the source says; None if it says none.
    """

    id: int
    name: str
    path: Path | FramePlace
    size: Size | None = None

    def content(self) -> ImageSource:
        """Return the path of a local image, or the bytes of another one.

        Raises:
            InputError: the image is not there, or cannot be decoded.
            DownloadError: the storage of the image cannot be reached.
        """
        return content_of(self.path)


@dataclass(frozen=True)
class Source:
    """All images of a run.

    Args:
        items: the images in the order of the run.
        skipped: images that the source names, but that cannot be used.
        categories: names of categories by id, if the source is a COCO data set.
        coco: the document of a COCO data set.
    """

    items: tuple[ImageItem, ...]
    skipped: tuple[Skipped, ...] = ()
    categories: dict[int, str] = field(default_factory=lambda: dict(OBJECT))
    coco: dict[str, Any] | None = None


def read_source(source: str, images: Path | None = None, every: int = 1) -> Source:
    """Find the images of a source.

    Args:
        source: a folder, which is searched with its subfolders; a glob pattern, in which ``**`` stands for folders; a
            text file (.txt) with one path on each line; a COCO data set (.json); one image file; or one video file,
            whose frames are images with the names VIDEO/00000.png and so on. All may lie at a URL.
        images: the folder that the paths of a list or of a COCO data set start from; None: the folder of that file.
        every: use every n-th image or frame only, from the first one on.

    Raises:
        InputError: the source does not exist, names no image, or is damaged.
        MissingDependencyError: the source needs a package that is not installed.
        DownloadError: the storage of the source cannot be reached.
    """
    found = _find(source, place_of(source), images)
    if not found.items:
        why = f": {found.skipped[0].image}: {found.skipped[0].why}" if found.skipped else ""
        raise InputError(
            f"{source}: there is no image{why}. Give a folder, a pattern, a list (.txt), COCO (.json) or a video"
        )
    return replace(found, items=found.items[::every])


def _find(source: str, path: Path, images: Path | None) -> Source:
    suffix = path.suffix.lower()
    if not is_remote(path) and path.is_dir():
        return _of_images(files_below(path))
    if suffix == ".json":
        return _of_coco(path, images or path.parent)
    if suffix == ".txt":
        root = images or path.parent
        names = (line.strip() for line in read_text(path).splitlines())
        return _of_paths((name, root / name) for name in names if name and not name.startswith("#"))
    if suffix in VIDEO_SUFFIXES:
        return _of_video(path)
    if is_remote(path):
        return _of_remote(path)
    if path.is_file():
        return _of_paths([(path.name, path)])
    root = _fixed_part(path)
    matches = sorted(Path(match) for match in glob.glob(source, recursive=True))  # noqa: PTH207 - any folder
    return _of_paths((each.relative_to(root).as_posix(), each) for each in matches if each.is_file())


def _of_images(files: Iterable[tuple[str, Path]]) -> Source:
    return _of_paths((name, path) for name, path in files if path.suffix.lower() in SUFFIXES)


def _of_remote(path: Path) -> Source:
    """Find the images of a URL: with a star it is a pattern, with the suffix of an image one file, else a folder."""
    if "*" in str(path):
        root = _fixed_part(path)
        return _of_paths(files_matching(root, str(path)[len(str(root)) :].lstrip("/")))
    if path.suffix.lower() in SUFFIXES:
        return _of_paths([(path.name, path)])
    return _of_images(files_below(path))


def _fixed_part(pattern: Path) -> Path:
    """Return the folder before the first part of a pattern that may name several files."""
    root = pattern.parent
    while glob.has_magic(str(root)):
        root = root.parent
    return root


def _of_video(path: Path) -> Source:
    """Name the frames of a video.

    Raises:
        VideoError: it is missing, damaged or not a video.
        ImageError: (at a URL) it is not there, or may not be read.
        DownloadError: (at a URL) the storage cannot be reached.
        MissingDependencyError: PyAV is not installed.
    """
    frames = _copied_frames(path) if is_remote(path) else open_frames(path)
    places = ((f"{path.stem}/{index:05d}.png", FramePlace(frames, index)) for index in range(frames.num_frames or 0))
    return Source(tuple(ImageItem(index, name, place, frames.size) for index, (name, place) in enumerate(places, 1)))


def _copied_frames(path: Path) -> FrameSource:
    """Copy a video at a URL into a temporary folder, because reading goes back, and open the copy."""
    folder = tempfile.mkdtemp(prefix="triton-sam-")
    remove = partial(shutil.rmtree, folder, ignore_errors=True)
    try:
        frames = open_frames(copy_of(path, Path(folder)))
    except BaseException:
        remove()
        raise
    weakref.finalize(frames, remove)  # also at the end of the process
    return frames


def _of_paths(paths: Iterable[tuple[str, Path]]) -> Source:
    return _checked((ImageItem(number, name, path) for number, (name, path) in enumerate(paths, 1)), {})


def _checked(items: Iterable[ImageItem], source: dict[str, Any]) -> Source:
    """Drop images that are missing or named twice."""
    kept, skipped = [], []
    names: set[str] = set()
    paths: set[Path | FramePlace] = set()
    ids: set[int] = set()
    for item in items:
        local = item.path if isinstance(item.path, Path) else None
        # Whether a remote file is there shows when it is read: asking for each would take long.
        if local and not local.is_file():
            skipped.append(Skipped(item.name, "image", "there is no such file"))
            continue
        place = local.resolve() if local else item.path  # it fails for names that no file can have
        if place in paths or item.name in names or item.id in ids:
            skipped.append(Skipped(item.name, "image", "the source names this image or its id twice"))
        else:
            kept.append(item)
            paths.add(place)
            names.add(item.name)
            ids.add(item.id)
    return Source(tuple(kept), tuple(skipped), **source)


def _of_coco(path: Path, root: Path) -> Source:
    document = read_coco(path)
    items = []
    for number, image in enumerate(document["images"], 1):
        try:
            name, image_id = str(image["file_name"]), int(image["id"])
            size = (int(image["width"]), int(image["height"])) if "width" in image and "height" in image else None
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{path}: image {number} needs file_name, id, width and height") from error
        if "\0" in name:
            raise InputError(f"{path}: image {number} has a null character in its file_name, as no file has")
        items.append(ImageItem(image_id, name, root / name, size))
    return _checked(items, {"categories": categories_of(document), "coco": document})


def categories_of(document: dict[str, Any]) -> dict[int, str]:
    """Return the names of the categories of a COCO document by id.

    Raises:
        InputError: a category has no id or no name.
    """
    try:
        return {int(each["id"]): str(each["name"]) for each in document.get("categories", ())} or dict(OBJECT)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError("a category of the COCO file has no id or no name") from error


def read_coco(path: Path) -> dict[str, Any]:
    """Read a COCO data set.

    Raises:
        InputError: the file is missing or no COCO data set.
    """
    document = read_json(path)
    if not isinstance(document, dict) or not isinstance(document.get("images"), list):
        raise InputError(f"{path} is not a COCO data set: it has no list of images")
    return document


def read_json(path: Path) -> Any:
    """Return the value of a JSON file.

    Raises:
        InputError: the file cannot be read, or it is not JSON.
    """
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}") from error


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        return remote_bytes(path).decode() if is_remote(path) else path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} cannot be read: it is no text in UTF-8") from error
