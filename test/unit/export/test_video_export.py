"""An export with the models for videos: all files or none, and the families that have no such models."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.export
pytest.importorskip("torch")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from support.zero_models import Proved, Zeros, export_zeros  # noqa: E402

from triton_sam._common.bundle import bundled  # noqa: E402
from triton_sam.errors import ConfigurationError, ExportError  # noqa: E402
from triton_sam.export.pipeline import Exported  # noqa: E402
from triton_sam.families import get_family  # noqa: E402
from triton_sam.repository import parse_config  # noqa: E402
from triton_sam.repository.selection import read_repository, unloadable  # noqa: E402
from triton_sam.sessions.configs import video_program  # noqa: E402
from triton_sam.transport import Transport  # noqa: E402
from triton_sam.transport.url import parse_url  # noqa: E402

ROLES = ("memory_attention", "memory_encoder", "tracking_decoder", "mask_prompt")


def export(repository: Path, exporter: Any = None, **options: Any) -> Exported:
    return export_zeros(repository, exporter or Proved(), **{"name": "mine", **options})


def test_the_video_model_appears_with_its_models(tmp_path: Path) -> None:
    found = export(tmp_path, video=True, image_size=512, progress=False)
    assert list(found.files) == ["encoder", "decoder", *ROLES]
    assert all(path.is_file() for path in found.files.values())
    assert (tmp_path / "mine_video" / "1" / "model.py").read_text() == video_program()
    config = parse_config((tmp_path / "mine_video" / "config.pbtxt").read_text())
    assert config.parameters["image_size"].string_value == "512"
    models = read_repository(tmp_path)
    assert unloadable(models) == {}
    assert models["mine_video"].dependencies(models) == {f"mine_{role}" for role in ("encoder", *ROLES)}
    found.files["mask_prompt"].unlink()
    assert unloadable(read_repository(tmp_path))["mine_video"] == "it calls mine_mask_prompt, which has no weights here"


def test_a_server_loads_an_export_for_videos_into_a_copy_of_the_repository(tmp_path: Path) -> None:
    """The copy has models for images of 1024 pixels, and the demo model as version 1."""
    local_server = pytest.importorskip("triton_sam.local_server")
    for name in ("sam2", "sam2_encoder", "sam2_decoder", "sam2_preprocess", "sam2_encoder_jpeg"):
        shutil.copytree(bundled("model_repository") / name, tmp_path / name, ignore=shutil.ignore_patterns("[2-9]*"))
    export(tmp_path, name="sam2", video=True, image_size=512, progress=False)
    names = ["sam2_encoder_jpeg", "sam2_video"]
    with local_server.LocalServer(tmp_path, models=names) as server:
        assert {*names, "sam2_memory_attention"} <= {model.name for model in server.served_models()}
        transport = Transport(parse_url(server.http_url))
        image = np.array([(bundled("test/images") / "shapes.jpg").read_bytes()], np.object_)
        answer = transport.infer("sam2_encoder_jpeg", {"encoded_image": image}, ["image_embeddings", "image_size"])
        assert answer["image_embeddings"].shape == (1, 256, 32, 32)
        assert answer["image_size"].tolist() == [800, 600]
        transport.close()


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    class Fails(Zeros):
        def trace(self, model: Any, spec: Any, options: Any) -> Any:
            if spec.role == "mask_prompt":
                raise ExportError("torch could not export the mask prompt")
            return super().trace(model, spec, options)

    with pytest.raises(ExportError, match="mask prompt"):
        export(tmp_path / "repository", Fails(), video=True, progress=False)
    assert not (tmp_path / "repository").exists()


@pytest.mark.slow
def test_a_pair_of_other_weights_beside_models_for_videos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(tmp_path, video=True)
    export(tmp_path)
    assert "other weights" not in capsys.readouterr().err
    export(tmp_path, random_seed=1)
    assert "mine_memory_attention, mine_memory_encoder" in (said := capsys.readouterr().err)
    assert "belong to other weights: export with --video too" in said


def test_a_family_at_another_image_size() -> None:
    family = get_family("sam2")
    small = family.at(512)
    assert small is family.at(512)
    assert family.at(1024) is family
    assert get_family("sam2") is family
    assert (small.image_size, small.mask_size, small.tracking and small.tracking.memory_shape) == (
        512,
        128,
        (64, 32, 32),
    )
    assert small.encoder.inputs[0].shape == ("images", 3, 512, 512)
    assert small.decoder.inputs[3].shape == ("prompts", "points", 2)
    assert {tensor.name: tensor.shape for tensor in small.every_model["memory_attention"].inputs}["memories"] == (
        "objects",
        "memories",
        64,
        32,
        32,
    )
    with pytest.raises(ConfigurationError, match="image size 500: it must be a positive multiple of 16"):
        family.at(500)
