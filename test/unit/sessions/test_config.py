"""The config.pbtxt of the models around the ONNX ones: written from the contract, equal to the committed files."""

import onnx
import pytest
from support.commands import copy_committed
from support.tiny_models import signature

from triton_sam._common.bundle import bundled
from triton_sam.families import FAMILIES, get_family
from triton_sam.local_server.serve import complete
from triton_sam.repository import parse_config
from triton_sam.repository.selection import read_repository, unloadable
from triton_sam.sessions.configs import (
    Missing,
    complete_repository,
    missing_programs,
    programs,
    session_config,
    video_config,
    write_programs,
)
from triton_sam.wire import contract

AGAIN = "run tools/maintain/write_configs.py"


def test_the_committed_programs_are_those_that_an_export_writes():
    for model, files in programs(get_family("sam2"), video=False).items():
        for path, text in files.items():
            assert (bundled("model_repository") / model / path).read_text(encoding="utf-8") == text, AGAIN


@pytest.mark.parametrize("family", FAMILIES)
def test_a_variant_has_a_session_model_of_its_own(family):
    config = parse_config(session_config(get_family(family), "other"))
    parameters = {key: value.string_value for key, value in config.parameters.items()}
    assert config.name == "other"
    assert (parameters["encoder"], parameters["decoder"]) == ("other_encoder", "other_decoder")
    assert int(parameters["cache_bytes"]) == contract.DEFAULT_CACHE_BYTES
    assert all(tensor.optional for tensor in config.input)
    assert (contract.MASK_INPUT in [tensor.name for tensor in config.input]) == get_family(family).takes_mask


def test_a_variant_has_a_video_model_of_its_own():
    family = get_family("sam2").at(512)
    config = parse_config(video_config(family, "other"))
    parameters = {key: value.string_value for key, value in config.parameters.items()}
    roles = ("encoder", "memory_attention", "memory_encoder", "tracking_decoder", "mask_prompt")
    assert config.name == "other_video"
    assert {role: parameters[role] for role in roles} == {role: f"other_{role}" for role in roles}
    assert parameters["image_size"] == "512"
    assert [list(tensor.dims) for tensor in config.output if tensor.name == "masks"] == [[-1, 1, 128, 128]]


def test_a_variant_gets_the_programs_that_it_lacks_and_keeps_settings_of_the_host(tmp_path):
    """Only tensors of other sizes or names replace a config.pbtxt."""
    family = get_family("sam2")
    assert write_programs(tmp_path, family) == []
    names = {"sam2", "sam2_preprocess", "sam2_encoder_jpeg", "sam2_video"}
    assert {path.name for path in tmp_path.iterdir()} == names
    for name in ("sam2", "sam2_video"):
        path = tmp_path / name / "config.pbtxt"
        path.write_text(path.read_text().replace('"536870912"', '"1"').replace("KIND_AUTO", "KIND_CPU"))
    before = (tmp_path / "sam2" / "config.pbtxt").read_text()
    assert missing_programs(tmp_path, family) == Missing()

    smaller = missing_programs(tmp_path, family.at(512))
    changed = {name: tmp_path / name / "config.pbtxt" for name in names - {"sam2"}}
    assert set(smaller.files) == set(changed.values())
    assert "512, 512]" in smaller.files[changed["sam2_preprocess"]]
    assert "[-1, 256, 32, 32]" in smaller.files[changed["sam2_encoder_jpeg"]]

    (tmp_path / "sam2" / "config.pbtxt").write_text(before.replace("boxes", "box"))
    assert [path.parent.name for path in missing_programs(tmp_path, family).files] == ["sam2"]


def test_a_variant_under_another_name_has_its_own_programs(tmp_path):
    write_programs(tmp_path, get_family("sam2"), "mine", video=False)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    write_programs(tmp_path, get_family("sam2").at(512), "small")
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "small_video"}


@pytest.mark.parametrize("text", ['backend: "onnxruntime"\n', 'backend: "python"\n', "no config"])
def test_another_model_of_that_name_stays(tmp_path, text):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.pbtxt").write_text(text)
    (warning,) = write_programs(tmp_path, get_family("sam1"), "mine")
    assert warning == f"{tmp_path}/mine is another model, so mine is not written: choose another --name"
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["config.pbtxt"]


def older_repository(folder):
    """Write what an earlier version left beside its committed files: the graphs of exports. Return what they lack."""
    graphs = [("sam1", "mine", {"triton_sam.family": "sam1"}), ("sam3", "sam3", {})]
    graphs += [("edgetam", "edge", {"triton_sam.family": "edgetam", "triton_sam.image_size": "512"})]
    for family, variant, metadata in graphs:
        for role, spec in get_family(family).models_for(video=family == "edgetam", concepts=False).items():
            file = folder / f"{variant}_{role}" / "1" / spec.filename
            file.parent.mkdir(parents=True)
            model = signature(spec, family)
            onnx.helper.set_model_props(model, metadata)
            onnx.save(model, file)
    (folder / "lonely_encoder" / "1").mkdir(parents=True)
    names = {f"{path.name}/config.pbtxt" for path in folder.iterdir() if path.name != "lonely_encoder"}
    programs = ("mine", "sam3", "edge_video")
    return names | {f"{name}/{file}" for name in programs for file in ("config.pbtxt", "1/model.py")}


def test_an_older_repository_is_completed(tmp_path):
    lacks = older_repository(tmp_path)
    assert {path.relative_to(tmp_path).as_posix() for path in complete_repository(tmp_path)} == lacks
    models = read_repository(tmp_path)
    assert set(unloadable(models)) == {"lonely_encoder"} & models.keys()
    assert models["mine"].dependencies(models) == {"mine_encoder", "mine_decoder"}
    assert models["edge_video"].config.parameters["image_size"].string_value == "512"
    settings = tmp_path / "mine_encoder" / "config.pbtxt"
    settings.write_text(settings.read_text().replace("count: 1", "count: 2"))
    assert complete_repository(tmp_path) == []
    program = tmp_path / "mine" / "1" / "model.py"
    program.unlink()
    assert complete_repository(tmp_path) == [program]


def test_the_file_that_keeps_a_folder_in_git_may_be_missing(tmp_path):
    copy_committed(tmp_path, "sam2", "sam2_encoder", "sam2_decoder", "sam2_preprocess", "sam2_encoder_jpeg")
    (tmp_path / "sam2_encoder_jpeg" / "1" / ".gitkeep").unlink()
    assert complete_repository(tmp_path) == []


def test_a_repository_that_cannot_be_written_is_served_as_it_is(tmp_path, capsys):
    older_repository(tmp_path)
    (tmp_path / "mine").write_bytes(b"")  # no folder can have this name now
    complete(tmp_path)
    (line,) = capsys.readouterr().err.splitlines()
    assert "lacks files" in line
    assert "triton-sam doctor --fix" in line


def test_a_damaged_file_without_a_configuration_costs_itself_alone(tmp_path):
    lacks = older_repository(tmp_path)
    damaged = tmp_path / "damaged_encoder" / "1" / "model.onnx"
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"cut off")
    assert {path.relative_to(tmp_path).as_posix() for path in complete_repository(tmp_path)} == lacks
