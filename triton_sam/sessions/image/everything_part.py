"""Reads a request for a part of a search: the objects under some points, for clients that search and show progress.

Such a client keeps the grid and the suppression to itself. The decodes and the filters, which take the time, are here.
A request names the image and everything else, so that each may reach another server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from ...errors import InputError
from ...everything.parameters import Parameters
from ...everything.parts import Part
from ...families.base import Size
from ...masks.boxes import Box
from ...wire import contract
from ..cache import HeldImage
from .everything import Thresholds, read_object, read_parameters
from .requests import SessionRequest, read_bytes

_COMPANIONS = {contract.IMAGE, contract.IMAGE_ID, contract.EVERYTHING_PART}
_MEMBERS = ("points", "parameters", "crop", "image_size")
_MAX_PIXELS = 2 * (Image.MAX_IMAGE_PIXELS or 1 << 27)
_EXAMPLE = '{"points": [[8, 8]], "parameters": {}}'


@dataclass(frozen=True)
class PartRequest:
    """A request for a part of a search.

    Args:
        image: names the image, which is a crop if ``crop`` is given.
        points: float64 (N,2), x and y in pixels of that image.
        parameters: the filters.
        crop: x1, y1, x2, y2 of the crop in pixels of the whole image; None without crops.
        whole: width and height of the whole image; None without crops.
    """

    image: SessionRequest
    points: npt.NDArray[np.float64]
    parameters: Parameters
    crop: Box | None
    whole: Size | None

    def part(self, image: HeldImage) -> Part:
        """Return the part of a search on an image.

        Raises:
            InputError: the points or the crop do not fit the image.
        """
        crop = self.crop or (0, 0, *image.image_size)
        if (crop[2] - crop[0], crop[3] - crop[1]) != tuple(image.image_size):
            raise InputError(f"crop {list(crop)} does not have the size of the image, {list(image.image_size)}")
        if not ((self.points >= 0) & (self.points <= image.image_size)).all():
            raise InputError("points must lie in the image")
        return Part(image, self.points, crop, self.whole or image.image_size, self.parameters)


def read_part(tensors: Mapping[str, npt.NDArray[Any]], family: str, thresholds: Thresholds) -> PartRequest:
    """Read a request.

    Raises:
        InputError: it is wrong.
    """
    others = tensors.keys() - _COMPANIONS
    if others:
        raise InputError(f"{contract.EVERYTHING_PART} cannot be combined with {min(others)}")
    content, image_id = (read_bytes(tensors, name) for name in (contract.IMAGE, contract.IMAGE_ID))
    if (content is None) == (image_id is None):
        raise InputError("give either an image or the image_id of one that was sent before")
    named = SessionRequest(image=content, image_id=None if image_id is None else image_id.decode(errors="replace"))
    given = read_object(tensors, contract.EVERYTHING_PART, _EXAMPLE)
    unknown = sorted(given.keys() - set(_MEMBERS))
    if unknown:
        raise InputError(f"{contract.EVERYTHING_PART} has no {unknown[0]!r}: its members are {', '.join(_MEMBERS)}")
    parameters = given.get("parameters", {})
    if not isinstance(parameters, dict):
        raise InputError(f"parameters must be an object such as in {_EXAMPLE}")
    crop, whole = _whole_numbers(given, "crop", 4), _whole_numbers(given, "image_size", 2)
    if (crop is None) != (whole is None):
        raise InputError("crop and image_size belong together")
    if crop is not None:
        _check_crop(crop, whole)
    chosen = read_parameters(parameters, family, thresholds)
    return PartRequest(named, _points(given.get("points")), chosen, crop, whole)


def _check_crop(crop: Box, whole: Size) -> None:
    """Check that a crop lies in an image, and that the image is not larger than those that Pillow opens."""
    left, top, right, bottom = crop
    if not (0 <= left < right <= whole[0] and 0 <= top < bottom <= whole[1]):
        raise InputError(f"crop {list(crop)} does not lie in an image of {whole[0]} x {whole[1]} pixels")
    if whole[0] * whole[1] > _MAX_PIXELS:
        raise InputError(f"image_size may have at most {_MAX_PIXELS} pixels")


def _points(given: Any) -> npt.NDArray[np.float64]:
    try:
        points = np.array(given, np.float64)
    except (TypeError, ValueError):
        points = np.zeros(0)
    if points.ndim != 2 or points.shape[1] != 2 or not 1 <= len(points) <= contract.MAX_OBJECTS:
        raise InputError(f"points must be a list of 1 to {contract.MAX_OBJECTS} pairs [x, y]")
    return points


def _whole_numbers(given: Mapping[str, Any], name: str, count: int) -> Any:
    """Return a member as a tuple of whole numbers; None if there is none."""
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != count or not all(type(each) is int for each in value):
        raise InputError(f"{name} must be a list of {count} whole numbers")
    return tuple(value)
