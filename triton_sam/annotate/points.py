"""Reads points from a CSV or JSON file, one or more for each object.

CSV has a header with ``image,x,y`` and optionally ``label`` (1 foreground, 0 background), ``object`` (rows of an image
with the same text are one object; without this column each row is an object) and ``category``. JSON is a list of
objects ``{"image": ..., "points": [[x, y], ...], "labels": [1, ...], "category": "cat"}``. x and y are pixels.
Semicolons and tabs are also accepted as delimiters.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..families.base import Size
from ..inputs.text_files import read_json, read_text
from .prompts import Labelled, Prompt, Prompts
from .sources import OBJECT, ImageItem, Skipped, Source

_REQUIRED = ("image", "x", "y")
_DELIMITERS = ",;\t"


def read_points(path: Path, source: Source) -> Prompts:
    """Return the points of a file. Categories get ids from 1, in the order of their names."""
    rows = list(_json_objects(path) if path.suffix.lower() == ".json" else _csv_objects(path))
    titles = sorted({str(row["category"]) for row in rows if row.get("category")})
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
            category = ids[str(row.get("category") or fallback)]
            found[name].append(Prompt(what, category, points=_points(row)))
        except KeyError:
            faults[name].append(Skipped(name, what, "it has no category, and others have one"))
        except (TypeError, ValueError, OverflowError):
            faults[name].append(Skipped(name, what, "its points are not numbers, or it has another number of labels"))

    def find(item: ImageItem, _: Size) -> tuple[list[Prompt], list[Skipped]]:
        return list(found.get(item.name, ())), list(faults.get(item.name, ()))

    return Prompts({number: title for title, number in ids.items()}, find, tuple(strays))


def _points(row: Mapping[str, Any]) -> tuple[Labelled, ...]:
    points = row["points"]
    labels = row.get("labels") or [1] * len(points)
    if not points:
        raise ValueError("no points")
    return tuple((float(x), float(y), _label(label)) for (x, y), label in zip(points, labels, strict=True))


def _label(value: Any) -> int:
    """Parse a label. Spreadsheets also write 1.0."""
    number = float(value)
    if not number.is_integer():
        raise ValueError("a label is a whole number")
    return int(number)


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
    yield from joined.values()


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a CSV file, each with the number of its last line.

    The header determines the delimiter. With semicolons, numbers may have a decimal comma, as Excel writes them in many
    European locales.
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
            if delimiter == ";":
                row |= {name: str(row[name]).replace(",", ".") for name in ("x", "y")}
            yield line, row
    except csv.Error as error:  # for example a field above 128 KiB
        raise InputError(f"{path}, line {line + 1}: invalid CSV (an unclosed quotation mark?)") from error
