"""Cuts the request of a stream into the requests for parts that a session model answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from ..._common import strict_json
from ...errors import InputError
from ...wire import contract
from ..image.everything import read_object
from ..image.requests import read_bytes

_EXAMPLE = '{"points": [[8, 8]], "parameters": {}, "points_per_answer": 8}'


def cut(tensors: Mapping[str, npt.NDArray[Any]]) -> tuple[bytes, list[bytes]]:
    """Return the id of the image, and the JSON of each part.

    The session model checks the members of each part; here only the number of points matters.

    Args:
        tensors: ``image_id``, and ``everything_part`` with any number of points up to the limit of a search, and with
            the number of points of each answer.

    Raises:
        InputError: the request is wrong.
    """
    image_id = read_bytes(tensors, contract.IMAGE_ID)
    if image_id is None or contract.EVERYTHING_PART not in tensors:
        raise InputError(f"send {contract.IMAGE_ID} and {contract.EVERYTHING_PART}")
    given = read_object(tensors, contract.EVERYTHING_PART, _EXAMPLE)
    points, step = given.get("points"), given.pop(contract.POINTS_PER_ANSWER, None)
    if not isinstance(points, list) or not 1 <= len(points) <= contract.MAX_JOB_POINTS:
        raise InputError(f"points must be a list of 1 to {contract.MAX_JOB_POINTS} pairs [x, y]")
    if type(step) is not int or not 1 <= step <= contract.MAX_OBJECTS:
        raise InputError(f"{contract.POINTS_PER_ANSWER} must be a whole number within 1..{contract.MAX_OBJECTS}")
    starts = range(0, len(points), step)
    return image_id, [strict_json.dumps({**given, "points": points[start : start + step]}).encode() for start in starts]
