"""Plain names for paths that Triton's Python backend cannot handle."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from triton_sam.errors import LocalServerError
from triton_sam.local_server import plain_names, stub_path
from triton_sam.local_server.plain_names import PlainNames, is_plain, make_run_directory

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the local server needs Linux")


def test_only_paths_that_need_it_get_a_link(tmp_path: Path) -> None:
    names = PlainNames(tmp_path / "links")
    assert names.of(tmp_path) == tmp_path
    assert not (tmp_path / "links").exists()
    odd = [tmp_path / name for name in ("józef", "a b", "$(id)", "a;b", "[x]", os.fsdecode(b"caf\xe9"), "a\nb")]
    links = [names.of(path) for path in odd]
    assert [link.readlink() for link in links] == odd
    assert all(is_plain(link) for link in links)
    assert len(set(links)) == len(odd)
    assert names.of(odd[0]) == links[0]


def test_the_folder_of_a_run_is_plain_wherever_tmpdir_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "józef").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "józef"))
    monkeypatch.setattr(plain_names, "_OTHER_PARENTS", (str(tmp_path / "absent"), str(tmp_path)))
    assert make_run_directory().parent == tmp_path
    monkeypatch.setattr(plain_names, "_OTHER_PARENTS", ())
    with pytest.raises(LocalServerError, match="józef: set TMPDIR"):
        make_run_directory()


def test_the_path_of_a_stub(tmp_path: Path) -> None:
    """In the locale C: folders are added, and .pth files run whatever is beside them."""
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / "a.pth").write_bytes("# comment ż\n/a/folder\nimport sys; sys.first = 1\n".encode())
    (folder / "b.pth").write_bytes(b"import no_such_module_\xc3\xa9\nimport sys; sys.lost = 1\n")
    (folder / "c.pth").write_bytes(b"import sys; sys.third = 3\n")
    program = "import sys, stub_path; stub_path.extend(sys.argv[1:]); print(sys.first, sys.third, sys.path[-1])"
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONPATH": str(Path(stub_path.__file__).parent)}
    command = [sys.executable, "-c", program, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["1", "3", str(folder)]
    assert "no_such_module" in done.stderr
