"""The flow of a search for all instances of concepts."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from ..concepts.instances import Instance, instance_mask
from ..concepts.query import Query
from ..concepts.video_rules import Detections
from ..errors import ConfigurationError, InputError, ModelNotReadyError, NoImageError, UnknownImageError
from ..families.base import FloatArray
from ..inputs.embeddings import ImageEmbeddings
from ..inputs.images import ImageSource, image_bytes
from ..masks.rle import BoolArray, rle_to_mask
from ..transport.base import Tensors
from ..wire import contract
from ..wire.pair import ModelPair, Request
from .flows import Capabilities, Flow
from .session_image import SessionImage, read_id, read_upload, text, upload

_NEEDS_SERVER = (
    "words are searched by the session model, which keeps the image: use a client with embeddings='server' or 'auto', "
    "and a server that has it"
)
_NEEDS_MODELS = (
    "words need SAM3 with its models for words: run `triton-sam setup sam3 --concepts`, and start the server again"
)
_NEEDS_LOGITS = (
    "update the server, run `triton-sam setup sam3 --concepts` again and restart it; or search chosen frames of a "
    "video (find_in_video(), `triton-sam track --text-every`)"
)


class FoundInstances(list[Instance]):
    """The instances that find() found, in the order of the texts; those of a text are sorted by score, highest first.

    Args:
        segments: the instances. ``object_index`` is the index of the text, and ``candidate`` counts its instances.
    """

    def __init__(self, segments: list[Instance], image: SessionImage) -> None:
        super().__init__(segments)
        self.image = image


def find(
    pair: ModelPair,
    capabilities: Capabilities,
    keeps_embeddings: bool,
    query: Query,
    image: ImageEmbeddings | ImageSource,
    example: ImageEmbeddings | ImageSource | None,
    logits: bool = False,
) -> Flow[FoundInstances]:
    """Find all instances. An image that is new to the server is sent with the request, and encoded once.

    Args:
        keeps_embeddings: whether the client keeps the embeddings, which is an error.
        example: the image that the boxes of the query belong to; None for ``image``.
        logits: whether the instances contain their logits. Their masks are then computed here.
    """
    outputs, held = yield from _search(pair, capabilities, keeps_embeddings, query, image, example, logits)
    return FoundInstances(_read(outputs, pair, query, held), held)


def detect(
    pair: ModelPair, capabilities: Capabilities, keeps_embeddings: bool, query: Query, image: ImageSource
) -> Flow[Detections]:
    """Find the logits of all instances, without full-size masks; see find()."""
    outputs, _ = yield from _search(pair, capabilities, keeps_embeddings, query, image, None, logits=True)
    return read_detections(outputs[contract.RESULT_JSON], outputs[contract.MASKS], pair.session_model)


def read_detections(result: npt.NDArray[Any], masks: FloatArray, model: str) -> Detections:
    """Read the result of a search, and the logits (I,1,h,w) of its instances."""
    try:
        records = json.loads(result.ravel()[0])["objects"]
        places = [(record["text_index"], record["proposal"]) for record in records]
        scores = np.array([record["score"] for record in records], np.float32)
        order = sorted(range(len(places)), key=places.__getitem__)
        texts = np.array([places[row][0] for row in order], np.int64)
        return Detections(masks[order, 0], scores[order], texts)
    except (ValueError, LookupError, TypeError) as error:
        raise contract.unknown_form(model) from error


def _search(
    pair: ModelPair,
    capabilities: Capabilities,
    keeps_embeddings: bool,
    query: Query,
    image: ImageEmbeddings | ImageSource,
    example: ImageEmbeddings | ImageSource | None,
    logits: bool,
) -> Flow[tuple[Tensors, SessionImage]]:
    """Send a search; return its answer and the image that the server keeps."""
    _check(pair, keeps_embeddings, image, example)
    yield from _check_server(pair, capabilities, logits)
    inputs: dict[str, npt.NDArray[Any]] = {contract.FIND: text(query.to_json())}
    if logits:
        inputs[contract.FIND_LOGITS] = np.array([True])
    shown = None
    if example is not None:
        # _check() refuses other embeddings
        shown = example if isinstance(example, SessionImage) else (yield from upload(pair, example))  # type: ignore[arg-type]
        inputs[contract.EXAMPLE_IMAGE] = text(shown.remote.image_id.encode())
    held = image if isinstance(image, SessionImage) else None
    content = held.remote.content if held else image_bytes(image)  # type: ignore[arg-type] # _check() refuses others
    named = {contract.IMAGE_ID: text(held.remote.image_id.encode())} if held else {contract.IMAGE: text(content)}
    try:
        outputs = yield _request(pair, {**inputs, **named})
    except UnknownImageError:
        if shown is not None:  # the server needs the feature maps of this image, which only a search computes
            example_file = {contract.FIND: text(query.to_json()), contract.IMAGE: text(shown.remote.content)}
            shown.remote.image_id = read_id((yield _request(pair, example_file)))
            inputs[contract.EXAMPLE_IMAGE] = text(shown.remote.image_id.encode())
        outputs = yield _request(pair, {**inputs, contract.IMAGE: text(content)})
    if held is None:
        return outputs, read_upload(pair, outputs, content)
    held.remote.image_id = read_id(outputs)
    return outputs, held


def _check(pair: ModelPair, keeps_embeddings: bool, *images: Any) -> None:
    if not pair.family.concepts:
        raise ConfigurationError(f"{pair.family.name} cannot search words: use a client with model_type='sam3'")
    others = [each for each in images if isinstance(each, ImageEmbeddings) and not isinstance(each, SessionImage)]
    if keeps_embeddings or others:
        raise ConfigurationError(_NEEDS_SERVER)
    for each in images:
        if isinstance(each, SessionImage):
            pair.check_origin(each)


def _check_server(pair: ModelPair, capabilities: Capabilities, logits: bool) -> Flow[None]:
    """Check that the server supports the search for concepts, and its logits if they are wanted."""
    try:
        is_known = yield from capabilities.has(contract.FIND)
        has_logits = not logits or (yield from capabilities.has(contract.FIND_LOGITS))
    except ModelNotReadyError as error:
        raise ModelNotReadyError(f"{error} - {_NEEDS_MODELS}") from error
    older = f"{pair.session_model} of this server is older than"
    if not is_known:
        raise ModelNotReadyError(f"{older} the search for words: {_NEEDS_MODELS}")
    if not has_logits:
        raise ModelNotReadyError(f"{older} the logits of found instances: {_NEEDS_LOGITS}")


def _request(pair: ModelPair, inputs: dict[str, npt.NDArray[Any]]) -> Request:
    outputs = (contract.RESULT_JSON, contract.IMAGE_ID, contract.IMAGE_SIZE)
    return Request(
        pair.session_model, inputs, (*outputs, contract.MASKS) if contract.FIND_LOGITS in inputs else outputs
    )


def _read(outputs: Tensors, pair: ModelPair, query: Query, held: SessionImage) -> list[Instance]:
    try:
        records = json.loads(outputs[contract.RESULT_JSON].ravel()[0])["objects"]
        counts: dict[int, int] = {}
        segments = []
        found = outputs[contract.MASKS][:, 0] if contract.MASKS in outputs else [None] * len(records)
        for record, logits in zip(records, found, strict=True):
            index = record["text_index"]
            if logits is None:
                mask = rle_to_mask(record["segmentation"])
            else:
                mask = instance_mask(logits, held.image_size, query.mask_threshold)
            segments.append(_segment(record, index, counts.get(index, 0), mask, logits))
            counts[index] = counts.get(index, 0) + 1
    except (ValueError, LookupError, TypeError, InputError) as error:
        raise contract.unknown_form(pair.session_model) from error
    return segments


def current(
    image: ImageEmbeddings | ImageSource | None, latest: ImageEmbeddings | None
) -> ImageEmbeddings | ImageSource:
    """Return the image to search: the caller's, or else the client's current image."""
    chosen = image if image is not None else latest
    if chosen is None:
        raise NoImageError("there is no image yet: give image=..., or call set_image() first")
    return chosen


def _segment(record: dict[str, Any], index: int, place: int, mask: BoolArray, logits: FloatArray | None) -> Instance:
    x1, y1, x2, y2 = (float(value) for value in record["box"])
    return Instance(mask, float(record["score"]), logits, index, place, (x1, y1, x2, y2), label=record["text"])
