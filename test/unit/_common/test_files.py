"""Files appear whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from triton_sam._common import files as _files
from triton_sam._common.files import atomic_path, atomic_write


def test_writes_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    for content in (b"one", b"", b"three"):
        atomic_write(path, content)
        assert path.read_bytes() == content
        assert list(tmp_path.iterdir()) == [path]


def test_permissions_are_those_of_open(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        atomic_write(tmp_path / "a", b"")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


@pytest.mark.parametrize("error", [ValueError("x"), OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_failure_leaves_the_old_file(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "a.onnx"
    path.write_bytes(b"old")

    def fail() -> None:
        with atomic_path(path) as temporary:
            assert (temporary.suffix, temporary.parent) == (".onnx", tmp_path)
            temporary.write_bytes(b"half")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_failure_of_the_rename_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(_files.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        atomic_write(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_error_names_the_wanted_path(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "a.png"
    with pytest.raises(FileNotFoundError) as caught:
        atomic_write(path, b"")
    assert caught.value.filename == str(path)
    with pytest.raises(OSError, match="directory"):
        atomic_write(tmp_path, b"")
    assert list(tmp_path.iterdir()) == []


def test_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"old")
    link = tmp_path / "link"
    link.symlink_to("target")
    atomic_write(link, b"new")
    assert link.is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"


def test_device_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        atomic_write(pipe, b"content")
        assert os.read(reader, 100) == b"content"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
