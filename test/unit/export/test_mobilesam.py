"""MobileSAM: the attention of its encoder, whose scales, biases and windows the graph has in another form."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [pytest.mark.export, pytest.mark.slow]  # torch computes images of 1024 pixels
torch = pytest.importorskip("torch")
mobile_sam = pytest.importorskip("mobile_sam")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from support.family_exports import FamilyExport, mobilesam_micro  # noqa: E402

from triton_sam.export.mobilesam.graphs import MobileSamEncoder, Windows  # noqa: E402
from triton_sam.export.mobilesam.recipe import EXPORTER  # noqa: E402


@pytest.fixture(scope="module")
def micro() -> FamilyExport:
    return mobilesam_micro()


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


def test_biases_of_attention_are_those_of_the_checkpoint(micro: FamilyExport, tmp_path: Path) -> None:
    torch.save(micro.model.state_dict(), tmp_path / "mobile_sam.pt")
    attention = EXPORTER.load(tmp_path / "mobile_sam.pt", "micro").image_encoder.layers[1].blocks[0].attn
    torch.testing.assert_close(attention.ab, attention.attention_biases[:, attention.attention_bias_idxs])
    assert attention.ab.abs().max() > 0
