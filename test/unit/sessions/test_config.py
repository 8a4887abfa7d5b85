"""The config.pbtxt of the models around the ONNX ones: written from the contract, equal to the committed files."""

from __future__ import annotations

from pathlib import Path

import pytest

from triton_sam._common.bundle import bundled
from triton_sam.families import FAMILIES, get_family
from triton_sam.repository import parse_config
from triton_sam.sessions.configs import write_configs, written_configs
from triton_sam.sessions.image.config import session_config
from triton_sam.sessions.video.config import MODEL_TEXT, video_config
from triton_sam.wire import contract

AGAIN = "run scripts/write_configs.py"


@pytest.mark.parametrize("name", written_configs())
def test_the_committed_config_is_what_the_contract_says(name: str) -> None:
    committed = (bundled("model_repository") / name / "config.pbtxt").read_text(encoding="utf-8")
    assert written_configs()[name] == committed, AGAIN


def test_every_model_that_no_export_writes_is_written_here() -> None:
    """Names alone: a checkout may hold variants and aliases besides."""
    folders = {path.parent.name for path in bundled("model_repository").glob("*/config.pbtxt")}
    others = {name for name in folders if name in FAMILIES or name.endswith(("_preprocess", "_encoder_jpeg", "_video"))}
    assert others == set(written_configs())


def test_files_are_written_where_they_are_missing_or_different(tmp_path: Path) -> None:
    assert sorted(path.parent.name for path in write_configs(tmp_path)) == sorted(written_configs())
    assert write_configs(tmp_path) == []
    (tmp_path / "sam1" / "config.pbtxt").write_text("other")
    assert write_configs(tmp_path) == [tmp_path / "sam1" / "config.pbtxt"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_variant_has_a_session_model_of_its_own(family: str) -> None:
    config = parse_config(session_config(get_family(family), "other"))
    parameters = {key: value.string_value for key, value in config.parameters.items()}
    assert config.name == "other"
    assert (parameters["encoder"], parameters["decoder"]) == ("other_encoder", "other_decoder")
    assert int(parameters["cache_bytes"]) == contract.DEFAULT_CACHE_BYTES
    assert all(tensor.optional for tensor in config.input)
    assert (contract.MASK_INPUT in [tensor.name for tensor in config.input]) == get_family(family).takes_mask


def test_a_variant_has_a_video_model_of_its_own() -> None:
    family = get_family("sam2").at(512)
    config = parse_config(video_config(family, "other"))
    parameters = {key: value.string_value for key, value in config.parameters.items()}
    roles = ("encoder", "memory_attention", "memory_encoder", "tracking_decoder", "mask_prompt")
    assert config.name == "other_video"
    assert {role: parameters[role] for role in roles} == {role: f"other_{role}" for role in roles}
    assert parameters["image_size"] == "512"
    assert [list(tensor.dims) for tensor in config.output if tensor.name == "masks"] == [[-1, 1, 128, 128]]


def test_the_committed_video_model_is_the_one_that_an_export_writes() -> None:
    committed = bundled("model_repository") / "sam2_video" / "1" / "model.py"
    if not committed.is_file():
        pytest.skip("the repository has no model.py for videos")
    assert committed.read_text(encoding="utf-8") == MODEL_TEXT
