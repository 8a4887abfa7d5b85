"""Transformers' Sam3VideoModel as a reference for words in videos, on the CPU."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.functional import interpolate
from transformers import Sam3VideoConfig, Sam3VideoModel
from transformers.models.sam3_video.modeling_sam3_video import Sam3VideoInferenceSession
from transformers.models.sam3_video.processing_sam3_video import Sam3VideoProcessor

from ...concepts.video_rules import VideoRules
from ...families.base import FloatArray
from ...families.sam3 import SAM3
from ..reference import FollowedObject, Frames
from ..sam2.video_reference import frame_tensors, with_meta_rules


class MetaVideoModel(Sam3VideoModel):  # type: ignore[no-untyped-call]
    """Changes a Sam3VideoModel where our sessions follow Meta's predictor.

    - New objects leave the memories of the others in their frame alone; transformers encodes them again.
    - The prompt of a new object has no soft edge.
    - Masks are enlarged for the memory in two steps, as tracked ones are.
    - Objects are removed at the end of a frame. transformers removes them before it names the masks of the frame, and
      thus gives masks to wrong ids.
    """

    def _det_track_one_frame(
        self, inference_session: Any, frame_idx: int, reverse: bool, streaming: bool = False
    ) -> Any:
        self._removed: set[int] = set()
        found = super()._det_track_one_frame(inference_session, frame_idx, reverse, streaming)
        for object_id in self._removed:
            inference_session.remove_object(object_id)
        return found

    def run_tracker_update_execution_phase(
        self, inference_session: Any, frame_idx: int, det_out: Any, tracker_update_plan: Any, reverse: bool = False
    ) -> None:
        self._removed = tracker_update_plan["obj_ids_newly_removed"]
        plan = {**tracker_update_plan, "obj_ids_newly_removed": set()}
        super().run_tracker_update_execution_phase(inference_session, frame_idx, det_out, plan, reverse)

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
        logging.getLogger(Sam3VideoModel.__module__).setLevel(logging.ERROR)  # it warns of max_num_objects, a rule
        self._pixels = frame_tensors(frames, model.tracker_model.image_size, SAM3.pixel_mean, SAM3.pixel_std)
        self._height, self._width = frames[0].shape[:2]

    def scores(self, texts: Sequence[str]) -> list[FloatArray]:
        """Return the detector's scores (Q,), 0..1, of each text in the first frame."""
        session = self._start(texts, VideoRules(score_threshold_detection=0, det_nms_thresh=0))
        with torch.inference_mode():
            features = self._model.detector_model.get_vision_features(pixel_values=self._pixels[:1])
            found = self._model.run_detection(session, features)
        return [each["scores"].numpy() for each in found.values()]

    def follow(self, texts: Sequence[str], rules: VideoRules) -> Iterator[tuple[int, Mapping[int, FollowedObject]]]:
        """Yield each frame with its visible objects, by object id from 1."""
        self.session = session = self._start(texts, rules)
        for output in self._model.propagate_in_video_iterator(session):
            shown = self._processor.postprocess_outputs(session, output)
            ids = shown["object_ids"].tolist()
            yield (
                output.frame_idx,
                {
                    object_id: FollowedObject(
                        session.obj_id_to_prompt_id[object_id], output.obj_id_to_mask[object_id][0].numpy(), mask
                    )
                    for object_id, mask in zip(ids, shown["masks"].numpy(), strict=True)
                },
            )

    def _start(self, texts: Sequence[str], rules: VideoRules) -> Any:
        for name, value in vars(rules).items():
            setattr(self._model, name, value)
        session: Any = Sam3VideoInferenceSession(self._pixels, self._height, self._width, dtype=torch.float32)
        session.max_obj_id = 0
        self._processor.add_text_prompt(session, list(texts))
        return session
