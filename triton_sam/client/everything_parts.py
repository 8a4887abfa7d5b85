"""The parts of a search for all objects that the session model decodes and filters."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from .._common import strict_json
from ..errors import InferenceError
from ..everything.parameters import Parameters
from ..everything.parts import FoundMask, Part, Seen
from ..masks.rle import rle_to_mask
from ..transport.base import Tensors
from ..wire import contract
from ..wire.pair import ModelPair, Request
from .clicks import with_image
from .flows import Flow
from .lacks import Notice
from .session_image import SessionImage, text
from .session_model import Capabilities


class PartFlows:
    """The flow of one part.

    Args:
        pair: the models.
        capabilities: of the session model.
    """

    def __init__(self, pair: ModelPair, capabilities: Capabilities) -> None:
        self._pair = pair
        self._capabilities = capabilities
        self._notice = Notice()

    def see_part(self, part: Part) -> Flow[Seen | None]:
        """Let the server find the objects under some points.

        Returns:
            The objects; None if the client has to decode and filter by itself: the embeddings are here, or the session
            model is of an earlier version.

        Raises:
            ServerError: the request failed.
        """
        image = part.image
        if not isinstance(image, SessionImage):
            self._log_clicks("this client keeps the embeddings; embeddings='auto' or 'server' avoids it", part)
            return None
        if not (yield from self._capabilities.has(contract.EVERYTHING_PART)):
            self._log_clicks(f"{self._pair.session_model} of this server is of an earlier version: update it", part)
            return None
        inputs = {
            contract.IMAGE_ID: text(image.remote.image_id.encode()),
            contract.EVERYTHING_PART: text(_part_to_json(part)),
        }
        request = Request(self._pair.session_model, inputs, (contract.RESULT_JSON, contract.IMAGE_ID))
        try:
            outputs = yield request
        except InferenceError as error:
            for again in with_image(request, image.remote, error):
                outputs = yield again
        else:
            image.remote.misses = 0
        image.keep_id(outputs)
        return _read_seen(outputs, self._pair.session_model)

    def _log_clicks(self, reason: str, part: Part) -> None:
        open_ = sorted(part.parameters.left_open)
        defaults = (
            f", with the official defaults of {' and '.join(open_)}, which may not fit the model" if open_ else ""
        )
        self._notice.log(f"a search for all objects sends each click and filters the masks itself{defaults}: {reason}")


def _part_to_json(part: Part) -> bytes:
    request: dict[str, Any] = {"points": part.points.tolist(), "parameters": _members(part.parameters)}
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


def _read_seen(outputs: Tensors, model: str) -> Seen:
    """Read the answer.

    Raises:
        InferenceError: the served model does not keep the wire contract.
    """
    try:
        answer = json.loads(outputs[contract.RESULT_JSON].ravel()[0])
        masks = [_read_mask(each) for each in answer["objects"]]
        return Seen(masks, answer["decodes"], answer["candidates"], Counter(answer["dropped"]))
    except (ValueError, LookupError, TypeError) as error:
        raise contract.unknown_form(model) from error


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
