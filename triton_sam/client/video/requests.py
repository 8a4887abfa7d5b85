"""Builds the requests to a video model and reads its answers. It does no I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._common import strict_json
from ...errors import InferenceError
from ...families.base import Family, FloatArray, Size
from ...masks.resize import full_size_mask
from ...masks.rle import BoolArray
from ...masks.segment import VideoSegment
from ...transport.base import Tensors
from ...wire import video as wire
from ...wire.contract import ENCODED_MASKS, IOU_PREDICTIONS, MASKS, OUTPUT_FORMAT
from ...wire.pair import FULL_SIZE, Request, read_full_size
from ..session_image import text

ROWS = (wire.FRAME_INDEXES, wire.OBJECT_IDS, wire.OBJECT_SCORES, IOU_PREDICTIONS)
"""The outputs of each row in addition to the mask."""
WITH_LOGITS, WITH_MASKS = (*ROWS, MASKS), (*ROWS, ENCODED_MASKS)
"""The outputs of rows with logits, and of rows with encoded full-size masks."""


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation that changes a session, and can be repeated in another session.

    Args:
        frame: index of the frame whose pixels the operation needs; None if it needs none.
        changes: whether it changes the session. Only these operations are repeated in a restored session.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    frame: int | None = None
    mask: BoolArray | None = None
    changes: bool = True


@dataclass(frozen=True)
class VideoModel:
    """Builds requests and reads answers for one video model.

    Args:
        variant: name of the models, for example "sam2.1_large"; None for the family's default.
    """

    family: Family
    variant: str | None = None

    @cached_property
    def name(self) -> str:
        """Triton name of the model, for example ``sam2_video``."""
        return wire.video_model(self.family, self.variant)

    def request(
        self,
        operation: str,
        session: str | None,
        arguments: Mapping[str, Any],
        frames: Mapping[int, bytes] | None = None,
        mask: BoolArray | None = None,
        snapshot: bytes | None = None,
        outputs: tuple[str, ...] = (wire.RESULT,),
    ) -> Request:
        """Build the request of an operation."""
        if frames:
            arguments = {**arguments, "frame_indexes": list(frames)}
        inputs: dict[str, npt.NDArray[Any]] = {
            wire.OPERATION: text(operation.encode()),
            wire.ARGUMENTS: text(strict_json.dumps(arguments).encode()),
        }
        if session is not None:
            inputs[wire.SESSION_ID] = text(session.encode())
        if frames:
            inputs[wire.FRAMES] = np.array(list(frames.values()), np.object_)
        if mask is not None:
            inputs[wire.MASK] = mask
        if snapshot is not None:
            inputs[wire.SNAPSHOT] = text(snapshot)
        if ENCODED_MASKS in outputs:
            inputs[OUTPUT_FORMAT] = text(FULL_SIZE.name.encode())
        return Request(self.name, inputs, outputs)

    def read_result(self, outputs: Tensors) -> dict[str, Any]:
        """Return the JSON result of an answer."""
        try:
            result = json.loads(bytes(outputs[wire.RESULT].flat[0]))
        except (ValueError, IndexError) as error:
            raise InferenceError(f"{self.name} sent a result that is not JSON") from error
        if not isinstance(result, dict):
            raise InferenceError(f"{self.name} sent a result that is not a JSON object")
        return result

    def read_logits(self, outputs: Tensors) -> dict[int, FloatArray]:
        """Return the logits (h,w) of each object in an answer about one frame."""
        self._check(outputs, outputs[MASKS], dimensions=4)
        return {int(id_): logits[0] for id_, logits in zip(outputs[wire.OBJECT_IDS], outputs[MASKS], strict=True)}

    def read_segments(self, outputs: Tensors, size: Size, frame: int) -> dict[int, VideoSegment]:
        """Return the full-size masks of an answer about one frame, by object. This is slow for large frames."""
        has_logits = MASKS in outputs
        masks = outputs[MASKS] if has_logits else outputs[ENCODED_MASKS]
        self._check(outputs, masks, dimensions=4 if has_logits else 1)
        segments = {}
        for row, content in enumerate(masks):
            object_id = int(outputs[wire.OBJECT_IDS][row])
            mask = full_size_mask(content[0], size, self.family) if has_logits else read_full_size(content, self.name)
            segments[object_id] = VideoSegment(
                mask=mask,
                score=float(outputs[IOU_PREDICTIONS][row]),
                logits=np.array(content[0], np.float32) if has_logits else None,
                object_index=row,
                object_id=object_id,
                frame=frame,
                object_score=float(outputs[wire.OBJECT_SCORES][row]),
            )
        return segments

    def _check(self, outputs: Tensors, masks: npt.NDArray[Any], dimensions: int) -> None:
        rows = len(outputs[wire.OBJECT_IDS])
        if masks.ndim != dimensions or any(len(outputs[name]) != rows for name in ROWS) or len(masks) != rows:
            raise InferenceError(f"{self.name} sent masks of shape {masks.shape} for {rows} object(s)")
