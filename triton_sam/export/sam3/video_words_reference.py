"""Transformers' Sam3VideoModel as a reference for words in videos, on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.functional import interpolate
from transformers import Sam3VideoConfig, Sam3VideoModel
from transformers.models.sam3_video.modeling_sam3_video import Sam3VideoInferenceSession
from transformers.models.sam3_video.processing_sam3_video import Sam3VideoProcessor

from ...concepts.video_rules import VideoRules
from ...families.sam3 import SAM3
from ..reference import BoolArray, Frames
from ..sam2.video_reference import frame_tensors, with_meta_rules


class MetaVideoModel(Sam3VideoModel):  # type: ignore[no-untyped-call]
    """Changes a Sam3VideoModel where our sessions follow Meta's predictor.

    - New objects leave the memories of the others in their frame alone; transformers encodes them again.
    - The prompt of a new object has no soft edge.
    - Masks are enlarged for the memory in two steps, as tracked ones are.
    """

    def _tracker_add_new_objects(
        self, inference_session: Any, frame_idx: int, new_obj_ids: list[int], new_obj_masks: Any, reverse: bool = False
    ) -> None:
        known = list(inference_session.obj_ids)
        outputs = [inference_session.output_dict_per_obj[inference_session.obj_id_to_idx(each)] for each in known]
        before = [{kind: dict(frames) for kind, frames in each.items()} for each in outputs]
        prompts = self._enlarged((new_obj_masks >= 0.5).float()[None], antialias=True)[0] >= 0.5
        super()._tracker_add_new_objects(inference_session, frame_idx, new_obj_ids, prompts.float(), reverse)
        for each, kinds in zip(outputs, before, strict=True):
            each.update(kinds)

    def run_memory_encoder(self, inference_session: Any, frame_idx: int, high_res_masks: Any, scores: Any) -> Any:
        return super().run_memory_encoder(inference_session, frame_idx, self._enlarged(high_res_masks), scores)

    def _enlarged(self, masks: torch.Tensor, antialias: bool = False) -> torch.Tensor:
        side = self.tracker_model.image_size
        return interpolate(masks, (side, side), mode="bilinear", antialias=antialias)


def video_model_of(tracker: Any, detector: Any, neck: Any) -> Any:
    """Return a MetaVideoModel of modules, which it shares: Sam3TrackerVideoModel, Sam3Model and the tracker's neck."""
    parts = {"tracker_config": tracker.config.to_dict(), "detector_config": detector.config.to_dict()}
    with torch.device("meta"):
        model: Any = MetaVideoModel(Sam3VideoConfig(**parts))
    model.tracker_model, model.detector_model, model.tracker_neck = with_meta_rules(tracker), detector, neck
    model.low_res_mask_size = 4 * tracker.prompt_encoder.image_embedding_size[0]
    model.fill_hole_area = 0  # transformers needs a CUDA kernel for it
    return model.eval()


class Sam3VideoWordsReference:
    """Runs a MetaVideoModel over a video.

    Args:
        frames: the frames, each (height,width,3) uint8 RGB, all of one size.
        tokenizer: transformers' CLIPTokenizer.

    Attributes:
        session: transformers' session of the last follow().
    """

    session: Any

    def __init__(self, model: Any, frames: Frames, tokenizer: Any) -> None:
        self._model, self._processor = model, Sam3VideoProcessor.__new__(Sam3VideoProcessor)
        self._processor.tokenizer = tokenizer
        self._pixels = frame_tensors(frames, model.tracker_model.image_size, SAM3.pixel_mean, SAM3.pixel_std)
        self._height, self._width = frames[0].shape[:2]

    def follow(self, texts: Sequence[str], rules: VideoRules) -> Iterator[tuple[int, Mapping[int, BoolArray]]]:
        """Yield each frame with the masks (H,W) of its objects, by object id from 1."""
        self.session = session = self._start(texts, rules)
        for output in self._model.propagate_in_video_iterator(session):
            shown = self._processor.postprocess_outputs(session, output)
            yield output.frame_idx, dict(zip(shown["object_ids"].tolist(), shown["masks"].numpy(), strict=True))

    def _start(self, texts: Sequence[str], rules: VideoRules) -> Any:
        for name, value in vars(rules).items():
            setattr(self._model, name, value)
        session: Any = Sam3VideoInferenceSession(self._pixels, self._height, self._width, dtype=torch.float32)
        session.max_obj_id = 0
        self._processor.add_text_prompt(session, list(texts))
        return session
