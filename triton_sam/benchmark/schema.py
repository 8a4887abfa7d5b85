"""Check results against their JSON schema, the file schema.json in this folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .._common.extras import missing
from ..families import FAMILIES


def schema() -> dict[str, Any]:
    """Return the JSON schema of a result, with the names of the registered families."""
    read: dict[str, Any] = json.loads(Path(__file__).with_name("schema.json").read_text(encoding="utf-8"))
    read["properties"]["model"]["properties"]["family"]["enum"] = list(FAMILIES)
    return read


def problem(data: object) -> str:
    """Return the first violation of the schema as one line of text; an empty string when the data fit it.

    Raises:
        MissingDependencyError: jsonschema is not installed.
    """
    try:
        from jsonschema import Draft202012Validator
    except ImportError as error:
        raise missing("reading results needs", "benchmark", error) from error
    fault = next(Draft202012Validator(schema()).iter_errors(data), None)
    if fault is None:
        return ""
    place = "/".join(str(part) for part in fault.absolute_path)
    return f"{place}: {fault.message[:200]}" if place else str(fault.message[:200])
