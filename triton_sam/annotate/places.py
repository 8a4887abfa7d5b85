"""Where the files of a run lie: on this machine, at a URL that fsspec reads, or as frames in a video."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from .._common.backoff import spread
from .._common.extras import missing
from ..errors import ConfigurationError, DownloadError, ImageError, MissingDependencyError, VideoError
from ..inputs.images import ImageSource
from ..inputs.video.base import FrameSource

VIDEO_SUFFIXES = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".wmv")
"""The suffixes of video files, in lower case."""
ATTEMPTS = 4
PAUSE = 1.0
"""Seconds, at most, before a file is asked for again; each further pause is twice as long."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_LOST = range(400, 500)
_LATER = (408, 429)
"""Status codes of HTTP below 500 that another attempt may change."""


def place_of(text: str) -> Path:
    """Return the path that a text names. A URL becomes a path of universal_pathlib, which has the methods of Path.

    Raises:
        MissingDependencyError: the package for this kind of URL is not installed.
        ConfigurationError: fsspec does not know this kind of URL.
    """
    if not _URL.match(text):
        return Path(text)
    try:
        from upath import UPath
    except ImportError as error:
        raise missing("URLs need", "remote", error) from error
    if text.lower().startswith("file://"):
        return Path(UPath(text).path)
    try:
        place = UPath(text)
        place.fs  # noqa: B018 - makes the file system, for which packages may be missing
    except ImportError as error:
        raise MissingDependencyError(f"{text}: {error}, for example with pip") from error
    except ValueError as error:
        raise ConfigurationError(f"{text}: {error}. Copy the files to this machine") from error
    return cast(Path, place)


def is_remote(place: Path) -> bool:
    """Return whether a place is a URL."""
    return not isinstance(place, (Path, FramePlace))


def files_below(folder: Path) -> list[tuple[str, Path]]:
    """Return all files below a folder, sorted, each with its path relative to the folder, with "/" between the parts.

    Raises:
        DownloadError: the folder is a URL that cannot be listed.
    """
    if not is_remote(folder):
        found = (each for each in folder.rglob("*") if each.is_file())
        return [(each.relative_to(folder).as_posix(), each) for each in sorted(found)]
    remote = cast(Any, folder)
    root = str(remote.path).rstrip("/") + "/"
    return _listed(remote, root, lambda: remote.fs.find(root))


def files_matching(root: Path, pattern: str) -> list[tuple[str, Path]]:
    """Return the files below a folder at a URL whose relative paths match a pattern. See files_below().

    Raises:
        DownloadError: the folder cannot be listed.
    """
    remote = cast(Any, root)
    start = str(remote.path).rstrip("/") + "/"
    return _listed(remote, start, lambda: remote.fs.glob(start + pattern))


def _listed(remote: Any, start: str, listing: Any) -> list[tuple[str, Path]]:
    paths = patiently(str(remote), listing)
    names = [path[len(start) :] for path in paths if path.startswith(start) and not path.endswith("/")]
    names.sort(key=lambda name: name.split("/"))
    return [(name, cast(Path, remote / name)) for name in names]


def content_of(place: Path | FramePlace) -> ImageSource:
    """Return an image: the path of a local file, or the bytes of a remote file or of a frame.

    Raises:
        ImageError: the file is not there, or may not be read.
        DownloadError: the place cannot be reached, even after several attempts.
        VideoError: the frame cannot be decoded.
    """
    return place if isinstance(place, Path) else remote_bytes(place)


def remote_bytes(place: Path | FramePlace) -> bytes:
    """Return the content of a remote file or of a frame. See content_of()."""
    if isinstance(place, FramePlace):
        return place.read()
    remote = cast(Any, place)
    return cast(bytes, patiently(str(place), lambda: remote.fs.cat_file(remote.path)))


def patiently(name: str, call: Any) -> Any:
    """Call a function of fsspec, and call it again if the storage is away for a moment.

    Raises:
        ImageError: the storage says that the file is not there, or may not be read.
        DownloadError: the storage cannot be reached, even after several attempts.
    """
    for pause in (*_pauses(), None):
        try:
            return call()
        except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
            raise ImageError(f"{name} cannot be read: {_reason(error)}") from error
        except Exception as error:  # file systems of fsspec raise the errors of their own packages
            if getattr(error, "status", None) in _LOST and getattr(error, "status", None) not in _LATER:
                raise ImageError(f"{name} cannot be read: {_reason(error)}") from error
            if pause is None:
                raise DownloadError(f"{name} cannot be read: {_reason(error)}") from error
            time.sleep(spread(pause))
    raise AssertionError("the last attempt returns or raises")


def _pauses() -> Iterator[float]:
    return (PAUSE * 2**attempt for attempt in range(ATTEMPTS - 1))


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    return " ".join(f"{type(error).__name__}: {error}".split())


@dataclass(frozen=True, eq=False)
class FramePlace:
    """One frame of a video, in the place of a path.

    Args:
        video: the frames; several threads may read them.
        index: number of the frame, from 0.
    """

    video: FrameSource
    index: int

    def read(self) -> bytes:
        """Return the frame as the content of an image file.

        Raises:
            VideoError: the frame cannot be decoded.
        """
        frame = self.video.frame(self.index)
        if frame is None:
            raise VideoError(f"{self.video.name} ends before frame {self.index}")
        return frame.content
