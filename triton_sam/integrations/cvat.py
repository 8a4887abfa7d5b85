"""Functions for CVAT's agents and for `cvat-cli task auto-annotate`, see docs/how-to/tools/cvat.md.

Reference: cvat_sdk/auto_annotation/interface.py of https://github.com/cvat-ai/cvat.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..client.sync import SamTritonClient
from ..client.video import SAM2VideoClient
from ..errors import ConfigurationError, MissingDependencyError
from ..inputs.embeddings import ImageEmbeddings
from ..masks.segment import Segment
from .cvat_tracking import Tracker

EVERYTHING, INTERACTOR, TRACKER, WORDS = "everything", "interactor", "tracker", "words"
LABEL = "object"


def create(
    kind: str = EVERYTHING, url: str | None = None, model: str = "sam2", name: str | None = None, **parameters: Any
) -> Any:
    """Return a function for CVAT.

    Args:
        kind: "everything" annotates all objects of an image, "words" annotates every instance of words,
            "interactor" segments the object at clicks and boxes, and "tracker" follows objects from frame to frame.
        url: URL of Triton; None: $TRITON_URL, or else localhost:8000.
        parameters: with "everything", the parameters of client.everything(), for example points_per_side. With
            "words", the comma-separated ``words`` and the parameters of client.find(). ``model`` must then be a family
            that finds words: "sam3".
    """
    makers: dict[str, Callable[..., Any]] = {
        EVERYTHING: Everything,
        WORDS: Words,
        INTERACTOR: Interactor,
        TRACKER: Tracker,
    }
    if kind not in makers:
        raise ConfigurationError(f"there is no kind {kind!r}: choose {', '.join(makers)}")
    try:
        import cvat_sdk.auto_annotation  # noqa: F401 - the functions need it
    except ImportError as error:
        raise MissingDependencyError("the functions for CVAT need its SDK: pip install cvat-cli") from error
    if kind in (INTERACTOR, TRACKER) and parameters:
        article = "an" if kind == INTERACTOR else "a"
        raise ConfigurationError(f"{article} {kind} takes no parameters: leave {', '.join(parameters)} out")
    if kind == TRACKER:
        return Tracker(SAM2VideoClient(url, name, model_type=model))
    return makers[kind](SamTritonClient(url, model, model_name=name), **parameters)


class Everything:
    """Detection function: all objects of an image, with one label."""

    def __init__(self, client: SamTritonClient, **parameters: Any) -> None:
        from cvat_sdk import auto_annotation

        self._client = client
        self._parameters = parameters
        self.spec = auto_annotation.DetectionFunctionSpec(labels=[auto_annotation.label_spec(LABEL, 0, type="any")])

    def detect(self, context: Any, image: Any) -> list[Any]:
        """Return the objects as masks, or as polygons if CVAT asks for polygons.

        Args:
            context: a DetectionFunctionContext; its ``conf_threshold`` is the minimum predicted IoU of an object.
        """
        threshold = {} if context.conf_threshold is None else {"pred_iou_thresh": context.conf_threshold}
        found = self._client.everything(image, **{**self._parameters, **threshold})
        return [shape for each in found for shape in _shapes(each, 0, context.conv_mask_to_poly)]


class Words:
    """Detection function: every instance of words, with one label for each word."""

    def __init__(self, client: SamTritonClient, words: str = "", **parameters: Any) -> None:
        from cvat_sdk import auto_annotation

        self._client, self._parameters = client, parameters
        self._words = list(dict.fromkeys(word for each in words.split(",") if (word := each.strip())))
        if not self._words:
            raise ConfigurationError("say which words to find, for example -p words=str:dog,cat")
        labels = [auto_annotation.label_spec(word, number, type="any") for number, word in enumerate(self._words)]
        self.spec = auto_annotation.DetectionFunctionSpec(labels=labels)

    def detect(self, context: Any, image: Any) -> list[Any]:
        """Return the instances as masks, or as polygons if CVAT asks for polygons.

        Args:
            context: a DetectionFunctionContext; its ``conf_threshold`` is the minimum score of an instance.
        """
        threshold = {} if context.conf_threshold is None else {"threshold": context.conf_threshold}
        found = self._client.find(self._words, image=image, **{**self._parameters, **threshold})
        return [shape for each in found for shape in _shapes(each, each.object_index, context.conv_mask_to_poly)]


class Interactor:
    """Interaction function: the object at points, in a box, or both.

    Args:
        client: its Triton encodes an image once for all clicks on it.
    """

    def __init__(self, client: SamTritonClient) -> None:
        from cvat_sdk import auto_annotation

        self._client = client
        self.spec = auto_annotation.InteractionFunctionSpec(min_pos_points=0, min_neg_points=0, min_bounding_boxes=0)

    def preprocess_image(self, _: Any, image: Any) -> ImageEmbeddings:
        """Encode an image."""
        return self._client.encode(image)

    def detect(self, _: Any, pp_image: ImageEmbeddings, prompts: Any) -> list[Any]:
        """Return the mask of the object; nothing if the mask is empty or there is no prompt."""
        from cvat_sdk import auto_annotation, models
        from cvat_sdk.masks import encode_mask

        points = [*prompts.pos_points, *prompts.neg_points]
        labels = [1] * len(prompts.pos_points) + [0] * len(prompts.neg_points)
        box = None if prompts.bounding_box is None else [value for corner in prompts.bounding_box for value in corner]
        if not points and box is None:
            return []
        [segment] = self._client.segment(points or None, labels or None, box=box, image=pp_image, logits=False)
        if segment.box is None:
            return []
        confidence = models.AttributeValRequest(
            spec_id=int(auto_annotation.InteractionResultAttributes.CONFIDENCE),
            value=f"{min(1.0, max(0.0, segment.score)):.5f}",
        )
        return [
            auto_annotation.InteractionResultShape(
                type="mask", points=encode_mask(segment.mask), attributes=[confidence]
            )
        ]


def _shapes(segment: Segment, label: int, as_polygons: bool) -> list[Any]:
    """Return a mask as one shape of CVAT, or its outlines as several; nothing if the mask is empty."""
    from cvat_sdk import auto_annotation
    from cvat_sdk.masks import encode_mask

    if as_polygons:
        return [auto_annotation.polygon(label, ring) for ring in segment.to_polygons()]
    return [auto_annotation.mask(label, encode_mask(segment.mask))] if segment.box is not None else []
