"""The official video predictor of SAM2, as a reference for videos."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from sam2.sam2_video_predictor import SAM2VideoPredictor

from ..._common.progress import quiet
from ...errors import VideoError
from ...families.sam2 import SAM2
from ..reference import Frames, Logits

_FILL_HOLE_AREA = 8
"""Set by build_sam2_video_predictor. The predictor skips this step without its CUDA kernel, as on a CPU."""


class Sam2VideoReference:
    """Runs sam2.sam2_video_predictor.SAM2VideoPredictor with the settings of build_sam2_video_predictor.

    It runs on the model's device.

    The official loader reads JPEG files. Here, its arithmetic is applied to the frames: Pillow's resize of bytes to SxS
    (bicubic by default), division by 255 in FP64, then mean and standard deviation in FP32.

    Args:
        model: a sam2.modeling.sam2_base.SAM2Base from load_model(); its parameters are shared, not copied.
        frames: the frames of a video, each (height,width,3) uint8 RGB, all of one size.
    """

    def __init__(self, model: Any, frames: Frames) -> None:
        self._images = frame_tensors(frames, model.image_size)
        self._predictor = _predictor_of(model)
        self._size = frames[0].shape[:2]
        self._state = self._new_state()

    def add(
        self, frame: int, object_id: int, *, points: Any = None, labels: Any = None, box: Any = None, mask: Any = None
    ) -> Logits:
        """See add_new_points_or_box and add_new_mask."""
        with quiet():
            if mask is not None:
                _, _, logits = self._predictor.add_new_mask(self._state, frame, object_id, np.asarray(mask, bool))
            else:
                _, _, logits = self._predictor.add_new_points_or_box(
                    self._state,
                    frame,
                    object_id,
                    points=None if points is None else np.asarray(points, np.float32),
                    labels=None if labels is None else np.asarray(labels, np.int32),
                    box=None if box is None else np.asarray(box, np.float32),
                )
        return {object_id: self._by_object(logits)[object_id]}

    def propagate(self, start: int | None = None, *, reverse: bool = False) -> Iterator[tuple[int, Logits]]:
        """See propagate_in_video. Objects without an output have the logit -1024."""
        found = self._predictor.propagate_in_video(self._state, start, reverse=reverse)
        while True:
            with quiet(), mock.patch("sam2.sam2_video_predictor.tqdm", _without_bar):
                step = next(found, None)
            if step is None:
                return
            yield step[0], self._by_object(step[2])

    def reset(self) -> None:
        self._predictor.reset_state(self._state)

    def _by_object(self, logits: torch.Tensor) -> Logits:
        """Return the logits by object from the predictor's (objects,1,height,width)."""
        return dict(zip(self._state["obj_ids"], logits[:, 0].float().cpu().numpy(), strict=True))

    def _new_state(self) -> dict[str, Any]:
        """Return the state of SAM2VideoPredictor.init_state, without reading files."""
        device = self._predictor.device
        state: dict[str, Any] = {
            "images": self._images,
            "num_frames": len(self._images),
            "offload_video_to_cpu": False,
            "offload_state_to_cpu": False,
            "video_height": self._size[0],
            "video_width": self._size[1],
            "device": device,
            "storage_device": device,
            "obj_ids": [],
        }
        by_object = (
            "point_inputs_per_obj",
            "mask_inputs_per_obj",
            "output_dict_per_obj",
            "temp_output_dict_per_obj",
            "frames_tracked_per_obj",
        )
        state |= {name: {} for name in (*by_object, "cached_features", "constants", "obj_id_to_idx", "obj_idx_to_id")}
        return state


def _without_bar(frames: Sequence[int], **_: Any) -> Sequence[int]:
    """Replace tqdm, whose bar would mix with the output of commands."""
    return frames


class _Predictor(SAM2VideoPredictor):  # type: ignore[misc]
    """The official predictor with its memories, rounded to bfloat16, stored as FP32.

    The official code concatenates them with pointers, which converts them to FP32. A frame before all prompts of an
    object has no pointer, so torch refuses the product of bfloat16 memories and FP32 weights.
    """

    def _run_single_frame_inference(self, *arguments: Any, **options: Any) -> Any:
        output, masks = super()._run_single_frame_inference(*arguments, **options)
        if output["maskmem_features"] is not None:
            output["maskmem_features"] = output["maskmem_features"].float()
        return output, masks

    def _run_memory_encoder(self, *arguments: Any, **options: Any) -> Any:
        features, positions = super()._run_memory_encoder(*arguments, **options)
        return features.float(), positions


def _predictor_of(model: Any) -> Any:
    """Return a SAM2VideoPredictor that shares all modules, parameters and settings with a SAM2Base."""
    predictor = _Predictor.__new__(_Predictor)
    predictor.__dict__.update(vars(model))
    predictor.fill_hole_area = _FILL_HOLE_AREA if torch.cuda.is_available() and model.device.type == "cuda" else 0
    predictor.non_overlap_masks = False
    predictor.clear_non_cond_mem_around_input = False
    predictor.add_all_frames_to_correct_as_cond = False
    predictor.binarize_mask_from_pts_for_mem_enc = True
    return predictor.eval()


def frame_tensors(
    frames: Frames, side: int, mean: Sequence[float] = SAM2.pixel_mean, std: Sequence[float] = SAM2.pixel_std
) -> torch.Tensor:
    """Return the (N,3,S,S) FP32 inputs of the encoder for the frames of a video."""
    if not frames:
        raise VideoError("the video has no frames: give at least one")
    if other := next((frame.shape for frame in frames if frame.shape != frames[0].shape), None):
        raise VideoError(f"the frames differ in size: {frames[0].shape[:2]} and {other[:2]}")
    return torch.stack([_image(frame, side, mean, std) for frame in frames])


def _image(frame: npt.NDArray[np.uint8], side: int, mean: Sequence[float], std: Sequence[float]) -> torch.Tensor:
    """Return the (3,S,S) FP32 input of the encoder, as load_video_frames_from_jpg_images in sam2.utils computes it."""
    resized = np.array(Image.fromarray(frame).resize((side, side)))
    image = torch.zeros(3, side, side, dtype=torch.float32)
    image.copy_(torch.from_numpy(resized / 255.0).permute(2, 0, 1))
    image -= torch.tensor(mean, dtype=torch.float32)[:, None, None]
    image /= torch.tensor(std, dtype=torch.float32)[:, None, None]
    return image
