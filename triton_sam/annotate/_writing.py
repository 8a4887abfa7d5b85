"""The parts that the writers share."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TypeVar

from .._common.files import atomic_write
from .large_results import LargeResult
from .records import ImageRecord
from .sources import Skipped

Categories = Mapping[int, str]
"""Names of categories by id."""
Records = Callable[[], Iterable[ImageRecord]]
"""Returns the records from the first one on, each time that it is called. Records with an error are left out."""

Named = TypeVar("Named", ImageRecord, LargeResult)

_NAME_BYTES, _SUFFIX_BYTES = 255, 8
"""The longest name of a file on most systems, and the longest suffix of a result, `.geojson`."""
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def write_file(folder: Path, name: str, content: bytes | str) -> None:
    """Write a file below a folder, completely or not at all; make the folders on its path."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, content if isinstance(content, bytes) else content.encode())


def with_stems(
    records: Callable[[], Iterable[Named]], left: list[Skipped], *, keeps_suffix: bool = False
) -> Iterator[tuple[str, Named]]:
    """Yield each record, or result of a large image, and its image's name without the suffix.

    An image whose file another image has already, or whose file cannot have a name, is left out and listed in ``left``.
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
    """Return the name of an image as a path below the folder of a format, whatever folders a list or data set names."""
    return "/".join(part for part in posixpath.normpath(name).split("/") if part not in ("", ".."))


def _is_too_long(stem: str, record: Named, left: list[Skipped]) -> bool:
    """Whether the name of a file with the longest suffix is too long for file systems; if so, list it in ``left``."""
    if len(os.fsencode(PurePosixPath(stem).name)) <= _NAME_BYTES - _SUFFIX_BYTES:
        return False
    why = f"its name has more than {_NAME_BYTES - _SUFFIX_BYTES} bytes, so no file of results can have it: shorten it"
    left.append(Skipped(record.name, "image", why))
    return True


def class_numbers(categories: Categories, first: int) -> dict[int, int]:
    """Return the number of each category's class by its id, from ``first``, in the order of the categories."""
    return {category: number for number, category in enumerate(categories, first)}


def plain(text: str) -> str:
    """Return a text that XML, Parquet and GeoPackage can hold: other characters become replacement characters."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str) -> str:
    """Return a name as it stands in a list with one name on each line."""
    return " ".join(plain(text).split())
