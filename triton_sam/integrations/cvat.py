"""Functions for CVAT's agents and for `cvat-cli task auto-annotate`, see docs/how-to/tools/cvat.md.

Reference: cvat_sdk/auto_annotation/interface.py and ai-models/tracker/sam2 of https://github.com/cvat-ai/cvat.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..client.sync import SamTritonClient
from ..client.video import SAM2VideoClient
from ..client.video.video import Video
from ..errors import ConfigurationError, MissingDependencyError, PromptError
from ..families.base import Size
from ..inputs.embeddings import ImageEmbeddings
from ..inputs.video.base import encode
from ..inputs.video.streams import GrowingFrames, SharedPath
from ..masks.boxes import mask_to_box
from ..masks.polygons import fill_polygons, mask_to_polygons
from ..masks.rle import BoolArray, mask_to_rle, rle_to_mask
from ..masks.segment import Segment

EVERYTHING, INTERACTOR, TRACKER, WORDS = "everything", "interactor", "tracker", "words"
LABEL = "object"
SHAPES = ("mask", "polygon", "rectangle")


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
            raise ConfigurationError("name the words to find, for example -p words=str:dog,cat")
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


class Frame:
    """A frame, ready to be sent.

    Attributes:
        session: the session that began in this frame; None if there is none.
    """

    def __init__(self, image: Any) -> None:
        self.content, self.size = encode(image, None)
        self.name = hashlib.sha256(self.content).hexdigest()
        self.session: Session | None = None


@dataclass(eq=False)
class State:
    session: Session
    number: int
    kind: str


class Tracker:
    """Tracking function. All objects that begin in one frame share a session, so that each frame is encoded once.

    Args:
        client: a client whose server has the video model.
    """

    def __init__(self, client: SAM2VideoClient) -> None:
        from cvat_sdk import auto_annotation

        self._client = client
        self.spec = auto_annotation.TrackingFunctionSpec(supported_shape_types=list(SHAPES))

    def preprocess_image(self, _: Any, image: Any) -> Frame:
        return Frame(image)

    def init_tracking_state(self, _: Any, pp_image: Frame, shape: Any) -> State:
        if pp_image.session is None or not pp_image.session.is_at_start:
            pp_image.session = Session(self._client, pp_image)
        session = pp_image.session
        return State(session, session.add(_prompt(shape, pp_image.size)), str(shape.type))

    def track(self, _: Any, pp_image: Frame, state: State) -> Any:
        """Return the shape of an object in the next frame; None if the object is not visible."""
        from cvat_sdk import auto_annotation
        from cvat_sdk.masks import encode_mask

        mask = state.session.mask(pp_image, state.number)
        box = mask_to_box(mask)
        if box is None:
            return None
        points: Any = [float(value) for value in box]
        if state.kind == "mask":
            points = encode_mask(mask)
        elif state.kind == "polygon":
            points = mask_to_polygons(mask)[0]
        return auto_annotation.TrackableShape(type=state.kind, points=points)


class Session:
    """The objects that began in one frame. The session ends at Triton when nothing refers to it any more."""

    def __init__(self, client: SAM2VideoClient, frame: Frame) -> None:
        self._frames = GrowingFrames(frame.content, frame.size)
        self._path = SharedPath(frame.name)
        self._masks: dict[int, dict[int, Any]] = {0: {}}  # RLE masks of frames that an object may still request
        self._tracked = 1
        self._lock = threading.Lock()
        self._video = client.open(self._frames)
        weakref.finalize(self, _close_soon, self._video)

    @property
    def is_at_start(self) -> bool:
        """Whether no second frame has arrived yet."""
        return self._frames.count == 1

    def add(self, prompt: dict[str, Any]) -> int:
        """Prompt an object in the first frame and return its number."""
        with self._lock:
            number = len(self._masks[0]) + 1
            self._masks[0][number] = mask_to_rle(self._video.add(0, number, **prompt, logits=False).mask)
            self._path.begin(number)
            return number

    def mask(self, frame: Frame, number: int) -> BoolArray:
        """Return the mask of an object in a frame: its last frame, the next one, or a new one."""
        with self._lock:
            place = self._path.find(number, frame.name, self._tracked)
            if place == self._frames.count:
                self._frames.append(frame.content, frame.size)
                self._path.append(frame.name)
            if place >= self._tracked:
                left = self._frames.count - self._tracked
                for index, found in self._video.propagate(self._tracked, left, logits=False):
                    self._masks[index] = {each: mask_to_rle(segment.mask) for each, segment in found.items()}
                    self._tracked = index + 1
            mask = rle_to_mask(self._masks[place][number])
            needed = self._path.move({number: place})
            for index in [index for index in self._masks if index < needed]:
                del self._masks[index]
            return mask


def _shapes(segment: Segment, label: int, as_polygons: bool) -> list[Any]:
    """Return a mask as one shape of CVAT, or its outlines as several; nothing if the mask is empty."""
    from cvat_sdk import auto_annotation
    from cvat_sdk.masks import encode_mask

    if as_polygons:
        return [auto_annotation.polygon(label, ring) for ring in segment.to_polygons()]
    return [auto_annotation.mask(label, encode_mask(segment.mask))] if segment.box is not None else []


def _close_soon(video: Video) -> None:
    threading.Thread(target=video.close, name="triton-sam-close", daemon=True).start()


def _prompt(shape: Any, size: Size) -> dict[str, Any]:
    from cvat_sdk.masks import decode_mask

    kind, (width, height) = str(shape.type), size
    if kind == "rectangle":
        x1, y1, x2, y2 = (float(value) for value in shape.points)
        return {"box": [max(0.0, x1), max(0.0, y1), min(float(width), x2), min(float(height), y2)]}
    if kind == "mask":
        mask: Any = decode_mask(shape.points, image_width=width, image_height=height)
    else:
        mask = fill_polygons([shape.points], size)
    if not np.any(mask):
        raise PromptError(f"the {kind} covers no pixel of the image")
    return {"mask": np.asarray(mask, bool)}
