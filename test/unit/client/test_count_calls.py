"""A click passes few functions of the client and of the session model."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_a_click_passes_at_most_35_functions_on_each_side():
    program = ROOT / "tools/maintain/count_calls.py"
    counted = subprocess.run([sys.executable, program, "click"], capture_output=True, text=True, check=True, timeout=60)
    found = dict(re.findall(r"^click, ([a-z ]+): (\d+) functions", counted.stdout, re.MULTILINE))
    assert 20 < int(found["client"]) <= 35
    assert 20 < int(found["model"]) <= 35
