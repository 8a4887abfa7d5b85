"""The flow of a search for all instances of concepts."""

from __future__ import annotations

import json
from typing import Any

import numpy.typing as npt

from ..concepts.instances import Instance
from ..concepts.query import Query
from ..errors import ConfigurationError, InputError, ModelNotReadyError, NoImageError, UnknownImageError
from ..families.base import FloatArray
from ..inputs.embeddings import ImageEmbeddings
from ..inputs.images import ImageSource, image_bytes
from ..masks.rle import rle_to_mask
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
) -> Flow[FoundInstances]:
    """Find all instances. An image that is new to the server is sent with the request, and encoded once.

    Args:
        keeps_embeddings: whether the client keeps the embeddings, which is an error.
        example: the image that the boxes of the query belong to; None for ``image``.
    """
    _check(pair, keeps_embeddings, image, example)
    yield from _check_server(pair, capabilities)
    inputs: dict[str, npt.NDArray[Any]] = {contract.FIND: text(query.to_json())}
    shown = None
    if example is not None:
        # _check() refuses other embeddings
        shown = example if isinstance(example, SessionImage) else (yield from upload(pair, example))  # type: ignore[arg-type]
        inputs[contract.EXAMPLE_IMAGE] = text(shown.remote.image_id.encode())
    held = image if isinstance(image, SessionImage) else None
    content = held.remote.content if held else image_bytes(image)  # type: ignore[arg-type] # _check() refuses others
    named = {contract.IMAGE_ID: text(held.remote.image_id.encode())} if held else {contract.IMAGE: text(content)}
    try:
        outputs = yield _request(pair, {**inputs, **named}, query.logits)
    except UnknownImageError:
        if shown is not None:  # the server needs the feature maps of this image, which only a search computes
            example_file = {contract.FIND: text(query.to_json()), contract.IMAGE: text(shown.remote.content)}
            shown.remote.image_id = read_id((yield _request(pair, example_file)))
            inputs[contract.EXAMPLE_IMAGE] = text(shown.remote.image_id.encode())
        outputs = yield _request(pair, {**inputs, contract.IMAGE: text(content)}, query.logits)
    if held is None:
        held = read_upload(pair, outputs, content)
    else:
        held.remote.image_id = read_id(outputs)
    return FoundInstances(_read(outputs, pair.session_model), held)


def _check(pair: ModelPair, keeps_embeddings: bool, *images: Any) -> None:
    if not pair.family.concepts:
        raise ConfigurationError(f"{pair.family.name} cannot search words: use a client with model_type='sam3'")
    others = [each for each in images if isinstance(each, ImageEmbeddings) and not isinstance(each, SessionImage)]
    if keeps_embeddings or others:
        raise ConfigurationError(_NEEDS_SERVER)
    for each in images:
        if isinstance(each, SessionImage):
            pair.check_origin(each)


def _check_server(pair: ModelPair, capabilities: Capabilities) -> Flow[None]:
    """Check that the server supports the search for concepts."""
    try:
        is_known = yield from capabilities.has(contract.FIND)
    except ModelNotReadyError as error:
        raise ModelNotReadyError(f"{error} - {_NEEDS_MODELS}") from error
    if not is_known:
        raise ModelNotReadyError(
            f"{pair.session_model} of this server is older than the search for words: {_NEEDS_MODELS}"
        )


def _request(pair: ModelPair, inputs: dict[str, npt.NDArray[Any]], logits: bool = False) -> Request:
    outputs = (contract.RESULT_JSON, contract.IMAGE_ID, contract.IMAGE_SIZE)
    return Request(pair.session_model, inputs, (*outputs, contract.MASKS) if logits else outputs)


def _read(outputs: Tensors, model: str) -> list[Instance]:
    """Read the answer."""
    try:
        records = json.loads(outputs[contract.RESULT_JSON].ravel()[0])["objects"]
        counts: dict[int, int] = {}
        segments = []
        masks = outputs[contract.MASKS][:, 0] if contract.MASKS in outputs else [None] * len(records)
        for record, logits in zip(records, masks, strict=True):
            index = record["text_index"]
            segments.append(_read_segment(record, index, counts.get(index, 0), logits))
            counts[index] = counts.get(index, 0) + 1
    except (ValueError, LookupError, TypeError, InputError) as error:
        raise contract.unknown_form(model) from error
    return segments


def current(
    image: ImageEmbeddings | ImageSource | None, latest: ImageEmbeddings | None
) -> ImageEmbeddings | ImageSource:
    """Return the image to search: the caller's, or else the client's current image."""
    chosen = image if image is not None else latest
    if chosen is None:
        raise NoImageError("there is no image yet: give image=..., or call set_image() first")
    return chosen


def _read_segment(record: dict[str, Any], index: int, place: int, logits: FloatArray | None) -> Instance:
    x1, y1, x2, y2 = (float(value) for value in record["box"])
    mask = rle_to_mask(record["segmentation"])
    score, proposal = float(record["score"]), int(record.get("proposal", 0))
    return Instance(mask, score, logits, index, place, (x1, y1, x2, y2), proposal, label=record["text"])
