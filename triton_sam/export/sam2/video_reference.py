"""The official video predictors as references: that of the sam2 package, and transformers' with Meta's rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from sam2.sam2_video_predictor import SAM2VideoPredictor
from torch.nn.functional import interpolate

from ..._common.progress import quiet
from ...errors import VideoError
from ...families.base import Family
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


LOGIT_LIMIT = 32.0


class TransformersVideoReference:
    """Runs a transformers video model, for example EdgeTamVideoModel, with its session.

    Frames are prepared as in Meta's predictor: Pillow's bicubic resize of bytes.

    Args:
        session: the class of the model's sessions.
        frames: the frames of a video, each (height,width,3) uint8 RGB, all of one size.
    """

    def __init__(self, family: Family, model: Any, session: Any, frames: Frames, *, as_meta: bool = True) -> None:
        images = frame_tensors(frames, model.image_size, family.pixel_mean, family.pixel_std)
        self._model = with_meta_rules(model) if as_meta else model
        self._height, self._width = frames[0].shape[:2]
        self._side = model.image_size
        self._session: Any = session(images, self._height, self._width, dtype=torch.float32)

    def add(
        self, frame: int, object_id: int, *, points: Any = None, labels: Any = None, box: Any = None, mask: Any = None
    ) -> Logits:
        index = self._session.obj_id_to_idx(object_id)
        if mask is not None:
            size = (self._side, self._side)
            pixels = torch.from_numpy(np.asarray(mask, np.float32))[None, None]
            resized = interpolate(pixels, size=size, mode="bilinear", align_corners=False, antialias=True)
            self._session.add_mask_inputs(index, frame, (resized >= 0.5).float())
            self._session.remove_point_inputs(index, frame)
        else:
            corners = np.zeros((0, 2)) if box is None else np.reshape(box, (2, 2))
            others = np.zeros((0, 2)) if points is None else np.asarray(points)
            coords = np.concatenate([corners, others]).astype(np.float32)
            kinds = [2, 3][: len(corners)] + ([] if labels is None else list(labels))
            scale = np.array([self._side / self._width, self._side / self._height], np.float32)
            inputs = {
                "point_coords": torch.from_numpy(coords * scale)[None, None],
                "point_labels": torch.tensor(kinds, dtype=torch.int32)[None, None],
            }
            self._session.add_point_inputs(index, frame, inputs)
            self._session.remove_mask_inputs(index, frame)
        self._session.obj_with_new_inputs = [object_id]
        with torch.inference_mode():
            return {object_id: self._by_object(self._model(self._session, frame).pred_masks)[object_id]}

    def propagate(self, start: int | None = None, *, reverse: bool = False) -> Iterator[tuple[int, Logits]]:
        for output in self._model.propagate_in_video_iterator(self._session, start, reverse=reverse):
            yield output.frame_idx, self._by_object(output.pred_masks)

    def reset(self) -> None:
        self._session.reset_tracking_data()

    def _by_object(self, logits: torch.Tensor) -> Logits:
        size = (self._height, self._width)
        rows = interpolate(logits, size=size, mode="bilinear", align_corners=False)[:, 0].numpy()
        return dict(zip(self._session.obj_ids, rows, strict=True))


class _MetaRules:
    """Changes a transformers video model where it differs from Meta's predictor.

    - A correction continues from the previous mask; transformers uses only the points.
    - The pointer of a mask prompt comes from the single mask; in transformers, from the best of three.
    - The memory of a mask prompt is encoded from its low-resolution logits; in transformers, from its pixels.
    - The pointers of prompted frames are limited to the frames whose memories count as prompted (the closest ones, if a
      model limits their number); transformers uses all.
    """

    # Attributes of the model, whose class follows this one among the bases in with_meta_rules().
    image_size: int
    config: Any
    mask_downsample: Any
    no_object_pointer: Any
    _single_frame_forward: Any
    _select_closest_cond_frames: Any

    def _get_object_pointers(self, inference_session: Any, obj_idx: int, frame_idx: int, *others: Any) -> Any:
        known = inference_session.output_dict_per_obj[obj_idx]
        selected, unselected = self._select_closest_cond_frames(
            frame_idx, known["cond_frame_outputs"], self.config.max_cond_frame_num
        )
        tracked = {**unselected, **known["non_cond_frame_outputs"]}
        chosen = {"cond_frame_outputs": selected, "non_cond_frame_outputs": tracked}
        inference_session.output_dict_per_obj[obj_idx] = chosen
        found = super()._get_object_pointers(inference_session, obj_idx, frame_idx, *others)  # type: ignore[misc]
        inference_session.output_dict_per_obj[obj_idx] = known
        return found

    def _run_single_frame_inference(self, **options: Any) -> Any:
        if options["point_inputs"] is not None:
            known = options["inference_session"].output_dict_per_obj[options["obj_idx"]]
            for outputs in (known["cond_frame_outputs"], known["non_cond_frame_outputs"]):
                if earlier := outputs.get(options["frame_idx"]):
                    options["prev_sam_mask_logits"] = earlier["pred_masks"].clamp(-LOGIT_LIMIT, LOGIT_LIMIT)
                    break
        return super()._run_single_frame_inference(**options)  # type: ignore[misc]

    def _use_mask_as_output(self, backbone_features: Any, high_res_features: Any, mask_inputs: Any) -> Any:
        output = super()._use_mask_as_output(  # type: ignore[misc]
            backbone_features, high_res_features, mask_inputs
        )
        single = self._single_frame_forward(
            input_masks=self.mask_downsample(mask_inputs),
            image_embeddings=[*high_res_features, backbone_features],
            multimask_output=False,
        ).object_pointer
        is_present = mask_inputs.flatten(1).any(dim=1)[:, None].to(single.dtype)
        output.object_pointer = is_present * single + (1 - is_present) * self.no_object_pointer
        size = (self.image_size, self.image_size)
        output.high_res_masks = interpolate(output.pred_masks, size=size, mode="bilinear", align_corners=False)
        return output


def with_meta_rules(model: Any) -> Any:
    """Return a model with _MetaRules that shares all modules, parameters and settings with another model."""
    kind: Any = type(f"{type(model).__name__}OfMeta", (_MetaRules, type(model)), {})
    shared = kind.__new__(kind)
    shared.__dict__.update(vars(model))
    return shared.eval()
