"""Answers requests for all instances of concepts in an image. Clicks take precedence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy.typing as npt

from ...concepts.instances import instance_mask, to_pixels
from ...concepts.query import query_from
from ...errors import InputError, PromptError, UnknownImageError
from ...families.base import Size
from ...masks.rle import mask_to_rle
from ...wire import contract
from ..concepts import ConceptSearch, Detection, TokenizedQuery, image_id_of
from ..images import HeldImage
from ..messages import Reply, Tensors, read_bytes, read_object
from .messages import read_request, write_image, write_result

_COMPANIONS = {contract.IMAGE, contract.IMAGE_ID, contract.FIND, contract.FIND_LOGITS, contract.EXAMPLE_IMAGE}


def answer(
    search: ConceptSearch, tensors: Mapping[str, npt.NDArray[Any]], reply: Reply, stopped: Callable[[], bool]
) -> Tensors:
    """Answer a request with ``find``.

    Args:
        stopped: returns whether the answer is no longer needed.
    """
    others = tensors.keys() - _COMPANIONS
    if others:
        raise InputError(f"{contract.FIND} cannot be combined with {min(others)}: send it with an image alone")
    query = query_from(read_object(tensors, contract.FIND, '{"text": "dog"}', PromptError))
    has_logits = contract.FIND_LOGITS in tensors and bool(tensors[contract.FIND_LOGITS].any())
    asked = search.read(query, has_logits)
    request, example = read_request(tensors), read_bytes(tensors, contract.EXAMPLE_IMAGE)
    if request.image is not None:
        image = search.encode(request.image, reply)
    else:
        image = _known(search, str(request.image_id), reply)
    shown = image if example is None else _known(search, example.decode(errors="replace"), reply)
    records, logits = [], []
    for found in search.instances(asked, image, shown, reply, stopped):
        records.append(_record(found, asked, image.image_size))
        if has_logits:
            logits.append(found.logits)
    plain = HeldImage(image_id_of(image), image.image_size, {}, 0)
    result = {"objects": records, "image_id": plain.image_id, "image_size": list(plain.image_size)}
    return {
        **write_image(plain),
        **write_result(result, reply.seconds),
        **({contract.MASKS: search.stacked(logits)} if has_logits else {}),
    }


def _known(search: ConceptSearch, image_id: str, reply: Reply) -> HeldImage:
    """Return the feature maps of an image that was sent before."""
    image = search.get(image_id, reply)
    if image is None:
        reply.counts["unknown_images"] += 1
        raise UnknownImageError(f"no image {image_id[:64]!r} here that words were searched in: send the image again")
    return image


def _record(found: Detection, asked: TokenizedQuery, size: Size) -> dict[str, Any]:
    """Return an instance for the answer: with its full-size mask, unless the answer has the logits."""
    record = {
        "text": asked.query.labels()[found.index],
        "text_index": found.index,
        "score": found.score,
        "box": to_pixels(found.box, size),
    }
    if asked.logits:
        return {**record, "proposal": found.proposal}
    return {**record, "segmentation": mask_to_rle(instance_mask(found.logits, size, asked.query.mask_threshold))}
