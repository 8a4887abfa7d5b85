#!/usr/bin/env python3
"""Measure SAM2 on a local Triton: latency, throughput, and a comparison with PyTorch.

`triton-sam benchmark sam2 --local` does the same. Example:

    python scripts/benchmark_sam2.py --both
"""

import sys

from triton_sam.commands._benchmark_script import script

if __name__ == "__main__":
    sys.exit(script("sam2", __doc__ or ""))
