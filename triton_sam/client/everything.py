"""Sends the requests of a search for all objects (triton_sam.everything) in parts, two at a time.

The session model decodes and filters a part. If it cannot, the client clicks on the points and filters the masks.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from .._common import strict_json
from ..errors import ConfigurationError
from ..everything.parameters import Parameters, parameters_of
from ..everything.search import Encode, Found, FoundMask, NextParts, Part, SearchProgress, packed, search_in_parts, see
from ..families.base import FloatArray
from ..inputs.embeddings import ImageEmbeddings
from ..inputs.images import ImageSource, open_image, plain_source
from ..masks.rle import rle_to_mask
from ..transport.base import Tensors
from ..transport.threads import Threads, result_of
from ..wire import contract
from ..wire.pair import ModelPair, Request
from .clicks import make_click
from .concepts import current
from .flows import Capabilities, Flow, Notice
from .session_image import SessionImage, ask_about, text

Progress = Callable[[SearchProgress], None]
"""Called with each step. Raising an exception ends the search."""
IN_FLIGHT = 2
"""Concurrent requests for parts: the server computes one part while the answer to another is in transit."""


def to_search(
    pair: ModelPair,
    image: ImageEmbeddings | ImageSource | None,
    latest: ImageEmbeddings | None,
    given: Mapping[str, Any],
) -> tuple[ImageSource, Parameters, ImageEmbeddings | None]:
    """Check the arguments of everything(); return the image, the parameters, and the embeddings or handle if known."""
    parameters, chosen = parameters_of(pair.family.name, given), current(image, latest)
    if not isinstance(chosen, ImageEmbeddings):
        return chosen, parameters, None
    pair.check_origin(chosen)
    if isinstance(chosen, SessionImage):
        return chosen.remote.content, parameters, chosen
    if parameters.crop_n_layers:
        raise ConfigurationError("crop_n_layers needs the image itself, and not its embeddings: give image=...")
    return b"", parameters, chosen  # only crops are cut from the image


def search(
    encode: Callable[[ImageSource], ImageEmbeddings],
    see_part: Callable[[Part], Found],
    image: ImageSource,
    parameters: Parameters,
    embeddings: ImageEmbeddings | None = None,
) -> Generator[SearchProgress | Found, None, None]:
    """Segment all objects of an image: yield each step, and finally the result.

    Closing the generator ends the search, and cancels its requests at Triton.
    """
    image = plain_source(image)  # an open file can be read only once
    embeddings = encode(image) if embeddings is None else embeddings
    opened: Image.Image | None = None
    running = search_in_parts(embeddings.image_size, parameters)
    coming: Iterator[Part] = iter(())
    ahead: deque[Future[Found | None]] = deque()
    answer: Any = None
    with contextlib.closing(Threads()) as threads:
        while True:
            try:
                asked = running.send(answer)
            except StopIteration as end:
                yield end.value
                return
            answer = None
            if isinstance(asked, Encode):
                if asked.crop is None:
                    answer = encode(image) if embeddings is None else embeddings
                    embeddings = None  # only in tiny images, a crop is also the whole image
                else:
                    opened = opened or open_image(image)
                    answer = encode(opened.crop(asked.crop))
            elif isinstance(asked, NextParts):
                coming = iter(asked.parts)
            elif isinstance(asked, Part):
                while len(ahead) < IN_FLIGHT and (part := next(coming, None)) is not None:
                    ahead.append(threads.submit(partial(see_part, part)))
                answer = result_of(ahead.popleft())
            else:
                yield asked


def last_of(steps: Generator[SearchProgress | Found, None, None], progress: Progress | None = None) -> Found:
    """Run a search() to its end: pass the steps to ``progress``, and return the result."""
    with contextlib.closing(steps):
        for step in steps:
            if isinstance(step, Found):
                return step
            if progress is not None:
                progress(step)
    raise AssertionError("a search ends with what it found")


def see_by_clicks(part: Part, pair: ModelPair, carry: Callable[[Flow[Tensors]], Tensors]) -> Found:
    """Find the objects under some points by clicks, whose flows ``carry`` runs."""

    def decode(image: ImageEmbeddings, points: FloatArray, masks: FloatArray | None, multimask: bool) -> Any:
        click = make_click(pair, None, image, points, None, None, masks, multimask)
        prediction = click.read(carry(click.ask()))
        return prediction.logits, prediction.scores

    return see(part, pair.family, decode)


def see_part(pair: ModelPair, capabilities: Capabilities, notice: Notice, part: Part) -> Flow[Found | None]:
    """Request the objects under some points from the server.

    Returns:
        The objects; None if the client has to decode and filter: it keeps the embeddings, or the session model has an
        earlier version, which the notice logs.
    """
    image = part.image
    if not isinstance(image, SessionImage):
        notice.log(_says_clicks("this client keeps the embeddings; embeddings='auto' or 'server' avoids it", part))
        return None
    if not (yield from capabilities.has(contract.EVERYTHING_PART)):
        notice.log(_says_clicks(f"{pair.session_model} of this server is of an earlier version: update it", part))
        return None
    inputs = {
        contract.IMAGE_ID: text(image.remote.image_id.encode()),
        contract.EVERYTHING_PART: text(_part_to_json(part)),
    }
    request = Request(pair.session_model, inputs, (contract.RESULT_JSON, contract.IMAGE_ID))
    return _read_result((yield from ask_about(image.remote, request)), pair.session_model)


def _says_clicks(reason: str, part: Part) -> str:
    open_ = sorted(part.parameters.left_open)
    defaults = f", with the official defaults of {' and '.join(open_)}, which may not fit the model" if open_ else ""
    return f"a search for all objects sends each click and filters the masks itself{defaults}: {reason}"


def _part_to_json(part: Part) -> bytes:
    request: dict[str, Any] = {"points": part.points.tolist(), "parameters": _members(part.parameters)}
    if part.crop != (0, 0, *part.whole):
        request |= {"crop": list(part.crop), "image_size": list(part.whole)}
    return strict_json.dumps(request, default=np.generic.item).encode()


def _members(parameters: Parameters) -> dict[str, Any]:
    """Return all parameters, including defaults, so that the defaults of the server do not matter.

    Thresholds that the caller has not given are left out: the server has those that fit the model.
    """
    others = {"point_grids", "left_open", *parameters.left_open}
    given = {each.name: getattr(parameters, each.name) for each in fields(parameters) if each.name not in others}
    if parameters.points_per_side is None:
        del given["points_per_side"]
    given["cleanup"] = parameters.cleanup.to_json()
    return given


def _read_result(outputs: Tensors, model: str) -> Found:
    try:
        answer = json.loads(outputs[contract.RESULT_JSON].ravel()[0])
        masks = [_read_mask(each) for each in answer["objects"]]
        return Found(masks, answer["decodes"], answer["candidates"], Counter(answer["dropped"]))
    except (ValueError, LookupError, TypeError) as error:
        raise contract.unknown_form(model) from error


def _read_mask(record: Mapping[str, Any]) -> FoundMask:
    mask = rle_to_mask(record["segmentation"])
    left, top, width, height = record["crop_box"]
    x, y, across, down = record["bbox"]
    ((point_x, point_y),) = record["point_coords"]
    return FoundMask(
        bits=packed(mask, (x, y, x + across, y + down)),
        score=record["predicted_iou"],
        stability=record["stability_score"],
        point=(point_x - left, point_y - top),
        box=(x - left, y - top, x - left + across, y - top + down),
        crop=(left, top, left + width, top + height),
        size=(mask.shape[1], mask.shape[0]),
    )
