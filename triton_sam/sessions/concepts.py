"""The search for all instances of concepts, for the session models of images and videos.

One pass of the backbone serves the embeddings for clicks and tracking, and the feature maps of the detector, in any
order: the states of the backbone stay in the cache for a search after a click. The feature maps take five times as much
memory as the embeddings, and are separate entries in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.lru import ByteLru
from ..concepts.instances import choose, scores_of
from ..concepts.query import Query
from ..errors import PromptError
from ..families.base import Family, FloatArray, Size
from ..families.concepts import (
    BACKBONE_STATES,
    CONCEPT_ENCODER,
    DETECTOR,
    EXAMPLE_FEATURES,
    MASK_HEAD,
    TEXT_ENCODER,
)
from ..families.tables import ENCODER
from ..wire.contract import embedding_bytes
from .images import HeldImage, ImageStore, Run
from .messages import Reply, Tensors
from .tasks import TaskCancelledError

_TEXTS_BYTES = 64 << 20
"""Size of the cache of text features: about 2,000 texts."""
_CLICKED_IMAGES = 4
"""Maximum number of images whose states of the backbone stay in the cache, each as large as the embeddings. Together
they take at most a quarter of the cache; states larger than that do not stay."""
_PIXELS = "concept_pixel_values"
"""The input of the encoder of concepts in earlier exports, which has a backbone of its own."""
_MAX_LOGITS = 1024
"""Maximum number of instances in an answer with logits, which take 330 KB each and are copied."""


@dataclass(frozen=True)
class Concepts:
    """The settings and functions that searches need in addition to the models.

    Args:
        at_a_time: maximum number of concepts in one call of the detector.
        identity: returns a text that identifies the weights of the encoder.
        tokens: returns input_ids and attention_mask (P,T) of texts.
        are_ready: returns whether the server has all models of concepts.
        one_pass: returns whether the encoder of concepts takes the states of the backbone; in earlier exports, it takes
            pixels. The models must be ready.
    """

    at_a_time: int
    identity: Callable[[], str]
    tokens: Callable[[Sequence[str]], tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]
    are_ready: Callable[[], bool] = lambda: True
    one_pass: Callable[[], bool] = lambda: True


@dataclass(frozen=True)
class TokenizedQuery:
    """A query with the tokens of its texts.

    Args:
        logits: whether the answer has the logits of the instances in place of their full-size masks.
        mask: (P,T): 1 for a token, 0 for padding.
    """

    query: Query
    logits: bool
    ids: npt.NDArray[np.int64]
    mask: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Detection:
    """An instance of a concept.

    Args:
        index: index of the concept in the query.
        proposal: index of the detector's proposal.
        box: (4,) x1, y1, x2, y2 in 0..1.
        logits: (h,w).
    """

    index: int
    proposal: int
    score: float
    box: FloatArray
    logits: FloatArray


def image_id_of(maps: HeldImage) -> str:
    """Return the id of the image that feature maps belong to."""
    return maps.image_id.partition("+")[0]


_STATES_KEY = f"+{BACKBONE_STATES}"
"""The end of the keys of states of the backbone in the cache."""


@dataclass(frozen=True)
class _Search:
    """A query on an image.

    Args:
        shown: the image that the example boxes belong to.
    """

    asked: TokenizedQuery
    image: HeldImage
    shown: HeldImage
    reply: Reply
    stopped: Callable[[], bool]

    @property
    def query(self) -> Query:
        return self.asked.query


class ConceptSearch:
    """Finds all instances of concepts, from any number of threads.

    Args:
        run: runs the models of concepts.
        images: the cache of the session model.
        turn: returns the block in which a model may run, so that other requests take precedence.
    """

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
        self._maps = self._specs[CONCEPT_ENCODER].output_names
        self._texts: ByteLru[bytes, FloatArray] = ByteLru(_TEXTS_BYTES)

    def read(self, query: Query, logits: bool) -> TokenizedQuery:
        """Return a query with its tokens. Call it before encode(), so that an invalid text fails early."""
        return TokenizedQuery(query, logits, *self._concepts.tokens(query.prompts))

    def is_ready(self) -> bool:
        """Return whether the server has all models of concepts."""
        return self._concepts.are_ready()

    def get(self, image_id: str, reply: Reply) -> HeldImage | None:
        """Return the feature maps of an image, or None, and count the hit or miss of the cache.

        They are in the cache, or are computed from the states of the backbone that a click has left there.
        """
        image = self._images.get(self._key(image_id), reply)
        states = self._images.cache.get(image_id + _STATES_KEY) if image is None else None
        if states is None:
            return image
        return self._images.once(self._key(image_id), partial(self._finish, states, reply), reply)

    def encode_for_clicks(self, content: bytes, reply: Reply) -> HeldImage:
        """Return the embeddings of an image file, from the cache or computed.

        The states of the backbone stay in the cache for a search, for a few images.
        """
        if not (self.is_ready() and self._concepts.one_pass()):
            return self._images.find(content, reply)
        image_id = self._images.image_id(content)
        image = self._images.get(image_id, reply)
        return image or self._images.once(image_id, partial(self._encode_and_keep, image_id, content, reply), reply)

    def encode(self, content: bytes, reply: Reply) -> HeldImage:
        """Return the feature maps of an image file, from the cache or computed.

        The same pass of the backbone computes the embeddings, which are in the cache under the id of the image.
        """
        image_id = self._images.image_id(content)
        if self._concepts.one_pass():
            self._images.wait_for(image_id)
        image = self.get(image_id, reply)
        if image is not None:
            return image
        maps = self._images.once(self._key(image_id), partial(self._encode_both, image_id, content, reply), reply)
        self._images.cache.get(image_id)  # marks the embeddings as used after the maps, which are evicted first
        return maps

    def drop(self, image_id: str) -> None:
        """Remove the feature maps of an image from the cache. Its embeddings stay."""
        self._images.cache.remove(self._key(image_id))

    def room_for(self, images: int) -> bool:
        """Return whether the cache can hold embeddings and feature maps of some images, and embeddings of another."""
        floats = sum(math.prod(map(int, each.shape[1:])) for each in self._specs[CONCEPT_ENCODER].outputs)
        embeddings = embedding_bytes(self._family)
        return images * (4 * floats + embeddings) + embeddings <= self._images.cache.limit

    def instances(
        self, asked: TokenizedQuery, image: HeldImage, shown: HeldImage, reply: Reply, stopped: Callable[[], bool]
    ) -> Iterator[Detection]:
        """Yield all instances in an image, and count the search.

        The mask head runs only for texts with instances.

        Args:
            image: the feature maps, from get() or encode().
            shown: those of the image that the example boxes belong to, usually the same.
            stopped: returns whether the answer is no longer needed.
        """
        asked.query.check_inside(shown.image_size)
        with reply.timed("find"):
            yield from self._instances(_Search(asked, image, shown, reply, stopped))
        reply.counts["finds"] += 1
        reply.counts["find_seconds"] += reply.seconds["find"]

    def stacked(self, logits: Sequence[FloatArray]) -> FloatArray:
        """Return the logits (h,w) of I instances, perhaps none, as (I,1,h,w)."""
        side = int(self._specs[MASK_HEAD].outputs[0].shape[-1])
        return np.array(logits, np.float32).reshape(-1, 1, side, side)

    def _instances(self, search: _Search) -> Iterator[Detection]:
        asked = search.asked
        features = self._text_features(search)
        step, count = self._concepts.at_a_time, 0
        for start in range(0, len(asked.ids), step):
            part = slice(start, start + step)
            found = self._detect(search, features, part)
            scores = scores_of(found)
            for row in range(len(scores)):
                boxes = found["pred_boxes"][row]
                chosen = choose(scores[row], boxes, asked.query)
                count += len(chosen)
                if asked.logits and count > _MAX_LOGITS:
                    raise PromptError(
                        f"the image has more than {_MAX_LOGITS} instances, too many for an answer with logits: raise "
                        "threshold, lower limit or search fewer texts at a time"
                    )
                if len(chosen):
                    logits = self._masks(search, found, row, chosen)
                    for place, each in zip(chosen.tolist(), logits, strict=True):
                        yield Detection(start + row, place, float(scores[row, place]), boxes[place], each)

    def _detect(self, search: _Search, features: FloatArray, part: slice) -> Mapping[str, FloatArray]:
        """Return the detector's outputs for some of the concepts."""
        boxes, labels = search.query.normalised(search.shown.image_size), search.query.box_labels
        *_, coarse, states = self._maps
        held = {states: search.image.tensors[states], EXAMPLE_FEATURES: search.shown.tensors[coarse]}
        count = len(search.asked.ids[part])
        inputs: Tensors = {
            "text_features": features[part],
            "attention_mask": search.asked.mask[part],
            "input_boxes": np.repeat(boxes[None], count, axis=0),
            "input_boxes_labels": np.repeat(labels[None], count, axis=0),
        }
        return self._call(DETECTOR, held, inputs, search)

    def _masks(
        self, search: _Search, found: Mapping[str, FloatArray], row: int, chosen: npt.NDArray[np.intp]
    ) -> FloatArray:
        """Return the logits (I,h,w) of chosen instances of one concept."""
        fine = {name: search.image.tensors[name] for name in self._maps[:2]}
        inputs: Tensors = {
            "mask_features": found["mask_features"][row : row + 1],
            "mask_queries": np.ascontiguousarray(found["mask_queries"][row : row + 1, chosen]),
        }
        logits: FloatArray = self._call(MASK_HEAD, fine, inputs, search)["pred_masks"][0]
        return logits

    def _call(self, role: str, held: Mapping[str, Any], inputs: Tensors, search: _Search) -> Mapping[str, FloatArray]:
        with self._turn():
            if search.stopped():
                raise TaskCancelledError
            run = partial(self._run, role, held, inputs, self._specs[role].output_names, False)
            return self._images.with_room(role, run, search.reply, search.image.nbytes)

    def _text_features(self, search: _Search) -> npt.NDArray[np.float32]:
        """Return the features of the texts (P,T,C). Those of the last texts are cached for all images."""
        keys = [row.tobytes() for row in search.asked.ids]
        held = {key: self._texts.get(key) for key in keys}
        absent = [index for index, key in enumerate(keys) if held[key] is None]
        search.reply.counts["text_encodes"] += len(absent)
        if absent:
            spec = self._specs[TEXT_ENCODER]
            texts = dict(zip(spec.input_names, (search.asked.ids[absent], search.asked.mask[absent]), strict=True))
            (found,) = self._run(TEXT_ENCODER, {}, texts, spec.output_names, False).values()
            for index, features in zip(absent, found, strict=True):
                held[keys[index]] = kept = np.array(features)
                self._texts.put(keys[index], kept, kept.nbytes)
        return np.stack([features for key in keys if (features := held[key]) is not None])

    def _encode(self, pixels: FloatArray) -> Mapping[str, Any]:
        """Return embeddings and feature maps of an image."""
        embeddings = self._family.encoder.output_names
        if not self._concepts.one_pass():
            return self._run(CONCEPT_ENCODER, {}, {_PIXELS: pixels}, (*embeddings, *self._maps), True)
        outputs = self._encode_states(pixels)
        return {**outputs, **self._continue(outputs[BACKBONE_STATES])}

    def _encode_states(self, pixels: FloatArray) -> Mapping[str, Any]:
        """Return embeddings of an image and states of the backbone."""
        encoder = self._family.encoder
        outputs = (*encoder.output_names, BACKBONE_STATES)
        return self._run(ENCODER, {}, {encoder.input_names[0]: pixels}, outputs, True)

    def _continue(self, states: Any) -> Mapping[str, Any]:
        """Return the feature maps for states of the backbone."""
        return self._run(CONCEPT_ENCODER, {BACKBONE_STATES: states}, {}, self._maps, True)

    def _encode_and_keep(self, image_id: str, content: bytes, reply: Reply) -> tuple[Size, Mapping[str, Any]]:
        """Return the embeddings of an image, and put the states of the backbone into the cache."""
        size, outputs = self._images.encode_file(content, self._encode_states, reply)
        states, cache = outputs[BACKBONE_STATES], self._images.cache
        nbytes = states.nbytes if isinstance(states, np.ndarray) else 4 * math.prod(states.shape())
        most = min(_CLICKED_IMAGES, cache.limit // (4 * nbytes))
        if most:
            kept = [each.image_id for each in cache.values() if each.image_id.endswith(_STATES_KEY)]
            for key in kept[: max(0, len(kept) + 1 - most)]:
                cache.remove(key)
            self._images.put(image_id + _STATES_KEY, size, {BACKBONE_STATES: states}, reply)
        return size, self._family.embeddings(outputs)

    def _finish(self, states: HeldImage, reply: Reply) -> tuple[Size, Mapping[str, Any]]:
        """Return the feature maps of an image, and remove the states of the backbone from the cache."""
        run = partial(self._continue, states.tensors[BACKBONE_STATES])
        with reply.timed("encode"):
            maps = self._images.with_room("encode", run, reply, states.nbytes)
        self._images.cache.remove(states.image_id)
        return states.image_size, maps

    def _encode_both(self, image_id: str, content: bytes, reply: Reply) -> tuple[Size, Mapping[str, Any]]:
        """Return the feature maps of an image, and put the embeddings into the cache."""
        size, outputs = self._images.encode_file(content, self._encode, reply)
        if self._images.cache.get(image_id) is None:
            self._images.put(image_id, size, self._family.embeddings(outputs), reply)
        return size, {name: outputs[name] for name in self._maps}

    def _key(self, image_id: str) -> str:
        """Return the key of feature maps in the cache."""
        return f"{image_id}+{self._concepts.identity()}"
