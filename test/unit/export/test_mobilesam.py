"""MobileSAM: masks equal those of the official code, the model is the official one, and tables tell it from SAM1."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [pytest.mark.export, pytest.mark.slow]  # its graphs take minutes to trace
torch = pytest.importorskip("torch")
mobile_sam = pytest.importorskip("mobile_sam")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from support.commands import error_of  # noqa: E402
from support.export_checks import (  # noqa: E402
    check_that_images_are_encoded_as_one_by_one,
    check_that_the_committed_config_names_the_family,
    rows_of_a_tall_image,
)
from support.family_exports import FamilyExport, mobilesam_micro  # noqa: E402

from triton_sam.cli import main  # noqa: E402
from triton_sam.errors import CheckpointError  # noqa: E402
from triton_sam.export import registry  # noqa: E402
from triton_sam.export.mobilesam.graphs import MobileSamEncoder, Windows  # noqa: E402
from triton_sam.export.mobilesam.model import build_model, load_model  # noqa: E402
from triton_sam.export.pipeline import Exported  # noqa: E402
from triton_sam.families.mobilesam import MobileSam  # noqa: E402


@pytest.fixture(scope="module")
def micro() -> FamilyExport:
    return mobilesam_micro()


def test_export_equals_the_official_predictor(micro: FamilyExport, images: Path, tmp_path: Path) -> None:
    official = registry.exporter("mobilesam").reference(micro.model)
    rows_of_a_tall_image(official, micro, "mobilesam", images, tmp_path)


def test_several_images_are_encoded_as_one_by_one(micro: FamilyExport) -> None:
    check_that_images_are_encoded_as_one_by_one(micro.files["encoder"], atol=1e-5)


def test_parts_of_an_attention_are_all_in_the_graph(micro: FamilyExport) -> None:
    """The graph folds scales, biases and offsets: each must change the result, as in the official code."""
    attention = micro.model.image_encoder.layers[2].blocks[0].attn
    picture = torch.rand(1, 3, 1024, 1024, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = MobileSamEncoder(micro.model)(picture)
        for parameter in (attention.norm.weight, attention.norm.bias, attention.qkv.bias, attention.attention_biases):
            kept = parameter.clone()
            parameter.add_(torch.linspace(-0.5, 0.5, parameter.numel()).reshape(parameter.shape))
            micro.model.eval()  # the official code copies the attention biases here
            changed = MobileSamEncoder(micro.model)(picture)
            official = micro.model.image_encoder((picture * 255 - micro.model.pixel_mean) / micro.model.pixel_std)
            parameter.copy_(kept)
            assert (changed - before).abs().max() > 1e-3
            torch.testing.assert_close(changed, official, atol=1e-4, rtol=0)
    micro.model.eval()


def test_windows_go_there_and_back() -> None:
    windows = Windows((9, 8), 4, 3)
    rows = torch.arange(2.0 * 73 * 6).reshape(2, 73, 6)
    split = windows.split(rows)
    assert split.shape == (2 * 6, 3, 16, 2)
    torch.testing.assert_close(windows.join(split, 2), rows[:, :-1])
    torch.testing.assert_close(split[5, 1, 5], rows[0, -1, 2:4])  # below the last of 9 rows, there is only padding


def test_official_size_is_that_of_the_package(tmp_path: Path) -> None:
    official = mobile_sam.sam_model_registry["vit_t"]()
    built = build_model("vit_t")
    assert {name: tensor.shape for name, tensor in built.state_dict().items()} == {
        name: tensor.shape for name, tensor in official.state_dict().items()
    }
    assert str(built) == str(official)  # strides, epsilons, activations
    torch.save(official.state_dict(), tmp_path / "mobile_sam.pt")
    loaded = load_model(tmp_path / "mobile_sam.pt", None)
    torch.testing.assert_close(loaded.state_dict(), official.state_dict())
    with pytest.raises(CheckpointError, match="a checkpoint of MobileSAM"):
        load_model(tmp_path / "mobile_sam.pt", "micro")


def test_biases_of_attention_are_those_of_the_checkpoint(micro: FamilyExport, tmp_path: Path) -> None:
    torch.save(micro.model.state_dict(), tmp_path / "mobile_sam.pt")
    attention = load_model(tmp_path / "mobile_sam.pt", "micro").image_encoder.layers[1].blocks[0].attn
    torch.testing.assert_close(attention.ab, attention.attention_biases[:, attention.attention_bias_idxs])
    assert attention.ab.abs().max() > 0


def test_other_image_sizes(tmp_path: Path) -> None:
    model = load_model(None, "micro", image_size=512, random_seed=0)
    with torch.no_grad():
        assert MobileSamEncoder(model)(torch.rand(1, 3, 512, 512)).shape == (1, 256, 32, 32)


@pytest.mark.parametrize("role", ["encoder", "decoder"])
def test_config_is_the_committed_one_and_names_the_family(micro: FamilyExport, role: str) -> None:
    check_that_the_committed_config_names_the_family(micro, "mobilesam", role)
    spec = getattr(MobileSam, role)
    assert [value.name for value in onnx.load(micro.files[role]).graph.input] == list(spec.input_names)


def test_parameters_are_counted() -> None:
    assert registry.parameters("mobilesam", "vit_t") == 10_130_092


def test_export_needs_no_size(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(registry, "export", lambda *given: asked.append(given) or Exported({}, 1, {}))
    assert main(["export", "mobilesam", "--random", "0"]) == 0
    assert [(family, settings.model) for family, settings in asked] == [("mobilesam", "vit_t")]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["export", "mobilesam", "--random", "0", "--size", "tiny", "-q"], "no size 'tiny': choose one of vit_t"),
        (["export", "mobilesam", "--random", "0", "--image-size", "1000", "-q"], "multiple of 16"),
        (["export", "mobilesam", "--random", "0", "--video", "-q"], "mobilesam has no models for videos"),
        (["export", "mobilesam", "--checkpoint", "none.pt", "-q"], "triton-sam download mobilesam"),
        (["verify", "mobilesam", "--random", "--exported", ".", "-q"], "no weights for mobilesam"),
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
    assert main(["verify", "mobilesam", "--random", "--local", "--json", "-q"]) == 0
    assert '"ok": true' in capsys.readouterr().out
