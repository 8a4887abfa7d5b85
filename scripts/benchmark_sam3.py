#!/usr/bin/env python3
"""Measure SAM3 on a local Triton: latency, throughput, and a comparison with PyTorch.

`triton-sam benchmark sam3 --local` does the same. Example:

    python scripts/benchmark_sam3.py --both
"""

import sys

from triton_sam.commands._benchmark_script import script

if __name__ == "__main__":
    sys.exit(script("sam3", __doc__ or ""))
