"""Transformers' Sam3VideoModel in its reduced size, and a client of ours on its own modules, without a server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.functional import interpolate
from transformers import Sam3VideoConfig, Sam3VideoModel
from transformers.models.sam3_video.modeling_sam3_video import Sam3VideoInferenceSession
from transformers.models.sam3_video.processing_sam3_video import Sam3VideoProcessor

from triton_sam.client.video.sync import SAM2VideoClient
from triton_sam.concepts.query import Query
from triton_sam.concepts.video_rules import Detections, VideoRules
from triton_sam.export.sam2.transformers_reference import with_meta_rules
from triton_sam.export.sam2.video_reference import frame_tensors
from triton_sam.export.sam3.model import detector_configuration, video_configuration
from triton_sam.export.sam3.recipe import randomise_memory
from triton_sam.export.sam3.video_graphs import graphs, sam2_of
from triton_sam.export.weights import randomise, seeded
from triton_sam.families.sam3 import SAM3
from triton_sam.families.tables import ENCODER
from triton_sam.verify.video_transport import VideoTransport
from triton_sam.wire.pair import ModelPair

SIDE, LOW = 336, 96
Images = Sequence[np.ndarray]


def official_model(rules: VideoRules) -> Any:
    """Return a Sam3VideoModel of the reduced size for images of 336 pixels with random weights."""
    parts = {"tracker": video_configuration("reduced"), "detector": detector_configuration("reduced")}
    config = Sam3VideoConfig(**{f"{name}_config": part.to_dict() for name, part in parts.items()})
    config.image_size = SIDE
    model: Any = seeded(lambda: Sam3VideoModel(config), 0).requires_grad_(False)
    randomise(model, 0)
    randomise_memory(model.tracker_model, 0)
    decoder = model.tracker_model.mask_decoder
    decoder.pred_obj_score_head.proj_out.bias += 10  # objects are visible
    for head in decoder.output_hypernetworks_mlps:  # logits are larger than rounding errors
        head.proj_out.weight *= 300
        head.proj_out.bias *= 300
    for name, value in vars(rules).items():
        setattr(model, name, value)
    model.low_res_mask_size, model.fill_hole_area = LOW, 0
    return model.eval().requires_grad_(False)


class MetaVideoModel(Sam3VideoModel):
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
        sharp = (
            interpolate((new_obj_masks >= 0.5).float()[None], (SIDE, SIDE), mode="bilinear", antialias=True)[0] >= 0.5
        )
        super()._tracker_add_new_objects(inference_session, frame_idx, new_obj_ids, sharp.float(), reverse)
        for each, kinds in zip(outputs, before, strict=True):
            each.update(kinds)

    def run_memory_encoder(self, inference_session: Any, frame_idx: int, high_res_masks: Any, scores: Any) -> Any:
        large = interpolate(high_res_masks, (SIDE, SIDE), mode="bilinear")
        return super().run_memory_encoder(inference_session, frame_idx, large, scores)


class Official:
    """Runs a Sam3VideoModel over images, with scenes of detections in place of those of its random detector.

    Args:
        scene: the detections (mask logits (N,h,w), scores (N,)) of each text in each frame.

    Attributes:
        conditioned: the frames of each object that count as prompted.
    """

    def __init__(self, model: Any, images: Images, texts: Sequence[str], scene: Any) -> None:
        self.model = MetaVideoModel.__new__(MetaVideoModel)
        self.model.__dict__.update(vars(model))
        self.model._modules = {**model._modules, "tracker_model": with_meta_rules(model.tracker_model)}
        self.conditioned: dict[int, list[int]] = {}
        pixels = frame_tensors(images, SIDE, SAM3.pixel_mean, SAM3.pixel_std)
        height, width = images[0].shape[:2]
        self.session = Sam3VideoInferenceSession(pixels, height, width, dtype=torch.float32)
        self.session.max_obj_id = 0
        for text in texts:
            self.session.add_prompt(text)
        self.texts, self.scene, self.frame = texts, scene, 0
        vars(self.model)["run_detection"] = self._detect
        self.processor = Sam3VideoProcessor.__new__(Sam3VideoProcessor)

    def _detect(self, *_: Any, **__: Any) -> Any:
        found = {}
        for index, text in enumerate(self.texts):
            masks, scores = self.scene[self.frame][text]
            boxes = torch.zeros(len(scores), 4)
            found[index] = {"bbox": boxes, "mask": torch.from_numpy(masks.copy()), "scores": torch.from_numpy(scores)}
        self.frame += 1
        return found

    def run(self) -> Iterator[tuple[int, dict[int, np.ndarray]]]:
        """Yield each frame and the masks of its objects."""
        for output in self.model.propagate_in_video_iterator(self.session):
            shown = self.processor.postprocess_outputs(self.session, output)
            ids, masks = shown["object_ids"].tolist(), shown["masks"].numpy()
            yield output.frame_idx, dict(zip(ids, masks, strict=True))
        for object_id in self.session.obj_ids:
            outputs = self.session.output_dict_per_obj[self.session.obj_id_to_idx(object_id)]
            self.conditioned[object_id] = sorted(outputs["cond_frame_outputs"])


class SceneFinder:
    """A client of words that finds the detections of a scene."""

    _pair = ModelPair(SAM3, "words")

    def __init__(self, scene: Any) -> None:
        self.scene, self.frame = scene, 0

    def _detect(self, query: Query, image: bytes) -> Detections:
        assert image
        found = [self.scene[self.frame][text] for text in query.texts]
        self.frame += 1
        masks, scores = (np.concatenate([each[part] for each in found]) for part in (0, 1))
        return Detections(masks, scores, np.repeat(np.arange(len(found)), [len(each[1]) for each in found]))


class Modules:
    """A BaseTransport that runs the modules of a Sam3VideoModel."""

    def __init__(self, model: Any) -> None:
        self._model = model
        base = sam2_of(model.tracker_model, False)
        self._modules = {role: make(base, False) for role, make in graphs(False).items()}

    def infer(self, name: str, inputs: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Any]:
        role = name.removeprefix("sam3_")
        tensors = [torch.from_numpy(np.asarray(value)) for value in self._ordered(role, inputs)]
        with torch.inference_mode():
            found = self._encode(*tensors) if role == ENCODER else self._modules[role](*tensors)
        found = found if isinstance(found, (tuple, list)) else (found,)
        return dict(zip(outputs, (each.numpy() for each in found), strict=True))

    def _ordered(self, role: str, inputs: Mapping[str, Any]) -> list[Any]:
        family = SAM3.at(SIDE)
        assert family.tracking is not None
        spec = family.encoder if role == ENCODER else family.tracking.models[role]
        objects = len(next(iter(inputs[name] for name in spec.input_names if name in inputs)))
        if "point_coords" in inputs:
            objects = len(inputs["point_coords"])
        defaults = {
            "mask_input": np.zeros((objects, 1, LOW, LOW), np.float32),
            "has_mask_input": np.zeros(objects, np.float32),
        }
        return [inputs[each] if each in inputs else defaults[each] for each in spec.input_names]

    def _encode(self, pixels: Any) -> list[Any]:
        states = self._model.detector_model.get_vision_features(pixel_values=pixels)
        maps, _ = self._model.get_vision_features_for_tracker(states)
        sides = (LOW, LOW // 2, LOW // 4)
        return [
            each.permute(1, 2, 0).reshape(1, -1, side, side).contiguous()
            for each, side in zip(maps, sides, strict=True)
        ]

    def one_call(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def close(self) -> None:
        pass


def client_of(model: Any) -> SAM2VideoClient:
    """Return our client on the modules of an official model."""
    modules: Any = Modules(model)
    return SAM2VideoClient(model_type="sam3", transport=VideoTransport(SAM3.at(SIDE), modules))
