"""EdgeTAM: both layouts of checkpoints, its official size, and videos, whose objects it follows as transformers does.

test_sam2_video.py compares each of the graphs that EdgeTAM shares with SAM2.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.export, pytest.mark.slow]  # its graphs take minutes to trace
torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
timm = pytest.importorskip("timm")
pytest.importorskip("transformers")
pytest.importorskip("onnxruntime")
pytest.importorskip("sam2")

from support.video_graphs import Graphs, check_every_case, clip, edgetam_micro_graphs, video_client  # noqa: E402
from transformers import EdgeTamVideoInferenceSession  # noqa: E402

from triton_sam.client.video.sync import SAM2VideoClient  # noqa: E402
from triton_sam.errors import CheckpointError, ConfigurationError  # noqa: E402
from triton_sam.export import registry  # noqa: E402
from triton_sam.export.edgetam.checkpoints import IMAGE_POSITION, VIDEO_HALF, transformers_name  # noqa: E402
from triton_sam.export.edgetam.graphs import sam2_of  # noqa: E402
from triton_sam.export.edgetam.recipe import EXPORTER, has_video, image_model  # noqa: E402
from triton_sam.export.settings import Settings  # noqa: E402


@pytest.fixture
def changeable() -> Any:
    return EXPORTER.load(None, "micro", random_seed=0)


PERCEIVER = {
    "layer_norm_input.": "attn.norm_x.",
    "layer_norm_latents.": "attn.norm_latents.",
    "cross_attention.q_proj.": "attn.to_q.",
    "cross_attention.o_proj.": "attn.to_out.",
    "mlp.layer_norm.": "ff.0.",
    "mlp.up_proj.": "ff.1.",
    "mlp.down_proj.": "ff.3.",
    "layer_norm_self.": "self_attn.norm.",
    "self_attention.q_proj.": "self_attn.to_q.",
    "self_attention.o_proj.": "self_attn.to_out.",
    "self_mlp.layer_norm.": "self_ff.0.",
    "self_mlp.up_proj.": "self_ff.1.",
    "self_mlp.down_proj.": "self_ff.3.",
}
"""The names of a layer of the Perceiver in transformers and in Meta's checkpoint."""


def meta_perceiver(state: dict[str, Any]) -> dict[str, Any]:
    """Return the weights of the Perceiver under the names of Meta's checkpoint."""
    names = {"latents_1d": "latents", "latents_2d": "latents_2d"}
    names |= {f"layer_norm.{kind}": f"norm.{kind}" for kind in ("weight", "bias")}
    found = {f"spatial_perceiver.{meta}": state[f"spatial_perceiver.{name}"] for name, meta in names.items()}
    for layer in (0, 1):
        place = f"spatial_perceiver.layers.{layer}."
        for name, meta in PERCEIVER.items():
            for kind in ("weight", "bias"):
                if f"{place}{name}{kind}" in state:
                    found[f"{place}{meta}{kind}"] = state[f"{place}{name}{kind}"]
        for name, meta in (("cross_attention", "attn"), ("self_attention", "self_attn")):
            parts = [state[f"{place}{name}.{part}_proj.weight"] for part in ("k", "v")]
            found[f"{place}{meta}.to_kv.weight"] = torch.cat(parts)
    return found


def meta_state(model: Any) -> dict[str, Any]:
    """Return the weights of a model under the names of Meta's checkpoint."""
    state = model.state_dict()
    found = {name: value for name, value in sam2_of(model).state_dict().items() if "perceiver" not in name}
    found |= meta_perceiver(state)
    for name, value in state.items():
        for new, old in (("backbone.timm_model.", "trunk.body."), ("neck.convs.", "neck.convs.")):
            if name.startswith(f"vision_encoder.{new}"):
                rest = name.removeprefix(f"vision_encoder.{new}")
                rest = rest.replace(".", ".conv.", 1) if "neck" in new else rest
                found[f"image_encoder.{old}{rest}"] = value
    return found


def test_checkpoints_of_meta_and_of_transformers_load(changeable: Any, tmp_path: Path) -> None:
    state = meta_state(changeable)
    torch.save({"model": state}, tmp_path / "edgetam.pt")
    loaded = EXPORTER.load(tmp_path / "edgetam.pt", "micro").state_dict()
    for name, value in changeable.state_dict().items():
        same = name if name != IMAGE_POSITION else "prompt_encoder.shared_embedding.positional_embedding"
        torch.testing.assert_close(loaded[name], changeable.state_dict()[same], msg=name)
        assert loaded[name].shape == value.shape
    changeable.save_pretrained(tmp_path / "folder")
    for path in (tmp_path / "folder", tmp_path / "folder" / "model.safetensors"):
        torch.testing.assert_close(EXPORTER.load(path, "micro").state_dict(), changeable.state_dict())


def filled(folder: Path, checkpoint: Path, *, video: bool = True) -> dict[str, Any]:
    """Return the graphs of an export from the template, by role."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "exporter", lambda _: pytest.fail("the template was not used"))
        exported = registry.export("edgetam", Settings(folder, checkpoint, video=video, progress=False))
    return {role: onnx.load(path).graph for role, path in exported.files.items()}


def test_checkpoints_of_both_layouts_fill_the_same_graphs(changeable: Any, tmp_path: Path) -> None:
    positions = changeable.shared_image_embedding.positional_embedding
    changeable.prompt_encoder.shared_embedding.positional_embedding.copy_(positions)  # Meta's model has them once
    torch.save({"model": meta_state(changeable)}, tmp_path / "edgetam.pt")
    changeable.save_pretrained(tmp_path / "folder")
    graphs = filled(tmp_path / "a", tmp_path / "edgetam.pt")
    assert graphs == filled(tmp_path / "b", tmp_path / "folder")
    image = {
        name: value
        for name, value in meta_state(changeable).items()
        if not transformers_name(name).startswith(VIDEO_HALF)
    }
    torch.save(image, tmp_path / "image.pt")
    of_image = filled(tmp_path / "c", tmp_path / "image.pt", video=False)
    assert of_image == {role: graphs[role] for role in of_image}


def test_wrong_checkpoints_are_refused(changeable: Any, tmp_path: Path) -> None:
    state = meta_state(changeable)
    del state["no_mem_embed"]
    torch.save(state, tmp_path / "edgetam.pt")
    with pytest.raises(CheckpointError, match="1 tensors missing, 0 too many"):
        EXPORTER.load(tmp_path / "edgetam.pt", "micro")
    with pytest.raises(CheckpointError, match="triton-sam download edgetam"):
        EXPORTER.load(tmp_path / "model.safetensors", "micro")
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(CheckpointError, match="not a readable"):
        EXPORTER.load(tmp_path, "micro")


def test_official_size_is_the_official_backbone() -> None:
    body = image_model(EXPORTER.build("repvit_m1", 1024)).vision_encoder.backbone.timm_model
    official = timm.create_model("repvit_m1", features_only=True, out_indices=(0, 1, 2, 3))
    assert str(body) == str(official)


SIDE, FRAMES = 256, 8


@pytest.fixture(scope="module")
def graphs() -> Graphs:
    return edgetam_micro_graphs()


@pytest.fixture(scope="module")
def client(graphs: Graphs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SAM2VideoClient]:
    with video_client(graphs, tmp_path_factory.mktemp("edgetam_video")) as client:
        yield client


@pytest.mark.parametrize("as_meta", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_every_case(graphs: Graphs, client: SAM2VideoClient, as_meta: bool) -> None:
    frames = clip(FRAMES)
    with client.open(frames) as video:
        rows = check_every_case(graphs, video, EdgeTamVideoInferenceSession, frames, as_meta, {})
    assert max(row.logit_diff for row in rows) < 1e-2


def test_checkpoints_hold_the_video_half(graphs: Graphs, tmp_path: Path) -> None:
    model = graphs.model
    model.save_pretrained(tmp_path / "videos")
    loaded = EXPORTER.load(tmp_path / "videos", "micro", image_size=SIDE)
    assert has_video(loaded)
    torch.testing.assert_close(loaded.state_dict(), model.state_dict())
    image_model(model).save_pretrained(tmp_path / "images")
    loaded = EXPORTER.load(tmp_path / "images", "micro", image_size=SIDE)
    assert not has_video(loaded)
    settings = Settings(tmp_path, tmp_path / "images", "micro", image_size=SIDE, video=True)
    with pytest.raises(ConfigurationError, match="no weights for videos"):
        EXPORTER.check(loaded, settings)
