"""The prompts of a run: for each object a box, points, or a mask to refine, and a category.

To add a file format, write a function that returns `Prompts` and add it to reading.py. A CSV file of points has a
header with ``image,x,y`` and optionally ``label`` (1 foreground, 0 background), ``object`` (rows of an image with the
same text are one object; without this column each row is an object) and ``category``. A JSON file is a list of objects
``{"image": ..., "points": [[x, y], ...], "labels": [1, ...], "category": "cat"}``. x and y are pixels. Semicolons and
tabs are also accepted as delimiters.
"""

from __future__ import annotations

import csv
import io
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from .._common.checks import whole_number
from ..errors import InputError
from ..families.base import Family, FloatArray, Size
from ..inputs.prompts import MASK_LOGIT
from ..inputs.remote import read_json, read_text
from ..masks import mask_to_box, rle_to_mask
from ..masks.rle import rle_to_box
from .sources import OBJECT, ImageItem, Skipped, Source

Corners = tuple[float, float, float, float]
"""x1, y1, x2, y2 in pixels of the image."""
Labelled = tuple[float, float, int]
"""x and y in pixels of the image, and 1 for foreground or 0 for background."""


@dataclass(frozen=True)
class Prompt:
    """The prompt of one object: a box, points, or a mask."""

    what: str
    category: int
    box: Corners | None = None
    points: tuple[Labelled, ...] = ()
    mask: Mapping[str, Any] | None = None

    @property
    def key(self) -> str:
        """Equal prompts of the same category have equal keys."""
        return repr((self.category, self.box, self.points, self.mask))

    def arguments(self, family: Family) -> dict[str, Any]:
        """Return the arguments of client.segment() for this object. A mask is sent with its box."""
        if self.mask is not None:
            pixels = rle_to_mask(self.mask)
            return {"box": mask_to_box(pixels), "mask_input": mask_logits(pixels, family)}
        if self.points:
            return {
                "point_coords": [[x, y] for x, y, _ in self.points],
                "point_labels": [label for *_, label in self.points],
            }
        return {"box": self.box}


@dataclass(frozen=True)
class Prompts:
    """The prompts of all images.

    Args:
        find: returns the prompts of an image of the given size, and the unreadable parts of the file.
    """

    categories: dict[int, str]
    find: Callable[[ImageItem, Size], tuple[list[Prompt], list[Skipped]]]
    strays: tuple[Skipped, ...] = ()

    def of(self, item: ImageItem, size: Size) -> tuple[list[Prompt], list[Skipped]]:
        """Return the usable prompts of an image, and the skipped ones.

        Boxes are clipped to the image. If an object has several points, only the points outside the image are skipped.
        """
        found, skipped = self.find(item, size)
        kept: list[Prompt] = []
        seen: set[str] = set()
        for each in found:
            prompt, faults = _usable(each, size, self.categories)
            if prompt is not None and prompt.key in seen:
                prompt, faults = None, [*faults, "an equal prompt of the same category precedes it"]
            skipped += [Skipped(item.name, each.what, fault) for fault in faults]
            if prompt is not None:
                kept.append(prompt)
                seen.add(prompt.key)
        return kept, skipped


def mask_logits(mask: np.ndarray[Any, Any], family: Family) -> FloatArray:
    """Return a mask (H,W) as logits (S,S) like those of an earlier prediction, S = ``family.mask_size``.

    Averaged pixels of 0 and 1 become -10 to 10. If the family pads images, the padding is background.
    """
    height, width = mask.shape
    share = family.mask_size / family.image_size
    low = tuple(max(1, round(side * share)) for side in family.resized((width, height)))
    small = Image.fromarray(np.asarray(mask, np.float32)).resize((low[0], low[1]), Image.Resampling.BOX)
    frame = np.zeros((family.mask_size, family.mask_size), np.float32)
    frame[: low[1], : low[0]] = np.asarray(small)
    return np.asarray((2 * frame - 1) * MASK_LOGIT, np.float32)


def _usable(prompt: Prompt, size: Size, categories: Mapping[int, str]) -> tuple[Prompt | None, list[str]]:
    """Return the usable part of a prompt (None: nothing), and why the rest is unusable."""
    if prompt.category not in categories:
        return None, [f"there is no category {prompt.category}"]
    if prompt.box is not None:
        return _usable_box(prompt, prompt.box, size)
    if prompt.points:
        return _usable_points(prompt, size)
    fault = _fault_of_mask(prompt.mask or {}, size)
    return (None, [fault]) if fault else (prompt, [])


def _usable_box(prompt: Prompt, box: Corners, size: Size) -> tuple[Prompt | None, list[str]]:
    if not all(map(math.isfinite, box)):
        return None, ["a number of the box is not finite"]
    if box[2] <= box[0] or box[3] <= box[1]:
        return None, ["the box has no area"]
    # Rounded as in the client, which would refuse the whole image if the box was empty.
    x1, y1, x2, y2 = np.clip(box, 0, (*size, *size)).astype(np.float32).tolist()
    if x2 <= x1 or y2 <= y1:
        return None, [f"the box lies outside the image of {size[0]} x {size[1]} pixels"]
    return replace(prompt, box=(x1, y1, x2, y2)), []


def _usable_points(prompt: Prompt, size: Size) -> tuple[Prompt | None, list[str]]:
    unknown = next((label for *_, label in prompt.points if label not in (0, 1)), None)
    if unknown is not None:
        return None, [f"a label is {unknown}: 1 is foreground, 0 is background"]
    faults = [_fault_of_point(x, y, size) for x, y, _ in prompt.points]
    kept = tuple(point for point, fault in zip(prompt.points, faults, strict=True) if not fault)
    left = [fault for fault in faults if fault]
    if any(label for *_, label in kept):
        return replace(prompt, points=kept), left
    return None, left or ["the object has no foreground point"]


def _fault_of_point(x: float, y: float, size: Size) -> str:
    if 0 <= x <= size[0] and 0 <= y <= size[1]:  # false for NaN
        return ""
    return f"the point {x:g},{y:g} lies outside the image of {size[0]} x {size[1]} pixels"


def _fault_of_mask(rle: Mapping[str, Any], size: Size) -> str:
    try:
        box = rle_to_box(rle)  # without decoding: a few bytes of RLE may stand for very many pixels
    except InputError as error:
        return str(error)
    height, width = map(int, rle["size"])
    if (width, height) != size:
        return f"the mask has {width} x {height} pixels, and the image {size[0]} x {size[1]}"
    return "" if box else "the mask is empty"


_REQUIRED = ("image", "x", "y")
_DELIMITERS = ",;\t"


def read_points(path: Path, source: Source) -> Prompts:
    """Return the points of a file. Categories get ids from 1, in the order of their names."""
    rows = list(_json_objects(path) if path.suffix.lower() == ".json" else _csv_objects(path))
    titles = sorted({title for row in rows if (title := _category(row))})
    ids = {title: number for number, title in enumerate(titles or OBJECT.values(), 1)}
    fallback = "" if titles else OBJECT[1]
    found: dict[str, list[Prompt]] = defaultdict(list)
    faults: dict[str, list[Skipped]] = defaultdict(list)
    strays = []
    for row in rows:
        name, what = source.find_name(str(row["image"])), str(row["what"])
        if name is None:
            strays.append(Skipped(str(row["image"]), what, "the source has no such image, or it was skipped"))
            continue
        try:
            category = ids[_category(row) or fallback]
            found[name].append(Prompt(what, category, points=_points(row)))
        except KeyError:
            faults[name].append(Skipped(name, what, "it has no category, and others have one"))
        except (TypeError, ValueError, OverflowError):
            faults[name].append(Skipped(name, what, "its points are not numbers, or it has another number of labels"))

    def find(item: ImageItem, _: Size) -> tuple[list[Prompt], list[Skipped]]:
        return list(found.get(item.name, ())), list(faults.get(item.name, ()))

    return Prompts({number: title for title, number in ids.items()}, find, tuple(strays))


def _category(row: Mapping[str, Any]) -> str:
    """Return the category of an object, which may be the number 0; "" without one."""
    category = row.get("category")
    return "" if category is None else str(category)


def _points(row: Mapping[str, Any]) -> tuple[Labelled, ...]:
    points = row["points"]
    labels = row.get("labels") or [1] * len(points)
    if not points:
        raise ValueError("no points")
    return tuple((float(x), float(y), whole_number(float(label))) for (x, y), label in zip(points, labels, strict=True))


def _json_objects(path: Path) -> Iterator[dict[str, Any]]:
    rows = read_json(path)
    if not isinstance(rows, list):
        raise InputError(f'{path} is not a list of objects {{"image": ..., "points": [[x, y], ...]}}')
    for number, row in enumerate(rows, 1):
        usable = row if isinstance(row, dict) else {}
        yield {"image": "", "points": None, **usable, "what": f"object {number}"}


def _csv_objects(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a CSV file. Rows of the same object are joined."""
    joined: dict[tuple[str, str], dict[str, Any]] = {}
    for line, row in _csv_rows(path):
        label = row.get("object") or f"line {line}"
        what = f"object {label}" if row.get("object") else label
        start: dict[str, Any] = {
            "image": row["image"],
            "what": what,
            "points": [],
            "labels": [],
            "category": row.get("category"),
        }
        entry = joined.setdefault((str(row["image"]), label), start)
        entry["points"].append((row["x"], row["y"]))
        entry["labels"].append(row.get("label") or 1)
        entry["category"] = entry["category"] or row.get("category")
    yield from joined.values()


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a CSV file, each with the number of its last line.

    The header determines the delimiter. With semicolons and tabs, numbers may have a decimal comma, as Excel writes
    them in many European locales.
    """
    text = read_text(path)
    header = text.partition("\n")[0].strip()
    delimiter = max(_DELIMITERS, key=header.count)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    line = 0
    try:
        reader.fieldnames = [name.strip().lower() for name in reader.fieldnames or ()]
        missing = [name for name in _REQUIRED if name not in reader.fieldnames]
        if missing:
            raise InputError(
                f"{path} has no column {', '.join(missing)}: its first line must name the columns, image,x,y,..., "
                f"and it is {header[:80]!r}"
            )
        line = reader.line_num
        for row in reader:
            line = reader.line_num
            if delimiter != ",":
                row |= {name: str(row[name]).replace(",", ".") for name in ("x", "y")}
            yield line, row
    except csv.Error as error:  # for example a field above 128 KiB
        raise InputError(f"{path}, line {line + 1}: invalid CSV (an unclosed quotation mark?)") from error
