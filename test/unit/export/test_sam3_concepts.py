"""The graphs of concepts equal transformers' Sam3Model, with words, positive and negative boxes, and no boxes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.export, pytest.mark.slow]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from support.family_exports import FamilyExport, sam3_concepts  # noqa: E402

from triton_sam.errors import ConfigurationError  # noqa: E402
from triton_sam.export.registry import export  # noqa: E402
from triton_sam.export.settings import Settings  # noqa: E402
from triton_sam.families.concepts import LABEL_NO_BOX  # noqa: E402
from triton_sam.families.sam3 import Sam3  # noqa: E402

Arrays = dict[str, np.ndarray]
RNG = np.random.default_rng(0)
IMAGE = RNG.uniform(-1, 1, (1, 3, 1008, 1008)).astype(np.float32)
IDS = RNG.integers(0, 49406, (3, 32))
MASK = (np.arange(32) < np.array([[5], [9], [32]])).astype(np.int64)
BOXES = RNG.uniform(0.3, 0.6, (3, 2, 4)).astype(np.float32)
OUTPUTS = ("pred_masks", "pred_boxes", "pred_logits", "presence_logits")
LABELS = np.array([[1, 0], [LABEL_NO_BOX, LABEL_NO_BOX], [1, LABEL_NO_BOX]])


@pytest.fixture(scope="module")
def exported() -> FamilyExport:
    return sam3_concepts()


def run(exported: FamilyExport, role: str, inputs: Arrays) -> Arrays:
    session = onnxruntime.InferenceSession(exported.files[role])
    names = Sam3.concepts[role].output_names if role in Sam3.concepts else Sam3.models[role].output_names
    return dict(zip(names, session.run(list(names), inputs), strict=True))


@pytest.fixture(scope="module")
def encoded(exported: FamilyExport) -> Arrays:
    return run(exported, "concept_encoder", {"concept_pixel_values": IMAGE})


@pytest.fixture(scope="module")
def detector_inputs(exported: FamilyExport, encoded: Arrays) -> Arrays:
    features = {"concept_states": encoded["concept_states"], "example_features": encoded["concept_features.2"]}
    text = run(exported, "text_encoder", {"input_ids": IDS, "attention_mask": MASK})
    return {**features, **text, "attention_mask": MASK, "input_boxes": BOXES, "input_boxes_labels": LABELS}


def find(exported: FamilyExport, encoded: Arrays, inputs: Arrays) -> Arrays:
    """Run the detector, and make the masks of all its queries."""
    found = run(exported, "detector", inputs)
    levels = {name: encoded[name] for name in ("concept_features.0", "concept_features.1")}
    wanted = {name: found.pop(name) for name in ("mask_features", "mask_queries")}
    return {**found, **run(exported, "mask_head", {**levels, **wanted})}


def reference(exported: FamilyExport, prompt: int, boxes: int) -> Arrays:
    given: dict[str, Any] = {"input_ids": IDS, "attention_mask": MASK}
    if boxes:
        given |= {"input_boxes": BOXES[:, :boxes], "input_boxes_labels": LABELS[:, :boxes]}
    tensors = {name: torch.from_numpy(array[prompt : prompt + 1]) for name, array in given.items()}
    with torch.no_grad():
        found = exported.model.concepts(pixel_values=torch.from_numpy(IMAGE), **tensors)
    return {name: getattr(found, name).numpy() for name in OUTPUTS}


def test_one_pass_gives_the_embeddings_of_the_tracker(exported: FamilyExport, encoded: Arrays) -> None:
    for name, array in run(exported, "encoder", {"pixel_values": IMAGE}).items():
        np.testing.assert_allclose(encoded[name], array, atol=1e-5)


def test_prompts_of_one_batch_equal_the_official_model(
    exported: FamilyExport, encoded: Arrays, detector_inputs: Arrays
) -> None:
    found = find(exported, encoded, detector_inputs)
    for prompt, boxes in enumerate((2, 0, 1)):
        for name, expected in reference(exported, prompt, boxes).items():
            worst = float(np.abs(found[name][prompt : prompt + 1] - expected).max())
            print(prompt, name, worst)
            assert worst < 1e-4, (prompt, name)
        expected_masks = reference(exported, prompt, boxes)["pred_masks"][0] > 0
        masks = found["pred_masks"][prompt] > 0
        iou = (masks & expected_masks).sum() / max((masks | expected_masks).sum(), 1)
        print(prompt, "iou", iou)
        assert iou > 0.9999


def test_words_without_boxes(exported: FamilyExport, encoded: Arrays, detector_inputs: Arrays) -> None:
    nothing = {"input_boxes": np.zeros((3, 0, 4), np.float32), "input_boxes_labels": np.zeros((3, 0), np.int64)}
    found = find(exported, encoded, {**detector_inputs, **nothing})
    for name, expected in reference(exported, 0, 0).items():
        np.testing.assert_allclose(found[name][:1], expected, atol=1e-4)
    with_boxes = run(exported, "detector", detector_inputs)
    assert np.abs(with_boxes["pred_logits"][0] - found["pred_logits"][0]).max() > 1e-4


def test_padding_between_and_before_tokens(exported: FamilyExport, encoded: Arrays, detector_inputs: Arrays) -> None:
    """The graph cuts off what lies behind the last token of all texts, and nothing else."""
    mask = np.zeros_like(MASK)
    mask[:, [3, 4, 9]] = 1
    nothing = {"input_boxes": np.zeros((3, 0, 4), np.float32), "input_boxes_labels": np.zeros((3, 0), np.int64)}
    inputs = {**detector_inputs, **nothing, "attention_mask": mask}
    found = run(exported, "detector", inputs)
    with torch.no_grad():
        features = torch.from_numpy(detector_inputs["text_features"][:1])
        given = {"attention_mask": torch.from_numpy(mask[:1]), "text_embeds": SimpleNamespace(pooler_output=features)}
        expected = exported.model.concepts(pixel_values=torch.from_numpy(IMAGE), **given)
    for name in OUTPUTS[1:]:
        np.testing.assert_allclose(found[name][:1], getattr(expected, name).numpy(), atol=1e-4)
    for odd in (np.zeros_like(mask), 7 * mask):  # no token at all
        assert np.isfinite(run(exported, "detector", {**inputs, "attention_mask": odd})["pred_boxes"]).all()


@pytest.mark.parametrize("name", ["text_features", "input_boxes_labels", "attention_mask"])
def test_the_guard_refuses_sizes_that_contradict(exported: FamilyExport, detector_inputs: Arrays, name: str) -> None:
    for wrong in (detector_inputs[name][:2], detector_inputs[name][:0]):
        with pytest.raises(Exception, match="guard/"):
            run(exported, "detector", {**detector_inputs, name: wrong})


@pytest.mark.parametrize("role", list(Sam3.concepts))
def test_signature(exported: FamilyExport, role: str) -> None:
    model, spec = onnx.load(exported.files[role]), Sam3.concepts[role]
    for values, tensors in ((model.graph.input, spec.inputs), (model.graph.output, spec.outputs)):
        shapes = {v.name: tuple(d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim) for v in values}
        assert shapes == {tensor.name: tensor.shape for tensor in tensors}
    assert model.ir_version <= 10
    assert {item.domain: item.version for item in model.opset_import}[""] == 18


def test_a_family_without_concepts(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="sam1 has no models for concepts: leave --concepts out"):
        export("sam1", Settings(tmp_path, random_seed=0, model="micro", concepts=True, progress=False))
