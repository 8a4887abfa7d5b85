"""A server in this process that tracks moving discs from any prompt, and finds them by words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from support.in_process import Arrays
from support.video_server import VideoServer

from triton_sam.families import get_family
from triton_sam.families.concepts import EXAMPLE_FEATURES
from triton_sam.masks.segment import VideoSegment
from triton_sam.wire import contract
from triton_sam.wire import video as wire

SIDE = 64
"""Side of the logits, and width of the video."""
HEIGHT = 48
QUERIES = 3
TABLE: Any = get_family("sam2").at(4 * SIDE).tracking


def disc(x: float, y: float, radius: float = 9) -> VideoSegment:
    """Return a disc around a point, whose logits decrease with the distance."""
    rows, columns = np.mgrid[0:HEIGHT, 0:SIDE]
    logits = (radius - np.hypot(columns - x, rows - y)).astype(np.float32)
    return VideoSegment(logits > 0, 0.9, logits, object_score=5.0)


Seen = tuple[str, float, float, float]
"""Text, x and y in frame 0, and score of a disc that moves one column to the right per frame."""


def write_clip(folder: Path, frames: int) -> Path:
    """Write images whose red channel is the frame number."""
    folder.mkdir()
    for frame in range(frames):
        Image.new("RGB", (SIDE, HEIGHT), (20 * frame, 60, 90)).save(folder / f"{frame:05d}.png")
    return folder


class DiscServer(VideoServer):
    """A server that tracks discs of write_clip() from any prompt, and whose SAM3 finds them by words.

    Discs move one column to the right with each frame. A text stands for its first letter.

    Args:
        scene: the visible discs of each frame; other frames are empty.
        shift: columns by which tracked masks differ from those of other servers.
    """

    def __init__(self, scene: dict[int, list[Seen]] | None = None, shift: int = 0) -> None:
        super().__init__(self._computed, image_size=4 * SIDE)
        self.scene, self._shift = scene or {}, shift
        names = {contract.CONCEPT_MODELS: " ".join(f"sam3_{role}" for role in get_family("sam3").concepts)}
        self.add_session_model("sam3", **names).concept_models.tokenizer = self

    def tokens(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Replace the tokenizer."""
        ids = np.array([[ord(text[0])] for text in texts], np.int64)
        return ids, np.ones_like(ids)

    def prompted(self) -> dict[int, int]:
        """Return the frame of each object's prompt, by object id."""
        added = [self.arguments(number) for number, name in enumerate(self.operations()) if name == wire.ADD_PROMPT]
        return {each["object_id"]: each["frame_index"] for each in added}

    def searches(self) -> int:
        """Return the number of searched frames."""
        return sum(contract.FIND in request.inputs for request in self.requests)

    def _computed(self, model: str, inputs: Arrays, wanted: Sequence[str]) -> Arrays:
        role = model.partition("_")[2]
        if role in ("encoder", "concept_encoder"):
            (pixels,) = inputs.values()
            scale, middle = (1, 0) if model == "sam2_encoder" else (0.5, 0.5)
            red = 255 * (pixels[0, 0, 0, 0] * scale + middle)
            return {name: np.full(2, round(red / 20), np.float32) for name in wanted}
        if role == "text_encoder":
            return {wanted[0]: inputs["input_ids"][:, :, None].astype(np.float32)}
        if role == "detector":
            return self._detected(inputs)
        if role == "mask_head":
            return {wanted[0]: _discs(inputs["mask_queries"][0], 288)[None]}
        if role == "memory_attention":
            pointers = inputs["object_pointers"][:, :1, :2]  # none before the first prompt: the object is not visible
            return {wanted[0]: pointers[:, 0] if pointers.size else np.full((len(pointers), 2), -99, np.float32)}
        if role == "memory_encoder":
            return {wanted[0]: np.zeros((len(inputs["masks"]), *TABLE.memory_shape), np.float32)}
        if role == "mask_prompt":
            small = inputs["mask"].reshape(-1, 1, SIDE, 4, SIDE, 4).mean((3, 5)).astype(np.float32)
            return {"mask_input": small, "masks": small * 20 - 10}
        return self._tracked(inputs)

    def _detected(self, inputs: Arrays) -> Arrays:
        texts, frame = inputs["text_features"][:, 0, 0], int(inputs[EXAMPLE_FEATURES][0])
        logits = np.full((len(texts), QUERIES), -20, np.float32)
        places = np.zeros((len(texts), QUERIES, 2), np.float32)
        for index, text in enumerate(texts):
            rows = [row for row in self.scene.get(frame, []) if ord(row[0][0]) == text]
            for query, (_, x, y, score) in enumerate(rows):
                logits[index, query] = np.log(score / (1 - score))
                places[index, query] = x + frame, y
        return {
            "pred_boxes": np.tile(np.array([0, 0, 0.5, 0.5], np.float32), (len(texts), QUERIES, 1)),
            "pred_logits": logits,
            "presence_logits": np.full((len(texts), 1), 20, np.float32),
            "mask_queries": places,
            "mask_features": np.zeros((len(texts), 1), np.float32),
        }

    def _tracked(self, inputs: Arrays) -> Arrays:
        """Compute the decoder. An object's pointer is its place in frame 0."""
        frame, places = inputs["high_res_feats_0"][0], inputs["image_embeddings"]
        count = len(inputs["point_coords"])
        if places.ndim == 1:
            places = np.zeros((count, 2), np.float32)
            for index, (points, labels) in enumerate(zip(inputs["point_coords"], inputs["point_labels"], strict=True)):
                if inputs["mask_prompt"][index]:
                    middle = np.argwhere(inputs["mask_input"][index, 0] > 0.5).mean(axis=0)[::-1]
                else:
                    middle = points[labels >= 0].mean(axis=0) / 4
                places[index] = middle * (1, HEIGHT / SIDE) - (frame, 0)
        pointers = np.zeros((count, TABLE.pointer_channels), np.float32)
        pointers[:, :2] = places
        return {
            "masks": _discs(places + np.array([frame + self._shift, 0], np.float32), SIDE)[:, None],
            "iou_predictions": np.full((count, 1), 0.9, np.float32),
            "object_score_logits": np.full((count, 1), 5, np.float32),
            "object_pointers": pointers,
        }


def _discs(places: npt.NDArray[Any], side: int) -> npt.NDArray[np.float32]:
    """Return the logits (N,side,side) of discs around points of the video."""
    middles = (np.arange(side) + 0.5) / side
    rows, columns = HEIGHT * middles[:, None] - 0.5, SIDE * middles - 0.5
    distances = [np.hypot(columns - x, rows - y) for x, y in places]
    return (8.999 - np.array(distances).reshape(-1, side, side)).astype(np.float32)
