"""Fine-tunes by `triton-sam setup`: files of other publishers, from a URL or the disk, give the official masks."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.export
torch = pytest.importorskip("torch")
xxhash = pytest.importorskip("xxhash")

from support.contents import files_below  # noqa: E402
from support.family_exports import PACKAGES, SMALLEST  # noqa: E402
from support.file_server import Server  # noqa: E402

from triton_sam.cli import main  # noqa: E402
from triton_sam.download import catalogue  # noqa: E402
from triton_sam.export import registry  # noqa: E402
from triton_sam.export.templates import templates  # noqa: E402
from triton_sam.families import FAMILIES, get_family  # noqa: E402
from triton_sam.repository.onnx_header import read_metadata  # noqa: E402
from triton_sam.scenes.clip import generate_clip  # noqa: E402
from triton_sam.verify import THRESHOLDS, OnnxClient  # noqa: E402
from triton_sam.verify import video as verify_videos  # noqa: E402
from triton_sam.verify.compare import verify  # noqa: E402
from triton_sam.verify.report import format_table  # noqa: E402


class Unknown:
    """A class that only the trainer of a checkpoint has."""


def micro_sam(state: dict[str, Any]) -> dict[str, Any]:
    """The checkpoint of a training with torch_em that also trained a decoder of instances."""
    return {
        "model_state": {f"sam.{name}": tensor for name, tensor in state.items()},
        "decoder_state": {"out_conv.weight": torch.ones(1)}, "init": {"loss": Unknown()}, "epoch": np.int64(3),
    }  # fmt: skip


LAYOUTS = {"bare": lambda state: state, "meta": lambda state: {"model": state, "epoch": 1}, "micro-sam": micro_sam}


def official_of(family: str, model: str | None = None, side: int | None = None) -> Any:
    pytest.importorskip(PACKAGES[family])
    return registry.exporter(family).load(None, model or SMALLEST[family], image_size=side, random_seed=7)


def saved(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


@pytest.fixture
def publisher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The server of a publisher; downloads and models go to the current folder."""
    monkeypatch.chdir(tmp_path)
    with Server() as publisher, publisher.running():
        publisher.where = "/weights/fine-tune.pt?download=1"
        yield publisher


def setup(server: Server, family: str, *options: str) -> int:
    return main(["setup", family, "--url", server.url + server.where, "--model-repository", "models", *options])


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        ("sam1", "micro-sam"),
        pytest.param("sam1", "bare", marks=pytest.mark.slow),
        pytest.param("mobilesam", "micro-sam", marks=pytest.mark.slow),
        pytest.param("sam2", "meta", marks=pytest.mark.slow),
    ],
)
def test_the_masks_are_the_official_ones(
    publisher: Server, tmp_path: Path, images: Path, capsys: pytest.CaptureFixture[str], family: str, layout: str
) -> None:
    official = official_of(family)
    publisher.content = saved(LAYOUTS[layout](official.state_dict()))
    assert setup(publisher, family, "--name", "cells") == 0
    said = capsys.readouterr()
    assert said.out == f"{hashlib.sha256(publisher.content).hexdigest()}  checkpoints/cells.pt\n"
    assert said.err.count("decoder of instance segmentation, which is left out") == (layout == "micro-sam")
    assert "cells/config.pbtxt" in files_below(tmp_path / "models")
    files = {role: tmp_path / f"models/cells_{role}/1/model.onnx" for role in ("encoder", "decoder")}
    reference = registry.exporter(family).reference(official)
    rows = verify(reference, images / "coffee.jpg", {"onnxruntime": OnnxClient(files, family)})
    assert THRESHOLDS["fp32"].iou >= 0.9999
    assert all(row.passes(THRESHOLDS["fp32"]) for row in rows), format_table(rows, THRESHOLDS["fp32"])


def test_a_name_of_the_catalogue(
    publisher: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The publisher states an XXH128; the models have the name of the fine-tune."""
    publisher.content = saved(micro_sam(official_of("sam1").state_dict()))
    row = replace(
        catalogue.find("sam1", "vit_b_lm"),
        url=f"{publisher.url}{publisher.where}",
        other_hash=f"xxh128:{xxhash.xxh128_hexdigest(publisher.content)}",
    )
    monkeypatch.setattr(catalogue, "catalogue", lambda: (row,))
    assert main(["setup", "sam1", "vit_b_lm", "--model-repository", "models", "-q"]) == 0
    names = {name.partition("/")[0] for name in files_below(tmp_path / "models")}
    assert names == {"vit_b_lm", "vit_b_lm_encoder", "vit_b_lm_decoder"}
    metadata = read_metadata(tmp_path / "models/vit_b_lm_encoder/1/model.onnx")
    assert metadata["triton_sam.checkpoint"] == "vit_b_lm"
    wrong = replace(row, name="other", other_hash=f"xxh128:{0:032x}")
    monkeypatch.setattr(catalogue, "catalogue", lambda: (wrong,))
    assert main(["setup", "sam1", "other", "--model-repository", "models", "-q"]) == 1
    assert "its XXH128 is" in capsys.readouterr().err
    assert "other.pt" not in {path.name for path in Path("checkpoints").iterdir()}


def test_a_file_on_the_disk(publisher: Server, tmp_path: Path) -> None:
    Path("mine.bin").write_bytes(saved(official_of("mobilesam").state_dict()))
    command = ["setup", "mobilesam", "--checkpoint", "mine.bin", "--model-repository", "models", "-q"]
    assert main(command) == 0
    assert read_metadata(tmp_path / "models/mobilesam_encoder/1/model.onnx")["triton_sam.checkpoint"] == "mine"
    assert not Path("checkpoints").exists()


@pytest.mark.parametrize(
    ("change", "options", "error"),
    [
        (bytes, ["--sha256", "0" * 64], "is not the expected file: its SHA-256 is "),
        (lambda content: content[:-500], [], "not a readable PyTorch checkpoint (damaged or cut off?)"),
        (lambda _: saved({"a": torch.ones(2)}), [], "does not fit SAM1 micro: 174 tensors missing, 1 too many"),
        (lambda _: b"<html>Not found</html>", [], "neither a file of torch.save() nor safetensors"),
        (bytes, ["--sha256", "0"], "--sha256 0: it must have 64 hexadecimal digits"),
        (bytes, ["--name", "../up"], "is not a valid model name"),
        (bytes, ["--mirror", "http://localhost"], "not for --url"),
    ],
)
def test_files_that_cannot_be_served_leave_nothing_behind(
    publisher: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Any, options: list[str], error: str
) -> None:
    publisher.content = change(saved({"model": official_of("sam1").state_dict()}))
    assert setup(publisher, "sam1", "-q", *options) == 1
    said = capsys.readouterr()
    assert error in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert files_below(tmp_path) == {}


def test_a_file_that_was_there_before_is_used_and_kept(publisher: Server, tmp_path: Path) -> None:
    Path("checkpoints").mkdir()
    Path("checkpoints/fine-tune.pt").write_bytes(b"precious")
    assert setup(publisher, "sam1", "-q") == 1
    assert publisher.requests == []
    assert files_below(tmp_path) == {"checkpoints/fine-tune.pt": b"precious"}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_of_another_family_is_named(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    table = get_family(family)
    layout = next(each.layout for each in templates(table) if each.size == table.quick_size)
    path = tmp_path / "mine.safetensors"
    safetensors.save_file({name: np.zeros(shape, np.float32) for name, shape in layout.items()}, path)
    for other in FAMILIES.keys() - {family, "sam3"}:
        command = ["setup", other, "--checkpoint", str(path), "--model-repository", str(tmp_path / "models"), "-q"]
        assert main(command) == 1
        said = capsys.readouterr().err
        assert f"does not fit {get_family(other).label}" in said
        assert f"it is a checkpoint of {family} {table.quick_size}" in said
    assert files_below(tmp_path).keys() == {"mine.safetensors"}


@pytest.mark.slow
@pytest.mark.parametrize(("size", "letter"), [("tiny", "t"), ("small", "s"), ("base_plus", "b+"), ("large", "l")])
def test_a_size_of_sam20_has_the_tensors_of_its_template_but_three(size: str, letter: str) -> None:
    pytest.importorskip("sam2")
    state = registry.exporter("sam2").build(f"configs/sam2/sam2_hiera_{letter}.yaml", 1024).state_dict()
    layout = next(each.layout for each in templates(get_family("sam2")) if each.size == size)
    assert {name: tuple(tensor.shape) for name, tensor in state.items()}.items() <= layout.items()
    assert layout.keys() - state.keys() == {
        "no_obj_embed_spatial", "obj_ptr_tpos_proj.weight", "obj_ptr_tpos_proj.bias"
    }  # fmt: skip


SAM20 = {
    "no_obj_embed_spatial": False, "add_tpos_enc_to_obj_ptrs": False, "proj_tpos_enc_in_obj_ptrs": False,
    "use_signed_tpos_enc_to_obj_ptrs": False,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, SAM20], ids=["MedSAM2", "SAM2.0"])
def test_videos_have_the_official_masks(
    publisher: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, bool]
) -> None:
    """MedSAM2 is SAM2.1 at 512 pixels. SAM2.0 lacks three tensors, and its settings say so."""
    from omegaconf import OmegaConf

    from triton_sam import SAM2VideoClient
    from triton_sam.export.sam2.recipe import find_config
    from triton_sam.transport.onnx import OnnxTransport
    from triton_sam.verify.video import VideoTransport

    config = OmegaConf.load(find_config(SMALLEST["sam2"]))
    OmegaConf.update(config, "model", changes)
    OmegaConf.save(config, tmp_path / "official.yaml")
    official = official_of("sam2", str(tmp_path / "official.yaml"), 512)
    assert ("no_obj_embed_spatial" in official.state_dict()) is not bool(changes)
    publisher.content = saved({"model": official.state_dict()})
    assert setup(publisher, "sam2", "--image-size", "512", "--name", "volumes", "-q") == 0
    config_name = read_metadata(tmp_path / "models/volumes_encoder/1/model.onnx")["triton_sam.config"]
    assert config_name == ("sam2_hiera_micro" if changes else "sam2.1_hiera_micro")
    assert "volumes_video/1/model.py" in files_below(tmp_path / "models")
    clip = list(generate_clip(3, 8).images)
    size = clip[0].shape[1::-1]
    chosen = {title: verify_videos.cases(size, 8)[title] for title in ("correction in the middle", "mask prompt")}
    monkeypatch.setattr(verify_videos, "cases", lambda *_: chosen)
    family = get_family("sam2").at(512)
    roles = family.models_for(video=True, concepts=False)
    files = {family.model_name(role): tmp_path / f"models/volumes_{role}/1/model.onnx" for role in roles}
    transport = VideoTransport(family, OnnxTransport(files))
    reference = registry.exporter("sam2").video_reference(official, clip)
    with SAM2VideoClient(transport=transport) as client, client.open(clip) as video:
        rows = list(verify_videos.verify_video(reference, {"served": verify_videos.ClientRunner(video)}, size, 8))
    assert len(rows) == 2
    assert all(row.passes(0.9999) for row in rows), format_table(rows, 0.9999)
