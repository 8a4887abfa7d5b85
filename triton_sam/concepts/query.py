"""A request for all instances of concepts, given as words or example boxes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common import strict_json
from .._common.checks import check_fields, check_names, number
from ..errors import InputError, PromptError
from ..families.base import FloatArray, Size
from ..families.concepts import MAX_BOXES
from ..families.tables import MAX_PROMPTS
from ..masks.boxes import Box, mask_to_box
from ..masks.rle import rle_to_box

THRESHOLD, MASK_THRESHOLD = 0.3, 0.5
"""The defaults of the reference, Sam3ImageProcessor.post_process_instance_segmentation in transformers."""

MAX_TEXTS = MAX_PROMPTS
MAX_EXAMPLES = MAX_BOXES

TEXT_OF_EXAMPLES = "visual"
"""The text that the reference uses for example boxes without a text; see Sam3Processor in transformers."""

_CONCEPT = ("text", "boxes", "box_labels")
_PARAMETERS = ("threshold", "mask_threshold", "nms", "limit", "masks", "mask_labels")


@dataclass(frozen=True, eq=False)
class Query:
    """A checked request.

    Args:
        texts: the concepts in words. Empty: the example boxes define the concept.
        boxes: float32 (N,4), example boxes as x1,y1,x2,y2 in pixels of the image that they belong to. They belong to
            the concept of each text.
        box_labels: int64 (N,): 1 for an instance, 0 for something that must not be found.
        threshold: instances need a score above this, 0..1.
        mask_threshold: pixels of a mask need a probability above this, 0..1.
        nms: an instance is dropped if its box has an IoU above this with the box of a better instance of the same text,
            0..1. None: no instance is dropped, as in the reference.
        limit: maximum number of instances for each text, those with the highest scores. None: all, at most 200.
        mask_size: width and height of the example masks, whose boxes are among ``boxes``; None if there are none.
    """

    texts: tuple[str, ...]
    boxes: FloatArray = field(default_factory=lambda: np.zeros((0, 4), np.float32))
    box_labels: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    threshold: float = number(THRESHOLD, 0, 1)
    mask_threshold: float = number(MASK_THRESHOLD, 0, 1)
    nms: float | None = number(None, 0, 1)
    limit: int | None = number(None, 1, whole=True)
    mask_size: Size | None = None

    def __post_init__(self) -> None:
        check_fields(self, PromptError)

    @property
    def prompts(self) -> tuple[str, ...]:
        """The texts for the text encoder, one for each concept."""
        return self.texts or ((TEXT_OF_EXAMPLES,) if len(self.boxes) else ())

    def labels(self) -> tuple[str, ...]:
        """Return the label of the instances of each concept: its text, or "" for the concept of example boxes."""
        return self.texts or ("",)

    def members(self) -> dict[str, Any]:
        """Return the members of the request as a JSON object. Read them with query_from()."""
        return {
            "text": list(self.texts),
            "boxes": self.boxes.tolist(),
            "box_labels": self.box_labels.tolist(),
            "threshold": self.threshold,
            "mask_threshold": self.mask_threshold,
            "nms": self.nms,
            "limit": self.limit,
            # Only if they are needed, because servers of earlier versions reject unknown keys.
            **({"mask_size": list(self.mask_size)} if self.mask_size else {}),
        }

    def to_json(self) -> bytes:
        """Return the request as JSON for the wire."""
        return strict_json.dumps(self.members()).encode()

    def check_inside(self, size: Size) -> None:
        """Check that the example boxes overlap the image that they belong to, and that masks have its size.

        Args:
            size: width and height of that image in pixels.
        """
        width, height = size
        if self.mask_size not in (None, size):
            raise PromptError(
                f"the example masks have {self.mask_size[0]} x {self.mask_size[1]} pixels, and the image that they "
                f"belong to has {width} x {height}"
            )
        for x1, y1, x2, y2 in self.boxes.tolist():
            if x1 >= width or y1 >= height or x2 <= 0 or y2 <= 0:
                raise PromptError(f"box {[x1, y1, x2, y2]} lies outside the image, which has {width} x {height} pixels")

    def normalised(self, size: Size) -> FloatArray:
        """Return the boxes in the detector's form, float32 (N,4): centre x, centre y, width, height, in 0..1."""
        boxes = self.boxes / np.tile(np.array(size, np.float32), 2)
        corners, ends = boxes[:, :2], boxes[:, 2:]
        normalised: FloatArray = np.concatenate([(corners + ends) / 2, ends - corners], axis=1).astype(np.float32)
        return normalised


def check_query(
    text: Any = None,
    boxes: Any = None,
    box_labels: Any = None,
    *,
    masks: Any = None,
    mask_labels: Any = None,
    threshold: Any = THRESHOLD,
    mask_threshold: Any = MASK_THRESHOLD,
    nms: Any = None,
    limit: Any = None,
) -> Query:
    """Check the request of a caller. The arguments are those of Query; ``text`` may also be a single string.

    Args:
        masks: example masks, arrays (H,W), foreground where not 0, or COCO RLE; each stands for its tight box.
    """
    texts, (corners, labels), mask_size = _texts(text), _examples(boxes, box_labels), None
    if masks is not None:
        seen, kinds, mask_size = _boxes_of_masks(masks, mask_labels)
        corners, labels = _examples([*corners.tolist(), *seen], [*labels.tolist(), *kinds])
    elif mask_labels is not None:
        raise PromptError("mask_labels need masks")
    if not texts and not len(corners):
        raise PromptError("give a text or an example box")
    if not texts and not (labels == 1).any():
        raise PromptError("example boxes without a text need at least one with label 1")
    return Query(
        texts,
        corners,
        labels,
        threshold,
        mask_threshold,
        nms,
        limit,
        mask_size,
    )


def check_parameters(text: Any, boxes: Any, box_labels: Any, parameters: Mapping[str, Any]) -> Query:
    """Return check_query() with further parameters by name."""
    check_names(parameters, _PARAMETERS, PromptError)
    return check_query(text, boxes, box_labels, **parameters)


def query_from(given: Mapping[str, Any]) -> Query:
    """Read a request from the members of its JSON object."""
    given = dict(given)
    text, boxes, labels = (given.pop(name, None) for name in _CONCEPT)
    size = given.pop("mask_size", None)
    query = check_parameters(text, boxes, labels, given)
    if size is None:
        return query
    try:
        width, height = (int(side) for side in size)
    except (TypeError, ValueError, OverflowError) as error:
        raise PromptError("mask_size must be the width and height of the example masks in pixels") from error
    return replace(query, mask_size=(width, height))


def _texts(text: Any) -> tuple[str, ...]:
    texts = () if text is None else (text,) if isinstance(text, str) else text
    if not isinstance(texts, (list, tuple)) or not all(isinstance(each, str) for each in texts):
        raise PromptError("text must be a string or a list of strings")
    if len(texts) > MAX_TEXTS:
        raise PromptError(f"{len(texts)} texts: a request may have at most {MAX_TEXTS}")
    if not all(each.strip() for each in texts):
        raise PromptError("a text is empty: give a word, or leave the text out and give example boxes")
    return tuple(texts)


def _examples(boxes: Any, labels: Any) -> tuple[FloatArray, npt.NDArray[np.int64]]:
    corners = _array(boxes, "boxes")
    if corners is None or not corners.size:
        if _array(labels, "box_labels") is not None and np.size(labels):
            raise PromptError("box_labels need boxes")
        return np.zeros((0, 4), np.float32), np.zeros(0, np.int64)
    corners = corners[None] if corners.ndim == 1 else corners
    if corners.ndim != 2 or corners.shape[1] != 4:
        raise PromptError(f"boxes must be (4,) or (N,4), x1,y1,x2,y2, not {corners.shape}")
    if len(corners) > MAX_EXAMPLES:
        raise PromptError(f"{len(corners)} boxes: a request may have at most {MAX_EXAMPLES} examples")
    if not np.isfinite(corners).all() or not (corners[:, :2] < corners[:, 2:]).all():
        raise PromptError("boxes must be finite, x1,y1,x2,y2 with x1 < x2 and y1 < y2")
    return corners.astype(np.float32), _labels("box_labels", labels, len(corners), "boxes")


def _labels(name: str, labels: Any, count: int, noun: str) -> npt.NDArray[np.int64]:
    given = _array(labels, name)
    chosen = np.ones(count) if given is None else np.atleast_1d(given)
    if chosen.shape != (count,):
        raise PromptError(f"{name} must have one label for each of the {count} {noun}, not {chosen.shape}")
    if not np.isin(chosen, (0, 1)).all():
        raise PromptError(f"{name} must be 1 (an instance) or 0 (not this)")
    return chosen.astype(np.int64)


def _array(value: Any, name: str) -> npt.NDArray[np.float64] | None:
    if value is None:
        return None
    try:
        return np.asarray(value, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise PromptError(f"{name} must be numbers: {error}") from None


def _boxes_of_masks(masks: Any, labels: Any) -> tuple[list[Box], list[Any], Size]:
    """Return the boxes of masks, their labels, and the width and height that all masks have.

    The model accepts only boxes, as the reference does (Sam3Processor in transformers), so a mask stands for its box.
    """
    single = isinstance(masks, Mapping) or (isinstance(masks, np.ndarray) and masks.ndim == 2)
    given = [masks] if single else masks
    if not isinstance(given, (list, tuple, np.ndarray)) or not len(given):
        raise PromptError("masks must be a list of arrays (H,W) or of COCO RLE, at least one")
    try:
        found = [_read(each) for each in given]
    except (InputError, TypeError, ValueError) as error:
        raise PromptError(f"an example mask cannot be read: {error}") from error
    boxes = [box for box, _ in found if box is not None]
    if len(boxes) < len(found):
        raise PromptError("an example mask is empty")
    sizes = {size for _, size in found}
    if len(sizes) > 1:
        raise PromptError("the example masks have different sizes: all of them belong to one image")
    return boxes, _labels("mask_labels", labels, len(boxes), "masks").tolist(), sizes.pop()


def _read(mask: Any) -> tuple[Box | None, Size]:
    if isinstance(mask, Mapping):
        box = rle_to_box(mask)  # without decoding: a few bytes of RLE may stand for very many pixels
        height, width = mask["size"]
        return box, (int(width), int(height))
    pixels = np.asarray(mask)
    height, width = pixels.shape if pixels.ndim == 2 else (0, 0)
    return mask_to_box(pixels), (width, height)
