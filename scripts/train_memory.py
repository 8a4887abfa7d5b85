#!/usr/bin/env python3
"""Train the memory half of `sam2.1_hiera_micro`, which only videos use, on drawn clips. A run can be resumed."""

from __future__ import annotations

import sys

from triton_sam.commands._options import run_script


def main() -> int:
    """Train. The import is inside, so that a missing package is reported like any other error."""
    from triton_sam.train.memory_command import main as train

    return train()


if __name__ == "__main__":
    sys.exit(run_script(main))
