"""The valid shapes of each graph, written by hand so that they also test the tables of the families."""

from __future__ import annotations

from collections.abc import Mapping

Shapes = Mapping[str, list[int]]

SIDES = {"sam1": 1024, "mobilesam": 1024, "samhq": 1024, "sam2": 1024, "edgetam": 1024, "sam3": 1008}
VIDEO_SIDES = {"sam2": 512, "edgetam": 256}
"""Sides of the images of the video models that the tests export."""
_TEXT, _SMALL = [32, 256], [256, 72, 72]


def has_right_shapes(family: str, role: str, shapes: Shapes) -> bool:
    """Return whether tensors of the right names, types and ranks have valid and consistent shapes."""
    if role in ("encoder", "concept_encoder"):
        ((images, *rest),) = shapes.values()
        return images >= 1 and rest == [3, SIDES[family], SIDES[family]]
    if role == "decoder":
        return _decoder_of_sam3(shapes) if family == "sam3" else _decoder_of_points(shapes)
    return _RULES_OF_VIDEOS[role](family, shapes) if role in _RULES_OF_VIDEOS else _RULES[role](shapes)


def _decoder_of_points(shapes: Shapes) -> bool:
    prompts, points, two = shapes["point_coords"]
    fixed = {
        "image_embeddings": [256, 64, 64],
        "hq_features": [32, 256, 256],
        "high_res_feats_0": [32, 256, 256],
        "high_res_feats_1": [64, 128, 128],
        "mask_input": [1, 256, 256],
        "has_mask_input": [],
    }
    return (
        1 <= prompts <= 64
        and prompts * points <= 2048
        and two == 2
        and shapes["point_labels"] == [prompts, points]
        and _one_or_each(shapes, fixed, prompts)
    )


def _decoder_of_sam3(shapes: Shapes) -> bool:
    images, prompts, points, two = shapes["input_points"]
    return (
        min(images, prompts) >= 1
        and images * prompts <= 64
        and images * prompts * points <= 2048
        and two == 2
        and shapes["input_labels"] == [images, prompts, points]
        and shapes["input_boxes"] in ([images, 0, 4], [images, prompts, 4])
        and shapes["image_embeddings.0"] == [images, 32, 288, 288]
        and shapes["image_embeddings.1"] == [images, 64, 144, 144]
        and shapes["image_embeddings.2"] == [images, 256, 72, 72]
    )


def _memory_attention(family: str, shapes: Shapes) -> bool:
    objects, memories = shapes["memory_ages"]
    pointers = shapes["pointer_ages"][1]
    side = VIDEO_SIDES[family] // 16
    memory = [512, 64] if family == "edgetam" else [64, side, side]
    return (
        1 <= objects <= 64
        and 1 <= objects * memories <= 320
        and objects * pointers <= 2048
        and shapes["memories"] == [objects, memories, *memory]
        and shapes["object_pointers"] == [objects, pointers, 256]
        and shapes["pointer_ages"] == [objects, pointers]
        and _one_or_each(shapes, {"image_embeddings": [256, side, side]}, objects)
    )


def _memory_encoder(family: str, shapes: Shapes) -> bool:
    (objects,) = shapes["is_prompted"]
    side = VIDEO_SIDES[family]
    return (
        1 <= objects <= 64
        and shapes["masks"] == [objects, 1, side // 4, side // 4]
        and shapes["object_score_logits"] == [objects, 1]
        and _one_or_each(shapes, {"image_embeddings": [256, side // 16, side // 16]}, objects)
    )


def _tracking_decoder(family: str, shapes: Shapes) -> bool:
    objects, points, two = shapes["point_coords"]
    side = VIDEO_SIDES[family]
    fixed = {
        "image_embeddings": [256, side // 16, side // 16],
        "high_res_feats_0": [32, side // 4, side // 4],
        "high_res_feats_1": [64, side // 8, side // 8],
        "mask_input": [1, side // 4, side // 4],
        "has_mask_input": [],
    }
    return (
        1 <= objects <= 64
        and objects * points <= 2048
        and two == 2
        and shapes["point_labels"] == [objects, points]
        and shapes["multimask"] == shapes["mask_prompt"] == [objects]
        and _one_or_each(shapes, fixed, objects)
    )


def _mask_prompt(family: str, shapes: Shapes) -> bool:
    objects, *rest = shapes["mask"]
    return objects >= 1 and rest == [1, VIDEO_SIDES[family], VIDEO_SIDES[family]]


def _text_encoder(shapes: Shapes) -> bool:
    prompts, tokens = shapes["input_ids"]
    return 1 <= prompts <= 64 and tokens == 32 and shapes["attention_mask"] == [prompts, 32]


def _detector(shapes: Shapes) -> bool:
    prompts, boxes = shapes["input_boxes_labels"]
    return (
        1 <= prompts <= 64
        and boxes <= 64
        and shapes["input_boxes"] == [prompts, boxes, 4]
        and shapes["text_features"] == [prompts, *_TEXT]
        and shapes["attention_mask"] == [prompts, 32]
        and shapes["concept_states"] == shapes["example_features"] == [1, *_SMALL]
    )


def _mask_head(shapes: Shapes) -> bool:
    prompts, instances, channels = shapes["mask_queries"]
    return (
        1 <= prompts <= 8
        and 1 <= prompts * instances <= 1600
        and channels == 256
        and shapes["mask_features"] == [prompts, *_SMALL]
        and shapes["concept_features.0"] == [1, 256, 288, 288]
        and shapes["concept_features.1"] == [1, 256, 144, 144]
    )


_RULES_OF_VIDEOS = {
    "memory_attention": _memory_attention,
    "memory_encoder": _memory_encoder,
    "tracking_decoder": _tracking_decoder,
    "mask_prompt": _mask_prompt,
}
_RULES = {
    "text_encoder": _text_encoder,
    "detector": _detector,
    "mask_head": _mask_head,
}


def _one_or_each(shapes: Shapes, rests: Mapping[str, list[int]], count: int) -> bool:
    """Return whether each tensor is one for all objects, or one per object, and has its fixed shape otherwise."""
    return all(shape[0] in (1, count) and shape[1:] == rests[name] for name, shape in shapes.items() if name in rests)
