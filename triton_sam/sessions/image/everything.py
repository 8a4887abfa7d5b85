"""The search for all objects as a job of the session model, which lets clicks go first.

The algorithm is triton_sam.everything.search, as in the clients: so both find the same objects.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from ..._common import strict_json
from ...errors import ConfigurationError, InputError
from ...everything.filters import crop_boxes
from ...everything.parameters import Parameters, parameters_of
from ...everything.parts import Decode, FoundMask, Part, Seen, see
from ...everything.search import POINTS_PER_REQUEST, Encode, Found, search
from ...families.base import Family, FloatArray
from ...inputs.formats import FORMATS
from ...inputs.images import open_image
from ...masks.cleanup import Cleanup
from ...wire import contract
from ..cache import HeldImage

_LONGEST_WAIT = 0.5
"""Seconds that a job waits for clicks before each decode, so that it also ends if clicks never cease."""
_COMPANIONS = {contract.IMAGE, contract.EVERYTHING}


class JobCancelledError(Exception):
    """Nobody waits for the answer of a job any more."""


class Turns:
    """Lets clicks go before the decodes of jobs. One job decodes at a time, so a click waits for one decode at most."""

    def __init__(self) -> None:
        self._clicks = 0
        self._clicks_changed = threading.Condition()
        self._jobs = threading.Lock()

    @contextlib.contextmanager
    def click(self) -> Iterator[None]:
        """Decode a click; jobs wait."""
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
        """Decode a part of a job as soon as no click is under way."""
        with self._jobs:
            with self._clicks_changed:
                self._clicks_changed.wait_for(lambda: not self._clicks, _LONGEST_WAIT)
            yield


class Networks(Protocol):
    """Answers the requests of a search."""

    @property
    def step(self) -> int:
        """Number of points in one call of the decoder."""

    def whole(self, content: bytes) -> HeldImage:
        """Return the embeddings of an image file."""

    def crop(self, image: Image.Image) -> HeldImage:
        """Return the embeddings of a part of the image."""

    def decode(self, image: HeldImage, asked: Decode) -> tuple[FloatArray, FloatArray]:
        """Return logits (P,C,h,w) and scores (P,C)."""


Thresholds = Mapping[str, float]
"""The thresholds that hold where a request names none, see triton_sam.everything.thresholds."""


def read_job(tensors: Mapping[str, npt.NDArray[Any]], family: str, thresholds: Thresholds) -> tuple[bytes, Parameters]:
    """Read the request for a job; return the image file and the parameters.

    Raises:
        InputError: there is no image, there are other inputs, or the parameters are wrong.
    """
    others = tensors.keys() - _COMPANIONS
    if others:
        raise InputError(f"{contract.EVERYTHING} cannot be combined with {min(others)}: send it with an image alone")
    if contract.IMAGE not in tensors:
        raise InputError(f"{contract.EVERYTHING} needs the image itself in the same request")
    given = read_object(tensors, contract.EVERYTHING, '{"points_per_side": 16}')
    return _bytes(tensors[contract.IMAGE]), read_parameters(given, family, thresholds)


def read_object(tensors: Mapping[str, npt.NDArray[Any]], name: str, example: str) -> dict[str, Any]:
    """Read an input that holds a JSON object.

    Raises:
        InputError: it holds something else.
    """
    try:
        given = json.loads(_bytes(tensors[name]))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name} is no JSON: {error}") from error
    if not isinstance(given, dict):
        raise InputError(f"{name} must be an object such as {example}")
    return given


def read_parameters(given: dict[str, Any], family: str, thresholds: Thresholds) -> Parameters:
    """Return the parameters of a request.

    Raises:
        InputError: they are wrong.
    """
    if given.get("point_grids") is not None:
        raise InputError("point_grids cannot be sent: give points_per_side")
    if "cleanup" in given:
        if not isinstance(given["cleanup"], dict):
            raise InputError('cleanup must be an object such as {"max_hole_area": 10}')
        given["cleanup"] = Cleanup.from_json(given["cleanup"])
    given.pop("adaptive", None)  # earlier clients send it with every search; all points are tried now
    try:
        return parameters_of(family, {**thresholds, **given})
    except ConfigurationError as error:
        raise InputError(str(error)) from error


def find_everything(
    content: bytes, parameters: Parameters, family: Family, networks: Networks, stopped: Callable[[], bool]
) -> Found:
    """Segment all objects of an image file.

    Raises:
        ImageError: the file is not a usable image.
        InputError: there are too many points.
        JobCancelledError: ``stopped`` became true; it is asked before each request.
    """
    opened = open_image(content, FORMATS)
    _check_points(opened, parameters)
    running = search(opened, family, parameters, max(networks.step, POINTS_PER_REQUEST))
    answer: Any = None
    while True:
        try:
            asked = running.send(answer)
        except StopIteration as end:
            found: Found = end.value
            return found
        if stopped():
            raise JobCancelledError
        answer = None
        if isinstance(asked, Encode):
            answer = networks.whole(content) if asked.image is opened else networks.crop(asked.image)
        elif isinstance(asked, Decode):
            answer = networks.decode(asked.image, asked)


def see_part(part: Part, family: Family, networks: Networks) -> Seen:
    """Find the objects under some points.

    Raises:
        JobCancelledError: nobody waits for them any more.
    """
    running = see(part, family)
    answer: Any = None
    while True:
        try:
            asked = running.send(answer)
        except StopIteration as end:
            seen: Seen = end.value
            return seen
        answer = networks.decode(asked.image, asked)


def write_seen(seen: Seen) -> dict[str, npt.NDArray[Any]]:
    """Return ``result_json`` as write_found() does, for a part of a search."""
    return write_found(Found(seen.masks, seen.decodes, seen.candidates, seen.dropped))


def write_found(found: Found) -> dict[str, npt.NDArray[Any]]:
    """Return ``result_json``: objects with the keys of the official generators, counts, and the reason for none.

    Full-size masks are made one by one.
    """
    result = {
        "objects": [_record(each) for each in found.masks],
        "decodes": found.decodes,
        "candidates": found.candidates,
        "dropped": found.dropped,
        "reason": None if found.masks else found.reason,
    }
    return {contract.RESULT_JSON: np.array([strict_json.dumps(result).encode()], np.object_)}


def _record(found: FoundMask) -> dict[str, Any]:
    each = found.segment()
    left, top, right, bottom = found.placed_box
    crop_left, crop_top, crop_right, crop_bottom = each.crop_box
    return {
        "segmentation": each.to_rle(),
        "area": each.area,
        "bbox": [left, top, right - left, bottom - top],
        "predicted_iou": each.score,
        "point_coords": [list(each.point)],
        "stability_score": each.stability_score,
        "crop_box": [crop_left, crop_top, crop_right - crop_left, crop_bottom - crop_top],
    }


def _check_points(image: Image.Image, parameters: Parameters) -> None:
    crops = crop_boxes(image.size, parameters.crop_n_layers, parameters.crop_overlap_ratio)
    count = sum(len(parameters.grid(layer)) for _, layer in crops)
    if count > contract.MAX_JOB_POINTS:
        raise InputError(f"{count} points in all crops: a request may have at most {contract.MAX_JOB_POINTS}")


def _bytes(array: npt.NDArray[Any]) -> bytes:
    if not array.size:
        raise InputError("an input is empty")
    value = array.ravel()[0]
    return value if isinstance(value, bytes) else bytes(value)
