"""A click, a frame of a video, and a setup pass few functions."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "tools/maintain/count_calls.py"


def count(what):
    counted = subprocess.run([sys.executable, PROGRAM, what], capture_output=True, text=True, check=True, timeout=300)
    found = re.findall(rf"^{what}, ([a-z ]+): (\d+) functions", counted.stdout, re.MULTILINE)
    return {side: int(number) for side, number in found}


def test_a_click_passes_at_most_35_functions_on_each_side():
    found = count("click")
    assert 20 < found["client"] <= 35
    assert 20 < found["model"] <= 35


def test_a_frame_passes_at_most_40_functions_of_the_client():
    """Opening images is not counted here; in the server, a frame is two requests."""
    found = count("frame")
    assert 20 < found["client"] <= 40
    assert 20 < found["model"] <= 70


def test_12_functions_lead_from_the_command_line_to_the_files():
    pytest.importorskip("onnx", reason="needs the local extra")
    assert 5 < count("setup")["on the way"] <= 12
