"""The search for all objects by the session model: in one request, or in parts, which tell the progress.

The parts are single requests, or come as a stream where the server has the model for it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

import numpy as np

from .._common import strict_json
from ..errors import InferenceError, ModelNotReadyError, ServerError, ServerTimeoutError
from ..everything.parameters import Parameters
from ..everything.parts import FoundMask, Part, Seen
from ..everything.search import Coming, Found
from ..inputs.images import ImageSource, image_bytes
from ..masks.rle import rle_to_mask
from ..repository.names import STREAM_SUFFIX
from ..transport.base import Tensors
from ..wire import contract
from ..wire.pair import ModelPair, Request
from .clicks import with_image
from .flows import Flow
from .session_image import SessionImage, text

UNKNOWN_INPUT = f"unexpected inference input '{contract.EVERYTHING}'"
"""Part of Triton's own error message for a session model from before this input existed."""
UNKNOWN_PART = f"unexpected inference input '{contract.EVERYTHING_PART}'"
"""The same for parts of a search."""


class JobFlows:
    """The flows of a search in one request and in parts. They remember what the server turns out not to offer.

    Args:
        pair: the models.
        is_used: whether to send such requests at all.
    """

    def __init__(self, pair: ModelPair, *, is_used: bool) -> None:
        self._pair = pair
        self._is_used = self._takes_parts = self._streams = is_used

    def find_everything(self, source: ImageSource, parameters: Parameters) -> Flow[Found | None]:
        """Let the server search for all objects.

        Returns:
            The objects; None if the search has to be made by clicks: the server has no session model or an older one,
            or is so slow that the answer, which comes at the end, does not arrive within the timeout of a call, or the
            session model does not take these parameters.

        Raises:
            ImageError: the source is not a usable image.
            ServerError: the request failed.
        """
        if not self._is_used or not _can_be_sent(parameters):
            return None
        inputs = {contract.IMAGE: text(image_bytes(source)), contract.EVERYTHING: text(_to_json(parameters))}
        try:
            outputs = yield Request(self._pair.session_model, inputs, (contract.RESULT_JSON,))
        except (ModelNotReadyError, ServerTimeoutError):
            self._is_used = False
            return None
        except InferenceError as error:
            if UNKNOWN_INPUT in str(error):
                self._is_used = False
                return None
            meant = contract.read_error(error)
            raise meant from (None if meant is error else error)
        return _read(outputs, self._pair.session_model)

    def see_part(self, part: Part) -> Flow[Seen | None]:
        """Let the server find the objects under some points.

        Returns:
            The objects; None if the client has to decode and filter by itself: the embeddings are here, or the server
            has no session model or an older one.

        Raises:
            ServerError: the request failed.
        """
        image = part.image
        if not self._takes_parts or not isinstance(image, SessionImage):
            return None
        inputs = {
            contract.IMAGE_ID: text(image.remote.image_id.encode()),
            contract.EVERYTHING_PART: text(_part_to_json(part)),
        }
        request = Request(self._pair.session_model, inputs, (contract.RESULT_JSON, contract.IMAGE_ID))
        try:
            outputs = yield request
        except InferenceError as error:
            if UNKNOWN_PART in str(error):
                self._takes_parts = False
                return None
            for again in with_image(request, image.remote, error):
                outputs = yield again
        else:
            image.remote.misses = 0
        image.keep_id(outputs)
        return _read_seen(outputs, self._pair.session_model)

    def stream(self, coming: Coming) -> Request | None:
        """Return the request for a stream of the next parts.

        None if single requests do as well, or if no stream is possible: there is one part alone, the embeddings are
        here, or the server has no model for streams.
        """
        part = coming.part
        image = part.image
        if not (self._streams and self._takes_parts and isinstance(image, SessionImage)):
            return None
        if not coming.step < len(part.points) <= contract.MAX_JOB_POINTS:
            return None
        inputs = {
            contract.IMAGE_ID: text(image.remote.image_id.encode()),
            contract.EVERYTHING_PART: text(_part_to_json(part, {contract.POINTS_PER_ANSWER: coming.step})),
        }
        return Request(f"{self._pair.session_model}{STREAM_SUFFIX}", inputs, (contract.RESULT_JSON,))

    def read_streamed(self, outputs: Tensors) -> Seen:
        """Read an answer of a stream.

        Raises:
            InferenceError: the served model does not keep the wire contract.
        """
        return _read_seen(outputs, f"{self._pair.session_model}{STREAM_SUFFIX}")

    def stream_failed(self, error: ServerError) -> None:
        """Remember a server without the model for streams."""
        if isinstance(error, ModelNotReadyError):
            self._streams = False


def _can_be_sent(parameters: Parameters) -> bool:
    """Whether a session model takes the parameters: it has a limit of points, and takes no point_grids."""
    if parameters.point_grids is not None:
        return False
    points = [int(4**layer) * len(parameters.grid(layer)) for layer in range(parameters.crop_n_layers + 1)]
    return sum(points) <= contract.MAX_JOB_POINTS


def _to_json(parameters: Parameters) -> bytes:
    return strict_json.dumps(_members(parameters), default=np.generic.item).encode()


def _part_to_json(part: Part, more: Mapping[str, Any] = MappingProxyType({})) -> bytes:
    request: dict[str, Any] = {"points": part.points.tolist(), "parameters": _members(part.parameters), **more}
    if part.crop != (0, 0, *part.whole):
        request |= {"crop": list(part.crop), "image_size": list(part.whole)}
    return strict_json.dumps(request, default=np.generic.item).encode()


def _members(parameters: Parameters) -> dict[str, Any]:
    """Return all parameters, also those with their defaults, so that the defaults of the server do not matter.

    The exceptions are thresholds that the caller has not given: the server knows those that fit the model.
    """
    others = {"point_grids", "left_open", *parameters.left_open}
    given = {each.name: getattr(parameters, each.name) for each in fields(parameters) if each.name not in others}
    if parameters.points_per_side is None:
        del given["points_per_side"]
    given["cleanup"] = parameters.cleanup.to_json()
    return given


def _read(outputs: Tensors, model: str) -> Found:
    """Read the answer.

    Raises:
        InferenceError: the served model does not keep the wire contract.
    """
    try:
        answer = json.loads(outputs[contract.RESULT_JSON].ravel()[0])
        masks = [_read_mask(each) for each in answer["objects"]]
        return Found(masks, answer["decodes"], answer["candidates"], Counter(answer["dropped"]))
    except (ValueError, LookupError, TypeError) as error:
        raise contract.unknown_form(model) from error


def _read_seen(outputs: Tensors, model: str) -> Seen:
    """Read the objects under some points, as _read() does."""
    found = _read(outputs, model)
    return Seen(found.masks, found.decodes, found.candidates, found.dropped)


def _read_mask(record: Mapping[str, Any]) -> FoundMask:
    mask = rle_to_mask(record["segmentation"])
    left, top, width, height = record["crop_box"]
    x, y, across, down = record["bbox"]
    ((point_x, point_y),) = record["point_coords"]
    return FoundMask(
        bits=np.packbits(mask[top : top + height, left : left + width]),
        score=record["predicted_iou"],
        stability=record["stability_score"],
        point=(point_x - left, point_y - top),
        box=(x - left, y - top, x - left + across, y - top + down),
        crop=(left, top, left + width, top + height),
        size=(mask.shape[1], mask.shape[0]),
    )
