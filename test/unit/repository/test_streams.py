"""The front ends that `triton-sam alias everything` writes: written, listed, removed, refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.commands import copy_committed

from triton_sam.cli import main
from triton_sam.repository.config import parse_config
from triton_sam.repository.selection import read_repository, select_models, unloadable

FRONT = "sam2_everything"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The demo model with its session model, and that of SAM1 without weights."""
    return copy_committed(tmp_path, "sam2", "sam2_encoder", "sam2_decoder", "sam1", "sam1_encoder", "sam1_decoder")


def everything(repository: Path, *options: str) -> int:
    return main(["alias", "everything", *options, "--model-repository", str(repository)])


def test_a_front_end_is_written_with_its_models_and_removed(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in sorted(repository.rglob("*")) if path.is_file()}
    assert everything(repository) == 0
    printed = capsys.readouterr()
    assert printed.out.split() == [FRONT]
    assert "sam1_everything is left out: sam1 has no weights" in printed.err
    config = parse_config((repository / FRONT / "config.pbtxt").read_text())
    assert config.model_transaction_policy.decoupled
    assert [tensor.name for tensor in config.input] == ["image_id", "everything_part"]
    models = read_repository(repository)
    assert models[FRONT].is_alias
    assert FRONT not in unloadable(models)
    assert {model.name for model in select_models(repository, [FRONT])} == {
        FRONT,
        "sam2",
        "sam2_encoder",
        "sam2_decoder",
    }
    assert everything(repository) == 0  # again
    assert everything(repository, "--remove") == 0
    assert before == {path: path.read_bytes() for path in sorted(repository.rglob("*")) if path.is_file()}


def test_the_front_end_of_a_variant(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (repository / "sam2" / "config.pbtxt").read_text()
    shutil.copytree(repository / "sam2", repository / "better")
    (repository / "better" / "config.pbtxt").write_text(text.replace('name: "sam2"', 'name: "better"'))
    assert everything(repository, "--sam2", "better") == 0
    assert capsys.readouterr().out.split() == ["better_everything"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--pixels", "auto"), "--pixels is for `triton-sam alias paintera`"),
        (("--remove",), "no alias everything in"),
        (("--remove", "--sam2", "sam2"), "--sam2 has no effect with --remove"),
        (("--sam2", "../evil"), "is not a valid model name"),
        (("--sam2", "nonsense"), "sam1 has no weights in"),
    ],
)
def test_mistakes_are_one_line(
    repository: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str
) -> None:
    assert everything(repository, *options) != 0
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
