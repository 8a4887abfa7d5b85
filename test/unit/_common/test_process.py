"""Tests of small helpers: finding packages, signals, printing and writing texts, and ONNX Runtime's memory."""

import io
import json
import math
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from triton_sam._common import strict_json
from triton_sam._common.bundle import bundled
from triton_sam._common.extras import find_package
from triton_sam._common.process import print_every_text
from triton_sam._common.signals import ends_by_interrupt, signals_ignored
from triton_sam._common.text import aligned


def test_packages_are_found_without_an_import_and_folders_are_none(tmp_path, monkeypatch):
    """Programs often start in a folder beside others, which is in their path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "some_package" / "__init__.py"
    package.parent.mkdir()
    package.write_text("raise RuntimeError")
    (tmp_path / "some_folder").mkdir()
    assert find_package("some_package").origin == str(package)
    assert "some_package" not in sys.modules
    for name in ("some_folder", "some_folder.part", "no_such_package", "no_such_package.part"):
        assert find_package(name) is None, name


@pytest.mark.skipif(os.name == "nt", reason="an early end of a reader has another error there")
def test_a_reader_of_the_output_may_end_early():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as output:
        command = [sys.executable, "-m", "triton_sam", "models", "--catalogue"]
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_second_interrupt_does_not_disturb_the_block():
    before = signal.getsignal(signal.SIGINT)
    with ends_by_interrupt() as interrupted:
        handler = signal.getsignal(signal.SIGINT)
        with signals_ignored():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
        assert not interrupted.is_set()
        assert signal.getsignal(signal.SIGINT) is handler
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_change_no_handler():
    found = []

    def work() -> None:
        with signals_ignored():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]


HEAD = ("name", "rate", "n", "limit")
ROWS = [("a", "", "3", "-"), ("longer", "", "12", "")]


def test_columns_without_a_value_in_any_row_are_left_out():
    assert aligned(HEAD, ROWS, right=(1, 2, 3)).splitlines() == ["name     n", "a        3", "longer  12"]
    assert aligned(HEAD, [*ROWS, ("b", "", "", "0.5")], right=(2,)).splitlines() == [
        "name     n  limit",
        "a        3  -",
        "longer  12",
        "b           0.5",
    ]
    assert aligned(HEAD, []) == "name  rate  n  limit"


@pytest.mark.parametrize(
    ("encoding", "written"),
    [("utf-8", "caf\udce9 ż ≈".encode("utf-8", "surrogateescape")), ("ascii", rb"caf" + b"\xe9" + rb" \u017c \u2248")],
)
def test_every_text_is_printed(encoding, written, monkeypatch):
    """The name of a file with a byte that is not UTF-8, a letter and a sign, in a locale with UTF-8 and in C."""
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding=encoding))
    print_every_text()
    print("caf\udce9 ż ≈", end="", flush=True)
    assert output.getvalue() == written


def strict(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_numbers_that_are_not_finite_become_null_and_the_rest_is_as_in_the_standard_library():
    value = {"é": [1, 2.5, True], "n": {"x": ()}}
    for options in ({}, {"indent": 1}, {"separators": (",", ":")}, {"sort_keys": True}):
        assert strict_json.dumps(value, **options) == json.dumps(value, **options)
    assert strict_json.dumps(np.float64(3.5), default=np.generic.item) == "3.5"
    with pytest.raises(TypeError):
        strict_json.dumps(object())
    loop: list = []
    loop.append(loop)
    with pytest.raises((ValueError, RecursionError)):
        strict_json.dumps(loop)
    value = {"a": [1.5, math.nan, (math.inf, {"b": -math.inf})], "c": "NaN", "d": None}
    assert strict(strict_json.dumps(value)) == {"a": [1.5, None, [None, {"b": None}]], "c": "NaN", "d": None}


ENCODE = """
import re
import sys
from pathlib import Path

import numpy as np
import onnxruntime

from triton_sam._common.onnx_session import cpu_options

session = onnxruntime.InferenceSession(sys.argv[1], cpu_options({}), providers=["CPUExecutionProvider"])
for _ in range(2):
    session.run(None, {"image": np.ones((1, 3, 1024, 1024), np.float32)})
    print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_second_image_takes_no_more_memory_than_the_first():
    """Of the demo encoder, the plan of ONNX Runtime for a second run takes 90 MB."""
    pytest.importorskip("onnxruntime")
    encoder = bundled("model_repository") / "sam2_encoder" / "1" / "model.onnx"
    command = [sys.executable, "-c", ENCODE, str(encoder)]
    first, second = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert second - first < 30_000
