"""Finds the large images of a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

SUFFIXES = (".tif", ".tiff", ".btf", ".tf8", ".svs", ".ndpi", ".scn", ".bif", ".qptiff")
"""The suffixes of TIFF files, also of microscopes, in lower case."""

_MARKS = ("zarr.json", ".zgroup", ".zattrs")
"""Files at the top of an OME-Zarr image of the versions 3 and 2 of Zarr."""


def is_zarr(path: Path) -> bool:
    """Return whether a path is a folder of Zarr."""
    return path.is_dir() and any((path / mark).is_file() for mark in _MARKS)


def holds_embeddings(path: Path) -> bool:
    """Return whether a folder of Zarr holds embeddings, as this project and micro-sam write them, and no image."""
    return (path / "features").is_dir()


def large_images_below(folder: Path) -> list[tuple[str, Path]]:
    """Return the large images below a folder, sorted, each with its path relative to the folder, with "/" in between.

    An OME-Zarr image is a folder, so nothing is looked for inside it. Embeddings are no images. Links to
    folders are not followed.
    """
    return sorted((path.relative_to(folder).as_posix(), path) for path in _walk(folder))


def _walk(folder: Path) -> Iterator[Path]:
    for where, folders, files in os.walk(folder):
        here = Path(where)
        known = [name for name in folders if is_zarr(here / name)]
        folders[:] = [name for name in folders if name not in known]
        yield from (here / name for name in known if not holds_embeddings(here / name))
        yield from (here / name for name in files if name.lower().endswith(SUFFIXES))
