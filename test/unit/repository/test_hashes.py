"""The hashes of weight files: written by an installation, checked before a server loads the files."""

from __future__ import annotations

import hashlib
import logging
import shutil
from pathlib import Path

import pytest

from triton_sam._common.bundle import bundled
from triton_sam.errors import RepositoryError
from triton_sam.repository import CONFIG_NAME
from triton_sam.repository.hashes import (
    SUMS_NAME,
    damaged_models,
    forget_hashes,
    intact_models,
    read_sums,
    record_hashes,
)
from triton_sam.repository.install import install
from triton_sam.repository.selection import select_models

COMMITTED = bundled("model_repository")
PAIR = ["sam2_encoder", "sam2_decoder"]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository with SAM2's models, whose weights are short texts with hashes."""
    for name in ("sam2", *PAIR):
        folder = tmp_path / name
        (folder / "1").mkdir(parents=True)
        shutil.copy(COMMITTED / name / CONFIG_NAME, folder)
    for name in PAIR:
        (tmp_path / name / "1" / "model.onnx").write_text(f"weights of {name}")
        record_hashes([tmp_path / name / "1" / "model.onnx"])
    (tmp_path / "sam2" / "1" / "model.py").touch()
    return tmp_path


def loaded(repository: Path, **options: bool) -> list[str]:
    return [model.name for model in intact_models(select_models(repository, None), **options)]


def test_the_hashes_of_the_demo_model_are_those_of_its_files() -> None:
    """After a change of the demo model, run tools/maintain/write_configs.py."""
    for name in PAIR:
        content = (COMMITTED / name / "1" / "model.onnx").read_bytes()
        assert read_sums(COMMITTED / name)["1/model.onnx"] == hashlib.sha256(content).hexdigest()


def test_a_changed_file_takes_its_model_and_the_models_that_call_it_away(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert sorted(loaded(repository)) == ["sam2", "sam2_decoder", "sam2_encoder"]
    assert not caplog.records
    (repository / "sam2_encoder" / "1" / "model.onnx").write_text("weightS of sam2_encoder")
    with caplog.at_level(logging.WARNING):
        assert loaded(repository) == ["sam2_decoder"]
    session, encoder = sorted(record.getMessage() for record in caplog.records)
    assert session == "sam2 is left out: it calls sam2_encoder, which cannot be loaded"
    assert encoder.startswith("sam2_encoder is left out: 1/model.onnx is not the file that was installed")
    assert "\n" not in encoder
    (repository / "sam2_decoder" / "1" / "model.onnx").unlink()
    (repository / "sam2_decoder" / "1" / "model.onnx.data").touch()
    with pytest.raises(RepositoryError, match=r"no model is left to load: .*sam2_decoder .*1/model.onnx is missing"):
        loaded(repository)


def test_the_check_can_be_left_out(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / "sam2_encoder" / "1" / "model.onnx").write_text("of my own")
    assert "sam2_encoder" in loaded(repository, verify=False)
    monkeypatch.setenv("TRITON_SAM_VERIFY", "0")
    assert "sam2_encoder" in loaded(repository)
    assert "sam2_encoder" not in loaded(repository, verify=True)


def test_only_the_served_version_counts(repository: Path) -> None:
    newer = repository / "sam2_encoder" / "2"
    newer.mkdir()
    (newer / "model.onnx").write_text("of my own, without a hash")
    (repository / "sam2_encoder" / "1" / "model.onnx").write_text("changed")
    assert "sam2_encoder" in loaded(repository)


@pytest.mark.parametrize("text", [b"no hash\n", b"\xff\xfe"])
def test_a_damaged_list_is_one_line(repository: Path, text: bytes) -> None:
    (repository / "sam2_encoder" / SUMS_NAME).write_bytes(text)
    (problem,) = damaged_models(select_models(repository, ["sam2_encoder"])).values()
    assert SUMS_NAME in problem
    assert "\n" not in problem


def test_an_installation_writes_the_hashes_of_its_files(repository: Path) -> None:
    """A new export replaces a graph and drops its external data; another version keeps its line."""
    folder = repository / "sam2_encoder"
    (folder / "2").mkdir()
    for file in ("model.onnx", "model.onnx.data"):
        (folder / "2" / file).write_text("old")
        record_hashes([folder / "2" / file])
    (repository / "new").mkdir()
    (repository / "new" / "model.onnx").write_text("new weights")
    (repository / "new" / CONFIG_NAME).write_text("config")
    moves = [
        (repository / "new" / "model.onnx", folder / "2" / "model.onnx"),
        (repository / "new" / CONFIG_NAME, folder / CONFIG_NAME),
    ]
    install(moves, repository)
    assert read_sums(folder) == {
        "1/model.onnx": hashlib.sha256(b"weights of sam2_encoder").hexdigest(),
        "2/model.onnx": hashlib.sha256(b"new weights").hexdigest(),
    }


def test_an_installation_that_fails_leaves_no_wrong_hash(repository: Path) -> None:
    place = repository / "sam2_encoder" / "1" / "model.onnx"
    with pytest.raises(OSError, match="absent"):
        install([(repository / "absent", place)], repository)
    assert place.read_text() == "weights of sam2_encoder"
    assert "sam2_encoder" in loaded(repository)


@pytest.mark.parametrize("is_hashed_again", [True, False])
def test_an_installation_during_the_check_is_no_damage(
    repository: Path, monkeypatch: pytest.MonkeyPatch, is_hashed_again: bool
) -> None:
    """The check has read the old hashes when the file is replaced, and its hash recorded or only forgotten yet."""
    place = repository / "sam2_encoder" / "1" / "model.onnx"
    seen = []

    def replaced_meanwhile(path: Path) -> str:
        if path == place and not seen:
            seen.append(path)
            forget_hashes([place])
            place.write_text("new weights")
            if is_hashed_again:
                record_hashes([place])
        return hashlib.sha256(path.read_bytes()).hexdigest()

    monkeypatch.setattr("triton_sam.repository.hashes.sha256_of", replaced_meanwhile)
    assert damaged_models(select_models(repository, ["sam2_encoder"])) == {}
    place.write_text("damaged")
    assert bool(damaged_models(select_models(repository, ["sam2_encoder"]))) == is_hashed_again


def test_a_model_that_vanishes_is_one_line(repository: Path) -> None:
    models = select_models(repository, ["sam2_encoder"])
    shutil.rmtree(repository / "sam2_encoder")
    assert all("\n" not in problem for problem in damaged_models(models).values())
