"""Finds the large images of a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

from ..inputs.formats import LARGE_SUFFIXES
from ..inputs.names import is_hidden, name_of
from ..inputs.remote import exists, is_remote, patiently

_MARKS = ("zarr.json", ".zgroup", ".zattrs")
"""Files at the root of an OME-Zarr image in Zarr versions 3 and 2."""
LAYOUT = "bioformats2raw.layout"
"""The attribute of a folder whose images are subfolders 0, 1 and so on."""
FEATURES = "features"
"""The group of embeddings in a Zarr folder of this project or micro-sam."""


def is_zarr(path: Path) -> bool:
    """Return whether a local or remote path is a Zarr folder."""
    if is_remote(path):
        return path.suffix.lower() not in LARGE_SUFFIXES and any(exists(path / mark) for mark in _MARKS)
    return path.is_dir() and any((path / mark).is_file() for mark in _MARKS)


def holds_embeddings(path: Path) -> bool:
    """Return whether a Zarr folder holds embeddings of this project or micro-sam instead of an image."""
    return (path / FEATURES).is_dir()


def large_images_below(folder: Path, others: list[Path] | None = None) -> list[tuple[str, Path]]:
    """Return the large images below a folder, sorted, each with its relative path, with "/" as separator.

    An OME-Zarr image is a folder, which is not searched except for the series in bioformats2raw's layout. Embeddings
    are not images. Links to folders are not followed, and hidden files and folders are left out. The folder may be at a
    URL.
    """
    found: list[Path] = []
    left = others if others is not None else []
    if is_remote(folder):
        _walk_remote(folder, "", found, left)
        return sorted((str(path)[len(str(folder)) :].lstrip("/"), path) for path in found)
    _walk(folder, found, left)
    return sorted((name_of(path.relative_to(folder)), path) for path in found)


def _walk_remote(root: Path, below: str, found: list[Path], others: list[Path]) -> None:
    """Add the large images and the other files of a folder at a URL; ``below`` is its path below the root."""
    remote = cast(Any, root)
    place = remote.path.rstrip("/") + below
    listing = patiently(f"{root}{below}", lambda: remote.fs.ls(place, detail=True))
    kinds = {each["name"].rstrip("/").rpartition("/")[2]: each["type"] for each in listing}
    if any(kinds.get(mark) == "file" for mark in _MARKS):
        if FEATURES not in kinds:
            found.append(root / below.lstrip("/"))
        return
    for name, kind in sorted(kinds.items()):
        if is_hidden(name):
            continue
        path = root / f"{below}/{name}".lstrip("/")
        if kind == "directory":
            _walk_remote(root, f"{below}/{name}", found, others)
        else:
            (found if _has_suffix(name) else others).append(path)


def _walk(folder: Path, found: list[Path], others: list[Path]) -> None:
    for where, folders, files in os.walk(folder):
        here = Path(where)
        shown = [name for name in folders if not is_hidden(name)]
        known = [name for name in shown if is_zarr(here / name)]
        folders[:] = [name for name in shown if name not in known]
        for path in (here / name for name in known):
            if not holds_embeddings(path):
                found += series_of(path) or [path]
        for name in files:
            if not is_hidden(name):
                (found if _has_suffix(name) else others).append(here / name)


def _has_suffix(name: str) -> bool:
    return name.lower().endswith(LARGE_SUFFIXES)


def series_of(path: Path) -> list[Path]:
    """Return the series of a local folder in bioformats2raw's layout; empty for other layouts."""
    if not any(LAYOUT in _text(path / mark) for mark in _MARKS):
        return []
    return sorted(
        (each for each in path.iterdir() if each.name.isdecimal() and is_zarr(each)), key=lambda each: int(each.name)
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
