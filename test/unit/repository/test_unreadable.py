"""Folders of a repository that the user may not read, such as `lost+found` of a disk of its own."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from triton_sam.errors import RepositoryError
from triton_sam.repository import list_models
from triton_sam.repository.selection import read_repository, select_models

NOBODY = 65534

if os.name == "nt":
    pytest.skip("Windows has no permissions of this kind", allow_module_level=True)


@pytest.fixture
def repository() -> Iterator[Path]:
    """Yield a repository with a good model, as a user who may not read all of it. Root may read everything."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        for model in ("good", "secret", "half"):
            (root / model / "1").mkdir(parents=True)
            (root / model / "1" / "model.onnx").write_bytes(b"x")
            (root / model / "config.pbtxt").write_text('backend: "onnxruntime"')
        (root / "lost+found").mkdir()
        hidden = [root / "lost+found", root / "secret", root / "half" / "1"]
        for folder in hidden:
            folder.chmod(0)
        was_root = os.geteuid() == 0
        if was_root:
            os.seteuid(NOBODY)
        try:
            yield root
        finally:
            if was_root:
                os.seteuid(0)
            for folder in hidden:
                folder.chmod(0o755)


def test_unreadable_folders_are_left_out_and_named(repository: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert [model.name for model in select_models(repository, None)] == ["good"]
    lines = sorted(record.getMessage() for record in caplog.records)
    assert lines == [
        f"{repository}/{name} is left out: it cannot be read (Permission denied)"
        for name in ("half/1", "lost+found", "secret")
    ]
    assert [model.name for model in list_models(repository)] == ["good"]
    with pytest.raises(RepositoryError, match="no model 'secret'"):
        select_models(repository, ["secret"])


def test_an_unreadable_repository_is_one_line(repository: Path) -> None:
    with pytest.raises(RepositoryError, match=r"lost\+found cannot be read: Permission denied"):
        read_repository(repository / "lost+found")
