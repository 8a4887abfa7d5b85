"""The folder of a tracked video.

`track.json` holds the parameters, and whether the run is complete. A run with other parameters is an error. Further
formats of a complete run need no tracking. An interrupted run is tracked again from its prompts, because the folder
does not contain the memory of the model. All masks therefore equal those of an uninterrupted run.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from .._common import strict_json
from .._common.files import atomic_path, atomic_write, locked
from ..errors import ConfigurationError, InferenceError
from ..masks.segment import VideoSegment
from .formats import RECORDS, TRACK_FORMATS, TrackedVideo, TrackFormat, mask_file, mask_stems
from .records import MaskRecord, append_records, read_records

MANIFEST = "track.json"
IMAGES = "images"
"""Folder of the images of a stream, which cannot be read again for the overlay."""

_VERSION = 1
_LOCK = ".track.lock"
_JPEG_QUALITY = 95
_NAMING = "naming of masks"
"""The parameter with the stems of the images, if they are not their numbers."""
_NUMBERED = re.compile(r"\d{5,}\.(png|jpg)")


class TrackFolder:
    """Writes the masks of a video, image by image.

    Args:
        folder: the folder; it is created with its parents.
        parameters: everything that determines the masks, as JSON values: source, prompts, range, model.
        formats: names of TRACK_FORMATS.
        object_ids: the ids of all objects; None if they are found while the video is tracked.
        image_names: the file names of all images of the video, if they are files. The masks get these names.

    Raises:
        ConfigurationError: a format cannot hold the ids.
    """

    def __init__(
        self,
        folder: Path,
        parameters: Mapping[str, Any],
        formats: Sequence[str],
        object_ids: Sequence[int] | None,
        image_names: Sequence[str] | None = None,
    ) -> None:
        self.folder = folder
        self.formats = [TRACK_FORMATS[name] for name in dict.fromkeys(formats)]
        self._ids = None if object_ids is None else sorted(object_ids)
        self._stems = mask_stems(image_names)
        self._parameters = json.loads(strict_json.dumps(parameters))  # tuples become lists, as in a manifest
        if self._stems and self._stems != [f"{frame:05d}" for frame in range(len(self._stems))]:
            self._parameters[_NAMING] = self._stems
        self._records: dict[int, tuple[MaskRecord, ...]] = {}
        self.full: list[str] = []
        """For each format that could not hold the id of a found object, what is missing in it."""
        self._check_largest(self._ids or ())

    @contextlib.contextmanager
    def opened(self, overwrite: bool = False, resume: bool = True) -> Iterator[None]:
        """Hold the folder while the block runs, and read the records of a complete run.

        Args:
            overwrite: remove the results of an earlier run.
            resume: whether the source can be read again from its beginning. A stream cannot.

        Raises:
            ConfigurationError: the folder has results of other parameters, of a stream, or with an id that a format
                cannot hold, its manifest is damaged, files that are not from an earlier run are in the way, it or a
                parent is a file, or another process writes to it.
            InputError: the file of records is damaged.
            OSError: the folder cannot be written.
        """
        self._make()
        with locked(self.folder / _LOCK, self._refuse_second):
            if self._prepare(overwrite, resume):
                for record in read_records(self.folder / RECORDS):
                    self._records[record.frame] = (*self._records.get(record.frame, ()), record)
                self._check_largest([record.object_id for records in self._records.values() for record in records])
            for form in self.formats:
                if form.write_image is not None:
                    (self.folder / form.file).mkdir(exist_ok=True)
            yield

    def check_unused(self) -> None:
        """Check, before long work, that the folder can be created and has no results. A new folder does not stay.

        Raises:
            ConfigurationError: it has results or files in the way, or it or a parent is a file.
            OSError: the folder cannot be written.
        """
        new = [place for place in (self.folder, *self.folder.parents) if not os.path.lexists(place)]
        self._make()
        with contextlib.suppress(OSError):  # another process may already use one
            for place in new:
                place.rmdir()
        if self._read_manifest() is not None:
            raise ConfigurationError(
                f"{self.folder} has the results of other prompts: give another --out, or --overwrite to start again"
            )
        self._check_empty()

    @property
    def records(self) -> Mapping[int, tuple[MaskRecord, ...]]:
        """The records of each image of the run."""
        return self._records

    @property
    def needs_logits(self) -> bool:
        """Whether a format needs the logits of the masks."""
        return (self._ids is None or len(self._ids) > 1) and any(form.needs_logits for form in self.formats)

    def has(self, frame: int) -> bool:
        """Return whether an image is complete in all formats."""
        return frame in self._records and all(path.is_file() for _, path in self._image_files(frame))

    def begin(self) -> None:
        """Begin to track: drop the records of an earlier run. The files of images are replaced one by one.

        Raises:
            OSError: the folder cannot be written.
        """
        self._write_manifest(complete=False)
        (self.folder / RECORDS).unlink(missing_ok=True)
        self._records.clear()

    def add(self, frame: int, masks: Mapping[int, VideoSegment]) -> None:
        """Write the masks of one image.

        Raises:
            InferenceError: an object is missing.
            OSError: a file cannot be written.
        """
        ids = sorted(masks)
        if self._ids is None:
            self._end_full_formats(frame, ids)
        elif ids != self._ids:
            raise InferenceError(f"frame {frame}: the server tracked the objects {ids}, not {self._ids}")
        for form, path in self._image_files(frame):
            if form.write_image is not None:
                atomic_write(path, form.write_image(masks))
        self._records[frame] = tuple(MaskRecord.of(frame, object_id, masks[object_id]) for object_id in ids)
        append_records(self.folder / RECORDS, self._records[frame])

    def keep_image(self, frame: int, image: Image.Image) -> None:
        """Keep an image of a stream for the overlay.

        Raises:
            OSError: the file cannot be written.
        """
        (self.folder / IMAGES).mkdir(exist_ok=True)
        with atomic_path(self._kept(frame)) as temporary:
            image.save(temporary, format="JPEG", quality=_JPEG_QUALITY)

    def kept_images(self, frames: Sequence[int]) -> Iterator[Image.Image]:
        """Open the images of a stream that were kept."""
        for frame in frames:
            with Image.open(self._kept(frame)) as image:
                yield image.convert("RGB")

    def finish(self, video: TrackedVideo) -> list[Path]:
        """Write the formats of the whole video and return all results.

        Raises:
            MissingDependencyError: PyAV is not installed.
            OSError: a file cannot be written.
        """
        for form in self.formats:
            if form.write_video is not None:
                form.write_video(self.folder / form.file, video)
        self._write_manifest(complete=True)
        names = dict.fromkeys([RECORDS, *(form.file for form in self.formats)])
        return [self.folder / name for name in names]

    def _make(self) -> None:
        """Create the folder with its parents, and check that it can be written."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            file = next(place for place in (self.folder, *self.folder.parents) if os.path.lexists(place))
            raise ConfigurationError(f"{file} is a file: give a folder as --out") from error
        if not os.access(self.folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self.folder))

    def _check_largest(self, ids: Sequence[int]) -> None:
        for form in self.formats:
            if not form.holds(ids):
                raise ConfigurationError(
                    f"--format {form.name} holds object ids up to {form.largest_id}, not {max(ids)}: "
                    "use another --format, or smaller ids"
                )

    def _end_full_formats(self, frame: int, ids: Sequence[int]) -> None:
        """End the formats that cannot hold the ids of found objects; the records hold the masks of all frames."""
        full = [form for form in self.formats if not form.holds(ids)]
        self.full += [
            f"--format {form.name} holds object ids up to {form.largest_id}, so it ends before frame {frame}"
            for form in full
        ]
        self.formats = [form for form in self.formats if form not in full]

    def _image_files(self, frame: int) -> list[tuple[TrackFormat, Path]]:
        return [
            (form, self.folder / form.file / mask_file(frame, self._stems))
            for form in self.formats
            if form.write_image is not None
        ]

    def _prepare(self, overwrite: bool, resume: bool) -> bool:
        """Check the manifest of an earlier run, or write one; return whether the folder has all of that run."""
        manifest = self._read_manifest()
        if manifest is None:
            self._check_empty()
        elif overwrite:
            self._remove_results(manifest)
        else:
            before = manifest.get("parameters")
            if not isinstance(before, dict):
                raise ConfigurationError(
                    f"{self.folder / MANIFEST} is damaged: give another --out, or --overwrite to start again"
                )
            different = _differences(before, self._parameters)
            if different:
                raise ConfigurationError(
                    f"{self.folder} has the results of another {' and '.join(different)}: "
                    "give another --out, or --overwrite to start again"
                )
            if not resume:
                raise ConfigurationError(
                    f"{self.folder} has the results of a stream, which cannot be continued: give another --out or "
                    "--overwrite"
                )
            return manifest.get("complete") is True and (self.folder / RECORDS).is_file()
        self._write_manifest(complete=False)
        return False

    def _read_manifest(self) -> dict[str, Any] | None:
        path = self.folder / MANIFEST
        if not path.exists():
            return None
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
            if manifest["version"] != _VERSION:
                raise ValueError(f"version {manifest['version']}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigurationError(f"{path} is not a manifest of this version: give another --out") from error
        return dict(manifest)

    def _write_manifest(self, complete: bool) -> None:
        manifest = {"version": _VERSION, "complete": complete, "parameters": self._parameters}
        atomic_write(self.folder / MANIFEST, strict_json.dumps(manifest, indent=1).encode())

    def _check_empty(self) -> None:
        """Raise an error if the folder has files of these names from elsewhere."""
        for name in (RECORDS, IMAGES, *(form.file for form in TRACK_FORMATS.values())):
            if (self.folder / name).exists():
                raise ConfigurationError(
                    f"{self.folder / name} exists and is not from `triton-sam track`: give another --out"
                )

    def _remove_results(self, manifest: Mapping[str, Any]) -> None:
        before = manifest.get("parameters")
        stems = (before.get(_NAMING) if isinstance(before, dict) else None) or []
        named = {mask_file(frame, stems) for frame in range(len(stems))}
        for name in dict.fromkeys((RECORDS, IMAGES, *(form.file for form in TRACK_FORMATS.values()))):
            path = self.folder / name
            if not path.is_dir():
                path.unlink(missing_ok=True)
                continue
            for file in path.iterdir():
                if file.name in named if named else _NUMBERED.fullmatch(file.name):  # other files are the user's
                    file.unlink()
            with contextlib.suppress(OSError):
                path.rmdir()

    def _kept(self, frame: int) -> Path:
        return self.folder / IMAGES / f"{frame:05d}.jpg"

    def _refuse_second(self) -> None:
        raise ConfigurationError(f"another process writes to {self.folder}: wait for it, or give another --out")


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [name for name in dict.fromkeys([*before, *now]) if before.get(name) != now.get(name)]
