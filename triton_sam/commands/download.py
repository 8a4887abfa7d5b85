"""Download an official checkpoint: resumed when broken off, checked by SHA-256.

SAM3's published ONNX pair goes straight into the model repository; its checkpoint is gated.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..download import catalogue as checkpoints
from ..errors import ConfigurationError
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
        "--directory",
        type=Path,
        metavar="DIR",
        help=f"where checkpoints go (default: {checkpoints.DIRECTORY}); SAM3's ONNX files go to --model-repository",
    )
    parser.add_argument(
        "--mirror",
        metavar="URL",
        help=f"SAM1, SAM2: get the file from URL/FILENAME instead (also ${checkpoints.MIRROR_VARIABLE}); SAM3: another "
        "hub than https://huggingface.co (also $HF_ENDPOINT)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; prints the path of the file."""
    if args.family == "sam3" and args.size != "checkpoint":
        return _hub.run_onnx(args, _hub.precision_of(args.size) or "fp32")
    if args.model_repository is not None:
        raise ConfigurationError("--model-repository is for SAM3's ONNX files: checkpoints go to --directory")
    print(fetch_checkpoint(args))
    return 0


def fetch_checkpoint(args: argparse.Namespace) -> Path:
    """Download the checkpoint that the options name; return its path.

    Raises:
        ConfigurationError: there is no such size.
        DownloadError: see triton_sam.download.catalogue.download() and triton_sam.download.hub.download_checkpoint().
    """
    if args.family == "sam3":
        return _hub.run_checkpoint(args)
    checkpoint = checkpoints.find(args.family, args.size or checkpoints.default_size(args.family))
    directory = args.directory or checkpoints.DIRECTORY
    return checkpoints.download(checkpoint, directory, mirror=args.mirror, progress=not args.quiet)
