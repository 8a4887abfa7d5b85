"""Download an official checkpoint: resumed when broken off, checked by SHA-256.

SAM3's published ONNX pair goes straight into the model repository; its checkpoint is gated.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from .. import checkpoints
from . import _hub, _options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    _options.add_family(parser)
    add_size(parser)
    add_download_options(parser)
    _options.add_repository(parser)
    _options.add_quiet(parser)


def add_size(parser: argparse.ArgumentParser) -> None:
    """Add the positional size."""
    parser.add_argument(
        "size",
        nargs="?",
        help="SAM1: vit_b (default), vit_l or vit_h; SAM2: tiny, small, base_plus (default) or large; SAM3: fp32 "
        "(default) or fp16, the published ONNX files, or checkpoint",
    )


def add_download_options(parser: argparse.ArgumentParser) -> None:
    """Add --directory and --mirror."""
    parser.add_argument(
        "--directory", type=Path, default=Path("checkpoints"), metavar="DIR", help="where to (default: checkpoints)"
    )
    parser.add_argument(
        "--mirror",
        metavar="URL",
        help=f"SAM1, SAM2: get the file from URL/FILENAME instead (also ${checkpoints.MIRROR_VARIABLE}); SAM3: another "
        "hub than https://huggingface.co (also $HF_ENDPOINT)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; prints the path of the file."""
    if args.family == "sam3":
        return _run_sam3(args)
    checkpoint = checkpoints.find(args.family, args.size or checkpoints.default_size(args.family))
    print(checkpoints.download(checkpoint, args.directory, mirror=args.mirror, progress=not args.quiet))
    return 0


def _run_sam3(args: argparse.Namespace) -> int:
    if args.size == "checkpoint":
        print(_hub.run_checkpoint(args))
        return 0
    return _hub.run_onnx(args, _hub.precision_of(args.size) or "fp32")
