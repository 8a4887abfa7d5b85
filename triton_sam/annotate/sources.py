"""The images of a run: a file, a folder, a glob pattern, a list in a text file, or a COCO data set."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..families.base import Size

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".gif")
"""The suffixes of image files that a folder is searched for, in lower case."""
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
        path: the file.
        size: width and height that the source says; None if it says none.
    """

    id: int
    name: str
    path: Path
    size: Size | None = None


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


def read_source(source: str, images: Path | None = None) -> Source:
    """Find the images of a source.

    Args:
        source: a folder, which is searched with its subfolders; a glob pattern, in which ``**`` stands for folders; a
            text file (.txt) with one path on each line; a COCO data set (.json); or one image file.
        images: the folder that the paths of a list or of a COCO data set start from; None: the folder of that file.

    Raises:
        InputError: the source does not exist, names no image, or is damaged.
    """
    path = Path(source)
    if path.is_dir():
        paths = [each for each in path.rglob("*") if each.suffix.lower() in SUFFIXES and each.is_file()]
        found = _of_paths((each.relative_to(path).as_posix(), each) for each in sorted(paths))
    elif path.suffix.lower() == ".json":
        found = _of_coco(path, images or path.parent)
    elif path.suffix.lower() == ".txt":
        root = images or path.parent
        names = (line.strip() for line in read_text(path).splitlines())
        found = _of_paths((name, root / name) for name in names if name and not name.startswith("#"))
    elif path.is_file():
        found = _of_paths([(path.name, path)])
    else:
        root = _fixed_part(path)
        matches = sorted(Path(match) for match in glob.glob(source, recursive=True))  # noqa: PTH207 - any folder
        found = _of_paths((each.relative_to(root).as_posix(), each) for each in matches if each.is_file())
    if not found.items:
        why = f": {found.skipped[0].image}: {found.skipped[0].why}" if found.skipped else ""
        raise InputError(f"{source}: there is no image{why}. Give a folder, a pattern, a list (.txt) or COCO (.json)")
    return found


def _fixed_part(pattern: Path) -> Path:
    parts: list[str] = []
    for part in pattern.parts[:-1]:
        if glob.has_magic(part):
            break
        parts.append(part)
    return Path(*parts)


def _of_paths(paths: Iterable[tuple[str, Path]]) -> Source:
    return _checked((ImageItem(number, name, path) for number, (name, path) in enumerate(paths, 1)), {})


def _checked(items: Iterable[ImageItem], source: dict[str, Any]) -> Source:
    """Drop images that are missing or named twice."""
    kept, skipped = [], []
    names: set[str] = set()
    paths: set[Path] = set()
    ids: set[int] = set()
    for item in items:
        place = item.path.resolve()
        if not item.path.is_file():
            skipped.append(Skipped(item.name, "image", "there is no such file"))
        elif place in paths or item.name in names or item.id in ids:
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
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path}: image {number} needs file_name, id, width and height") from error
        items.append(ImageItem(image_id, name, root / name, size))
    return _checked(items, {"categories": categories_of(document), "coco": document})


def categories_of(document: dict[str, Any]) -> dict[int, str]:
    """Return the names of the categories of a COCO document by id.

    Raises:
        InputError: a category has no id or no name.
    """
    try:
        return {int(each["id"]): str(each["name"]) for each in document.get("categories", ())} or dict(OBJECT)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError("a category of the COCO file has no id or no name") from error


def read_coco(path: Path) -> dict[str, Any]:
    """Read a COCO data set.

    Raises:
        InputError: the file is missing or no COCO data set.
    """
    try:
        document = json.loads(read_text(path))
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("images"), list):
        raise InputError(f"{path} is not a COCO data set: it has no list of images")
    return document


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
