"""Tracking function for CVAT's agents: sessions of the video model follow objects from frame to frame.

Reference: cvat_sdk/auto_annotation/interface.py and ai-models/tracker/sam2 of https://github.com/cvat-ai/cvat.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..client.video import SAM2VideoClient
from ..client.video.video import Video
from ..errors import PromptError
from ..families.base import Size
from ..inputs.video.base import encode
from ..inputs.video.growing import GrowingFrames, SharedPath
from ..masks.boxes import mask_to_box
from ..masks.polygons import fill_polygons, mask_to_polygons
from ..masks.rle import BoolArray, mask_to_rle, rle_to_mask

SHAPES = ("mask", "polygon", "rectangle")


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
    """A tracked object."""

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
        """Return a frame for the calls below."""
        return Frame(image)

    def init_tracking_state(self, _: Any, pp_image: Frame, shape: Any) -> State:
        """Start tracking an object."""
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
