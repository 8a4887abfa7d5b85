#!/usr/bin/env python3
"""Download the gated SAM3 checkpoint (facebook/sam3) into checkpoints/sam3, for scripts/export_sam3_to_onnx.py.

First ask for access at https://huggingface.co/facebook/sam3 and log in with `hf auth login`. Most users need
scripts/download_sam3_onnx.py instead, which requires neither.
"""

import sys
from pathlib import Path

from triton_sam._common.process import run_program
from triton_sam.commands import download


def main() -> int:
    """Parse the command line and download."""
    parser = download.script_parser(__doc__)
    parser.add_argument(
        "--directory", type=Path, metavar="DIR", help="folder for the checkpoint (default: checkpoints)"
    )
    args = parser.parse_args()

    def run() -> int:
        print(download.run_checkpoint(args))
        return 0

    return run_program(run)


if __name__ == "__main__":
    sys.exit(main())
