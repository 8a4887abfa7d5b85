"""The parts of a video client that commands and measurements use, so that tests can bring their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from ..families.base import FloatArray, Size
from ..masks.rle import BoolArray


class ObjectMask(Protocol):
    """The mask of one object in one image of a video."""

    @property
    def mask(self) -> BoolArray:
        """Bool (H,W) at the size of the video."""

    @property
    def score(self) -> float:
        """The IoU with the true mask that the model predicts, about 0..1."""

    @property
    def object_score(self) -> float:
        """A logit: above 0 the model sees the object in this image."""

    @property
    def logits(self) -> FloatArray | None:
        """Low-resolution logits float32 (h,w), or None."""


class Video(Protocol):
    """An open video: prompts go in, masks come out. `triton_sam.client.video` has the real one."""

    @property
    def num_frames(self) -> int | None:
        """Number of images, or None if nobody knows it (a camera)."""

    @property
    def frame_size(self) -> Size:
        """Width and height in pixels."""

    def add(
        self,
        frame: int,
        object_id: int,
        points: Sequence[Sequence[float]] | None = None,
        labels: Sequence[int] | None = None,
        box: Sequence[float] | None = None,
        mask: Any = None,
    ) -> ObjectMask:
        """Prompt an object in one image and return its mask there."""

    def propagate(
        self, start: int | None = None, count: int | None = None, reverse: bool = False, *, logits: bool = True
    ) -> Iterator[tuple[int, Mapping[int, ObjectMask]]]:
        """Track all objects from image to image; yield the number of the image and the mask of each object id.

        Without ``logits``, masks come without them, which takes less time on the wire.
        """
