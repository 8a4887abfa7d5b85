"""The parts that the writers share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TypeVar

from .._common.files import atomic_write
from ..errors import InputError
from .large_results import LargeResult
from .records import ImageRecord

Categories = Mapping[int, str]
"""Names of categories by id."""
Records = Callable[[], Iterable[ImageRecord]]
"""Returns the records from the first one on, each time that it is called. Records with an error are left out."""

Named = TypeVar("Named", ImageRecord, LargeResult)


def write_file(folder: Path, name: str, content: bytes | str) -> None:
    """Write a file below a folder, completely or not at all; make the folders on its path.

    Raises:
        OSError: the file cannot be written.
    """
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, content if isinstance(content, bytes) else content.encode())


def with_stems(records: Callable[[], Iterable[Named]]) -> Iterator[tuple[str, Named]]:
    """Yield each record, or result of a large image, and its image's name without the suffix.

    Raises:
        InputError: two images would have the same name.
    """
    seen: set[str] = set()
    for record in records():
        stem = str(PurePosixPath(record.name).with_suffix(""))
        if stem in seen:
            raise InputError(f"two images would have the same file {stem}: rename one, or use another --format")
        seen.add(stem)
        yield stem, record


def class_numbers(categories: Categories, first: int) -> dict[int, int]:
    """Return the number of each category's class by its id, from ``first``, in the order of the categories."""
    return {category: number for number, category in enumerate(categories, first)}
