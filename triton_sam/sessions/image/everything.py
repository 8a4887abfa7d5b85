"""The search for all objects as a job of the session model. Clicks take precedence.

The algorithm is triton_sam.everything.search, as in the clients, so both find the same objects. A request may also
search only one part, the objects under some points. Its client then has the grid, suppresses duplicates and shows
progress. A request for a part names the image and all parameters, so that each part may go to a different server.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from ...errors import ConfigurationError, InputError
from ...everything.parameters import Parameters, parameters_of
from ...everything.search import POINTS_PER_REQUEST, Encode, Found, Part, search_in_parts, see
from ...families.base import Family, FloatArray, Size
from ...inputs.formats import FORMATS
from ...inputs.images import open_image
from ...masks.boxes import Box
from ...masks.cleanup import Cleanup
from ...wire import contract
from ..images import HeldImage, ImageStore
from ..messages import Reply, check_pixels, json_tensor, read_bytes, read_object
from ..tasks import TaskCancelledError
from .messages import SessionRequest, read_request

_LONGEST_WAIT = 0.5
"""Maximum seconds that a job waits for clicks before each decode, so that it also ends if clicks never stop."""
_COMPANIONS = {contract.IMAGE, contract.EVERYTHING}
_PART_COMPANIONS = {contract.IMAGE, contract.IMAGE_ID, contract.EVERYTHING_PART}
_MEMBERS = ("points", "parameters", "crop", "image_size")
_EXAMPLE = '{"points": [[8, 8]], "parameters": {}}'


class Turns:
    """Decodes clicks before jobs. One job decodes at a time, so a click waits for at most one decode."""

    def __init__(self) -> None:
        self._clicks = 0
        self._clicks_changed = threading.Condition()
        self._jobs = threading.Lock()

    @contextlib.contextmanager
    def click(self) -> Iterator[None]:
        """Decode a click while jobs wait."""
        with self._clicks_changed:
            self._clicks += 1
        try:
            yield
        finally:
            with self._clicks_changed:
                self._clicks -= 1
                self._clicks_changed.notify_all()

    @contextlib.contextmanager
    def job(self) -> Iterator[None]:
        """Decode a part of a job when no click is running."""
        with self._jobs:
            with self._clicks_changed:
                self._clicks_changed.wait_for(lambda: not self._clicks, _LONGEST_WAIT)
            yield


@dataclass(frozen=True)
class JobNetworks:
    """The networks for a search. Clicks take precedence, and a stopped job does not decode further.

    Args:
        step: number of points in one call of the decoder.
        predict: returns unclamped logits (P,C,h,w) and scores (P,C) of an image and a prompt.
    """

    images: ImageStore
    turns: Turns
    step: int
    predict: Callable[[HeldImage, SessionRequest], tuple[FloatArray, FloatArray]]
    reply: Reply
    stopped: Callable[[], bool]

    def decode(
        self, image: HeldImage, points: FloatArray, masks: FloatArray | None, multimask: bool
    ) -> tuple[FloatArray, FloatArray]:
        """Return logits (P,C,h,w) and scores (P,C) of P points; see everything.search.Decode."""
        answers = []
        for start in range(0, len(points), self.step):
            part = slice(start, start + self.step)
            request = SessionRequest(
                point_coords=points[part].astype(np.float32),
                mask_input=None if masks is None else masks[part],
                multimask_output=multimask,
            )
            with self.turns.job():
                if self.stopped():
                    raise TaskCancelledError
                answers.append(self.predict(image, request))
        logits, scores = (np.concatenate(parts) for parts in zip(*answers, strict=True))
        return logits, scores


Thresholds = Mapping[str, float]
"""The default thresholds of requests, see triton_sam.everything.parameters."""


def read_job(tensors: Mapping[str, npt.NDArray[Any]], family: str, thresholds: Thresholds) -> tuple[bytes, Parameters]:
    """Read the request for a job; return the image file and the parameters."""
    others = tensors.keys() - _COMPANIONS
    if others:
        raise InputError(f"{contract.EVERYTHING} cannot be combined with {min(others)}: send it with an image alone")
    if contract.IMAGE not in tensors:
        raise InputError(f"{contract.EVERYTHING} needs the image itself in the same request")
    given = read_object(tensors, contract.EVERYTHING, '{"points_per_side": 16}')
    return read_bytes(tensors, contract.IMAGE) or b"", read_parameters(given, family, thresholds)


def read_parameters(given: dict[str, Any], family: str, thresholds: Thresholds) -> Parameters:
    if given.get("point_grids") is not None:
        raise InputError("point_grids cannot be sent: give points_per_side")
    if "cleanup" in given:
        given["cleanup"] = Cleanup.from_json(given["cleanup"])
    given.pop("adaptive", None)  # earlier clients send it with every search; now all points are tried
    try:
        return parameters_of(family, {**thresholds, **given})
    except ConfigurationError as error:
        raise InputError(str(error)) from error


def find_everything(content: bytes, parameters: Parameters, family: Family, networks: JobNetworks) -> Found:
    """Segment all objects of an image file."""
    _check_points(parameters)
    images, reply = networks.images, networks.reply
    whole: HeldImage | None
    whole = images.find(content, reply)
    opened: Image.Image | None = None
    running = search_in_parts(whole.image_size, parameters, max(networks.step, POINTS_PER_REQUEST))
    answer: HeldImage | Found | None = None
    while True:
        if networks.stopped():
            raise TaskCancelledError
        try:
            asked = running.send(answer)
        except StopIteration as end:
            found: Found = end.value
            return found
        answer = None
        if isinstance(asked, Encode):
            if asked.crop is None:
                answer = images.find(content, reply) if whole is None else whole
                whole = None  # only in tiny images, a crop is also the whole image
            else:
                opened = opened or open_image(content, FORMATS)
                answer = images.encode_part(opened.crop(asked.crop), reply)
        elif isinstance(asked, Part):
            answer = see(asked, family, networks.decode)


def write_found(found: Found) -> dict[str, npt.NDArray[Any]]:
    """Return ``result_json``: objects with the keys of the official generators, counts, and why there is no object.

    Full-size masks are computed one by one.
    """
    result = {
        "objects": [each.record() for each in found.masks],
        "decodes": found.decodes,
        "candidates": found.candidates,
        "dropped": found.dropped,
        "reason": None if found.masks else found.reason,
    }
    return {contract.RESULT_JSON: json_tensor(result)}


def _check_points(parameters: Parameters) -> None:
    count = sum(4**layer * len(parameters.grid(layer)) for layer in range(parameters.crop_n_layers + 1))
    if count > contract.MAX_JOB_POINTS:
        raise InputError(f"{count} points in all crops: a request may have at most {contract.MAX_JOB_POINTS}")


@dataclass(frozen=True)
class PartRequest:
    """A request for a part of a search.

    Args:
        image: refers to the image, which is a crop if ``crop`` is given.
        points: float64 (N,2), x and y in pixels of that image.
        crop: x1, y1, x2, y2 of the crop in pixels of the whole image; None without crops.
        whole: width and height of the whole image; None without crops.
    """

    image: SessionRequest
    points: npt.NDArray[np.float64]
    parameters: Parameters
    crop: Box | None
    whole: Size | None

    def part(self, image: HeldImage) -> Part:
        crop = self.crop or (0, 0, *image.image_size)
        if (crop[2] - crop[0], crop[3] - crop[1]) != tuple(image.image_size):
            raise InputError(f"crop {list(crop)} does not have the size of the image, {list(image.image_size)}")
        if not ((self.points >= 0) & (self.points <= image.image_size)).all():
            raise InputError("points must lie in the image")
        return Part(image, self.points, crop, self.whole or image.image_size, self.parameters)


def read_part(tensors: Mapping[str, npt.NDArray[Any]], family: str, thresholds: Thresholds) -> PartRequest:
    others = tensors.keys() - _PART_COMPANIONS
    if others:
        raise InputError(f"{contract.EVERYTHING_PART} cannot be combined with {min(others)}")
    named = read_request(tensors)
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
    """Check that a crop is inside an image, and that Pillow would open an image of this size."""
    left, top, right, bottom = crop
    if not (0 <= left < right <= whole[0] and 0 <= top < bottom <= whole[1]):
        raise InputError(f"crop {list(crop)} does not lie in an image of {whole[0]} x {whole[1]} pixels")
    check_pixels("image_size", whole)


def _points(given: Any) -> npt.NDArray[np.float64]:
    try:
        points = np.array(given, np.float64)
    except (TypeError, ValueError, OverflowError):
        points = np.zeros(0)
    if points.ndim != 2 or points.shape[1] != 2 or not 1 <= len(points) <= contract.MAX_OBJECTS:
        raise InputError(f"points must be a list of 1 to {contract.MAX_OBJECTS} pairs [x, y]")
    return points


def _whole_numbers(given: Mapping[str, Any], name: str, count: int) -> Any:
    """Return a member as a tuple of integers; None if it is missing."""
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != count or not all(type(each) is int for each in value):
        raise InputError(f"{name} must be a list of {count} whole numbers")
    return tuple(value)
