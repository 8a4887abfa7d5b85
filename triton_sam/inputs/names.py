"""File names: as text in any locale, in lists from other systems, and in patterns."""

from __future__ import annotations

import glob
import os
import posixpath
import unicodedata
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path, PurePath
from typing import TypeVar

BRACKETS = "For a [ in the name of a file, write [[]"
"""The hint for patterns without a match."""

Place = TypeVar("Place", bound=PurePath)


def name_of(path: str | os.PathLike[str]) -> str:
    """Return the path of a file as text, with "/" between the parts.

    The text is the same in every locale. Bytes that are not UTF-8 become lone surrogates, as in Python's own paths.
    """
    return os.fsencode(PurePath(path).as_posix()).decode("utf-8", "surrogateescape")


def path_of(name: str) -> str:
    return os.fsdecode(name.encode("utf-8", "surrogateescape"))


def is_hidden(name: str) -> bool:
    """Return whether a file or one of its folders is hidden, such as macOS's `._IMG_1.jpg`."""
    return any(part.startswith(".") for part in name.split("/"))


def find_file(folder: Path, name: str) -> tuple[str, Path] | None:
    """Find a file by its name in a list or a data set, perhaps from another operating system.

    The name may have backslashes between its parts, as on Windows, spaces around it, or accents in another Unicode
    form, as on macOS. A file with exactly this name is preferred.

    Returns:
        The name of the file and its path; None if there is no such file.
    """
    for each in _spellings(name):
        try:
            path = folder / path_of(each)
            if path.is_file():
                return each.replace("\\", "/") if os.name == "nt" else each, path
        except (OSError, ValueError):  # the name is too long, or has a null character
            continue
    return None


def normal_form(name: str) -> str:
    """Return the common form of all spellings of a name, see find_file()."""
    return posixpath.normpath(unicodedata.normalize("NFC", name.strip().replace("\\", "/")))


def _spellings(name: str) -> Iterable[str]:
    plain = name.strip().replace("\\", "/")
    forms = (unicodedata.normalize(form, plain) for form in ("NFC", "NFD"))
    return dict.fromkeys((name, name.strip(), plain, *forms))


def files_matching(pattern: str) -> tuple[Path, list[Path]]:
    """Return the local files that match a pattern, sorted, and the folder that their names are relative to.

    ``*`` and ``?`` match any characters, ``[ab]`` one of several, and ``**`` folders. An existing folder with these
    characters in its name, for example ``photos [2]``, is taken literally.
    """
    whole = Path(pattern)
    root = fixed_part(whole, os.path.exists)
    rest = str(whole.relative_to(root))
    found = glob.glob(os.path.join(glob.escape(str(root)), rest), recursive=True)  # noqa: PTH118, PTH207 - any folder
    return root, sorted(path for path in map(Path, found) if path.is_file())


def fixed_part(pattern: Place, exists: Callable[[Place], bool]) -> Place:
    """Return the folder before the first part of a pattern that may name several files."""
    for folder, below in pairwise([*reversed(pattern.parents), pattern]):
        if below == pattern or (glob.has_magic(below.name) and not exists(below)):
            return folder
    return pattern
