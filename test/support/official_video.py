"""Runs the official memory modules of SAM2 on given tensors, with the tensor names of the project's graphs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from triton_sam.export.sam2.recipe import EXPORTER

Arrays = dict[str, np.ndarray]


def video_model(config: str, side: int) -> Any:
    """Return the official model with random weights, and the settings of build_sam2_video_predictor."""
    model: Any = EXPORTER.load(None, config, image_size=side, random_seed=0)
    model.binarize_mask_from_pts_for_mem_enc = True
    return model


def noise(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


class History:
    """Outputs of earlier frames of some objects, as stored by the official predictor.

    Args:
        model: from video_model().
        objects: number of objects.
        prompted: indexes of prompted frames.
        tracked: indexes of other frames with an output.
    """

    def __init__(self, model: Any, objects: int, prompted: Iterable[int], tracked: Iterable[int]) -> None:
        self.model, self.objects = model, objects
        side = model.image_size // 16
        encoding = model.memory_encoder.position_encoding(torch.zeros(objects, 1, side, side))

        def output(frame: int) -> dict[str, Any]:
            return {
                "maskmem_features": torch.from_numpy(noise(frame, objects, 64, side, side)),
                "maskmem_pos_enc": [encoding],
                "obj_ptr": torch.from_numpy(noise(100 + frame, objects, 256)),
            }

        self.outputs = {
            "cond_frame_outputs": {frame: output(frame) for frame in prompted},
            "non_cond_frame_outputs": {frame: output(frame) for frame in tracked},
        }

    def official(self, embeddings: np.ndarray, frame: int, num_frames: int, reverse: bool) -> np.ndarray:
        """Return the conditioned embeddings of a frame; ``embeddings`` (1,256,h,w) contain the no-memory embedding."""
        model = self.model
        with torch.no_grad():
            image = torch.from_numpy(embeddings) - model.no_mem_embed.reshape(1, -1, 1, 1)
            position = model.image_encoder.neck.position_encoding(image)
            flat = [x.expand(self.objects, -1, -1, -1).flatten(2).permute(2, 0, 1) for x in (image, position)]
            conditioned = model._prepare_memory_conditioned_features(
                frame_idx=frame,
                is_init_cond_frame=False,
                current_vision_feats=flat[:1],
                current_vision_pos_embeds=flat[1:],
                feat_sizes=[tuple(image.shape[2:])],
                output_dict=self.outputs,
                num_frames=num_frames,
                track_in_reverse=reverse,
            )
        return conditioned.numpy()

    def inputs(self, frame: int, num_frames: int, reverse: bool) -> Arrays:
        """Return the memories and pointers of a frame by the rules of the official predictor."""
        step = -1 if reverse else 1
        prompted, tracked = self.outputs["cond_frame_outputs"], self.outputs["non_cond_frame_outputs"]
        memories = [(0, output) for output in prompted.values()]
        memories += [(age, tracked[frame - age * step]) for age in range(6, 0, -1) if frame - age * step in tracked]
        limit = min(num_frames, 16)
        pointers = [((frame - t) * step, output) for t, output in prompted.items() if (frame - t) * step >= 0]
        pointers += [(age, tracked[frame - age * step]) for age in range(1, limit) if frame - age * step in tracked]
        side = self.model.image_size // 16

        def stacked(chosen: Any, key: str, *shape: int) -> np.ndarray:
            found = [output[key].numpy() for _, output in chosen]
            return np.stack(found, axis=1) if found else np.zeros((self.objects, 0, *shape), np.float32)

        def ages(chosen: Any, dtype: Any, divisor: int) -> np.ndarray:
            row = np.array([age for age, _ in chosen], np.float32) / divisor
            return np.tile(row.astype(dtype), (self.objects, 1))

        return {
            "memories": stacked(memories, "maskmem_features", 64, side, side),
            "memory_ages": ages(memories, np.int64, 1),
            "object_pointers": stacked(pointers, "obj_ptr", 256),
            "pointer_ages": ages(pointers, np.float32, limit - 1),
        }


def official_memory(model: Any, embeddings: np.ndarray, masks: np.ndarray, score: np.ndarray, prompted: bool) -> Any:
    """Return the official predictor's memories of low-resolution logits."""
    side = model.image_size
    with torch.no_grad():
        image = torch.from_numpy(embeddings) - model.no_mem_embed.reshape(1, -1, 1, 1)
        image = image.expand(len(masks), -1, -1, -1)
        large = torch.nn.functional.interpolate(torch.from_numpy(masks), (side, side), mode="bilinear")
        memory, _ = model._encode_new_memory(
            current_vision_feats=[image.flatten(2).permute(2, 0, 1)],
            feat_sizes=[tuple(image.shape[2:])],
            pred_masks_high_res=large,
            object_score_logits=torch.from_numpy(score),
            is_mask_from_pts=prompted,
        )
    return memory.numpy()


def official_tracking(model: Any, image: Arrays, points: Arrays | None, multimask: bool, mask: Any = None) -> Arrays:
    """Return the answer of SAM2Base._forward_sam_heads by the names of the tracking decoder, one row per object."""
    given = {name: torch.from_numpy(array) for name, array in (points or {}).items()}
    with torch.no_grad():
        found = model._forward_sam_heads(
            torch.from_numpy(image["image_embeddings"]),
            point_inputs=given or None,
            mask_inputs=None if mask is None else torch.from_numpy(mask),
            high_res_features=[torch.from_numpy(image[f"high_res_feats_{level}"]) for level in (0, 1)],
            multimask_output=multimask,
        )
    return _named(found)


def official_mask_answer(model: Any, image: Arrays, mask: np.ndarray) -> Arrays:
    """Return the answer of SAM2Base._use_mask_as_output; the embeddings (P,256,h,w) contain the no-memory embedding."""
    with torch.no_grad():
        found = model._use_mask_as_output(
            torch.from_numpy(image["image_embeddings"]) - model.no_mem_embed.reshape(1, -1, 1, 1),
            [torch.from_numpy(image[f"high_res_feats_{level}"]) for level in (0, 1)],
            torch.from_numpy(mask),
        )
    return _named(found)


def _named(found: Any) -> Arrays:
    _, _, scores, masks, _, pointers, object_scores = (tensor.numpy() for tensor in found)
    return {
        "masks": masks,
        "iou_predictions": scores.max(axis=1, keepdims=True),
        "object_score_logits": object_scores,
        "object_pointers": pointers,
    }


def centre_scores(model: Any) -> None:
    """Shift the object scores of random weights so that only some random images have an object."""
    side = model.image_size
    image = {"image_embeddings": noise(7, 3, 256, side // 16, side // 16)}
    for level, (channels, stride) in enumerate(((32, 4), (64, 8))):
        image[f"high_res_feats_{level}"] = noise(2 + level, 1, channels, side // stride, side // stride).repeat(3, 0)
    scores = official_tracking(model, image, None, multimask=True)["object_score_logits"]
    head = model.sam_mask_decoder.pred_obj_score_head
    with torch.no_grad():
        last = head.layers[-1] if hasattr(head, "layers") else head
        last.bias -= float(np.sort(scores.ravel())[:2].mean())
