"""Installation of finished files: all of them or none, and again after a failure."""

import errno
import hashlib
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.contents import files_below

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
from triton_sam.repository.install import install, remove_stale_data, staging, write_flushed
from triton_sam.repository.selection import select_models


def finished_files(tmp_path, content):
    """Return the moves of an encoder and a decoder that wait in a folder which outlives a failure."""
    moves = []
    for role in ("encoder", "decoder"):
        finished = tmp_path / "finished" / role / "model.onnx"
        finished.parent.mkdir(parents=True, exist_ok=True)
        finished.write_bytes(content)
        moves.append((finished, tmp_path / "models" / f"sam2_{role}" / "1" / "model.onnx"))
    (tmp_path / "models").mkdir(exist_ok=True)
    return moves


def weights_below(folder):
    return {content for name, content in files_below(folder).items() if name.endswith(".onnx")}


@pytest.mark.parametrize("has_links", [True, False])
@pytest.mark.parametrize("fails_at", ["encoder", "decoder"])
def test_a_failed_move_changes_nothing_and_the_next_installation_succeeds(tmp_path, monkeypatch, fails_at, has_links):
    """A hard link of the old file could not be renamed back onto that file, stayed, and stood in the way for ever."""
    install(finished_files(tmp_path, b"old"), tmp_path / "models")
    before = files_below(tmp_path / "models")
    moves = finished_files(tmp_path, b"new")
    finished = files_below(tmp_path / "finished")
    replace = Path.replace

    def refuse(path, target):
        if path.name == "model.onnx" and fails_at in target.parts[-3]:
            raise PermissionError(errno.EACCES, "Permission denied")
        return replace(path, target)

    def no_links(path, target):
        raise OSError(errno.EPERM, "Operation not permitted")

    if not has_links:
        monkeypatch.setattr(Path, "hardlink_to", no_links)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        with pytest.raises(PermissionError):
            install(moves, tmp_path / "models")
    assert files_below(tmp_path / "models") == before
    left = files_below(tmp_path / "finished")
    assert set(left) <= set(finished), "a backup stayed"
    moves = finished_files(tmp_path, b"newer")
    install(moves, tmp_path / "models")
    assert weights_below(tmp_path / "models") == {b"newer"}


def test_a_backup_of_a_killed_installation_is_not_in_the_way(tmp_path):
    install(finished_files(tmp_path, b"old"), tmp_path / "models")
    moves = finished_files(tmp_path, b"new")
    for finished, place in moves:
        finished.with_name(finished.name + ".old").hardlink_to(place)
    install(moves, tmp_path / "models")
    assert weights_below(tmp_path / "models") == {b"new"}


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
def test_files_of_a_killed_export_go_with_the_next_one_and_those_of_a_running_one_stay(tmp_path):
    program = (
        "import os, sys, signal; from pathlib import Path; from triton_sam.repository.install import staging\n"
        "with staging(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'half.onnx').write_bytes(b'half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    model = tmp_path / "sam2_encoder"
    assert subprocess.run([sys.executable, "-c", program, model], check=False).returncode == -signal.SIGKILL
    assert list(model.rglob("half.onnx"))
    with staging(model) as running, staging(model) as other:
        assert {path for path in model.iterdir() if path.is_dir()} == {running, other}
    assert not list(model.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="looks at descriptors in /proc")
def test_files_and_folders_reach_the_disk(tmp_path, monkeypatch):
    """Otherwise, a power failure after the installation could leave an empty config.pbtxt, which no server loads."""
    flushed = []
    fsync = os.fsync

    def noted(descriptor):
        place = Path(f"/proc/self/fd/{descriptor}").resolve()
        flushed.append((os.fstat(descriptor).st_ino, None if place.is_dir() else place.read_bytes()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    text = tmp_path / "config.pbtxt"
    write_flushed(text, 'name: "ä"' * 9)
    assert flushed == [(text.stat().st_ino, text.read_bytes())]  # all of it has been written by then
    assert text.read_text("utf-8") == 'name: "ä"' * 9
    install(finished_files(tmp_path, b"new"), tmp_path / "models")
    folders = {path.parent.stat().st_ino for path in (tmp_path / "models").rglob("*.onnx")}
    assert len(folders) == 2
    assert folders <= {inode for inode, _ in flushed}


def test_weights_beside_a_replaced_graph_go(tmp_path):
    for name in ("model.onnx", "model.onnx.data", "other.onnx.data", "notes.txt"):
        (tmp_path / name).touch()
    remove_stale_data([tmp_path / "model.onnx"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "notes.txt", "other.onnx.data"]
    (tmp_path / "model.onnx.data").touch()
    remove_stale_data([tmp_path / "model.onnx", tmp_path / "model.onnx.data"])
    assert (tmp_path / "model.onnx.data").exists()


# The hashes of weight files: written by an installation, checked before a server loads the files

COMMITTED = bundled("model_repository")
PAIR = ["sam2_encoder", "sam2_decoder"]


@pytest.fixture
def repository(tmp_path):
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


def loaded(repository, **options):
    return [model.name for model in intact_models(select_models(repository, None), **options)]


def test_the_hashes_of_the_demo_model_are_those_of_its_files():
    """After a change of the demo model, run tools/maintain/write_configs.py."""
    for name in PAIR:
        content = (COMMITTED / name / "1" / "model.onnx").read_bytes()
        assert read_sums(COMMITTED / name)["1/model.onnx"] == hashlib.sha256(content).hexdigest()


def test_a_changed_file_takes_its_model_and_the_models_that_call_it_away(repository, caplog):
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


def test_the_check_can_be_left_out(repository, monkeypatch):
    (repository / "sam2_encoder" / "1" / "model.onnx").write_text("of my own")
    assert "sam2_encoder" in loaded(repository, verify=False)
    monkeypatch.setenv("TRITON_SAM_VERIFY", "0")
    assert "sam2_encoder" in loaded(repository)
    assert "sam2_encoder" not in loaded(repository, verify=True)


def test_only_the_served_version_counts(repository):
    newer = repository / "sam2_encoder" / "2"
    newer.mkdir()
    (newer / "model.onnx").write_text("of my own, without a hash")
    (repository / "sam2_encoder" / "1" / "model.onnx").write_text("changed")
    assert "sam2_encoder" in loaded(repository)


@pytest.mark.parametrize("text", [b"no hash\n", b"\xff\xfe"])
def test_a_damaged_list_is_one_line(repository, text):
    (repository / "sam2_encoder" / SUMS_NAME).write_bytes(text)
    (problem,) = damaged_models(select_models(repository, ["sam2_encoder"])).values()
    assert SUMS_NAME in problem
    assert "\n" not in problem


def test_an_installation_writes_the_hashes_of_its_files(repository):
    """A new export replaces a graph and drops its external data; another version keeps its line."""
    folder = repository / "sam2_encoder"
    (folder / "2").mkdir()
    for file in ("model.onnx", "model.onnx.data"):
        (folder / "2" / file).write_text("old")
        record_hashes([folder / "2" / file])
    (repository / "new").mkdir()
    moves = []
    for content, place in (("new weights", folder / "2" / "model.onnx"), ("config", folder / CONFIG_NAME)):
        (repository / "new" / place.name).write_text(content)
        moves.append((repository / "new" / place.name, place))
    install(moves, repository)
    assert read_sums(folder) == {
        "1/model.onnx": hashlib.sha256(b"weights of sam2_encoder").hexdigest(),
        "2/model.onnx": hashlib.sha256(b"new weights").hexdigest(),
    }


def test_an_installation_that_fails_leaves_no_wrong_hash(repository):
    place = repository / "sam2_encoder" / "1" / "model.onnx"
    with pytest.raises(OSError, match="absent"):
        install([(repository / "absent", place)], repository)
    assert place.read_text() == "weights of sam2_encoder"
    assert "sam2_encoder" in loaded(repository)


@pytest.mark.parametrize("is_hashed_again", [True, False])
def test_an_installation_during_the_check_is_no_damage(repository, monkeypatch, is_hashed_again):
    """The check has read the old hashes when the file is replaced, and its hash recorded or only forgotten yet."""
    place = repository / "sam2_encoder" / "1" / "model.onnx"
    seen = []

    def replaced_meanwhile(path):
        if path == place and not seen:
            seen.append(path)
            forget_hashes([place])
            place.write_text("new weights")
            if is_hashed_again:
                record_hashes([place])
        return hashlib.sha256(path.read_bytes()).hexdigest()

    monkeypatch.setattr("triton_sam.repository.hashes.hash_file", replaced_meanwhile)
    assert damaged_models(select_models(repository, ["sam2_encoder"])) == {}
    place.write_text("damaged")
    assert bool(damaged_models(select_models(repository, ["sam2_encoder"]))) == is_hashed_again


def test_a_model_that_vanishes_is_one_line(repository):
    models = select_models(repository, ["sam2_encoder"])
    shutil.rmtree(repository / "sam2_encoder")
    assert all("\n" not in problem for problem in damaged_models(models).values())
