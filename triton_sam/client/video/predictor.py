"""The calls of the official SAM2VideoPredictor over a video client, without torch.

Masks are numpy arrays: leave out ``.cpu().numpy()``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from functools import partial
from typing import Any

import numpy as np

from ...errors import PromptError
from ...families.base import FloatArray
from ...inputs.prompts import PromptArray
from ...inputs.video.opening import VideoSource
from ...masks.resize import resize_logits
from ...transport.base import Tensors
from .flows import WITH_LOGITS
from .sync import SAM2VideoClient
from .video import Video

Masks = tuple[int, list[int], FloatArray]
"""Index of a frame, ids of all objects, and their logits (objects,1,H,W) at the size of the video."""
NO_OBJECT = -1024.0
"""The logits of an object that has no mask in a frame."""


class InferenceState(dict[str, Any]):
    """The state of one video: ``num_frames``, ``video_height``, ``video_width``, and ``obj_ids``.

    Args:
        video: the open video.
    """

    def __init__(self, video: Video) -> None:
        width, height = video.frame_size
        super().__init__(num_frames=video.num_frames, video_height=height, video_width=width, obj_ids=[])
        self.video = video


class SAM2VideoPredictor:
    """Follows objects through videos with the methods and return values of sam2.sam2_video_predictor.

    Examples:
        >>> predictor = SAM2VideoPredictor(SAM2VideoClient("localhost:8000"))
        >>> state = predictor.init_state("frames")
        >>> predictor.add_new_points_or_box(state, frame_idx=0, obj_id=1, points=[[210, 350]], labels=[1])
        >>> for frame_idx, obj_ids, masks in predictor.propagate_in_video(state):
        ...     visible = masks > 0

    Args:
        client: sends the requests.
    """

    def __init__(self, client: SAM2VideoClient) -> None:
        self._client = client

    def init_state(
        self,
        video_path: VideoSource,
        offload_video_to_cpu: bool = False,  # noqa: ARG002 - has no meaning here
        offload_state_to_cpu: bool = False,  # noqa: ARG002
        async_loading_frames: bool = False,  # noqa: ARG002
        **options: Any,
    ) -> InferenceState:
        """Open a video. This also accepts the options of SAM2VideoClient.open(); the offload options have no effect."""
        return InferenceState(self._client.open(video_path, **options))

    def add_new_points_or_box(
        self,
        inference_state: InferenceState,
        frame_idx: int,
        obj_id: int,
        points: PromptArray = None,
        labels: PromptArray = None,
        clear_old_points: bool = True,
        normalize_coords: bool = True,
        box: PromptArray = None,
    ) -> Masks:
        """Add points or a box for one object at one frame.

        Args:
            inference_state: from init_state().
            frame_idx: index of the frame.
            obj_id: id of the object.
            points: (N,2), in pixels; with ``normalize_coords=False``, in 0..1.
            labels: (N,): 1 foreground, 0 background.
            clear_old_points: whether the prompt replaces the earlier points of the object at this frame.
            normalize_coords: whether coordinates are in pixels of the video.
            box: (4,) as x1,y1,x2,y2, in the same unit as the points.

        Raises:
            PromptError: a part of the prompt is missing or invalid.
        """
        if (points is None) != (labels is None):
            raise PromptError("points and labels must be given together")
        video = inference_state.video
        if not normalize_coords:
            scale = np.array(video.frame_size, np.float32)
            points = None if points is None else np.asarray(points, np.float32) * scale
            box = None if box is None else np.asarray(box, np.float32).reshape(-1) * np.tile(scale, 2)
        elif box is not None:
            box = np.asarray(box).reshape(-1)
        operation = video._prompt(frame_idx, obj_id, points, labels, box, None, clear_old_points)
        return self._answer(inference_state, video._run(operation, WITH_LOGITS), frame_idx)

    add_new_points = add_new_points_or_box

    def add_new_mask(self, inference_state: InferenceState, frame_idx: int, obj_id: int, mask: PromptArray) -> Masks:
        """Add a mask (H,W), at the size of the video, as prompt for one object at one frame."""
        video = inference_state.video
        operation = video._prompt(frame_idx, obj_id, None, None, None, np.asarray(mask), True)
        return self._answer(inference_state, video._run(operation, WITH_LOGITS), frame_idx)

    def propagate_in_video(
        self,
        inference_state: InferenceState,
        start_frame_idx: int | None = None,
        max_frame_num_to_track: int | None = None,
        reverse: bool = False,
    ) -> Generator[Masks, None, None]:
        """Track all objects from frame to frame.

        As in the official predictor, one frame more than ``max_frame_num_to_track`` is tracked, and a reverse pass from
        frame 0 is empty.
        """
        video = inference_state.video
        count = None if max_frame_num_to_track is None else max_frame_num_to_track + 1
        current = video._pass(start_frame_idx, count, reverse, WITH_LOGITS)
        first = video._earliest() if start_frame_idx is None else start_frame_idx
        if reverse and first == 0:
            return
        with contextlib.closing(video._track(current, partial(self._answer, inference_state))) as tracked:
            for _, found in tracked:
                yield found

    def clear_all_prompts_in_frame(
        self, inference_state: InferenceState, frame_idx: int, obj_id: int, need_output: bool = True
    ) -> Masks | None:
        """Remove the prompts of an object at a frame; return the masks of all objects there."""
        video = inference_state.video
        operation = video._clearing(frame_idx, obj_id)
        answer = video._run(operation, WITH_LOGITS if need_output else ())
        return self._answer(inference_state, answer, frame_idx) if need_output else None

    def remove_object(
        self, inference_state: InferenceState, obj_id: int, strict: bool = False, need_output: bool = True
    ) -> tuple[list[int], list[tuple[int, FloatArray]]]:
        """Remove an object.

        Returns:
            The remaining ids, and (index, masks) of each frame that had prompts of the object.

        Raises:
            PromptError: there is no such object, and ``strict`` is set.
        """
        video = inference_state.video
        if obj_id not in video.object_ids and not strict:
            return video.object_ids, []
        operation = video._removal(obj_id)
        answer = video._run(operation, WITH_LOGITS if need_output else ())
        inference_state["obj_ids"] = ids = video.object_ids
        if not need_output:
            return ids, []
        indexes = answer["frame_indexes"]
        updated = []
        for index in sorted({int(index) for index in indexes}):
            rows = {name: answer[name][indexes == index] for name in WITH_LOGITS}
            frame = video._frames.outside(index)
            updated.append((frame, self._answer(inference_state, rows, frame)[2]))
        return ids, updated

    def reset_state(self, inference_state: InferenceState) -> None:
        """Remove all objects."""
        inference_state.video.reset()
        inference_state["obj_ids"] = []

    @staticmethod
    def _answer(state: InferenceState, answer: Tensors, frame: int) -> Masks:
        video = state.video
        state["obj_ids"] = ids = video.object_ids
        found = video._model.read_logits(answer)
        width, height = video.frame_size
        masks = np.full((len(ids), 1, height, width), NO_OBJECT, np.float32)
        for row, object_id in enumerate(ids):
            if object_id in found:
                masks[row, 0] = resize_logits(found[object_id], video.frame_size)
        return frame, ids, masks
