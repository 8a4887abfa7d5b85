"""SAM3-LiteText's text encoder in place of SAM3's own: the graphs, the reference, the checkpoint, mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.export
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnxruntime")

from support.family_exports import run_graph  # noqa: E402

from triton_sam.errors import CheckpointError, ConfigurationError  # noqa: E402
from triton_sam.export.pipeline import finish_graph  # noqa: E402
from triton_sam.export.sam3 import lite_text  # noqa: E402
from triton_sam.export.sam3.recipe import EXPORTER  # noqa: E402
from triton_sam.export.settings import Settings  # noqa: E402
from triton_sam.families.concepts import TEXT_ENCODER  # noqa: E402
from triton_sam.families.sam3 import SAM3  # noqa: E402

RNG = np.random.default_rng(0)
IDS = torch.from_numpy(RNG.integers(0, 49406, (3, 32)))
MASK = torch.from_numpy((np.arange(32) < np.array([[5], [9], [32]])).astype(np.int64))


@pytest.fixture(scope="module")
def model():
    built = EXPORTER.load(None, "reduced", random_seed=0)
    EXPORTER.add_concepts(built, settings(Path()))
    before = built.concepts.get_text_features(input_ids=IDS, attention_mask=MASK).pooler_output
    lite_text.replace_text_encoder(built.concepts, "lite", "reduced", 0)
    built.before = before
    return built


@pytest.fixture(scope="module")
def official(model):
    return lite_text.official_model(model.concepts)


def settings(folder: Path, **details) -> Settings:
    details = {"random_seed": 0, "model": "reduced", "concepts": True, "progress": False, **details}
    return Settings(folder, **details).complete(SAM3)


@pytest.mark.slow
def test_the_graph_equals_the_official_text_encoder(model, official) -> None:
    spec = SAM3.concepts[TEXT_ENCODER]
    graph = finish_graph(EXPORTER.trace(model, spec, {}), spec, "fp32", False)
    (found,) = run_graph(graph, {"input_ids": IDS.numpy(), "attention_mask": MASK.numpy()}).values()
    expected = official.get_text_features(input_ids=IDS, attention_mask=MASK).pooler_output.numpy()
    for row, length in enumerate(MASK.sum(1).tolist()):  # the detector reads no other token
        np.testing.assert_allclose(found[row, :length], expected[row, :length], atol=1e-4)
    assert np.abs(expected - model.before.numpy()).max() > 0.1


@pytest.mark.slow
def test_the_rest_of_the_official_model_is_that_of_sam3(model, official) -> None:
    image = torch.from_numpy(RNG.uniform(-1, 1, (1, 3, 1008, 1008)).astype(np.float32))
    given = {"pixel_values": image, "input_ids": IDS[:1], "attention_mask": MASK[:1]}
    with torch.no_grad():
        ours, theirs = model.concepts(**given), official(**given)
    for name in ("pred_masks", "pred_boxes", "pred_logits", "presence_logits"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), atol=1e-5, rtol=0)


@pytest.mark.slow
def test_a_checkpoint(model, official, tmp_path: Path) -> None:
    official.save_pretrained(tmp_path)
    fresh = torch.nn.Module()
    lite_text.replace_text_encoder(fresh, str(tmp_path), None, None)
    for part in ("text_encoder", "text_projection"):
        torch.testing.assert_close(getattr(fresh, part).state_dict(), getattr(model.concepts, part).state_dict())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "sam3"}))
    with pytest.raises(CheckpointError, match=r"not a (complete|readable) SAM3 checkpoint"):
        lite_text.replace_text_encoder(fresh, str(tmp_path), None, None)


def test_the_file_names_its_text_encoder(tmp_path: Path) -> None:
    lite = EXPORTER.prepare(settings(tmp_path, options={"text_encoder": "lite"}))
    assert EXPORTER.metadata(lite)["triton_sam.text_encoder"] == "lite"
    assert "triton_sam.text_encoder" not in EXPORTER.metadata(settings(tmp_path))


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="give --concepts too"):
        EXPORTER.prepare(settings(tmp_path, concepts=False, options={"text_encoder": "lite"}))
    with pytest.raises(ConfigurationError, match="with random weights takes 'lite' only, not 'small'"):
        EXPORTER.prepare(settings(tmp_path, options={"text_encoder": "small"}))
    with pytest.raises(CheckpointError, match=r"--text-encoder lite: there is no config\.json"):
        lite_text.check_choice("lite", is_random=False, concepts=True)
