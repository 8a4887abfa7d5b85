"""The service's folder for videos, and what a killed service left behind."""

from __future__ import annotations

import subprocess
import sys
import tempfile

import pytest

pytest.importorskip("fcntl")
pytest.importorskip("fastapi")
from triton_sam.service.videos.folders import PREFIX, Folder

A_SERVICE = """
import sys
from triton_sam.service.videos.folders import Folder
(Folder().new() / "video.mp4").write_bytes(b"frames")
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_a_start_removes_the_videos_of_a_killed_service_alone(temporary):
    other = Folder()
    (temporary / f"{PREFIX}file").write_text("no folder")
    (temporary / "else").mkdir()
    with subprocess.Popen([sys.executable, "-c", A_SERVICE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        videos = list(temporary.glob(f"{PREFIX}*/*/video.mp4"))
        assert len(videos) == 1
        Folder().remove()
        assert videos[0].exists()  # that service lives
        process.kill()
    mine = Folder()
    assert not videos[0].exists()
    assert {path.name for path in temporary.iterdir()} == {other.path.name, mine.path.name, f"{PREFIX}file", "else"}
    mine.remove()
    other.remove()
    assert not mine.path.exists()
    assert not other.path.exists()
