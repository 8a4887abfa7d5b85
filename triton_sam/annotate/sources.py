"""The images of a run: a file, a folder, a glob pattern, a list in a text file, a COCO data set, or a video.

Their places are local files, URLs that fsspec reads, and frames of videos.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import Any, cast

from .._common.checks import whole_number
from ..errors import ImageError, InputError, VideoError
from ..families.base import Size
from ..inputs.formats import LARGE_SUFFIXES, is_image
from ..inputs.images import ImageSource
from ..inputs.names import BRACKETS, files_matching, find_file, fixed_part, is_hidden, name_of, normal_form
from ..inputs.remote import content_at, copy_of, exists, is_remote, patiently, place_of, read_json, read_text
from ..inputs.video import FrameSource, open_frames

VIDEO_SUFFIXES = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".wmv")


def files_below(folder: Path, unread: Callable[[Path, str], None] = lambda _, __: None) -> list[tuple[str, Path]]:
    """Return all files below a folder, sorted, each with its relative path, with "/" as separator.

    Args:
        folder: the folder. Links to subfolders are not followed.
    """
    if is_remote(folder):
        remote = cast(Any, folder)
        root = str(remote.path).rstrip("/") + "/"
        return _remote_listing(remote, root, lambda: remote.fs.find(root))

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
    return _remote_listing(remote, start, lambda: remote.fs.glob(glob.escape(start) + pattern))


def _remote_listing(remote: Any, start: str, listing: Any) -> list[tuple[str, Path]]:
    paths: list[str] = patiently(str(remote), listing)
    names = [path[len(start) :] for path in paths if path.startswith(start) and not path.endswith("/")]
    names.sort(key=lambda name: name.split("/"))
    return [(name, cast(Path, remote / name)) for name in names]


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


MANIFEST = "manifest.json"
SHARDS = "shards"
"""The file with the parameters of a run, and the folder with its records, in the folder of its results."""
_SHARD = re.compile(r"\d{8,}\.jsonl")
"""The names of the files with records."""
OBJECT = {1: "object"}
"""The categories of a run whose source and prompts have no categories."""
_NOT_TAKEN = dict.fromkeys(LARGE_SUFFIXES, "large images are annotated with --large") | dict.fromkeys(
    VIDEO_SUFFIXES, "a video is a source of its own"
)
"""Why files with a suffix are left out of a folder, if they can be annotated in another way."""


@dataclass(frozen=True)
class Skipped:
    """Something that is not annotated, such as an image or "box 3" of an image, and the reason."""

    image: str
    what: str
    why: str


@dataclass(frozen=True)
class ImageItem:
    """One image of a run.

    Args:
        name: name in the results: the path relative to its folder, with "/" as separator.
        path: the file, which may be at a URL, or the frame of a video.
        size: width and height according to the source; None if the source has no sizes.
    """

    id: int
    name: str
    path: Path | FramePlace
    size: Size | None = None

    def content(self) -> ImageSource:
        """Return the path of a local image, or the bytes of a remote image or frame."""
        if isinstance(self.path, FramePlace):
            return self.path.read()
        return content_at(self.path) if is_remote(self.path) else self.path

    def check_size(self, size: Size) -> None:
        """Raise an error if a file does not have the size that the source says."""
        if self.size is not None and self.size != size:
            width, height = self.size
            raise ImageError(f"the file has {size[0]} x {size[1]} pixels, but the source says {width} x {height}")


@dataclass(frozen=True)
class Source:
    """All images of a run.

    Args:
        items: the images in the order of the run.
        left_out: one line for each suffix of files in a folder that are not images.
    """

    items: tuple[ImageItem, ...]
    skipped: tuple[Skipped, ...] = ()
    categories: dict[int, str] = field(default_factory=lambda: dict(OBJECT))
    coco: dict[str, Any] | None = None
    left_out: tuple[Skipped, ...] = ()

    def find_name(self, name: str) -> str | None:
        """Return the name of the image for a name in a file of prompts, which another system may have written.

        The given name may have backslashes, or accents in another Unicode form. None: the image is not in the source.
        """
        return name if name in self._names else self._forms.get(normal_form(name))

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(item.name for item in self.items)

    @cached_property
    def _forms(self) -> dict[str, str]:
        """The names by normalized form. Images that share a form are found only by their exact names."""
        forms = Counter(map(normal_form, self._names))
        return {normal_form(name): name for name in self._names if forms[normal_form(name)] == 1}


def read_source(source: str, images: Path | None = None, every: int = 1) -> Source:
    """Find the images of a source.

    Args:
        source: a folder with its subfolders; a glob pattern, in which ``**`` stands for folders; a text file (.txt)
            with one path per line; a COCO data set (.json); one image file; or one video file, whose frames are named
            VIDEO/00000.png and so on. A URL is supported for each.
    """
    found = _find(source, place_of(source), images)
    if not found.items:
        raise InputError(
            f"{source}: there is no image{reason(found)}. Give a folder, a pattern, a list (.txt), COCO (.json) or a "
            "video"
        )
    return replace(found, items=found.items[::every])


def reason(empty: Source) -> str:
    """Return why a source has no images, as the end of a sentence; "" if the reason is unknown."""
    first = next(iter((*empty.skipped, *empty.left_out)), None)
    return "" if first is None else f": {first.image or first.what}: {first.why}"


def _find(source: str, path: Path, images: Path | None) -> Source:
    suffix = path.suffix.lower()
    if not is_remote(path) and path.is_dir():
        return _of_folder(path)
    if suffix == ".json":
        return _of_coco(path, images or path.parent)
    if suffix == ".txt":
        root = images or path.parent
        names = read_text(path, "surrogateescape").split("\n")
        return _listed(root, enumerate(filter(partial(_is_name, root), names), 1))
    if suffix in VIDEO_SUFFIXES:
        return _of_video(path)
    if is_remote(path):
        return _of_remote(path)
    if path.is_file():
        return _of_paths([(name_of(path.name), path)])
    root, matches = files_matching(source)
    if not matches and glob.has_magic(source):
        raise InputError(f"{source}: no file matches this pattern. {BRACKETS}")
    return _of_paths((name_of(each.relative_to(root)), each) for each in matches)


def _is_name(root: Path, line: str) -> bool:
    """Return whether a line of a list is the name of an image, not empty or a comment.

    The name of a local file may begin with #. Checking a URL would take a request or more.
    """
    if not line.startswith("#"):
        return bool(line.strip())
    return not is_remote(root) and find_file(root, line) is not None


def _of_folder(folder: Path) -> Source:
    """Find the images of a folder, and record its other files.

    Hidden files and the results of runs in subfolders are left out.
    """
    unread: list[Skipped] = []

    def note(path: Path, why: str) -> None:
        unread.append(Skipped(name_of(path.relative_to(folder)), "folder", why))

    everything = files_below(folder, note)
    files = [(name, path) for name, path in everything if not is_hidden(name)]
    hidden = len(everything) - len(files)
    runs = _runs(name for name, _ in files)
    if runs:
        files = [(name, path) for name, path in files if runs.isdisjoint(PurePosixPath(name).parents)]
    found = _of_paths((name, path) for name, path in files if is_image(path))
    others = left_out((path for _, path in files if not is_image(path)), _NOT_TAKEN)
    others += tuple(Skipped(str(run), "folder", "it holds the results of a run") for run in sorted(runs))
    others += (Skipped(".*", _files(hidden), "hidden files are left out"),) * bool(hidden)
    return replace(found, skipped=(*found.skipped, *unread), left_out=others)


def _runs(names: Iterable[str]) -> set[PurePosixPath]:
    """Return the subfolders with the results of `annotate`, such as an --out inside the source."""
    with_manifest, with_shards = set(), set()
    for name in names:
        folder, _, file = name.rpartition("/")
        above, _, last = folder.rpartition("/")
        if file == MANIFEST:
            with_manifest.add(folder)
        elif last == SHARDS and _SHARD.fullmatch(file):
            with_shards.add(above)
    return {PurePosixPath(folder) for folder in with_manifest & with_shards if folder}


def left_out(files: Iterable[Path], reasons: Mapping[str, str]) -> tuple[Skipped, ...]:
    """Return a line for the report for each suffix of files that a run leaves out.

    Args:
        reasons: the reasons by suffix, in lower case, if these files can be annotated in another way.
    """
    counts = Counter(path.suffix.lower() for path in files)
    return tuple(
        Skipped(
            f"*{suffix}" if suffix else "(no suffix)",
            _files(count),
            reasons.get(suffix, "their suffix is not that of an image"),
        )
        for suffix, count in sorted(counts.items())
    )


def _files(count: int) -> str:
    return f"{count} file{'s' * (count > 1)}"


def _of_remote(path: Path) -> Source:
    """Find the images of a URL: a pattern if it has a star, a file if it has an image suffix, else a folder."""
    if "*" in str(path):
        root = fixed_part(path, exists)
        return _of_paths(remote_files_matching(root, str(path)[len(str(root)) :].lstrip("/")))
    if is_image(path):
        return _of_paths([(path.name, path)])
    return _of_folder(path)


def _of_video(path: Path) -> Source:
    frames = _copied_frames(path) if is_remote(path) else open_frames(path)
    places = ((f"{path.stem}/{index:05d}.png", FramePlace(frames, index)) for index in range(frames.num_frames or 0))
    return Source(tuple(ImageItem(index, name, place, frames.size) for index, (name, place) in enumerate(places, 1)))


def _copied_frames(path: Path) -> FrameSource:
    """Copy a video at a URL into a temporary folder, because reading needs seeks, and open the copy."""
    folder = tempfile.mkdtemp(prefix="triton-sam-")
    remove = partial(shutil.rmtree, folder, ignore_errors=True)
    try:
        frames = open_frames(copy_of(path, Path(folder)))
    except BaseException:
        remove()
        raise
    weakref.finalize(frames, remove)  # also at the end of the process
    return frames


def _of_paths(paths: Iterable[tuple[str, Path]]) -> Source:
    return _checked((number, name, path, None) for number, (name, path) in enumerate(paths, 1))


def _listed(root: Path, names: Iterable[tuple[int, str]], sizes: Mapping[int, Size | None] | None = None) -> Source:
    """Return the images listed in a file, relative to a folder."""

    def places() -> Iterator[tuple[int, str, Path | None, Size | None]]:
        for number, name in names:
            size = (sizes or {}).get(number)
            if is_remote(root):
                plain = normal_form(name)
                yield number, plain, root / plain, size
            else:
                found, path = find_file(root, name) or (name, None)
                yield number, found, path, size

    return _checked(places())


def _checked(images: Iterable[tuple[int, str, Path | None, Size | None]]) -> Source:
    """Drop images that are missing (their path is None) or listed twice, from rows of id, name, path and size."""
    kept, skipped = [], []
    names: set[str] = set()
    paths: set[object] = set()
    ids: set[int] = set()
    for number, name, path, size in images:
        # A missing remote file is detected when it is read: a request for each file would take long.
        if path is None or (not is_remote(path) and not path.is_file()):
            skipped.append(Skipped(name, "image", "there is no such file"))
            continue
        place = path if is_remote(path) else os.path.normpath(path.absolute())  # equal images may be links to one file
        if place in paths or name in names or number in ids:
            skipped.append(Skipped(name, "image", "the source names this image or its id twice"))
        else:
            kept.append(ImageItem(number, name, path, size))
            paths.add(place)
            names.add(name)
            ids.add(number)
    return Source(tuple(kept), tuple(skipped))


def size_in_coco(image: Mapping[str, Any]) -> Size | None:
    return (
        (whole_number(image["width"]), whole_number(image["height"]))
        if "width" in image and "height" in image
        else None
    )


def _of_coco(path: Path, root: Path) -> Source:
    document = read_coco(path)
    names, sizes, faults = [], {}, []
    for number, image in enumerate(document["images"], 1):
        try:
            name, image_id = str(image["file_name"]), whole_number(image["id"])
            sizes[image_id] = size_in_coco(image)
        except (KeyError, TypeError, ValueError, OverflowError):
            why = f"{path.name}: it needs file_name, and id, width and height as whole numbers"
            faults.append(Skipped("", f"image {number}", why))
        else:
            names.append((image_id, name))
    found = _listed(root, names, sizes)
    skipped = (*faults, *found.skipped)
    return replace(found, skipped=skipped, categories=categories_of(document), coco=document)


def categories_of(document: dict[str, Any]) -> dict[int, str]:
    """Return the category names of a COCO document by id."""
    try:
        return {whole_number(each["id"]): str(each["name"]) for each in document.get("categories", ())} or dict(OBJECT)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError("a category of the COCO file has no name, or its id is not a whole number") from error


def read_coco(path: Path) -> dict[str, Any]:
    document = read_json(path)
    if not isinstance(document, dict) or not isinstance(document.get("images"), list):
        raise InputError(f"{path} is not a COCO data set: it has no list of images")
    return document
