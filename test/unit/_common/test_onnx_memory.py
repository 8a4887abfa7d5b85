"""The memory of ONNX Runtime on a server."""

import subprocess
import sys

import pytest

from triton_sam._common.bundle import bundled

pytest.importorskip("onnxruntime")

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
    encoder = bundled("model_repository") / "sam2_encoder" / "1" / "model.onnx"
    command = [sys.executable, "-c", ENCODE, str(encoder)]
    first, second = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert second - first < 30_000
