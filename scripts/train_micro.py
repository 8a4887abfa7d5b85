#!/usr/bin/env python3
"""Train the default model `sam2.1_hiera_micro` from scratch on generated scenes; interrupt and resume at will."""

from __future__ import annotations

import sys

from triton_sam.commands._options import run_script


def main() -> int:
    """Train; the packages are looked for inside, so that one that is missing is an error like others."""
    from triton_sam.train.command import main as train

    return train()


if __name__ == "__main__":
    sys.exit(run_script(main))
