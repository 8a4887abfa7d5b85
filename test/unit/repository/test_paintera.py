"""The front ends that `triton-sam alias paintera` writes: replaced, removed, refused."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnx")

from support.commands import copy_committed
from support.family_configs import write_family

from triton_sam.cli import main
from triton_sam.errors import RepositoryError
from triton_sam.repository import aliases
from triton_sam.repository.aliases import Alias, write_alias
from triton_sam.repository.config import parse_config
from triton_sam.repository.selection import read_repository
from triton_sam.sessions.encoder_front.install import write_front

FRONT = "sam2.1_large_encoder"
SAM1 = """backend: "onnxruntime"
max_batch_size: 0
input { name: "image" data_type: TYPE_FP32 dims: [-1, 3, 1024, 1024] }
output { name: "image_embeddings" data_type: TYPE_FP32 dims: [-1, 256, 64, 64] }
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The demo model, and the folders of SAM1 as an earlier version had them, without weights."""
    write_family(tmp_path, "sam1")
    return copy_committed(tmp_path, "sam2_encoder", "sam2_decoder")


def paintera(repository: Path, *options: str) -> int:
    return main(["alias", "paintera", *options, "--model-repository", str(repository)])


def contents(repository: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(repository.rglob("*")) if path.is_file()}


def add_sam1(repository: Path, variant: str) -> None:
    for role in ("encoder", "decoder"):
        (repository / f"{variant}_{role}" / "1").mkdir(parents=True, exist_ok=True)
        (repository / f"{variant}_{role}" / "1" / "model.onnx").touch()
        (repository / f"{variant}_{role}" / "config.pbtxt").write_text(SAM1)


def test_a_front_end_is_written_listed_and_removed(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(repository)
    assert paintera(repository, "--pixels", "normalised") == 0
    assert capsys.readouterr().out.split() == [FRONT]
    config = parse_config((repository / FRONT / "config.pbtxt").read_text())
    assert [(tensor.name, tensor.optional) for tensor in config.input] == [("image", True), ("jpeg_image", True)]
    assert [tensor.name for tensor in config.output] == ["image_embed", "high_res_feats_0", "high_res_feats_1"]
    assert (config.dynamic_batching.priority_levels, config.dynamic_batching.default_priority_level) == (2, 2)
    assert config.parameters["pixels"].string_value == "normalised"
    assert read_repository(repository)[FRONT].dependencies(()) == {"sam2_encoder"}
    assert main(["models", "--model-repository", str(repository)]) == 0
    assert f"{FRONT}         version 1 (alias of sam2_encoder)" in capsys.readouterr().out
    assert paintera(repository, "--remove") == 0
    assert contents(repository) == before
    assert paintera(repository, "--remove") == 1


def test_an_ensemble_of_an_earlier_version_is_replaced(repository: Path) -> None:
    old = Alias(FRONT, "sam2_encoder", {"image_embeddings": "image_embed"})
    write_alias(repository, old)
    assert paintera(repository, "-q") == 0
    assert parse_config((repository / FRONT / "config.pbtxt").read_text()).backend == "python"
    assert (repository / FRONT / "1" / "model.py").is_file()
    assert not list(repository.rglob("*.kept"))
    assert paintera(repository, "--remove") == 0
    assert not (repository / FRONT).exists()


def test_sam1_has_a_name_beside_its_encoder(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_sam1(repository, "sam1")
    before = contents(repository)
    assert paintera(repository) == 0
    said = capsys.readouterr()
    assert said.out.split() == [FRONT, "sam1_paintera_encoder"]
    assert "warning: sam1_encoder itself serves Paintera's released clients alone" in said.err
    config = parse_config((repository / "sam1_paintera_encoder" / "config.pbtxt").read_text())
    assert [tensor.name for tensor in config.input] == ["image", "jpeg_image", "valid_size"]
    assert paintera(repository, "--remove") == 0
    assert contents(repository) == before


def test_sam1_of_another_name_gives_its_name_to_the_front_end(repository: Path) -> None:
    add_sam1(repository, "sam1_vit_h")
    before = contents(repository)
    assert paintera(repository, "--sam1", "sam1_vit_h", "-q") == 0
    assert paintera(repository, "--sam1", "sam1_vit_h", "-q") == 0  # a second time keeps what it has kept
    assert read_repository(repository)["sam1_encoder"].dependencies(()) == {"sam1_vit_h_encoder"}
    (repository / "sam1_encoder" / "1" / "__pycache__").mkdir()
    assert paintera(repository, "--remove") == 0
    assert contents(repository) == before
    assert not (repository / "sam1_encoder" / "1").exists() or not any((repository / "sam1_encoder" / "1").glob("m*"))


def test_what_cannot_be_a_front_end_is_refused(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_sam1(repository, "sam1_vit_h")
    add_sam1(repository, "sam1")
    before = contents(repository)
    for options, words in (
        (["--sam1", "sam1_vit_h"], "sam1_encoder is a model and not an alias"),
        (["--sam2", "sam1_vit_h"], "sam1_vit_h_encoder is not an encoder of sam2"),
    ):
        assert paintera(repository, *options, "-q") == 1
        assert words in capsys.readouterr().err
        assert contents(repository) == before
    with pytest.raises(RepositoryError, match="no output 'x'"):
        write_front(repository, Alias("y_encoder", "sam2_encoder", {"x": "y"}), "sam2")


@pytest.mark.parametrize("failing", ["model.py", "config.pbtxt"])
@pytest.mark.parametrize("old", ["nothing", "ensemble", "placeholder"])
def test_a_write_that_fails_leaves_what_was_there(
    repository: Path, monkeypatch: pytest.MonkeyPatch, failing: str, old: str
) -> None:
    alias = Alias("sam1_encoder" if old == "placeholder" else FRONT, "sam2_encoder")
    if old == "ensemble":
        write_alias(repository, alias)
    before, write = contents(repository), aliases.atomic_write

    def fail(path: Path, content: bytes) -> None:
        if path.name == failing:
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(aliases, "atomic_write", fail)
    with pytest.raises(OSError, match="No space"):
        write_front(repository, alias, "sam2")
    assert contents(repository) == before
    monkeypatch.setattr(aliases, "atomic_write", write)
    assert write_front(repository, alias, "sam2").is_file()
