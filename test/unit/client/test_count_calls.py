"""A click passes few functions."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_a_click_passes_at_most_35_functions_of_the_client():
    program = ROOT / "tools/maintain/count_calls.py"
    counted = subprocess.run([sys.executable, program, "click"], capture_output=True, text=True, check=True, timeout=60)
    found = re.search(r"^click, client: (\d+) functions", counted.stdout, re.MULTILINE)
    assert found, counted.stdout
    assert 20 < int(found[1]) <= 35
