"""Files appear whole or not at all, also files of arrays."""

import errno
import gc
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from support.conditions import wait_until

from triton_sam._common import files as _files
from triton_sam._common.files import atomic_path, atomic_write, locked
from triton_sam.inputs.embeddings import write_npz

FULL = Path("/dev/full")


@pytest.mark.parametrize("name", ["a.bin", f"{'🐈' * 60}.geojson"])
def test_writes_and_replaces(name, tmp_path):
    """File systems take names of 255 bytes; that of the temporary file beside it must not be longer."""
    path = tmp_path / name
    for content in (b"one", b"", b"three"):
        atomic_write(path, content)
        assert path.read_bytes() == content
        assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
def test_permissions_are_those_of_open(tmp_path):
    old = os.umask(0o027)
    try:
        atomic_write(tmp_path / "a", b"")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


@pytest.mark.parametrize("error", [ValueError("x"), OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_failure_leaves_the_old_file(tmp_path, error):
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


def test_failure_of_the_rename_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(_files.os, "fsync", Mock(side_effect=full))
    with pytest.raises(OSError, match="No space"):
        atomic_write(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_error_names_the_wanted_path(tmp_path):
    path = tmp_path / "missing" / "a.png"
    with pytest.raises(FileNotFoundError) as caught:
        atomic_write(path, b"")
    assert caught.value.filename == str(path)
    with pytest.raises(OSError, match="directory"):
        atomic_write(tmp_path, b"")
    assert list(tmp_path.iterdir()) == []


def test_link_stays_a_link(tmp_path):
    (tmp_path / "target").write_bytes(b"old")
    link = tmp_path / "link"
    link.symlink_to("target")
    atomic_write(link, b"new")
    assert link.is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
def test_a_full_device_is_named():
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        atomic_write("/dev/full", b"content")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes in folders")
def test_device_is_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        atomic_write(pipe, b"content")
        assert os.read(reader, 100) == b"content"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


COUNTING = """
import sys
from pathlib import Path
from triton_sam._common.files import locked
folder = Path(sys.argv[1])
said = []
for _ in range(40):
    with locked(folder / "lock", lambda: said.append(1)):
        assert (folder / "lock").exists()
        count = int((folder / "count").read_text())
        (folder / "count").write_text(str(count + 1))
print(len(said))
"""


def test_one_process_at_a_time_holds_a_lock(tmp_path):
    (tmp_path / "count").write_text("0")
    command = [sys.executable, "-W", "error", "-c", COUNTING, str(tmp_path)]
    counters = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = [int(counter.communicate(timeout=300)[0]) for counter in counters]
    assert [counter.returncode for counter in counters] == [0] * 4
    assert (tmp_path / "count").read_text() == "160"
    assert max(said) <= 40
    assert names(tmp_path) == ["count"]


def test_a_lock_that_is_held_is_waited_for(tmp_path):
    said, done = [], []

    def second() -> None:
        with locked(tmp_path / "lock", lambda: said.append(1)):
            done.append(1)

    waiting = threading.Thread(target=second)
    with locked(tmp_path / "lock", lambda: pytest.fail("nobody holds it")):
        waiting.start()
        wait_until(lambda: said)
        assert (said, done) == ([1], [])
    waiting.join(60)
    assert (said, done) == ([1], [1])
    assert names(tmp_path) == []


def test_the_lock_of_a_killed_process_does_not_block(tmp_path):
    program = "import os, sys; from pathlib import Path; from triton_sam._common.files import locked\n"
    program += "with locked(Path(sys.argv[1])): os._exit(9)"
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path / "lock")], check=False).returncode == 9
    assert names(tmp_path) == ["lock"]
    with locked(tmp_path / "lock", lambda: pytest.fail("nobody holds it")):
        pass
    assert names(tmp_path) == []


def test_windows_waits_for_readers_of_the_old_file(tmp_path, monkeypatch):
    """There the rename fails while another process has the old file open."""
    real, tries = Path.replace, []

    def replace(self: Path, target: Path) -> Path:
        tries.append(self)
        if len(tries) < 3:
            raise PermissionError(errno.EACCES, "used by another process")
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(PermissionError):
        atomic_write(tmp_path / "a", b"one")
    monkeypatch.setattr(_files, "_SECONDS_FOR_READERS", 1000.0)
    atomic_write(tmp_path / "a", b"two")
    assert (len(tries), (tmp_path / "a").read_bytes()) == (3, b"two")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# Files of arrays


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("size", [1, 1_000_000])
def test_a_full_disk_is_one_error_at_once(size):
    """An archive that is left open would fail once more when it is collected, which pytest reports as an error."""
    with pytest.raises(OSError, match="No space left"), FULL.open("wb", buffering=0) as stream:
        write_npz(stream, {"a": np.zeros(size)})
    gc.collect()
