"""SAM-HQ: masks equal those of the official code with both kinds of encoders, and the model is the official one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.export, pytest.mark.slow]  # its graphs take minutes to trace
torch = pytest.importorskip("torch")
segment_anything_hq = pytest.importorskip("segment_anything_hq")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from support.commands import error_of  # noqa: E402
from support.export_checks import (  # noqa: E402
    check_that_fp16_keeps_the_masks,
    check_that_images_are_encoded_as_one_by_one,
    rows_of_a_tall_image,
)
from support.family_exports import FamilyExport, samhq_micro  # noqa: E402

from triton_sam._common.bundle import bundled  # noqa: E402
from triton_sam.cli import main  # noqa: E402
from triton_sam.errors import CheckpointError, ConfigurationError  # noqa: E402
from triton_sam.export import registry  # noqa: E402
from triton_sam.export.pipeline import Exported  # noqa: E402
from triton_sam.export.samhq.graphs import SamHqDecoder, SamHqEncoder  # noqa: E402
from triton_sam.export.samhq.model import SIZES, build_model, choose_size, load_model  # noqa: E402
from triton_sam.families.samhq import SamHq  # noqa: E402
from triton_sam.repository.config import config_for  # noqa: E402
from triton_sam.verify import THRESHOLDS  # noqa: E402

NO_MASK = torch.zeros(1, 1, 256, 256), torch.zeros(1)


@pytest.fixture(scope="module", params=["micro", pytest.param("micro_vit", marks=pytest.mark.nightly)])
def micro(request: pytest.FixtureRequest) -> FamilyExport:
    return samhq_micro(request.param)


def test_export_equals_the_official_predictor(micro: FamilyExport, images: Path, tmp_path: Path) -> None:
    official = registry.exporter("samhq").reference(micro.model)
    rows_of_a_tall_image(official, micro, "samhq", images, tmp_path)


def test_several_images_are_encoded_as_one_by_one(micro: FamilyExport) -> None:
    check_that_images_are_encoded_as_one_by_one(micro.files["encoder"], atol=1e-5)


@pytest.mark.nightly
def test_fp16_keeps_the_masks(images: Path) -> None:
    micro = samhq_micro()
    official = registry.exporter("samhq").reference(micro.model)
    check_that_fp16_keeps_the_masks(official, micro, "samhq", images / "coffee.jpg", THRESHOLDS["fp16"].iou)


@pytest.fixture(scope="module")
def decoded() -> Any:
    """Return a function that decodes two prompts on random embeddings, by our graph and by the official predictor."""
    model = load_model(None, "micro", random_seed=0)
    drawn = torch.Generator().manual_seed(0)
    embeddings = torch.randn(1, 256, 64, 64, generator=drawn)
    early = torch.randn(1, 64, 64, 32, generator=drawn)
    coords = torch.tensor([[[300.0, 200], [700, 800]], [[10, 20], [500, 400]]])
    labels = torch.tensor([[1.0, 0], [1, 1]])

    @torch.no_grad()
    def decode(multimask: bool) -> tuple[Any, ...]:
        features = SamHqEncoder(model).features(embeddings, early.permute(0, 3, 1, 2))
        found = SamHqDecoder(model)(embeddings, features, coords, labels, *NO_MASK)
        predictor = segment_anything_hq.SamPredictor(model)
        predictor.features, predictor.interm_features, predictor.is_image_set = embeddings, [early], True
        predictor.input_size = predictor.original_size = (1024, 1024)
        _, scores, logits = predictor.predict_torch(coords, labels, multimask_output=multimask)
        return (*found[2 * multimask : 2 * multimask + 2], logits, scores)

    decode.model = model
    return decode


@pytest.mark.parametrize(
    "part", ["hf_token", "hf_mlp", "embedding_encoder", "compress_vit_feat", "embedding_maskfeature"]
)
def test_parts_of_the_fine_mask_are_all_in_the_graphs(decoded: Any, part: str) -> None:
    """Each part must change the logits, as in the official code."""
    before = decoded(False)[0]
    parameters = list(getattr(decoded.model.mask_decoder, part).parameters())
    kept = [parameter.clone() for parameter in parameters]
    with torch.no_grad():
        for parameter in parameters:
            parameter.mul_(1.5)
        logits, _, expected, _ = decoded(False)
        for parameter, old in zip(parameters, kept, strict=True):
            parameter.copy_(old)
    assert (logits - before).abs().max() > 1e-3
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_each_object_gets_the_best_of_its_three_masks(decoded: Any) -> None:
    """Scores that differ between objects: the last layer's bias prefers one mask after the other."""
    best = set()
    head = decoded.model.mask_decoder.iou_prediction_head.layers[-1]
    kept = head.bias.clone()
    for token in (1, 2, 3):
        with torch.no_grad():
            head.bias[token] += 100
            logits, scores, expected, expected_scores = decoded(True)
            head.bias.copy_(kept)
        assert logits.shape == (2, 1, 256, 256)
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
        torch.testing.assert_close(scores, expected_scores, atol=1e-4, rtol=1e-5)
        best.add(float(logits.sum()))
    assert len(best) == 3


@pytest.mark.parametrize("size", ["vit_tiny", "vit_b"])
def test_official_sizes_are_those_of_the_package(size: str, tmp_path: Path) -> None:
    official = segment_anything_hq.sam_model_registry[size]()
    built = build_model(size)
    assert {name: tensor.shape for name, tensor in built.state_dict().items()} == {
        name: tensor.shape for name, tensor in official.state_dict().items()
    }
    assert str(built) == str(official)  # strides, epsilons, activations
    path = tmp_path / f"sam_hq_{size}.pth"
    torch.save(official.state_dict(), path)
    torch.testing.assert_close(load_model(path, None).state_dict(), official.state_dict())
    with pytest.raises(CheckpointError, match="give another --size"):
        load_model(path, "micro")


def test_sizes_of_the_table_are_those_of_the_package() -> None:
    official = {size.name for size in SamHq.sizes if size.official}
    assert official == set(segment_anything_hq.sam_model_registry) - {"default"}
    assert official < set(SIZES)


def test_size_by_the_name_of_the_file() -> None:
    names = [checkpoint.file_name for checkpoint in SamHq.checkpoints]
    assert [choose_size(name, None) for name in names] == ["vit_tiny", "vit_b", "vit_l", "vit_h"]
    with pytest.raises(ConfigurationError, match="give --size"):
        choose_size("weights.pth", None)


@pytest.mark.parametrize("size", ["micro", "micro_vit"])
def test_other_image_sizes(size: str) -> None:
    model = load_model(None, size, image_size=512, random_seed=0)
    with torch.no_grad():
        embeddings, features = SamHqEncoder(model)(torch.rand(1, 3, 512, 512))
    assert embeddings.shape == (1, 256, 32, 32)
    assert features.shape == (1, 32, 128, 128)


@pytest.mark.parametrize("role", ["encoder", "decoder"])
def test_config_is_the_committed_one(micro: FamilyExport, role: str) -> None:
    committed = (bundled("model_repository") / f"samhq_{role}" / "config.pbtxt").read_text()
    assert config_for(micro.files[role], f"samhq_{role}") == committed
    spec = getattr(SamHq, role)
    assert [value.name for value in onnx.load(micro.files[role]).graph.input] == list(spec.input_names)


def test_parameters_are_counted() -> None:
    assert registry.parameters("samhq", "vit_tiny") == 10_578_604


def test_export_needs_no_size(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(registry, "export", lambda *given: asked.append(given) or Exported({}, 1, {}))
    assert main(["export", "samhq", "--random", "0"]) == 0
    assert [(family, settings.model) for family, settings in asked] == [("samhq", "vit_tiny")]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["export", "samhq", "--random", "0", "--size", "huge", "-q"], "choose one of vit_tiny, vit_b, vit_l, vit_h"),
        (["export", "samhq", "--random", "0", "--image-size", "1000", "-q"], "multiple of 16"),
        (["export", "samhq", "--random", "0", "--video", "-q"], "samhq has no models for videos"),
        (["export", "samhq", "--checkpoint", "sam_hq_vit_b.pth", "-q"], "triton-sam download samhq vit_b"),
    ],
)
def test_command_errors_are_one_line(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert text in error_of(arguments, capsys)
    assert not (tmp_path / "model_repository").exists()


@pytest.mark.nightly
def test_official_size_end_to_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "samhq", "--random", "--local", "--json", "-q"]) == 0
    assert '"ok": true' in capsys.readouterr().out
