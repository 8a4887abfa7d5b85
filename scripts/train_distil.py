#!/usr/bin/env python3
"""Train `sam2.1_hiera_micro` on the embeddings and masks of MobileSAM. A run can be resumed."""

from __future__ import annotations

import sys

from triton_sam.commands._options import run_script


def main() -> int:
    """Train. The import is inside, so that a missing package is reported like any other error."""
    from triton_sam.train.distil_command import main as train

    return train()


if __name__ == "__main__":
    sys.exit(run_script(main))
