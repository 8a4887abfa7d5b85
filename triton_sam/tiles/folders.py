"""Finds the large images of a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from ..inputs.remote import is_remote, patiently

SUFFIXES = (".tif", ".tiff", ".btf", ".tf8", ".svs", ".ndpi", ".scn", ".bif", ".qptiff", ".jp2", ".j2k")
"""The suffixes of TIFF files, also of microscopes, and of JPEG 2000, in lower case."""

_MARKS = ("zarr.json", ".zgroup", ".zattrs")
"""Files at the top of an OME-Zarr image of the versions 3 and 2 of Zarr."""
FEATURES = "features"
"""The group of embeddings in a folder of Zarr, also in micro-sam's."""


def is_zarr(path: Path) -> bool:
    """Return whether a path, which may lie at a URL, is a folder of Zarr.

    Raises:
        DownloadError: the storage cannot be reached.
    """
    if is_remote(path):
        return path.suffix.lower() not in SUFFIXES and any(_exists(path / mark) for mark in _MARKS)
    return path.is_dir() and any((path / mark).is_file() for mark in _MARKS)


def _exists(path: Path) -> bool:
    remote = cast(Any, path)
    return bool(patiently(str(path), lambda: remote.fs.exists(remote.path)))


def holds_embeddings(path: Path) -> bool:
    """Return whether a folder of Zarr holds embeddings, as this project and micro-sam write them, and no image."""
    return (path / FEATURES).is_dir()


def large_images_below(folder: Path) -> list[tuple[str, Path]]:
    """Return the large images below a folder, sorted, each with its path relative to the folder, with "/" in between.

    An OME-Zarr image is a folder, so nothing is looked for inside it. Embeddings are no images. Links to
    folders are not followed. The folder may lie at a URL.

    Raises:
        ImageError: (at a URL) there is no such folder.
        DownloadError: (at a URL) the storage cannot be reached.
    """
    if is_remote(folder):
        return sorted((name.lstrip("/"), folder / name.lstrip("/")) for name in _walk_remote(folder, ""))
    return sorted((path.relative_to(folder).as_posix(), path) for path in _walk(folder))


def _walk_remote(root: Path, below: str) -> Iterator[str]:
    """Yield the large images of a folder at a URL, each with its path relative to the root, after a "/"."""
    remote = cast(Any, root)
    place = remote.path.rstrip("/") + below
    listing = patiently(f"{root}{below}", lambda: remote.fs.ls(place, detail=True))
    kinds = {each["name"].rstrip("/").rpartition("/")[2]: each["type"] for each in listing}
    if any(kinds.get(mark) == "file" for mark in _MARKS):
        if FEATURES not in kinds:
            yield below
        return
    for name, kind in sorted(kinds.items()):
        if kind == "directory":
            yield from _walk_remote(root, f"{below}/{name}")
        elif name.lower().endswith(SUFFIXES):
            yield f"{below}/{name}"


def _walk(folder: Path) -> Iterator[Path]:
    for where, folders, files in os.walk(folder):
        here = Path(where)
        known = [name for name in folders if is_zarr(here / name)]
        folders[:] = [name for name in folders if name not in known]
        yield from (here / name for name in known if not holds_embeddings(here / name))
        yield from (here / name for name in files if name.lower().endswith(SUFFIXES))
