"""Convert results to JSON, with the verdict on each threshold, and to CSV; read them from JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import InputError
from .results import FORMAT, Results, Row, Times
from .thresholds import judge


def to_json(results: Results) -> dict[str, Any]:
    """Return results as a dictionary that `json.dumps` accepts and schema.json describes."""
    return {
        "format": FORMAT,
        "complete": results.complete,
        **results.about,
        "rows": [_finite(asdict(row)) for row in results.rows],
        "bars": [_finite({**asdict(threshold), "ok": threshold.ok}) for threshold in judge(results)],
        "notes": results.notes,
    }


def to_csv(results: Results) -> str:
    """Return the rows as a CSV table. Its last column holds the further metrics of a row as ``name=value``."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    names = ("median", "min", "max", "p95", "p99")
    writer.writerow(
        ["section", "what", "who", "protocol", "size", *(f"{name}_ms" for name in names), "n", "per_second", "more"]
    )
    for row in results.rows:
        times = [""] * 6 if row.ms is None else [*(_short(getattr(row.ms, name)) for name in names), row.ms.n]
        more = " ".join(f"{name}={_short(value)}" for name, value in row.more.items())
        rate = "" if row.per_second is None else _short(row.per_second)
        size = "" if row.size is None else row.size
        writer.writerow([row.section, row.what, row.who, row.protocol or "", size, *times, rate, more])
    return stream.getvalue()


def from_json(data: dict[str, Any]) -> Results:
    """Return the results that to_json() converted. ``data`` must fit the schema."""
    rows = [Row(**{**row, "ms": None if row["ms"] is None else Times(**row["ms"])}) for row in data["rows"]]
    about = {key: data[key] for key in ("created", "command", "kit", "machine", "model", "settings")}
    return Results(about, rows, list(data["notes"]), bool(data["complete"]))


def load(path: Path) -> Results:
    """Read a result file in JSON.

    Raises:
        InputError: the file is missing, damaged, or not a result of `triton-sam benchmark`.
        MissingDependencyError: jsonschema is not installed.
    """
    from .schema import problem

    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no result file at {path}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}") from error
    fault = problem(data)
    if fault:
        raise InputError(f"{path} is not a result of `triton-sam benchmark`: {fault}")
    return from_json(data)


def _short(value: float) -> str:
    return f"{value:.6g}"


def _finite(data: dict[str, Any]) -> dict[str, Any]:
    """Round floats to six significant digits, and drop nested infinities and NaN, which JSON cannot carry."""

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: clean(each) for key, each in value.items() if not _is_not_finite(each)}
        return float(f"{value:.6g}") if isinstance(value, float) else value

    return {key: clean(value) for key, value in data.items()}


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
