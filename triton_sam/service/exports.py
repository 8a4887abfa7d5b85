"""Data set files from a caller's masks: the route ``/v1/exports``. The writers are those of ``triton-sam annotate``."""

from __future__ import annotations

import io
import itertools
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field, ValidationError, field_validator
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile

from ..annotate.folder import ImageRecord
from ..annotate.sources import ImageItem
from ..annotate.writers import WRITERS
from ..errors import InputError
from ..masks.polygons import main_polygons
from ..masks.rle import rle_to_mask
from ..masks.segment import Segment
from .answers import MAX_MASK_PIXELS
from .bodies import FILES, MAX_VALUES, kind_of
from .budgets import MEGA
from .cancellation import FILE_SECONDS, CancellableRequests
from .engine import Engine
from .faults import first_fault
from .problems import Problem
from .schemas import BINARY, RleMask, Side, Strict, file_route
from .settings import MEBI

if TYPE_CHECKING:
    ExportFormat = str
else:
    ExportFormat = Literal[tuple(WRITERS)]

PRINTABLE = r"^[^\x00-\x1f\x7f-\x9f\x{FFFE}\x{FFFF}]*$"
"""XML and class lists cannot contain control characters."""
MAX_FILE_NAME = 200
"""Bytes; file systems allow 255, including the suffixes that writers add."""
MAX_PATH, MAX_FOLDERS = 1000, 16
"""Maximum bytes of a name with its folders, and number of these folders."""


class ExportedObject(Strict):
    label: str = Field(min_length=1, max_length=60, pattern=PRINTABLE)
    name: str = Field(default="", max_length=60, pattern=PRINTABLE)
    score: float = Field(default=1.0, allow_inf_nan=False)
    rle: RleMask


class ExportedImage(Strict):
    """One line of the request: an image with all its objects."""

    name: str = Field(pattern=PRINTABLE)
    width: Side
    height: Side
    objects: Annotated[list[ExportedObject], Field(fail_fast=True)]

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        parts = name.split("/")
        is_plain = "\\" not in name and all(part.strip(". ") for part in parts)
        is_short = len(name.encode()) <= MAX_PATH and len(parts) - 1 <= MAX_FOLDERS
        if not is_plain or not is_short or max(len(part.encode()) for part in parts) > MAX_FILE_NAME:
            raise ValueError(
                f"give the name of a file, such as a.jpg or folder/a.jpg, of at most {MAX_FILE_NAME} bytes"
            )
        return name


@dataclass(frozen=True)
class Export:
    """The images of a request, ready for the writers. ``pixels`` is the size of the largest image."""

    images: tuple[ExportedImage, ...]
    pixels: int

    @classmethod
    def read(cls, file: IO[bytes], max_line: int, max_megapixels: float) -> Export:
        images = []
        number = 0
        while line := file.readline(max_line + 1):
            number += 1
            if len(line) > max_line or line.count(b",") > MAX_VALUES:
                limits = f"{max_line / MEBI:g} MiB and {MAX_VALUES} values"
                raise Problem(413, f"line {number}: a line, which is one image, may have at most {limits}")
            if line.strip():
                images.append(_image(line, number, max_megapixels))
        if not images:
            raise Problem(422, "there is no image: send a line of JSON for each one, in the part `images` of a form")
        return cls(tuple(images), max(image.width * image.height for image in images))

    def to_zip(self, form: ExportFormat, check: Callable[[], object]) -> bytes:
        """Return the files of a format as ZIP.

        Args:
            check: called before each image; it raises if the client has disconnected.
        """
        writer = WRITERS[form]
        writer.check()
        names = sorted({each.label for image in self.images for each in image.objects})
        numbers = {name: number for number, name in enumerate(names, 1)}
        kept = [_record(number, image, numbers, check) for number, image in enumerate(self.images, 1)]

        def records() -> Iterator[ImageRecord]:
            for record in kept:
                check()
                yield record

        with tempfile.TemporaryDirectory(prefix="triton-sam-export-") as folder:
            categories = {number: name for name, number in numbers.items()}
            try:
                left = writer.write(Path(folder), records, categories, main_polygons)
            except (FileExistsError, IsADirectoryError, NotADirectoryError):
                raise InputError("a folder of images is named like a file of the data set: rename it") from None
            for each in left:
                raise InputError(f"{each.image}, {each.what}: {each.why}")
            return _zip(Path(folder))


def _image(line: bytes, number: int, max_megapixels: float) -> ExportedImage:
    try:
        image = ExportedImage.model_validate_json(line)
    except ValidationError as error:
        raise Problem(422, f"line {number}: {first_fault(error)}") from None
    pixels = image.width * image.height
    if pixels > max_megapixels * MEGA:
        raise Problem(413, f"line {number}: an image may have at most {max_megapixels:g} million pixels")
    if pixels * len(image.objects) > MAX_MASK_PIXELS:
        text = f"line {number}: {len(image.objects)} masks of {image.width} x {image.height} pixels are too many"
        raise Problem(422, f"{text} for one image: export fewer objects of it, or save COCO on the page")
    return image


def _record(number: int, image: ExportedImage, numbers: dict[str, int], check: Callable[[], object]) -> ImageRecord:
    check()
    size = (image.width, image.height)
    item = ImageItem(number, image.name, Path(image.name))
    categories = [numbers[each.label] for each in image.objects]
    segments = map(_segment, image.objects, [image] * len(image.objects))
    return ImageRecord.of(item, size, segments, categories, names=[each.name or each.label for each in image.objects])


def _segment(given: ExportedObject, image: ExportedImage) -> Segment:
    if given.rle.size != [image.height, image.width]:
        height, width = given.rle.size
        raise InputError(
            f"{image.name}: a mask of {width} x {height} pixels in an image of {image.width} x {image.height}"
        )
    return Segment(rle_to_mask(given.rle.model_dump()), given.score, None)


def _zip(folder: Path) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(folder).as_posix())
    return content.getvalue()


ZIP = "application/zip"
FIELD = "images"
MASKS_AT_A_TIME = 4
"""Masks, or arrays of their size, that a writer holds in memory."""
_LINES = {
    **BINARY,
    "description": "JSON Lines, one image in each: `name`, `width`, `height` and `objects`, each with `label`, `rle`, "
    "and, if it has them, `name` and `score`.",
}
BODY: dict[str, Any] = {
    "required": True,
    "content": {FILES: {"schema": {"type": "object", "required": [FIELD], "properties": {FIELD: _LINES}}}},
}


def router(engine: Engine, requests: CancellableRequests) -> APIRouter:
    api = APIRouter(prefix="/v1", tags=["v1"])

    @api.post(
        "/exports",
        summary="Write a data set",
        **file_route("The files.", [ZIP], 400, 413, 422, 499),
        openapi_extra={"requestBody": BODY},
    )
    async def export(
        request: Request, form: Annotated[ExportFormat, Query(alias="format", description="The format of the files.")]
    ) -> Response:
        """Return masks as data set files in a ZIP, in the formats of `triton-sam annotate`.

        The images themselves are not needed. The classes are the objects' labels in alphabetical order.
        """
        wanted = await _wanted(request, engine)

        def write(steps: Iterator[None]) -> bytes:
            return wanted.to_zip(form, lambda: next(steps))  # raises when the client has disconnected

        pixels = wanted.pixels * MASKS_AT_A_TIME
        work = engine.budgets.workers.reduce(pixels, write, itertools.repeat(None), is_file=True)
        return Response(await requests.run(request, work, timeout=FILE_SECONDS), media_type=ZIP)

    return api


async def _wanted(request: Request, engine: Engine) -> Export:
    if kind_of(request.headers) != FILES:
        raise Problem(415, f"send the images as {FILES}, in the part `{FIELD}`", code="content_type")
    # The parser treats a part without a file name as a field; both hold the same lines.
    async with request.form(max_files=1, max_fields=1, max_part_size=engine.settings.max_body) as form:
        part = form.get(FIELD)
        if part is None:
            raise Problem(422, f"the form has no part with the name `{FIELD}`")
        file = part.file if isinstance(part, UploadFile) else io.BytesIO(part.encode())
        limits = engine.settings.max_json, engine.settings.max_megapixels
        return await run_in_threadpool(Export.read, file, *limits)
