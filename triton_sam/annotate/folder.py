"""The folder of a run. It stores the parameters, so that the same command resumes after an interruption.

`manifest.json` holds the model and the parameters; a run with other parameters is refused. `shards/` holds the records
of the images, a fixed number of consecutive images in each file, each as one line of JSON. Shards are written
atomically, so each is complete or absent. All other files in the folder are made from the shards.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .._common import strict_json
from .._common.files import atomic_path, atomic_write, locked
from ..errors import ConfigurationError, InputError
from ..families.base import Size
from ..masks.coco import coco_object
from ..masks.rle import BoolArray, rle_to_mask
from ..masks.segment import Segment
from .sources import MANIFEST, SHARDS, ImageItem, Skipped


@dataclass(frozen=True)
class ImageRecord:
    """The objects of one image, or the error.

    Args:
        size: width and height in pixels; (0, 0) if the image cannot be opened.
        objects: for each object ``category_id``, ``score`` (predicted IoU), ``area`` (pixels), ``bbox`` (x, y, width,
            height in pixels), ``segmentation`` (compressed COCO RLE) and optionally ``name``.
    """

    id: int
    name: str
    size: Size
    objects: tuple[dict[str, Any], ...] = ()
    skipped: tuple[Skipped, ...] = ()
    error: str = ""

    @classmethod
    def of(
        cls,
        item: ImageItem,
        size: Size,
        segments: Iterable[Segment],
        categories: Sequence[int],
        skipped: Sequence[Skipped] = (),
        *,
        origins: Sequence[str] = (),
        names: Sequence[str] = (),
    ) -> ImageRecord:
        """Create the record of an image from its segments.

        Empty masks are listed as skipped, because readers of most formats reject them.
        """
        objects, left = [], list(skipped)
        for number, (segment, category) in enumerate(zip(segments, categories, strict=True)):
            if segment.box is None:
                origin = origins[number] if origins else f"object {number + 1}"
                left.append(Skipped(item.name, origin, "its mask is empty"))
                continue
            objects.append({**coco_object(segment, category), **({"name": names[number]} if names else {})})
        return cls(item.id, item.name, size, tuple(objects), tuple(left))

    def mask(self, index: int) -> BoolArray:
        """Return the bool mask (H,W) of an object."""
        return rle_to_mask(self.objects[index]["segmentation"])

    def with_masks(self) -> Iterator[tuple[dict[str, Any], BoolArray]]:
        """Yield each object with its bool mask (H,W), with one in memory at a time."""
        for index, each in enumerate(self.objects):
            yield each, self.mask(index)

    def to_line(self) -> str:
        return strict_json.dumps(asdict(self), separators=(",", ":")) + "\n"

    @classmethod
    def from_line(cls, line: str) -> ImageRecord:
        try:
            values = json.loads(line)
            values["size"] = (values["size"][0], values["size"][1])
            values["objects"] = tuple(values["objects"])
            values["skipped"] = tuple(Skipped(**each) for each in values["skipped"])
            return cls(**values)
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"not the record of an image: {error}") from error


ERRORS = "errors.jsonl"
SKIPPED = "skipped.jsonl"
SHARD_SIZE = 16
"""Images in one shard. A killed run loses at most this number of images for each open shard."""

_LOCK = ".annotate.lock"
_SECONDS_FOR_PARTS = 5.0
"""Seconds that a part waits for the lock of the whole folder, which other parts hold briefly when they begin."""

Shard = tuple[int, Sequence[ImageItem]]
"""The number of a shard and its images."""


@dataclass(frozen=True)
class Part:
    """The shards that one of several processes fills: shard i belongs to process i % count."""

    index: int
    count: int


class RunFolder:
    """Stores the records of the images of a run.

    Args:
        items: all images of the source, in the order of the run.
    """

    def __init__(
        self, folder: Path, parameters: Mapping[str, Any], items: Sequence[ImageItem], shard_size: int = SHARD_SIZE
    ) -> None:
        self.folder = folder
        self.parameters = json.loads(strict_json.dumps({**parameters, "shard_size": shard_size}))
        self._items = items
        self._size = shard_size

    @contextlib.contextmanager
    def opened(self, part: Part | None = None) -> Iterator[None]:
        """Lock the folder for this process while the block runs.

        Args:
            part: lock only this part, while other processes lock theirs. None: lock the whole folder.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._held(part) as is_ours_alone:
            self._check_manifest()
            (self.folder / SHARDS).mkdir(exist_ok=True)
            if is_ours_alone:  # otherwise, a process that fills another part may use a temporary file
                for leftover in self.folder.rglob(".*.tmp.*"):
                    leftover.unlink()  # a killed run left it
            yield

    @contextlib.contextmanager
    def _held(self, part: Part | None) -> Iterator[bool]:
        """Lock the whole folder or a part; yield whether all other processes are excluded from the folder."""
        whole = self.folder / _LOCK
        with contextlib.ExitStack() as locks:
            if part is None:
                is_held = locks.enter_context(locked(whole, self._refuse_second))
                for each in sorted(self.folder.glob(f"{_LOCK}.*")):
                    with locked(each, partial(self._refuse_joining, each.name[len(_LOCK) + 1 :].replace("-", "/"))):
                        pass  # a killed process left it
            else:
                is_held = False
                with locked(whole, self._refuse_second, _SECONDS_FOR_PARTS):  # other parts may begin at the same time
                    own = self.folder / f"{_LOCK}.{part.index}-{part.count}"
                    locks.enter_context(locked(own, self._refuse_second))
            yield is_held

    def shards(self, items: Sequence[ImageItem], part: Part | None = None) -> Iterator[Shard]:
        """Yield the shards of the first images of the run, or the shards of a part."""
        for start in range(0, len(items), self._size):
            number = start // self._size
            if part is None or number % part.count == part.index:
                yield number, items[start : start + self._size]

    def state(self, number: int, wanted: Sequence[ImageItem]) -> tuple[dict[int, ImageRecord], list[ImageItem]]:
        """Return the records of a shard by image id, and the images without a record."""
        records = {record.id: record for record in self.read(number)}
        return records, [item for item in wanted if item.id not in records]

    def read(self, number: int) -> list[ImageRecord]:
        """Return the records of a shard; empty if the shard is absent."""
        path = self._path(number)
        try:
            return [ImageRecord.from_line(line) for line in path.read_text(encoding="utf-8").splitlines()]
        except FileNotFoundError:
            return []
        except (ValueError, TypeError) as error:
            raise InputError(f"{path} is damaged: remove it, and the same command makes it again") from error

    def has(self, number: int) -> bool:
        """Return whether a shard was written. A run with a limit may have left out some of its images."""
        return self._path(number).exists()

    def write(self, number: int, records: Sequence[ImageRecord]) -> None:
        """Write the records of a shard atomically."""
        atomic_write(self._path(number), "".join(record.to_line() for record in records).encode())

    def records(self) -> Iterator[ImageRecord]:
        """Yield all records in the order of the run."""
        for number, _ in self.shards(self._items):
            yield from self.read(number)

    def write_reports(self, skipped: Sequence[Skipped]) -> tuple[int, int]:
        """Write one line for each failed image, with its shard, and each skipped item.

        Returns:
            The number of failed images, and the number of skipped items in the records.
        """
        errors = omitted = 0
        with (
            atomic_path(self.folder / ERRORS) as first,
            atomic_path(self.folder / SKIPPED) as second,
            first.open("w", encoding="utf-8") as failed,
            second.open("w", encoding="utf-8") as left,
        ):
            left.writelines(strict_json.dumps(asdict(each)) + "\n" for each in skipped)
            for number, _ in self.shards(self._items):
                shard = self._path(number).relative_to(self.folder).as_posix()
                for record in self.read(number):
                    left.writelines(strict_json.dumps(asdict(each)) + "\n" for each in record.skipped)
                    omitted += len(record.skipped)
                    if record.error:
                        failed.write(
                            strict_json.dumps({"image": record.name, "error": record.error, "shard": shard}) + "\n"
                        )
                        errors += 1
        return errors, omitted

    def _path(self, number: int) -> Path:
        return self.folder / SHARDS / f"{number:08d}.jsonl"

    def _check_manifest(self) -> None:
        path = self.folder / MANIFEST
        if not path.exists():
            foreign = any(not each.name.startswith(".") for each in self.folder.iterdir())
            if foreign and not path.exists():  # another part may have begun the run meanwhile
                raise ConfigurationError(f"{self.folder} holds other files: give another --out")
            atomic_write(path, (strict_json.dumps(self.parameters, indent=2) + "\n").encode())
            return
        try:
            before = dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError, RecursionError) as error:
            raise InputError(f"{path} is damaged: give another --out") from error
        names = [name for name in {**before, **self.parameters} if before.get(name) != self.parameters.get(name)]
        if names:
            raise ConfigurationError(
                f"{self.folder} holds a run with other {', '.join(names)}: results do not mix, give another --out"
            )

    def _refuse_joining(self, part: str) -> None:
        raise ConfigurationError(f"the process with --part {part} still writes to {self.folder}: wait until it ends")

    def _refuse_second(self) -> None:
        raise ConfigurationError(f"another process writes to {self.folder}: wait for it, or give another --out")
