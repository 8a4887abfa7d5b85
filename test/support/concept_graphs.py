"""The models that find concepts, and transformers' Sam3Model, on the same inputs: prompts with 2, 0 and 1 boxes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from triton_sam.families.concepts import LABEL_NO_BOX

Arrays = dict[str, np.ndarray]
Run = Callable[[str, Arrays], Arrays]
"""Runs the model of a role on inputs, and returns its outputs."""

RNG = np.random.default_rng(0)
IMAGE = RNG.uniform(-1, 1, (1, 3, 1008, 1008)).astype(np.float32)
IDS = RNG.integers(0, 49406, (3, 32))
MASK = (np.arange(32) < np.array([[5], [9], [32]])).astype(np.int64)
BOXES = RNG.uniform(0.3, 0.6, (3, 2, 4)).astype(np.float32)
LABELS = np.array([[1, 0], [LABEL_NO_BOX, LABEL_NO_BOX], [1, LABEL_NO_BOX]])
COUNTS = (2, 0, 1)
"""The number of boxes of each prompt. One box has a negative label."""
OUTPUTS = ("pred_masks", "pred_boxes", "pred_logits", "presence_logits")


def encode(run: Run) -> Arrays:
    """Return the outputs of the encoder for the image."""
    return run("concept_encoder", {"concept_pixel_values": IMAGE})


def detector_inputs(run: Run, encoded: Arrays) -> Arrays:
    """Return the inputs of the detector for all prompts."""
    features = {"concept_states": encoded["concept_states"], "example_features": encoded["concept_features.2"]}
    text = run("text_encoder", {"input_ids": IDS, "attention_mask": MASK})
    return {**features, **text, "attention_mask": MASK, "input_boxes": BOXES, "input_boxes_labels": LABELS}


def find(run: Run, encoded: Arrays, inputs: Arrays) -> Arrays:
    """Run the detector and compute the masks of all its queries."""
    found = run("detector", inputs)
    levels = {name: encoded[name] for name in ("concept_features.0", "concept_features.1")}
    wanted = {name: found.pop(name) for name in ("mask_features", "mask_queries")}
    return {**found, **run("mask_head", {**levels, **wanted})}


def reference(model: Any, prompt: int, boxes: int) -> Arrays:
    """Return the outputs of a Sam3Model for one of the prompts with the first of its boxes."""
    import torch

    given: dict[str, Any] = {"input_ids": IDS, "attention_mask": MASK}
    if boxes:
        given |= {"input_boxes": BOXES[:, :boxes], "input_boxes_labels": LABELS[:, :boxes]}
    tensors = {name: torch.from_numpy(array[prompt : prompt + 1]) for name, array in given.items()}
    with torch.no_grad():
        found = model(pixel_values=torch.from_numpy(IMAGE), **tensors)
    return {name: getattr(found, name).numpy() for name in OUTPUTS}


def assert_equal(found: Arrays, model: Any) -> None:
    """Compare the outputs of find() with a Sam3Model: within 1e-4, and masks with an IoU above 0.9999."""
    for prompt, boxes in enumerate(COUNTS):
        expected = reference(model, prompt, boxes)
        for name, array in expected.items():
            worst = float(np.abs(found[name][prompt : prompt + 1] - array).max())
            print(prompt, name, worst)
            assert worst < 1e-4, (prompt, name)
        masks, official = found["pred_masks"][prompt] > 0, expected["pred_masks"][0] > 0
        iou = (masks & official).sum() / max((masks | official).sum(), 1)
        print(prompt, "iou", iou)
        assert iou > 0.9999
