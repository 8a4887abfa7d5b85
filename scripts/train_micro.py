#!/usr/bin/env python3
"""Train the default model `sam2.1_hiera_micro` from scratch on generated scenes; interrupt and resume at will."""

from __future__ import annotations

import sys

from triton_sam.errors import SamError
from triton_sam.train.command import main

if __name__ == "__main__":
    try:
        main()
    except SamError as error:
        sys.exit(f"error: {error}")
