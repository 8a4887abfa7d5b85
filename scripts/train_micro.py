#!/usr/bin/env python3
"""Train the default model `sam2.1_hiera_micro` from scratch on generated scenes; interrupt and resume at will."""

from __future__ import annotations

import sys

from triton_sam.errors import SamError

if __name__ == "__main__":
    try:
        from triton_sam.train.command import main

        sys.exit(main())
    except SamError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: {error.filename or 'cannot write'}: {error.strerror or error}")
