"""Installation of finished files: all of them or none, and again after a failure."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from triton_sam.repository.install import install, remove_stale_data, write_flushed


def finished_files(tmp_path: Path, content: bytes) -> list[tuple[Path, Path]]:
    """Return the moves of an encoder and a decoder that wait in a folder which outlives a failure."""
    moves = []
    for role in ("encoder", "decoder"):
        finished = tmp_path / "finished" / role / "model.onnx"
        finished.parent.mkdir(parents=True, exist_ok=True)
        finished.write_bytes(content)
        moves.append((finished, tmp_path / "models" / f"sam2_{role}" / "1" / "model.onnx"))
    (tmp_path / "models").mkdir(exist_ok=True)
    return moves


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def weights_below(folder: Path) -> set[bytes]:
    return {content for name, content in files_below(folder).items() if name.endswith(".onnx")}


@pytest.mark.parametrize("has_links", [True, False])
@pytest.mark.parametrize("fails_at", ["encoder", "decoder"])
def test_a_failed_move_changes_nothing_and_the_next_installation_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: str, has_links: bool
) -> None:
    """A hard link of the old file could not be renamed back onto that file, stayed, and stood in the way for ever."""
    install(finished_files(tmp_path, b"old"), tmp_path / "models")
    before = files_below(tmp_path / "models")
    moves = finished_files(tmp_path, b"new")
    finished = files_below(tmp_path / "finished")
    replace = Path.replace

    def refuse(path: Path, target: Path) -> Path:
        if path.name == "model.onnx" and fails_at in target.parts[-3]:
            raise PermissionError(errno.EACCES, "Permission denied")
        return replace(path, target)

    def no_links(path: Path, target: Path) -> None:
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


def test_a_backup_of_a_killed_installation_is_not_in_the_way(tmp_path: Path) -> None:
    install(finished_files(tmp_path, b"old"), tmp_path / "models")
    moves = finished_files(tmp_path, b"new")
    for finished, place in moves:
        finished.with_name(finished.name + ".old").hardlink_to(place)
    install(moves, tmp_path / "models")
    assert weights_below(tmp_path / "models") == {b"new"}


@pytest.mark.skipif(sys.platform != "linux", reason="looks at descriptors in /proc")
def test_files_and_folders_reach_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, a power failure after the installation could leave an empty config.pbtxt, which no server loads."""
    flushed: list[tuple[int, bytes | None]] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
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


def test_weights_beside_a_replaced_graph_go(tmp_path: Path) -> None:
    for name in ("model.onnx", "model.onnx.data", "other.onnx.data", "notes.txt"):
        (tmp_path / name).touch()
    remove_stale_data([tmp_path / "model.onnx"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "notes.txt", "other.onnx.data"]
    (tmp_path / "model.onnx.data").touch()
    remove_stale_data([tmp_path / "model.onnx", tmp_path / "model.onnx.data"])
    assert (tmp_path / "model.onnx.data").exists()
