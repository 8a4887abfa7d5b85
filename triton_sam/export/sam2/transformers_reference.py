"""Transformers' video models with SAM2's memory, as references for videos, on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.nn.functional import interpolate

from ...families.base import Family
from ..reference import Frames, Logits
from .video_reference import frame_tensors

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
        """See propagate_in_video_iterator."""
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
