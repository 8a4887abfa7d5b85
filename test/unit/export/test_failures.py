"""Exports that fail or are stopped change nothing: damaged checkpoints, full disks, models that do not run, signals."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from triton_sam._common.signals import ends_by_interrupt
from triton_sam.repository.install import staging

pytestmark = pytest.mark.export
torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from support.tiny_models import export_zeros  # noqa: E402

from triton_sam.errors import CheckpointError, ConfigurationError, ExportError  # noqa: E402
from triton_sam.export import onnx_tools, registry  # noqa: E402
from triton_sam.export.settings import Settings  # noqa: E402
from triton_sam.repository import install as install_module  # noqa: E402


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A repository with an older model pair, which its bytes identify."""
    for role in ("encoder", "decoder"):
        folder = tmp_path / "repository" / f"sam2_{role}" / "1"
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(f"old {role}".encode())
        (folder.parent / "config.pbtxt").write_text(f"# old {role}\n")
    return tmp_path / "repository"


@pytest.mark.parametrize(
    ("length", "model", "words"),
    [(-200, None, "damaged"), (None, "configs/sam2.1/sam2.1_hiera_t.yaml", "does not fit SAM2 tiny: 4")],
    ids=["cut off", "of another size"],
)
def test_a_wrong_checkpoint_changes_nothing(
    old: Path, tmp_path: Path, length: int | None, model: str | None, words: str
) -> None:
    pytest.importorskip("sam2")
    checkpoint, before = tmp_path / "sam2.1_hiera_tiny.pt", snapshot(old)
    torch.save({"model": {"weight": torch.ones(1000)}}, checkpoint)
    checkpoint.write_bytes(checkpoint.read_bytes()[:length])
    with pytest.raises(CheckpointError, match=words) as caught:
        registry.export("sam2", Settings(old, checkpoint=checkpoint, model=model, progress=False))
    assert "\n" not in str(caught.value)
    assert snapshot(old) == before


def full_disk(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_full_disk_while_writing_changes_nothing(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot(old)
    monkeypatch.setattr(onnx_tools, "write", full_disk)
    with pytest.raises(ExportError, match="No space left") as caught:
        export_zeros(old, progress=False)
    assert "\n" not in str(caught.value)
    assert snapshot(old) == before


@pytest.mark.parametrize("role", ["encoder", "decoder"])
def test_model_that_does_not_run_changes_nothing(old: Path, monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    before, try_out = snapshot(old), onnx_tools.try_out

    def refuse(path: Path) -> None:
        if role in path.parts[-3]:
            path.write_bytes(b"not a model")
        try_out(path)

    monkeypatch.setattr(onnx_tools, "try_out", refuse)
    with pytest.raises(ExportError, match="ONNX Runtime refuses"):
        export_zeros(old, progress=False)
    assert snapshot(old) == before


def test_failure_without_a_repository_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install_module, "_flush_folder", full_disk)
    with pytest.raises(ExportError, match="No space left"):
        export_zeros(tmp_path / "a" / "b", progress=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("model:\n  a: b: c", "line 2: mapping values are not allowed here"),
        ("a: [1,", "line 1: expected the node content"),
    ],
)
def test_a_configuration_that_is_no_yaml_names_the_line(tmp_path: Path, text: str, fault: str) -> None:
    pytest.importorskip("sam2")
    from triton_sam.export.sam2.recipe import EXPORTER

    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=f"mine.yaml is not a readable YAML file: {fault}"):
        EXPORTER.build(str(tmp_path / "mine.yaml"), 1024)


SIGNALS = [signal.SIGTERM, signal.SIGINT]


def write_until_stopped(model: Path, number: signal.Signals) -> None:
    with ends_by_interrupt(), staging(model) as folder:
        (folder / "model.onnx").write_bytes(b"half")
        try:
            os.kill(os.getpid(), number)
            time.sleep(10)
        finally:
            os.kill(os.getpid(), number)  # an impatient second signal during the clean-up


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_the_block_once_and_the_handlers_come_back(number: signal.Signals, tmp_path: Path) -> None:
    before = [signal.getsignal(one) for one in SIGNALS]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as for a job in the background of a shell
    try:
        with pytest.raises(KeyboardInterrupt):
            write_until_stopped(tmp_path / "model", number)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before[1])
    assert [signal.getsignal(one) for one in SIGNALS] == before
    assert list(tmp_path.iterdir()) == []
