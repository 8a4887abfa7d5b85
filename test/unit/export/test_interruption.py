"""An export that is stopped by a signal leaves the model repository as it was."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from triton_sam._common.signals import ends_by_interrupt
from triton_sam.repository.install import staging

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


@pytest.mark.export
@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
def test_a_real_export_that_is_killed_in_the_middle_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    pytest.importorskip("sam2")
    repository = tmp_path / "models"
    command = [sys.executable, "-m", "triton_sam", "export", "sam2", "--random", "0", "--size", "tiny"]
    command += ["--trace", "--name", "mine", "--model-repository", str(repository)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 300
        while not list(repository.glob("mine_encoder/.export-*")) and time.monotonic() < deadline:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        time.sleep(1)  # into the tracing, which lasts for seconds
        assert process.poll() is None
        process.send_signal(number)
        _, errors = process.communicate(timeout=120)
    # A shell calls both 130. CPython 3.11 ends by the signal itself if it came while code of a string ran (`exec`),
    # even if the program has handled it.
    assert process.returncode in (130, -signal.SIGINT)
    assert errors.splitlines()[-1] == "triton-sam: interrupted"
    assert "Traceback" not in errors
    assert list(tmp_path.rglob("*")) == []
