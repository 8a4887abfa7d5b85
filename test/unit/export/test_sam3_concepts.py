"""The graphs of concepts equal transformers' Sam3Model, with words, positive and negative boxes, and no boxes.

Three prompts have two, no and one box.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.export, pytest.mark.slow]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from support.family_exports import Arrays, FamilyExport, run_graph, sam3_concepts  # noqa: E402

from triton_sam.families.concepts import LABEL_NO_BOX  # noqa: E402
from triton_sam.families.sam3 import SAM3  # noqa: E402

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
    """Return the outputs of both encoders for the image."""
    embeddings = run("encoder", {"pixel_values": IMAGE})
    return {**embeddings, **run("concept_encoder", {"backbone_states": embeddings["backbone_states"]})}


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


@pytest.fixture(scope="module")
def exported() -> FamilyExport:
    return sam3_concepts()


def run(exported: FamilyExport, role: str, inputs: Arrays) -> Arrays:
    return run_graph(exported.files[role], inputs)


@pytest.fixture(scope="module")
def encoded(exported: FamilyExport) -> Arrays:
    return encode(partial(run, exported))


@pytest.fixture(scope="module")
def inputs(exported: FamilyExport, encoded: Arrays) -> Arrays:
    return detector_inputs(partial(run, exported), encoded)


def test_the_states_leave_the_embeddings_of_the_tracker_unchanged(exported: FamilyExport, encoded: Arrays) -> None:
    model = onnx.load(exported.files["encoder"])
    del model.graph.output[-1]
    found = run_graph(model, {"pixel_values": IMAGE})
    assert list(found) == list(SAM3.encoder.output_names)
    for name, array in found.items():
        np.testing.assert_array_equal(encoded[name], array)


def test_prompts_of_one_batch_equal_the_official_model(exported: FamilyExport, encoded: Arrays, inputs: Arrays) -> None:
    assert_equal(find(partial(run, exported), encoded, inputs), exported.model.concepts)


def test_words_without_boxes(exported: FamilyExport, encoded: Arrays, inputs: Arrays) -> None:
    nothing = {"input_boxes": np.zeros((3, 0, 4), np.float32), "input_boxes_labels": np.zeros((3, 0), np.int64)}
    found = find(partial(run, exported), encoded, {**inputs, **nothing})
    for name, expected in reference(exported.model.concepts, 0, 0).items():
        np.testing.assert_allclose(found[name][:1], expected, atol=1e-4)
    with_boxes = run(exported, "detector", inputs)
    assert np.abs(with_boxes["pred_logits"][0] - found["pred_logits"][0]).max() > 1e-4


def test_padding_between_and_before_tokens(exported: FamilyExport, encoded: Arrays, inputs: Arrays) -> None:
    """The graph cuts off what lies behind the last token of all texts, and nothing else."""
    mask = np.zeros_like(MASK)
    mask[:, [3, 4, 9]] = 1
    nothing = {"input_boxes": np.zeros((3, 0, 4), np.float32), "input_boxes_labels": np.zeros((3, 0), np.int64)}
    given = {**inputs, **nothing, "attention_mask": mask}
    found = run(exported, "detector", given)
    with torch.no_grad():
        features = torch.from_numpy(inputs["text_features"][:1])
        texts = {"attention_mask": torch.from_numpy(mask[:1]), "text_embeds": SimpleNamespace(pooler_output=features)}
        expected = exported.model.concepts(pixel_values=torch.from_numpy(IMAGE), **texts)
    for name in OUTPUTS[1:]:
        np.testing.assert_allclose(found[name][:1], getattr(expected, name).numpy(), atol=1e-4)
    for odd in (np.zeros_like(mask), 7 * mask):  # no token at all
        assert np.isfinite(run(exported, "detector", {**given, "attention_mask": odd})["pred_boxes"]).all()
