"""Helper functions of the writers."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TypeVar

from .._common.files import atomic_write
from ..masks.polygons import trace_polygons
from .folder import ImageRecord
from .large import LargeResult
from .sources import Skipped

Categories = Mapping[int, str]
"""Names of categories by id."""
Records = Callable[[], Iterable[ImageRecord]]
"""Each call iterates over all records from the start. Records with an error are left out."""

Named = TypeVar("Named", ImageRecord, LargeResult)

_NAME_BYTES, _SUFFIX_BYTES = 255, 8
"""The longest file name on most systems, and the length of the longest suffix of a result, `.geojson`."""
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def check_polygons() -> None:
    """Raise MissingDependencyError if outlines cannot be traced."""
    trace_polygons([[1]])


def write_file(folder: Path, name: str, content: bytes | str) -> None:
    """Write a file below a folder atomically, and create the folders on its path."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, content if isinstance(content, bytes) else content.encode())


def with_stems(
    records: Callable[[], Iterable[Named]], left: list[Skipped], *, keeps_suffix: bool = False
) -> Iterator[tuple[str, Named]]:
    """Yield each record, or result of a large image, with its image's name without the suffix.

    An image is left out and listed in ``left`` if its file name is too long or already taken by another image.
    """
    taken: dict[str, str] = {}
    for record in records():
        name = PurePosixPath(_inside(record.name))
        stem = str(name if keeps_suffix else name.with_suffix(""))
        if taken.setdefault(stem, record.name) != record.name:
            why = f"{taken[stem]} has the same file {stem}: rename one of them, or use another --format"
            left.append(Skipped(record.name, "image", why))
        elif not _is_too_long(stem, record, left):
            yield stem, record


def _inside(name: str) -> str:
    """Return the name of an image as a path below the folder of a format, without `..` and a root."""
    return "/".join(part for part in posixpath.normpath(name).split("/") if part not in ("", ".."))


def _is_too_long(stem: str, record: Named, left: list[Skipped]) -> bool:
    """Return whether the file name is too long with the longest suffix; if so, add the image to ``left``."""
    if len(os.fsencode(PurePosixPath(stem).name)) <= _NAME_BYTES - _SUFFIX_BYTES:
        return False
    why = f"its name has more than {_NAME_BYTES - _SUFFIX_BYTES} bytes, so no file of results can have it: shorten it"
    left.append(Skipped(record.name, "image", why))
    return True


def class_numbers(categories: Categories, first: int) -> dict[int, int]:
    """Return class numbers from ``first`` by category id, in the order of the categories."""
    return {category: number for number, category in enumerate(categories, first)}


def plain(text: str) -> str:
    """Return a text with replacement characters for those that XML, Parquet and GeoPackage do not support."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str) -> str:
    """Return a name as one line, for lists with one name per line."""
    return " ".join(plain(text).split())
