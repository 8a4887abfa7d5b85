#!/usr/bin/env python3
"""Train the head of the score of `sam2.1_hiera_micro` on answers of the frozen model. A run can be resumed."""

from __future__ import annotations

import sys

from triton_sam.commands._options import run_script


def main() -> int:
    """Train. The import is inside, so that a missing package is reported like any other error."""
    from triton_sam.train.score_command import main as train

    return train()


if __name__ == "__main__":
    sys.exit(run_script(main))
