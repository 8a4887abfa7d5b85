"""The graphs of concepts equal transformers' Sam3Model, with words, positive and negative boxes, and no boxes."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

pytestmark = [pytest.mark.export, pytest.mark.slow]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from support.concept_graphs import (  # noqa: E402
    IMAGE,
    MASK,
    OUTPUTS,
    Arrays,
    assert_equal,
    detector_inputs,
    encode,
    find,
    reference,
)
from support.family_exports import FamilyExport, sam3_concepts  # noqa: E402

from triton_sam.families.sam3 import SAM3  # noqa: E402


@pytest.fixture(scope="module")
def exported() -> FamilyExport:
    return sam3_concepts()


def run(exported: FamilyExport, role: str, inputs: Arrays) -> Arrays:
    session = onnxruntime.InferenceSession(exported.files[role])
    names = SAM3.concepts[role].output_names if role in SAM3.concepts else SAM3.models[role].output_names
    return dict(zip(names, session.run(list(names), inputs), strict=True))


@pytest.fixture(scope="module")
def encoded(exported: FamilyExport) -> Arrays:
    return encode(partial(run, exported))


@pytest.fixture(scope="module")
def inputs(exported: FamilyExport, encoded: Arrays) -> Arrays:
    return detector_inputs(partial(run, exported), encoded)


def test_one_pass_gives_the_embeddings_of_the_tracker(exported: FamilyExport, encoded: Arrays) -> None:
    for name, array in run(exported, "encoder", {"pixel_values": IMAGE}).items():
        np.testing.assert_allclose(encoded[name], array, atol=1e-5)


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
