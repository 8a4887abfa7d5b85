"""Compare the exported models with the official predictors: same weights, same image, same prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..client.sync import SAM2TritonClient, SamTritonClient
from ..export.reference import Answer, Prompt, Reference
from ..export.sam2.recipe import Sam2Reference
from ..families import get_family
from ..families.base import FloatArray, Size
from ..inputs.images import ImageSource, open_image
from ..masks.boxes import intersection_over_union
from ..transport.onnx import OnnxTransport
from ..wire.pair import ModelPair


@dataclass(frozen=True)
class Thresholds:
    """Thresholds that a comparison must meet.

    Args:
        iou: smallest allowed IoU of two full-size masks, exclusive.
        logit: largest allowed difference of low-resolution logits, exclusive; None disables this check.
        score: largest allowed difference of the predicted IoU scores, exclusive.
    """

    iou: float
    logit: float | None
    score: float

    def __str__(self) -> str:
        logit = "" if self.logit is None else f" or one pixel, logit difference < {self.logit:g}"
        return f"IoU > {self.iou:g}{logit}, score difference < {self.score:g}"


THRESHOLDS = {
    "fp32": Thresholds(0.9999, 1e-3, 1e-3),
    "fp16": Thresholds(0.99, None, 0.01),
    "int8": Thresholds(0.98, None, 0.05),
}
"""Thresholds by precision. Below fp32, the comparison checks masks and scores, but not logits."""


@dataclass(frozen=True)
class Row:
    """One prompt, answered by one runner and by the official predictor.

    Args:
        runner: name of the runner that answered, for example "onnxruntime".
        prompt: title of the prompt.
        output: "single" or "multimask".
        logit_diff: largest absolute difference of the low-resolution logits, both clamped as the family does.
        iou: IoU of the full-size masks, the smallest of all objects and candidates, 0..1.
        score_diff: largest absolute difference of the predicted IoU scores.
        pixels: pixels that differ in a full-size mask, the most of all objects and candidates.
    """

    runner: str
    prompt: str
    output: str
    logit_diff: float
    iou: float
    score_diff: float
    pixels: int

    HEAD: ClassVar[tuple[str, ...]] = ("runner", "prompt", "output", "max |logit diff|", "mask IoU", "score diff")

    def cells(self) -> tuple[str, ...]:
        numbers = f"{self.logit_diff:.1e}", f"{self.iou:.6f}", f"{self.score_diff:.1e}"
        return (self.runner, self.prompt, self.output, *numbers)

    def passes(self, thresholds: Thresholds) -> bool:
        """Return whether the row meets the thresholds. NaN never does.

        If the thresholds have a limit for logits, one pixel may differ. Rounding decides a pixel whose logit is almost
        0, and in a mask of fewer than 10,000 pixels this single pixel lowers the IoU below 0.9999.
        """
        if not self.score_diff < thresholds.score or np.isnan(self.logit_diff):
            return False
        if thresholds.logit is None:
            return self.iou > thresholds.iou
        return (self.iou > thresholds.iou or self.pixels <= 1) and self.logit_diff < thresholds.logit


class OnnxClient(SAM2TritonClient):
    """A client with ONNX Runtime in this process instead of a server. Otherwise it is the ordinary client.

    Args:
        models: ONNX files by role, "encoder" and "decoder".
        model_type: their family.

    Raises:
        MissingDependencyError: onnxruntime is missing.
        ExportError: ONNX Runtime refuses a file.
    """

    def __init__(self, models: Mapping[str, Path], model_type: str = "sam2") -> None:
        pair = ModelPair(get_family(model_type))
        transport = OnnxTransport({pair.encoder: models["encoder"], pair.decoder: models["decoder"]})
        # The client sends no request. Without this URL, it would read the environment's URL, which may be invalid.
        super().__init__("localhost", model_type, embeddings="client", transport=transport)


def verify(reference: Reference, image: ImageSource, clients: Mapping[str, SamTritonClient]) -> list[Row]:
    """Compare clients with an official predictor: every kind of prompt, with a single mask and with multimasks.

    Args:
        reference: the official predictor with the weights that the clients serve.
        image: the image to compare on, in any form that open_image() takes.
        clients: the clients by runner name.

    Returns:
        One row for each prompt, output ("single" or "multimask") and client.

    Raises:
        ImageError: the image cannot be used.
        ServerError: a served client failed.
    """
    opened = open_image(image)
    reference.set_image(opened)
    for client in clients.values():
        client.set_image(opened)
    rows = []
    for title, prompt in _prompts(opened.size, _first_answer(reference, opened.size)).items():
        for output in ("single", "multimask"):
            multimask = output == "multimask"
            expected = reference.answer(prompt, multimask)
            rows += [
                _compare(runner, title, output, _ask(client, prompt, multimask), expected)
                for runner, client in clients.items()
            ]
    return rows


def verify_sam2(model: Any, image: ImageSource, clients: Mapping[str, SamTritonClient]) -> list[Row]:
    """Compare clients with SAM2ImagePredictor, see verify().

    Args:
        model: the official torch model (SAM2Base) with the weights that the clients serve.
        image: the image to compare on, in any form that open_image() takes.
        clients: the clients by the name of their runner.
    """
    return verify(Sam2Reference(model), image, clients)


def _first_answer(reference: Reference, size: Size) -> FloatArray | None:
    """Return the logits (1,h,w) of a first click, for prompts that refine it; None if the family takes no mask."""
    if not reference.family.takes_mask:
        return None
    click = {"point_coords": places(size, (0.28, 0.31)), "point_labels": [1]}
    return reference.answer(click, multimask=False).logits[:1]


def _prompts(size: Size, first_answer: FloatArray | None) -> dict[str, Prompt]:
    """Return one prompt of each kind, spread over an image of any size."""
    boxes = [[0.05, 0.22, 0.95, 0.7], [0.23, 0.5, 0.39, 0.73], [0.6, 0.1, 0.9, 0.4], [0.1, 0.6, 0.5, 0.9]]
    box_corners = [places(size, (x1, y1), (x2, y2)).reshape(4) for x1, y1, x2, y2 in boxes]
    point = {"point_coords": places(size, (0.28, 0.31)), "point_labels": [1]}
    three = {"point_coords": places(size, (0.28, 0.31), (0.61, 0.5), (0.1, 0.75)), "point_labels": [1, 1, 0]}
    prompts: dict[str, Prompt] = {
        "1 point": point,
        "3 points, 1 negative": three,
        "box": {"box": box_corners[1]},
        "box + point": {"box": box_corners[1], "point_coords": places(size, (0.32, 0.62)), "point_labels": [0]},
        "4 boxes": {"box": np.stack(box_corners)},
    }
    if first_answer is not None:
        prompts["point + mask"] = {**point, "mask_input": first_answer}
        prompts["mask"] = {"mask_input": first_answer}
    return prompts


def places(size: Size, *shares: tuple[float, float]) -> FloatArray:
    """Turn shares of width and height into whole pixels, float32 (N,2)."""
    pixels: FloatArray = np.floor(np.array(shares, np.float32) * np.array(size, np.float32))
    return pixels


def _ask(client: SamTritonClient, prompt: Prompt, multimask: bool) -> Answer:
    segments = client.segment(**prompt, multimask_output=multimask, logits=True)
    scores = np.array([segment.score for segment in segments], np.float32)
    return Answer(
        np.stack([s.logits for s in segments if s.logits is not None]), scores, np.stack([s.mask for s in segments])
    )


def _compare(runner: str, prompt: str, output: str, found: Answer, expected: Answer) -> Row:
    return Row(
        runner,
        prompt,
        output,
        logit_diff=float(np.abs(found.logits - expected.logits).max()),
        iou=min(intersection_over_union(one, other) for one, other in zip(found.masks, expected.masks, strict=True)),
        score_diff=float(np.abs(found.scores - expected.scores).max()),
        pixels=max(int(np.count_nonzero(one != other)) for one, other in zip(found.masks, expected.masks, strict=True)),
    )
