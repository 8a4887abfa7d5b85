"""Transformers' Sam3VideoModel in its reduced size, and a client of ours on its own modules, without a server."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import Sam3VideoConfig, Sam3VideoModel

from triton_sam.client.video.sync import SAM2VideoClient
from triton_sam.concepts.query import Query
from triton_sam.concepts.video_rules import Detections
from triton_sam.export.sam3.model import detector_configuration, video_configuration
from triton_sam.export.sam3.recipe import randomise_memory, sharpen
from triton_sam.export.sam3.tokenizer import open_tokenizer
from triton_sam.export.sam3.video_graphs import graphs, sam2_of
from triton_sam.export.sam3.video_words_reference import Sam3VideoWordsReference, video_model_of
from triton_sam.export.weights import randomise, seeded
from triton_sam.families.sam3 import SAM3
from triton_sam.families.tables import ENCODER
from triton_sam.verify.video import VideoTransport
from triton_sam.wire.pair import ModelPair

SIDE, LOW = 336, 96
Images = Sequence[np.ndarray]


def whole_configuration() -> Any:
    """Return transformers' configuration of the reduced size, with tracker and detector."""
    parts = {"tracker": video_configuration("reduced"), "detector": detector_configuration("reduced")}
    return Sam3VideoConfig(**{f"{name}_config": part.to_dict() for name, part in parts.items()})


def official_model() -> Any:
    """Return a MetaVideoModel of the reduced size for images of 336 pixels with random weights."""
    config = whole_configuration()
    config.image_size = SIDE
    model: Any = seeded(lambda: Sam3VideoModel(config), 0).requires_grad_(False)
    randomise(model, 0)
    randomise_memory(model.tracker_model, 0)
    sharpen(model.tracker_model.mask_decoder)
    return video_model_of(model.tracker_model.eval(), model.detector_model.eval(), model.tracker_neck.eval())


class Official(Sam3VideoWordsReference):
    """The official model over images, with scenes of detections in place of those of its random detector.

    Args:
        scene: the detections (mask logits (N,h,w), scores (N,)) of each text in each frame.
    """

    def __init__(self, model: Any, images: Images, texts: Sequence[str], scene: Any) -> None:
        super().__init__(model, images, open_tokenizer(None))
        self.texts, self.scene = texts, scene
        self.frame = 0
        vars(model)["run_detection"] = self._detect

    def _detect(self, **_: Any) -> Any:
        found = {}
        for index, text in enumerate(self.texts):
            masks, scores = self.scene[self.frame][text]
            boxes = torch.zeros(len(scores), 4)
            found[index] = {"bbox": boxes, "mask": torch.from_numpy(masks.copy()), "scores": torch.from_numpy(scores)}
        self.frame += 1
        return found

    def confirmed(self) -> set[int]:
        """Return the objects with several frames that count as prompted."""
        outputs = self.session.output_dict_per_obj
        known = {each: outputs[self.session.obj_id_to_idx(each)] for each in self.session.obj_ids}
        return {each for each, kinds in known.items() if len(kinds["cond_frame_outputs"]) > 1}


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
