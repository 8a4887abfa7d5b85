"""Aliases: those that are written, those that are refused, and those whose writing is interrupted."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from triton_sam._common.bundle import bundled
from triton_sam.cli import main
from triton_sam.families import FAMILIES
from triton_sam.repository import aliases
from triton_sam.repository.aliases import Alias, write_alias
from triton_sam.repository.config import parse_config
from triton_sam.repository.selection import select_models
from triton_sam.sessions.configs import complete_repository, write_programs

CONFIG = """backend: "onnxruntime"
max_batch_size: 0
input { name: "x" data_type: TYPE_FP32 dims: [-1, -1] }
output { name: "y" data_type: TYPE_FP32 dims: [-1, -1] }
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with the model pairs `sam2` and `empty`, which has no weights."""
    for variant, file in (("sam2", "model.onnx"), ("empty", ".gitkeep")):
        for role in ("encoder", "decoder"):
            write_folder(tmp_path, f"{variant}_{role}", file)
    return tmp_path


def write_folder(repository: Path, name: str, file: str = "model.onnx") -> None:
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "1" / file).touch()
    (folder / "config.pbtxt").write_text(CONFIG)


def alias(repository: Path, *arguments: str) -> int:
    return main(["alias", *arguments, "--model-repository", str(repository)])


def names(repository: Path) -> set[str]:
    return {path.name for path in repository.iterdir()}


def test_a_pair_gets_a_second_name_and_that_a_third(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert alias(repository, "add", "my_sam", "sam2") == 0
    assert alias(repository, "add", "other", "my_sam") == 0
    assert capsys.readouterr().out.split() == ["my_sam_encoder", "my_sam_decoder", "other_encoder", "other_decoder"]
    config = parse_config((repository / "other_encoder" / "config.pbtxt").read_text())
    assert config.ensemble_scheduling.step[0].model_name == "my_sam_encoder"
    assert [tensor.name for tensor in (*config.input, *config.output)] == ["x", "y"]


def test_a_variant_with_all_its_models_gets_a_second_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    family = FAMILIES["sam2"]
    for role in family.every_model:
        write_folder(tmp_path, f"mine_{role}")
    write_programs(tmp_path, family, "mine")
    (tmp_path / "mine/1/__pycache__").mkdir()  # a server that ran leaves it
    assert alias(tmp_path, "add", "stable", "mine", "-q") == 0
    models = {f"stable_{role}" for role in family.every_model} | {"stable", "stable_video"}
    assert set(capsys.readouterr().out.split()) == models
    session = parse_config((tmp_path / "stable" / "config.pbtxt").read_text())
    original = parse_config((tmp_path / "mine" / "config.pbtxt").read_text())
    assert session.parameters["encoder"].string_value == "mine_encoder"
    assert (list(session.input), list(session.output)) == (list(original.input), list(original.output))
    assert (tmp_path / "stable/1/model.py").read_text() == (tmp_path / "mine/1/model.py").read_text()
    assert main(["models", "--json", "--model-repository", str(tmp_path)]) == 0
    listed = {model["name"]: model for model in json.loads(capsys.readouterr().out.splitlines()[-1])["models"]}
    assert listed["stable"]["ensemble_of"] == ["mine"]
    selected = {model.name for model in select_models(tmp_path, ["stable"])}
    pair = {"stable_encoder", "stable_decoder"}
    assert selected == {"stable", "stable_video", *pair, *(f"mine_{role}" for role in family.every_model)}

    for role in ("encoder", "decoder"):
        write_folder(tmp_path, f"plain_{role}")
    assert alias(tmp_path, "add", "stable", "plain") == 0
    assert "stable_video is removed: plain has no such model" in capsys.readouterr().err
    assert {name for name in names(tmp_path) if name.startswith("stable")} == {"stable_encoder", "stable_decoder"}
    assert alias(tmp_path, "add", "stable", "mine", "-q") == 0
    assert alias(tmp_path, "remove", "stable", "-q") == 0
    assert not any(name.startswith("stable") for name in names(tmp_path))


def test_an_older_repository_is_completed_by_the_command_that_the_messages_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for role in ("encoder", "decoder"):
        (tmp_path / f"mine_{role}" / "1").mkdir(parents=True)
        source = bundled("model_repository") / f"sam2_{role}" / "1" / "model.onnx"
        (tmp_path / f"mine_{role}" / "1" / "model.onnx").symlink_to(source)
    assert alias(tmp_path, "add", "stable", "mine", "-q") == 1
    assert "mine_encoder has no config.pbtxt: `triton-sam doctor --fix` writes it" in capsys.readouterr().err
    complete_repository(tmp_path)
    shutil.move(tmp_path / "mine", tmp_path.parent / "mine")
    assert alias(tmp_path, "add", "stable", "mine") == 0
    said = capsys.readouterr()
    assert "mine has no session model" in said.err
    assert said.out.split() == ["stable_encoder", "stable_decoder"]
    complete_repository(tmp_path)
    assert alias(tmp_path, "add", "stable", "mine") == 0
    said = capsys.readouterr()
    assert "no session model" not in said.err
    assert said.out.split() == ["stable_encoder", "stable_decoder", "stable"]


def test_models_says_that_an_alias_is_an_ensemble(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert alias(repository, "my_sam", "--of", "sam2") == 0
    assert main(["models", "--model-repository", str(repository)]) == 0
    assert re.search(r"my_sam_encoder +version 1 \(alias of sam2_encoder\)\n", capsys.readouterr().out)
    assert main(["models", "--json", "--model-repository", str(repository)]) == 0
    listed = {model["name"]: model for model in json.loads(capsys.readouterr().out.splitlines()[-1])["models"]}
    assert (listed["my_sam_encoder"]["ensemble_of"], listed["sam2_encoder"]["ensemble_of"]) == (["sam2_encoder"], [])
    assert "empty_encoder" not in listed["sam2_encoder"]["left_out"]
    assert listed["empty_encoder"]["left_out"] != ""


def test_an_alias_can_be_removed(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = names(repository)
    assert alias(repository, "my_sam", "--of", "sam2") == 0
    assert alias(repository, "other", "--of", "my_sam") == 0
    capsys.readouterr()
    assert alias(repository, "my_sam", "--remove") == 1
    assert "other_decoder call my_sam_decoder: remove them first" in capsys.readouterr().err
    assert alias(repository, "remove", "other") == 0
    assert capsys.readouterr().out.split() == ["other_decoder", "other_encoder"]
    assert alias(repository, "my_sam", "--remove") == 0
    assert names(repository) == before
    capsys.readouterr()
    for arguments, words in (
        (("my_sam",), "no alias my_sam"),
        (("sam2",), "sam2_decoder is a model and not an alias"),
    ):
        assert alias(repository, *arguments, "--remove") == 1
        assert words in capsys.readouterr().err
    assert names(repository) == before


@pytest.mark.parametrize("name", ["paintera", "sam2.1_large", "my_sam"])
def test_an_official_name_for_the_demo_model_is_a_warning(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for model in ("sam2_encoder", "sam2_decoder"):
        (tmp_path / model / "1").mkdir(parents=True)
        for file in ("config.pbtxt", "1/model.onnx"):
            (tmp_path / model / file).symlink_to(bundled("model_repository") / model / file)
    assert alias(tmp_path, name, *(() if name == "paintera" else ("--of", "sam2"))) == 0
    said = capsys.readouterr().err
    assert ("is an official name, but sam2_encoder has the weights of the demo model" in said) == (name != "my_sam")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("add x empty", "empty_encoder has no weights"),
        ("x --of nothing", "nothing_encoder has no weights"),
        ("x --of of_empty", "of_empty_encoder has no weights"),
        ("sam2 --of my_sam", "sam2_encoder is a model and not an alias"),
        ("my_sam --of other", "other_encoder calls my_sam_encoder"),
        ("my_sam --of my_sam", "my_sam_encoder calls my_sam_encoder"),
    ],
)
def test_what_an_alias_cannot_stand_for_is_refused(
    repository: Path, capsys: pytest.CaptureFixture[str], arguments: str, words: str
) -> None:
    (repository / "of_empty_encoder" / "1").mkdir(parents=True)
    text = aliases.ensemble_config(parse_config(CONFIG), Alias("of_empty_encoder", "empty_encoder"))
    (repository / "of_empty_encoder" / "config.pbtxt").write_text(text)
    for name, target in (("my_sam", "sam2"), ("other", "my_sam")):
        assert alias(repository, name, "--of", target, "-q") == 0
    before = names(repository)
    capsys.readouterr()
    assert alias(repository, *arguments.split(), "-q") == 1
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert names(repository) == before


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_nothing_and_can_be_repeated(
    repository: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: object) -> None:
        raise error

    before, wanted = names(repository), Alias("x_encoder", "sam2_encoder")
    with monkeypatch.context() as patch:
        patch.setattr(aliases, "atomic_write", fail)
        with pytest.raises(type(error)):
            write_alias(repository, wanted)
    assert names(repository) == before
    path = write_alias(repository, wanted)
    with monkeypatch.context() as patch:
        patch.setattr(aliases, "atomic_write", fail)
        with pytest.raises(type(error)):
            write_alias(repository, wanted)
    assert path.is_file()  # an existing alias stays


@pytest.mark.slow
def test_a_local_server_answers_under_all_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    local_server = pytest.importorskip("triton_sam.local_server")
    pytest.importorskip("onnxruntime")
    from support.tiny_models import add_graph, config_of, write_model

    from triton_sam.transport import Transport
    from triton_sam.transport.url import parse_url

    for role in ("encoder", "decoder"):
        write_model(tmp_path, f"sam2_{role}", add_graph(), config_of())
    assert alias(tmp_path, "my_sam", "--of", "sam2", "-q") == 0
    assert alias(tmp_path, "other", "--of", "my_sam", "-q") == 0
    with local_server.LocalServer(tmp_path) as server:
        transport = Transport(parse_url(server.http_url))
        assert {"my_sam_encoder", "other_encoder", "other_decoder"} <= set(transport.ready_models())
        for name in ("sam2", "my_sam", "other"):
            answer = transport.infer(f"{name}_encoder", {"x": np.zeros((1, 4), np.float32)}, ["y"])
            assert answer["y"].tolist() == [[0, 1, 2, 3]]
        transport.close()
        for url in (server.http_url, server.grpc_url):
            capsys.readouterr()
            assert main(["doctor", "--url", url, "--model-repository", str(tmp_path)]) == 0
            report = capsys.readouterr().out
            assert re.search(r"ok +model other_encoder +ensemble of my_sam_encoder\n", report)
            assert re.search(r"ok +model sam2_encoder +1 instance on ", report)
