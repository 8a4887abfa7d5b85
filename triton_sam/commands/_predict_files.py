"""The files that `triton-sam predict` reads and writes."""

from __future__ import annotations

import glob
import io
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import numpy.typing as npt

from .._common import strict_json
from .._common.files import atomic_path, atomic_write
from ..download.http import fetch_image
from ..errors import ConfigurationError, ImageError, PromptError
from ..inputs.images import open_image, plain_source
from ..inputs.names import BRACKETS, files_matching
from ..masks.coco import coco_document
from ..masks.drawing import cutout
from ..masks.segment import FORMATS, Segment
from . import _options

URLS = ("http://", "https://")
STREAM = "-"
"""Standard input as an image, or standard output as a file."""
IMAGES = frozenset({".png"})
NUMPY = frozenset({".npy"})
JSON = frozenset({".json"})


@dataclass(frozen=True)
class Source:
    """One image of the command.

    Args:
        content: a path or the bytes of the file.
    """

    name: str
    content: Path | bytes

    @property
    def stem(self) -> str:
        """The part of the name that is added to the names of results, if there are several images."""
        return "stdin" if self.name == STREAM else Path(self.file_name).stem

    @property
    def file_name(self) -> str:
        """The name of the file without its folders."""
        path = unquote(urlsplit(self.name).path) if _is_url(self.name) else self.name
        return Path(path).name or "image"

    @property
    def given_name(self) -> str:
        """The name with its folders, with "/" as separator."""
        return self.name if _is_url(self.name) else Path(self.name).as_posix()


@dataclass(frozen=True)
class FileFormat:
    """A file format of --out.

    Args:
        each: returns the content of the file of one mask; None if one file holds all masks.
        leaves_out_empty: whether empty masks are left out, because readers of the format reject them.
    """

    suffixes: frozenset[str]
    each: Callable[[Source, Segment], bytes] | None = None
    whole: Callable[[Source, Sequence[Segment]], bytes] | None = None
    several: bool = False
    leaves_out_empty: bool = False


def _cutout_of(source: Source, segment: Segment) -> bytes:
    buffer = io.BytesIO()
    cutout(source.content, segment.mask).save(buffer, "PNG")
    return buffer.getvalue()


def _list_of(name: str) -> Callable[[Source, Sequence[Segment]], bytes]:
    def write(_: Source, segments: Sequence[Segment]) -> bytes:
        listed = [{**facts(segment), name: FORMATS[name].to_json(segment)} for segment in segments]
        return strict_json.dumps(listed).encode()

    return write


FILE_FORMATS = {
    "png": FileFormat(IMAGES, each=lambda _, segment: segment.to_png()),
    "cutout": FileFormat(IMAGES, each=_cutout_of),
    "rle": FileFormat(JSON, whole=_list_of("rle")),
    "polygons": FileFormat(JSON, whole=_list_of("polygons")),
    "coco": FileFormat(JSON, several=True, leaves_out_empty=True),
    "geojson": FileFormat(
        frozenset({".geojson", ".json"}),
        whole=lambda _, segments: FORMATS["geojson"].to_document(segments),
        leaves_out_empty=True,
    ),
}
"""The values of --format."""
BY_SUFFIX = {".png": "png", ".json": "coco", ".geojson": "geojson"}
"""The format of --out by its suffix, used without --format."""


def read_sources(given: Sequence[str]) -> list[Source]:
    """Return the given images: files, patterns such as "photos/*.jpg", URLs, and - for standard input."""
    sources: list[Source] = []
    for name in given:
        if name == STREAM:
            content = sys.stdin.buffer.read()
            if not content:
                raise ImageError("standard input is empty: pipe an image file into the command")
            sources.append(Source(STREAM, content))
        elif _is_url(name):
            sources.append(Source(name, fetch_image(name)))
        elif glob.has_magic(name) and not Path(name).exists():
            _, found = files_matching(name)
            if not found:
                raise ImageError(f"no image at {name}: no file fits this pattern. {BRACKETS}")
            sources += [Source(str(path), path) for path in found]
        else:
            path = Path(str(plain_source(name)))  # also of a file:// URL
            sources.append(Source(str(path), path))
    names = [source.name for source in sources]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigurationError(f"{twice} is named twice")
    return sources


def _is_url(name: str) -> bool:
    return name.lower().startswith(URLS)


def format_of(out: str, wanted: str | None) -> str:
    suffix = Path(out).suffix.lower()
    if Path(out).is_dir():
        raise ConfigurationError(f"cannot write {out}: it is a folder")
    if wanted is None:
        if out == STREAM:
            return "png"
        if suffix not in BY_SUFFIX:
            raise ConfigurationError(f"--out {out}: the name must end in one of {', '.join(BY_SUFFIX)}")
        return BY_SUFFIX[suffix]
    check_suffix("--out", out, FILE_FORMATS[wanted].suffixes, f" with --format {wanted}")
    return wanted


def check_suffix(option: str, path: str | Path, suffixes: Iterable[str], more: str = "") -> None:
    known = sorted(suffixes)
    if str(path) != STREAM and Path(path).suffix.lower() not in known:
        raise ConfigurationError(f"{option} {path}: the name must end in {' or '.join(known)}{more}")


def facts(segment: Segment) -> dict[str, Any]:
    named = {"label": segment.label} if segment.label else {}
    return {
        **named,
        "object": segment.object_index,
        "candidate": segment.candidate,
        "score": round(segment.score, 5),
        "area": segment.area,
        "box": segment.box,
    }


def target(given: str | Path, stem: str, several: bool) -> Path:
    """Return the file for an image: the given path, with the stem of the image added if there are several images."""
    path = Path(given)
    return path.with_stem(f"{path.stem}_{stem}") if several else path


def numbered(path: Path, count: int) -> list[Path]:
    """Return one path for each mask. From the second mask on, the name contains the number."""
    return [path if index == 0 else path.with_stem(f"{path.stem}_{index}") for index in range(count)]


def check_targets(masks: Sequence[Path], drawn: Sequence[Path], images: Iterable[str]) -> None:
    """Check that all results can be written without overwriting each other or an image.

    Args:
        images: the names of the images.
    """
    _options.check_writable([*masks, *drawn])
    for path in drawn:
        if path.resolve() in {mask.resolve() for mask in masks}:
            raise ConfigurationError(f"--out and --overlay both write {path}: name another file")
    taken = {Path(name).resolve() for name in images if name != STREAM}
    for path in [*masks, *drawn]:
        if path.resolve() in taken:
            raise ConfigurationError(f"{path} is an image of this command, or another result: name another file")
        taken.add(path.resolve())


def contents(
    out: str, form: FileFormat | None, sources: Sequence[Source], found: Iterable[tuple[Source, Sequence[Segment]]]
) -> list[tuple[Path, bytes]]:
    """Return the files of the masks of all images; none without a format."""
    if form is not None and form.several:
        return [(Path(out), coco_of(sources, found))]
    files: list[tuple[Path, bytes]] = []
    for source, masks in found:
        if form is None:
            continue
        path = target(out, source.stem, len(sources) > 1)
        if form.each is not None:
            encoded = [form.each(source, segment) for segment in masks]
            files += zip(numbered(path, len(masks)), encoded, strict=True)
        elif form.whole is not None:
            files.append((path, form.whole(source, masks)))
    return files


def write(out: str, files: Sequence[tuple[Path, bytes]]) -> list[Path]:
    """Write files and return their paths; standard output has no path."""
    if out == STREAM:
        sys.stdout.buffer.write(files[0][1])
        return []
    for path, content in files:
        atomic_write(path, content)
    return [path for path, _ in files]


def coco_of(sources: Iterable[Source], found: Iterable[tuple[Source, Sequence[Segment]]]) -> bytes:
    """Return a COCO file. Images whose files have the same name keep their folders in it."""
    names = Counter(source.file_name for source in sources)
    documents = (
        (
            source.file_name if names[source.file_name] == 1 else source.given_name,
            open_image(source.content).size,
            masks,
        )
        for source, masks in found
    )
    return strict_json.dumps(coco_document(documents)).encode()


def write_logits(path: Path, segments: Sequence[Segment]) -> None:
    """Write the low-resolution logits of masks as .npy, float32 (P,1,S,S), for --mask-input of a later call."""
    arrays = [segment.logits for segment in segments if segment.logits is not None]
    with atomic_path(path) as temporary:
        np.save(temporary, np.stack(arrays)[:, None].astype(np.float32))


def read_logits(path: Path) -> npt.NDArray[Any]:
    """Return the logits of an earlier call, or a mask of the same size, see check_prompts()."""
    try:
        # The file is opened here because np.load() does not close a damaged file that it opened itself.
        with path.open("rb") as file:
            logits = np.load(file, allow_pickle=False)
    except Exception as error:  # zipfile and NumPy raise almost any exception for damaged files
        reason = getattr(error, "strerror", None) or "it is not an .npy file of numbers"
        raise PromptError(f"cannot read the logits in {path}: {reason}") from error
    if not isinstance(logits, np.ndarray) or logits.dtype.kind not in "biuf":
        raise PromptError(f"{path} holds no logits: they are numbers, as --logits writes them")
    return logits.astype(np.float32) if logits.dtype.kind == "f" else logits
