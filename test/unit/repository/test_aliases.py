"""Aliases: those that are written, those that are refused, and those whose writing is interrupted."""

import json
import re
import shutil

import pytest

pytest.importorskip("onnx")

from support.commands import copy_committed
from support.contents import files_below
from support.tiny_models import write_family

from triton_sam._common.bundle import bundled
from triton_sam.cli import main
from triton_sam.errors import RepositoryError
from triton_sam.families import FAMILIES
from triton_sam.repository import aliases
from triton_sam.repository.aliases import Alias, write_alias
from triton_sam.repository.config import parse_config
from triton_sam.repository.selection import read_repository, select_models
from triton_sam.sessions.configs import complete_repository, write_programs
from triton_sam.sessions.encoder_front.install import rewrite_aliases, write_front

CONFIG = """backend: "onnxruntime"
max_batch_size: 0
input { name: "x" data_type: TYPE_FP32 dims: [-1, -1] }
output { name: "y" data_type: TYPE_FP32 dims: [-1, -1] }
"""


@pytest.fixture
def repository(tmp_path):
    """A repository with the model pairs `sam2` and `empty`, which has no weights."""
    for variant, file in (("sam2", "model.onnx"), ("empty", ".gitkeep")):
        for role in ("encoder", "decoder"):
            write_folder(tmp_path, f"{variant}_{role}", file)
    return tmp_path


def write_folder(repository, name, file="model.onnx", config=CONFIG):
    folder = repository / name
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "1" / file).touch()
    (folder / "config.pbtxt").write_text(config)


def alias(repository, *arguments):
    return main(["alias", *arguments, "--model-repository", str(repository)])


def names(repository):
    return {path.name for path in repository.iterdir()}


def test_a_pair_gets_a_second_name_and_that_a_third(repository, capsys):
    assert alias(repository, "add", "my_sam", "sam2") == 0
    assert alias(repository, "add", "other", "my_sam") == 0
    assert capsys.readouterr().out.split() == ["my_sam_encoder", "my_sam_decoder", "other_encoder", "other_decoder"]
    config = parse_config((repository / "other_encoder" / "config.pbtxt").read_text())
    assert config.ensemble_scheduling.step[0].model_name == "my_sam_encoder"
    assert [tensor.name for tensor in (*config.input, *config.output)] == ["x", "y"]


def test_a_variant_with_all_its_models_gets_a_second_name(tmp_path, capsys):
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


def test_an_older_repository_is_completed_by_the_command_that_the_messages_name(tmp_path, capsys):
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


def test_models_says_that_an_alias_is_an_ensemble(repository, capsys):
    assert alias(repository, "my_sam", "--of", "sam2") == 0
    assert main(["models", "--model-repository", str(repository)]) == 0
    assert re.search(r"my_sam_encoder +version 1 \(alias of sam2_encoder\)\n", capsys.readouterr().out)
    assert main(["models", "--json", "--model-repository", str(repository)]) == 0
    listed = {model["name"]: model for model in json.loads(capsys.readouterr().out.splitlines()[-1])["models"]}
    assert (listed["my_sam_encoder"]["ensemble_of"], listed["sam2_encoder"]["ensemble_of"]) == (["sam2_encoder"], [])
    assert "empty_encoder" not in listed["sam2_encoder"]["left_out"]
    assert listed["empty_encoder"]["left_out"] != ""


def test_an_alias_can_be_removed(repository, capsys):
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
    for name, words in (("my_sam", "no alias my_sam"), ("sam2", "sam2_decoder is a model and not an alias")):
        assert alias(repository, name, "--remove") == 1
        assert words in capsys.readouterr().err
    assert names(repository) == before


@pytest.mark.parametrize("name", ["paintera", "sam2.1_large", "my_sam"])
def test_an_official_name_for_the_demo_model_is_a_warning(name, tmp_path, capsys):
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
def test_what_an_alias_cannot_stand_for_is_refused(repository, capsys, arguments, words):
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
def test_a_write_that_fails_leaves_nothing_and_can_be_repeated(repository, monkeypatch, error):
    def fail(*_):
        raise error

    wanted = Alias("x_encoder", "sam2_encoder")
    for expected in (names(repository), {*names(repository), "x_encoder"}):  # an existing alias stays
        with monkeypatch.context() as patch:
            patch.setattr(aliases, "atomic_write", fail)
            with pytest.raises(type(error)):
                write_alias(repository, wanted)
        assert names(repository) == expected
        write_alias(repository, wanted)
        assert (repository / "x_encoder/config.pbtxt").is_file()


def resize(repository, model, old, new):
    """Install a model of another size, as an export does, and return the lines about its aliases."""
    path = repository / model / "config.pbtxt"
    path.write_text(path.read_text().replace(old, new))
    return rewrite_aliases(repository, [model])


def test_aliases_follow_a_model_of_another_size(committed, capsys):
    """So do aliases of aliases, with their own names of outputs. Ensembles that others wrote stay."""
    assert alias(committed, "my_sam", "--of", "sam2", "-q") == 0
    write_alias(committed, Alias("other_encoder", "my_sam_encoder", {"image_embeddings": "image_embed"}))
    assert paintera(committed, "--pixels", "unit", "-q") == 0
    foreign = (committed / "my_sam_encoder" / "config.pbtxt").read_text().replace("my_sam_encoder", "foreign")
    write_folder(committed, "foreign", config=foreign.partition("\n")[2])
    before = files_below(committed)
    said = resize(committed, "sam2_encoder", "1024", "512")
    changed = {path for path, content in files_below(committed).items() if content != before[path]}
    names = ["my_sam_encoder", FRONT, "other_encoder"]
    assert changed == {f"{name}/config.pbtxt" for name in ["sam2_encoder", *names]}
    assert sorted(said) == [
        "my_sam_encoder, another name of sam2_encoder, is written again: reload both",
        "other_encoder, another name of my_sam_encoder, is written again: reload both",
        f"{FRONT}, another name of sam2_encoder, is written again: reload both",
    ]
    for name in names:
        config = parse_config((committed / name / "config.pbtxt").read_text())
        assert list(config.input[0].dims) == [-1, 3, 512, 512]
    assert config.output[0].name == "image_embed"
    assert '"unit"' in (committed / FRONT / "config.pbtxt").read_text()
    assert rewrite_aliases(committed, ["sam2_encoder"]) == []
    (said,) = resize(committed, "my_sam_encoder", "image_embeddings", "x")
    assert said == "other_encoder no longer fits my_sam_encoder: my_sam_encoder has no output 'image_embeddings'"


# The front ends that `triton-sam alias paintera` writes: replaced, removed, refused

FRONT = "sam2.1_large_encoder"
SAM1 = """backend: "onnxruntime"
max_batch_size: 0
input { name: "image" data_type: TYPE_FP32 dims: [-1, 3, 1024, 1024] }
output { name: "image_embeddings" data_type: TYPE_FP32 dims: [-1, 256, 64, 64] }
"""


@pytest.fixture
def committed(tmp_path):
    """The demo model, and the folders of SAM1 as an earlier version had them, without weights."""
    write_family(tmp_path, "sam1")
    return copy_committed(tmp_path, "sam2_encoder", "sam2_decoder")


def paintera(repository, *options):
    return main(["alias", "paintera", *options, "--model-repository", str(repository)])


def add_sam1(repository, variant):
    for role in ("encoder", "decoder"):
        write_folder(repository, f"{variant}_{role}", config=SAM1)


def test_a_front_end_is_written_listed_and_removed(committed, capsys):
    before = files_below(committed)
    assert paintera(committed, "--pixels", "normalised") == 0
    assert capsys.readouterr().out.split() == [FRONT]
    config = parse_config((committed / FRONT / "config.pbtxt").read_text())
    assert [(tensor.name, tensor.optional) for tensor in config.input] == [("image", True), ("jpeg_image", True)]
    assert [tensor.name for tensor in config.output] == ["image_embed", "high_res_feats_0", "high_res_feats_1"]
    assert (config.dynamic_batching.priority_levels, config.dynamic_batching.default_priority_level) == (2, 2)
    assert config.parameters["pixels"].string_value == "normalised"
    assert read_repository(committed)[FRONT].dependencies(()) == {"sam2_encoder"}
    assert main(["models", "--model-repository", str(committed)]) == 0
    assert f"{FRONT}         version 1 (alias of sam2_encoder)" in capsys.readouterr().out
    assert paintera(committed, "--remove") == 0
    assert files_below(committed) == before
    assert paintera(committed, "--remove") == 1


def test_an_ensemble_of_an_earlier_version_is_replaced(committed):
    old = Alias(FRONT, "sam2_encoder", {"image_embeddings": "image_embed"})
    write_alias(committed, old)
    assert paintera(committed, "-q") == 0
    assert parse_config((committed / FRONT / "config.pbtxt").read_text()).backend == "python"
    assert (committed / FRONT / "1" / "model.py").is_file()
    assert not list(committed.rglob("*.kept"))
    assert paintera(committed, "--remove") == 0
    assert not (committed / FRONT).exists()


def test_sam1_has_a_name_beside_its_encoder(committed, capsys):
    add_sam1(committed, "sam1")
    before = files_below(committed)
    assert paintera(committed) == 0
    said = capsys.readouterr()
    assert said.out.split() == [FRONT, "sam1_paintera_encoder"]
    assert "warning: sam1_encoder itself serves Paintera's released clients alone" in said.err
    config = parse_config((committed / "sam1_paintera_encoder" / "config.pbtxt").read_text())
    assert [tensor.name for tensor in config.input] == ["image", "jpeg_image", "valid_size"]
    assert paintera(committed, "--remove") == 0
    assert files_below(committed) == before


def test_sam1_of_another_name_gives_its_name_to_the_front_end(committed):
    add_sam1(committed, "sam1_vit_h")
    before = files_below(committed)
    assert paintera(committed, "--sam1", "sam1_vit_h", "-q") == 0
    assert paintera(committed, "--sam1", "sam1_vit_h", "-q") == 0  # a second time keeps what it has kept
    assert read_repository(committed)["sam1_encoder"].dependencies(()) == {"sam1_vit_h_encoder"}
    (committed / "sam1_encoder" / "1" / "__pycache__").mkdir()
    assert paintera(committed, "--remove") == 0
    assert files_below(committed) == before


def test_what_cannot_be_a_front_end_is_refused(committed, capsys):
    add_sam1(committed, "sam1_vit_h")
    add_sam1(committed, "sam1")
    before = files_below(committed)
    for options, words in (
        (["--sam1", "sam1_vit_h"], "sam1_encoder is a model and not an alias"),
        (["--sam2", "sam1_vit_h"], "sam1_vit_h_encoder is not an encoder of sam2"),
    ):
        assert paintera(committed, *options, "-q") == 1
        assert words in capsys.readouterr().err
        assert files_below(committed) == before
    with pytest.raises(RepositoryError, match="no output 'x'"):
        write_front(committed, Alias("y_encoder", "sam2_encoder", {"x": "y"}), "sam2")


@pytest.mark.parametrize("failing", ["model.py", "config.pbtxt"])
@pytest.mark.parametrize("old", ["nothing", "ensemble", "placeholder"])
def test_a_write_that_fails_leaves_what_was_there(committed, monkeypatch, failing, old):
    alias = Alias("sam1_encoder" if old == "placeholder" else FRONT, "sam2_encoder")
    if old == "ensemble":
        write_alias(committed, alias)
    before, write = files_below(committed), aliases.atomic_write

    def fail(path, content):
        if path.name == failing:
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(aliases, "atomic_write", fail)
    with pytest.raises(OSError, match="No space"):
        write_front(committed, alias, "sam2")
    assert files_below(committed) == before
    monkeypatch.setattr(aliases, "atomic_write", write)
    write_front(committed, alias, "sam2")
    assert (committed / alias.name / "config.pbtxt").is_file()
