"""The choice of the models that a server loads. test/served/test_local_server.py has more, with real folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from triton_sam.errors import RepositoryError
from triton_sam.families import get_family, pair_names, variant_models
from triton_sam.repository.selection import select_models
from triton_sam.sessions.configs import write_programs


def add_model(repository: Path, name: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.onnx").touch()
    (repository / name / "config.pbtxt").write_text('backend: "onnxruntime"\n')


def add_pair(repository: Path, variant: str) -> None:
    for name in pair_names(variant):
        add_model(repository, name)


def test_a_variant_without_a_session_model_is_its_pair(tmp_path: Path) -> None:
    """Exports of earlier versions wrote none under a name of their own."""
    add_pair(tmp_path, "mine")
    assert [model.name for model in select_models(tmp_path, ["mine"])] == ["mine_encoder", "mine_decoder"]
    write_programs(tmp_path, get_family("sam1"), "mine")
    assert {model.name for model in select_models(tmp_path, ["mine"])} == {"mine", "mine_encoder", "mine_decoder"}
    with pytest.raises(RepositoryError, match="no model 'other'"):
        select_models(tmp_path, ["other"])


def test_a_variant_with_a_session_model_brings_its_video_model(tmp_path: Path) -> None:
    family = get_family("sam2")
    names = {family.model_name(role, "mine") for role in family.every_model}
    for name in names:
        add_model(tmp_path, name)
    write_programs(tmp_path, family, "mine")
    assert {model.name for model in select_models(tmp_path, ["mine"])} == {*names, "mine", "mine_video"}
    (tmp_path / "mine_memory_encoder/1/model.onnx").unlink()
    assert {model.name for model in select_models(tmp_path, ["mine"])} == {"mine", "mine_encoder", "mine_decoder"}


def test_a_variant_for_videos_brings_all_its_models(tmp_path: Path) -> None:
    """Clients click on images of the official size, so a variant of another size has no session model."""
    family = get_family("sam2").at(512)
    names = [family.model_name(role, "small") for role in family.models_for(video=True, concepts=False)]
    for name in names:
        add_model(tmp_path, name)
    write_programs(tmp_path, family, "small")
    assert {model.name for model in select_models(tmp_path, ["small"])} == {*names, "small_video"}
    (tmp_path / "small_decoder/1/model.onnx").unlink()
    with pytest.raises(RepositoryError, match="'small_decoder' has no weights"):
        select_models(tmp_path, ["small"])


@pytest.mark.parametrize(
    ("model", "command"),
    [
        ("sam2", "setup sam2`"),
        ("sam2_encoder", "setup sam2`"),
        ("sam2_video", "setup sam2 --video`"),
        ("sam2_memory_attention", "setup sam2 --video`"),
        ("sam3_detector", "setup sam3 --concepts`"),
    ],
)
def test_the_error_for_an_absent_model_names_the_command_that_writes_it(
    tmp_path: Path, model: str, command: str
) -> None:
    with pytest.raises(RepositoryError, match=f"write them with `triton-sam {command}"):
        select_models(tmp_path, [model])


def test_the_models_of_a_variant_come_after_those_that_they_call() -> None:
    names = variant_models("mine")
    assert names[:2] == ("mine_encoder", "mine_decoder")
    assert names.index("mine_preprocess") < names.index("mine_encoder_jpeg") < names.index("mine")
    assert names[-1] == "mine_video"
    assert {"mine_memory_attention", "mine_detector"} <= set(names)
