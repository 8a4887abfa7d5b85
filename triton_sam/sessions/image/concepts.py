"""The search for all instances of concepts in the session model. Clicks take precedence.

One pass of the backbone computes the feature maps of the detector and the embeddings for clicks. An image that was
searched by words is therefore not encoded again for a click. The feature maps take five times as much memory as the
embeddings, and are separate entries in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._common.lru import ByteLru
from ...concepts.instances import choose, instance_mask, scores_of, to_pixels
from ...concepts.query import Query, read_query
from ...errors import InputError, PromptError, UnknownImageError
from ...families.base import Family, FloatArray
from ...families.concepts import CONCEPT_ENCODER, DETECTOR, EXAMPLE_FEATURES, MASK_HEAD, TEXT_ENCODER
from ...masks.rle import mask_to_rle
from ...wire import contract
from ..images import HeldImage, ImageStore, Run
from ..messages import Reply, Tensors, read_bytes
from ..tasks import TaskCancelledError
from .messages import write_image, write_result

_COMPANIONS = {contract.IMAGE, contract.IMAGE_ID, contract.FIND, contract.FIND_LOGITS, contract.EXAMPLE_IMAGE}
_TEXTS_BYTES = 64 << 20
"""Size of the cache of text features: about 2,000 texts."""
_MAX_LOGITS = 1024
"""Maximum number of instances in an answer with logits, which take 330 KB each and are copied."""


@dataclass(frozen=True)
class Concepts:
    """The settings and functions that searches need in addition to the models.

    Args:
        at_a_time: maximum number of concepts in one call of the detector.
        identity: returns a text that identifies the weights of the encoder.
        tokens: returns input_ids and attention_mask (P,T) of texts.
    """

    at_a_time: int
    identity: Callable[[], str]
    tokens: Callable[[Sequence[str]], tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]


@dataclass(frozen=True)
class _Asked:
    """A request with the data for its calls.

    Args:
        logits: whether the answer has the logits of the instances in place of their full-size masks.
        mask: (P,T): 1 for a token, 0 for padding.
    """

    query: Query
    logits: bool
    ids: npt.NDArray[np.int64]
    mask: npt.NDArray[np.int64]
    image: HeldImage
    shown: HeldImage
    reply: Reply
    stopped: Callable[[], bool]


class ConceptSearch:
    """Answers requests for all instances of concepts, from any number of threads."""

    def __init__(
        self,
        family: Family,
        run: Run,
        concepts: Concepts,
        images: ImageStore,
        turn: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._family = family
        self._specs = family.concepts
        self._run = run
        self._concepts = concepts
        self._images = images
        self._turn = turn
        encoded = self._specs[CONCEPT_ENCODER].output_names
        self._maps = [name for name in encoded if name not in family.encoder.output_names]
        self._texts: ByteLru[bytes, FloatArray] = ByteLru(_TEXTS_BYTES)

    def answer(self, tensors: Mapping[str, npt.NDArray[Any]], reply: Reply, stopped: Callable[[], bool]) -> Tensors:
        """Answer a request with ``find``."""
        others = tensors.keys() - _COMPANIONS
        if others:
            raise InputError(f"{contract.FIND} cannot be combined with {min(others)}: send it with an image alone")
        query = read_query(read_bytes(tensors, contract.FIND) or b"")
        has_logits = contract.FIND_LOGITS in tensors and bool(tensors[contract.FIND_LOGITS].any())
        ids, mask = self._concepts.tokens(query.prompts)  # before encoding: an invalid text fails early
        image = self._find(tensors, contract.IMAGE, contract.IMAGE_ID, reply)
        shown = image
        if contract.EXAMPLE_IMAGE in tensors:
            shown = self._find(tensors, "", contract.EXAMPLE_IMAGE, reply)
        query.check_inside(shown.image_size)
        with reply.timed("find"):
            found = list(self._objects(_Asked(query, has_logits, ids, mask, image, shown, reply, stopped)))
        reply.counts["finds"] += 1
        reply.counts["find_seconds"] += reply.seconds["find"]
        plain = HeldImage(image.image_id.partition("+")[0], image.image_size, {}, 0)
        result = {
            "objects": [record for record, _ in found],
            "image_id": plain.image_id,
            "image_size": list(plain.image_size),
        }
        answer = {**write_image(plain), **write_result(result, reply.seconds)}
        if has_logits:
            side = int(self._specs[MASK_HEAD].outputs[0].shape[-1])
            logits = [each for _, each in found if each is not None]
            answer[contract.MASKS] = np.array(logits, np.float32).reshape(-1, 1, side, side)
        return answer

    def _objects(self, asked: _Asked) -> Iterator[tuple[dict[str, Any], FloatArray | None]]:
        """Yield the records of all instances, with their masks or their logits.

        The mask head runs only for texts with instances.
        """
        features = self._text_features(asked)
        step, count = self._concepts.at_a_time, 0
        for start in range(0, len(asked.ids), step):
            part = slice(start, start + step)
            found = self._detect(asked, features, part)
            scores = scores_of(found)
            for row in range(len(scores)):
                chosen = choose(scores[row], found["pred_boxes"][row], asked.query)
                count += len(chosen)
                if asked.logits and count > _MAX_LOGITS:
                    raise PromptError(
                        f"the image has more than {_MAX_LOGITS} instances, too many for an answer with logits: raise "
                        "threshold, lower limit or search fewer texts at a time"
                    )
                if len(chosen):
                    logits = self._masks(asked, found, row, chosen)
                    for place, each in zip(chosen.tolist(), logits, strict=True):
                        score, box = float(scores[row, place]), found["pred_boxes"][row, place]
                        record = _record(asked, start + row, score, box)
                        if asked.logits:
                            yield {**record, "proposal": place}, each
                        else:
                            mask = instance_mask(each, asked.image.image_size, asked.query.mask_threshold)
                            yield {**record, "segmentation": mask_to_rle(mask)}, None

    def _detect(self, asked: _Asked, features: FloatArray, part: slice) -> Mapping[str, FloatArray]:
        """Return the detector's outputs for some of the concepts."""
        boxes, labels = asked.query.normalised(asked.shown.image_size), asked.query.box_labels
        *_, coarse, states = self._maps
        held = {states: asked.image.tensors[states], EXAMPLE_FEATURES: asked.shown.tensors[coarse]}
        count = len(asked.ids[part])
        inputs: Tensors = {
            "text_features": features[part],
            "attention_mask": asked.mask[part],
            "input_boxes": np.repeat(boxes[None], count, axis=0),
            "input_boxes_labels": np.repeat(labels[None], count, axis=0),
        }
        return self._call(DETECTOR, held, inputs, asked)

    def _masks(
        self, asked: _Asked, found: Mapping[str, FloatArray], row: int, chosen: npt.NDArray[np.intp]
    ) -> FloatArray:
        """Return the logits (I,h,w) of chosen instances of one concept."""
        fine = {name: asked.image.tensors[name] for name in self._maps[:2]}
        inputs: Tensors = {
            "mask_features": found["mask_features"][row : row + 1],
            "mask_queries": np.ascontiguousarray(found["mask_queries"][row : row + 1, chosen]),
        }
        logits: FloatArray = self._call(MASK_HEAD, fine, inputs, asked)["pred_masks"][0]
        return logits

    def _call(self, role: str, held: Mapping[str, Any], inputs: Tensors, asked: _Asked) -> Mapping[str, FloatArray]:
        with self._turn():
            if asked.stopped():
                raise TaskCancelledError
            run = partial(self._run, role, held, inputs, self._specs[role].output_names, False)
            return self._images.with_room(role, run, asked.reply, asked.image.nbytes)

    def _text_features(self, asked: _Asked) -> npt.NDArray[np.float32]:
        """Return the features of the texts (P,T,C). Those of the last texts are cached for all images."""
        keys = [row.tobytes() for row in asked.ids]
        held = {key: self._texts.get(key) for key in keys}
        absent = [index for index, key in enumerate(keys) if held[key] is None]
        asked.reply.counts["text_encodes"] += len(absent)
        if absent:
            spec = self._specs[TEXT_ENCODER]
            texts = dict(zip(spec.input_names, (asked.ids[absent], asked.mask[absent]), strict=True))
            (found,) = self._run(TEXT_ENCODER, {}, texts, spec.output_names, False).values()
            for index, features in zip(absent, found, strict=True):
                held[keys[index]] = kept = np.array(features)
                self._texts.put(keys[index], kept, kept.nbytes)
        return np.stack([features for key in keys if (features := held[key]) is not None])

    def _find(self, tensors: Mapping[str, npt.NDArray[Any]], file: str, name: str, reply: Reply) -> HeldImage:
        """Return the feature maps of an image, from the cache or computed from its file.

        Args:
            file: name of the input with the image file; empty if there is none.
        """
        content, given = (read_bytes(tensors, each) if each else None for each in (file, name))
        if (content is None) == (given is None):
            raise InputError("give either an image or the image_id of one that was sent before")
        image_id = self._images.image_id(content) if content is not None else (given or b"").decode(errors="replace")
        key = f"{image_id}+{self._concepts.identity()}"
        image = self._images.get(key, reply)
        if image is not None:
            return image
        if content is None:
            raise UnknownImageError(
                f"no image {image_id[:64]!r} here that words were searched in: send the image again"
            )
        return self._images.once(key, partial(self._encode_and_put, key, image_id, content, reply))

    def _encode(self, pixels: FloatArray) -> Mapping[str, Any]:
        """Run the encoder of concepts, which takes the input of the family's encoder under another name."""
        spec = self._specs[CONCEPT_ENCODER]
        return self._run(CONCEPT_ENCODER, {}, {spec.input_names[0]: pixels}, spec.output_names, True)

    def _encode_and_put(self, key: str, image_id: str, content: bytes, reply: Reply) -> HeldImage:
        size, outputs = self._images.encode_file(content, self._encode, reply)
        image = self._images.put(key, size, {name: outputs[name] for name in self._maps}, reply)
        if self._images.cache.get(image_id) is None:
            self._images.put(image_id, size, self._family.embeddings(outputs), reply)
        return image


def _record(asked: _Asked, index: int, score: float, box: FloatArray) -> dict[str, Any]:
    """Return an instance without its mask, for the answer."""
    return {
        "text": asked.query.labels()[index],
        "text_index": index,
        "score": score,
        "box": to_pixels(box, asked.image.image_size),
    }
