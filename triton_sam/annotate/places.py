"""The places of a run's images: local files, URLs that fsspec reads, and frames of videos."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ..errors import VideoError
from ..inputs.images import ImageSource
from ..inputs.names import name_of
from ..inputs.remote import content_at, is_remote, patiently
from ..inputs.video.base import FrameSource

VIDEO_SUFFIXES = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".wmv")
"""The suffixes of video files, in lower case."""


def files_below(folder: Path, unread: Callable[[Path, str], None] = lambda _, __: None) -> list[tuple[str, Path]]:
    """Return all files below a folder, sorted, each with its relative path, with "/" as separator.

    Args:
        folder: the folder. Links to subfolders are not followed.
    """
    if is_remote(folder):
        remote = cast(Any, folder)
        root = str(remote.path).rstrip("/") + "/"
        return _listed(remote, root, lambda: remote.fs.find(root))

    def note(error: OSError) -> None:
        unread(Path(error.filename), f"the folder cannot be read: {error.strerror}")

    found = []
    for where, folders, files in os.walk(folder, onerror=note):
        here = Path(where)
        for link in filter(os.path.islink, (here / name for name in folders)):
            unread(link, "links to folders are not followed")
        found += [here / name for name in files]
    return [(name_of(each.relative_to(folder)), each) for each in sorted(found)]


def remote_files_matching(root: Path, pattern: str) -> list[tuple[str, Path]]:
    """Return the files below a folder at a URL whose relative paths match a pattern, see files_below()."""
    remote = cast(Any, root)
    start = str(remote.path).rstrip("/") + "/"
    return _listed(remote, start, lambda: remote.fs.glob(glob.escape(start) + pattern))


def _listed(remote: Any, start: str, listing: Any) -> list[tuple[str, Path]]:
    paths: list[str] = patiently(str(remote), listing)
    names = [path[len(start) :] for path in paths if path.startswith(start) and not path.endswith("/")]
    names.sort(key=lambda name: name.split("/"))
    return [(name, cast(Path, remote / name)) for name in names]


def content_of(place: Path | FramePlace) -> ImageSource:
    """Return an image: the path of a local file, or the bytes of a remote file or of a frame."""
    return place if isinstance(place, Path) else remote_bytes(place)


def remote_bytes(place: Path | FramePlace) -> bytes:
    """Return the content of a remote file or a frame, see content_of()."""
    return place.read() if isinstance(place, FramePlace) else content_at(place)


@dataclass(frozen=True, eq=False)
class FramePlace:
    """One frame of a video, used instead of a path."""

    video: FrameSource
    index: int

    def read(self) -> bytes:
        """Return the frame as the content of an image file."""
        frame = self.video.frame(self.index)
        if frame is None:
            raise VideoError(f"{self.video.name} ends before frame {self.index}")
        return frame.content
