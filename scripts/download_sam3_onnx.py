#!/usr/bin/env python3
"""Download the published SAM3 tracker (onnx-community/sam3-tracker-ONNX) into the model repository.

An interrupted download continues where it stopped, and the SHA-256 is checked. `triton-sam download sam3` does the
same.
"""

import argparse
import sys

from triton_sam._common.process import run_program
from triton_sam.commands import _options, download


def main() -> int:
    """Parse the command line and download."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.set_defaults(family="sam3")
    parser.add_argument(
        "--precision", choices=("fp32", "fp16"), default="fp32", help="fp16 is for GPUs (default: fp32)"
    )
    parser.add_argument(
        "--mirror", metavar="URL", help="hub to use instead of https://huggingface.co (also $HF_ENDPOINT)"
    )
    _options.add_quiet(parser)
    _options.add_name(parser, "models VARIANT_encoder, VARIANT_decoder (default: sam3)")
    _options.add_repository(parser)
    args = parser.parse_args()
    return run_program(lambda: download.run_onnx(args, args.precision))


if __name__ == "__main__":
    sys.exit(main())
