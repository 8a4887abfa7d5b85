"""What the commands and scripts around the Hugging Face hub share."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..download import catalogue as checkpoints
from ..errors import ConfigurationError
from . import _options


def run_onnx(args: argparse.Namespace, precision: str) -> int:
    """Download the published SAM3 ONNX pair into the model repository; prints the paths.

    Raises:
        ConfigurationError: --directory is given.
        DownloadError: see triton_sam.download.hub.download_onnx().
    """
    from ..download.hub import Hub, download_onnx

    if getattr(args, "directory", None) is not None:
        raise ConfigurationError("--directory is for checkpoints: the published ONNX files go to --model-repository")
    hub = Hub(args.mirror, not args.quiet)
    name = getattr(args, "name", None) or "sam3"
    for path in download_onnx(_options.repository(args), precision=precision, name=name, hub=hub).values():
        print(path)
    return 0


def precision_of(size: str | None) -> str | None:
    """Return the precision of the published pair that a size of SAM3 stands for; None for no size.

    Raises:
        ConfigurationError: there is no such size.
    """
    from ..download.hub import PRECISIONS

    if size is not None and size not in PRECISIONS:
        raise ConfigurationError(f"sam3 has no size {size!r}: one of {', '.join(PRECISIONS)}, checkpoint")
    return size


def run_checkpoint(args: argparse.Namespace) -> Path:
    """Download the gated SAM3 checkpoint; return its folder."""
    from ..download.hub import Hub, download_checkpoint

    directory = args.directory or checkpoints.DIRECTORY
    return download_checkpoint(directory / "sam3", hub=Hub(args.mirror, not args.quiet))


def script_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with what the scripts have in common."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mirror", metavar="URL", help="another hub than https://huggingface.co (also $HF_ENDPOINT)")
    _options.add_quiet(parser)
    return parser
