"""CVAT: the HTTP of nuclio's dashboard. Reference: cvat/apps/lambda_manager/views.py of https://github.com/cvat-ai/cvat.

CVAT only needs the host and port of nuclio, and the invocation method "dashboard".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from fastapi import APIRouter, Header, Request, Response
from pydantic import Field

from ..._common import strict_json
from ...masks.polygons import mask_to_polygons
from ...masks.rle import BoolArray
from ...masks.segment import Segment
from ..answers import to_json
from ..engine import Pair
from ..problems import Problem
from .adapter import Adapter, basic_password
from .bridge import Bridge, Lenient, Target, json_list
from .cvat_tracker import TrackCall, track

PREFIX = "triton-sam-"
INTERACTOR, DETECTOR, TRACKER = "interactor", "detector", "tracker"
SUFFIX, WORDS, TRACKS = "-everything", "-words", "-tracker"
"""Suffixes of function names: find everything, find words, track."""
LABEL = "object"
HELP = (
    "Click on an object: the left button adds a point inside of it, the right button one outside. A box around it is "
    "optional."
)


class Invocation(Lenient):
    image: str
    pos_points: list[list[float]] = Field(default_factory=list)
    neg_points: list[list[float]] = Field(default_factory=list)
    obj_bbox: list[list[float]] | None = None
    threshold: float | None = None

    def target(self) -> Target:
        box = None
        if self.obj_bbox:
            if len(self.obj_bbox) != 2 or any(len(corner) != 2 for corner in self.obj_bbox):
                raise Problem(422, "obj_bbox must be two points, its corners")
            box = [value for corner in self.obj_bbox for value in corner]
        labels = [1] * len(self.pos_points) + [0] * len(self.neg_points)
        return Target([*self.pos_points, *self.neg_points], labels, box)


def router(bridge: Bridge) -> APIRouter:
    api = APIRouter(prefix="/api")
    words = bridge.engine.settings.cvat_words

    @api.get("/functions")
    async def functions() -> dict[str, Any]:
        """List an interactor for each model, a detector for each model that finds everything, and the trackers."""
        await bridge.pair(None)
        found = [each for pair in bridge.pairs.values() for each in functions_of(pair, words)]
        return {each["metadata"]["name"]: each for each in found}

    @api.get("/functions/{name}")
    async def function(name: str) -> dict[str, Any]:
        found = (await functions()).get(name)
        if found is None:
            raise _unknown(name)
        return dict(found)

    @api.post("/function_invocations")
    async def invoke(request: Request, x_nuclio_function_name: str = Header(max_length=200)) -> Response:
        """Return the mask of an object, all objects, all instances of words, or the objects of the next frame."""
        pair, ending = await _called(bridge, x_nuclio_function_name)
        if ending == TRACKS:
            return await track(bridge, request, pair, await bridge.read(request, TrackCall))
        body = await bridge.read(request, Invocation)
        image = await bridge.image(body.image)
        if ending == SUFFIX:
            options = {"pred_iou_thresh": body.threshold} if body.threshold else {}
            found = await bridge.everything(request, image, pair, options, detection, {"pred_iou_thresh": "threshold"})
            return json_list(found)
        if ending == WORDS:
            found = await bridge.instances(
                *(request, image, pair, words),
                lambda each: detection(each, each.label),
                threshold=body.threshold or None,
            )
            return json_list(found)
        target = body.target()
        if target.is_empty:
            raise Problem(422, "set at least one point, or a box")
        [[content]] = await bridge.masks(request, image, pair, [target], interactor_json)
        return Response(content, media_type="application/json")

    return api


def functions_of(pair: Pair, words: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return a model's functions in nuclio's form. ``words`` are the labels of its word detector."""
    name = _function_name(pair.name)
    interactor = {"min_pos_points": "1", "min_neg_points": "0", "startswith_box_optional": "true", "help_message": HELP}
    found = [_function(name, INTERACTOR, f"triton_sam: {pair.name}", f"Clicks on objects, by {pair.name}", interactor)]
    if pair.finds_everything:
        text = f"Finds all objects without words, by {pair.name}"
        found.append(
            _function(f"{name}{SUFFIX}", DETECTOR, f"triton_sam: everything, {pair.name}", text, _spec([LABEL]))
        )
    if pair.finds_concepts and words:
        text = f"Finds {', '.join(words)}, by {pair.name}"[:500]
        found.append(_function(f"{name}{WORDS}", DETECTOR, f"triton_sam: words, {pair.name}", text, _spec(words)))
    if pair.tracks_videos:
        text, shapes = f"Follows objects from frame to frame, by {pair.name}", "mask,polygon,rectangle"
        title = f"triton_sam: {pair.name}, tracker"
        found.append(_function(f"{name}{TRACKS}", TRACKER, title, text, {"supported_shape_types": shapes}))
    return found


def _spec(labels: Sequence[str]) -> dict[str, str]:
    known = [{"id": number, "name": name, "type": "mask", "attributes": []} for number, name in enumerate(labels, 1)]
    return {"spec": strict_json.dumps(known)}


def detection(segment: Segment, label: str = LABEL) -> bytes | None:
    """Return an object as JSON in the form of a detector's result; None if the mask is empty."""
    rings = mask_to_polygons(segment.mask)
    if not rings:
        return None
    points = np.round(rings[0], 2).tolist()
    facts = {"confidence": str(round(segment.score, 5)), "label": label, "type": "mask", "points": points}
    return b'%b,"mask":%b}' % (to_json(facts)[:-1], box_bits(segment))


def interactor_json(segment: Segment) -> bytes:
    """Return an interactor's response: ``mask``, rows of 0 and 1, and ``points``, the largest outline.

    The JSON is written as bytes, because a list of a few million numbers would take seconds.
    """
    rings = mask_to_polygons(segment.mask)
    points = np.reshape(rings[0], (-1, 2)).tolist() if rings else []
    return b'{"mask":%b,"points":%b}' % (_rows_json(segment.mask), to_json(points))


def _rows_json(mask: BoolArray) -> bytes:
    """Return a mask (H,W) as JSON: a list of rows of 0 and 1."""
    height, width = mask.shape
    text = np.full((height, 2 * width + 2), ord(","), np.uint8)
    text[:, 0] = ord("[")
    text[:, 1 : 2 * width : 2] = mask + np.uint8(ord("0"))
    text[:, 2 * width] = ord("]")
    return b"[" + text.tobytes()[:-1] + b"]"


def box_bits(segment: Segment) -> bytes:
    """Return JSON: a list of the pixels of a mask within its box, row by row, followed by the box x1, y1, x2, y2.

    The corners are pixels inside the box, as in CVAT's masks. Reference: to_cvat_mask() of CVAT's functions.
    """
    if segment.box is None:
        return b"[]"
    x1, y1, x2, y2 = segment.box
    bits = segment.mask[y1:y2, x1:x2].ravel()
    text = np.full(2 * bits.size, ord(","), np.uint8)
    text[::2] = bits + np.uint8(ord("0"))
    return b"[%b%d,%d,%d,%d]" % (text.tobytes(), x1, y1, x2 - 1, y2 - 1)


def _function(name: str, kind: str, title: str, text: str, annotations: dict[str, str]) -> dict[str, Any]:
    known = {"name": title, "type": kind, "version": "2", "framework": "Triton", "spec": ""}
    return {
        "metadata": {"name": name, "annotations": {**known, **annotations}},
        "spec": {"description": text},
        "status": {"state": "ready", "httpPort": 0},
    }


def _function_name(model: str) -> str:
    """Return the name of a model's function; function names cannot contain dots."""
    return PREFIX + model.replace(".", "-").lower()


async def _called(bridge: Bridge, function: str) -> tuple[Pair, str]:
    """Return the pair of a function, and the suffix of its name."""
    await bridge.pair(None)
    for pair in bridge.pairs.values():
        found = functions_of(pair, bridge.engine.settings.cvat_words)
        if any(each["metadata"]["name"] == function for each in found):
            return pair, function.removeprefix(_function_name(pair.name))
    raise _unknown(function)


def _unknown(function: str) -> Problem:
    return Problem(404, f"there is no function {function[:80]!r}", code="unknown_model")


ADAPTER = Adapter(
    name="cvat",
    paths=("/api/functions", "/api/function_invocations"),
    router=router,
    error=lambda problem: {"error": problem.detail},
    token=basic_password,
    sign_in="put it into the host of nuclio, as triton:TOKEN@HOST",
)
