"""Steps that the commands and scripts around the Hugging Face hub share."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..download import catalogue as checkpoints
from ..errors import ConfigurationError
from ..families import get_family
from ..families.tables import HubFiles
from . import _options

CHECKPOINT = "checkpoint"
"""The size on the command line that stands for a hub's checkpoint instead of its published models."""


def is_published(family: str, size: str | None) -> bool:
    """Whether a size on the command line stands for ONNX models that the family has on the hub."""
    return get_family(family).hub is not None and size != CHECKPOINT


def run_onnx(args: argparse.Namespace, precision: str) -> int:
    """Download the ONNX models that a family has on the hub into the model repository; prints the paths.

    Raises:
        ConfigurationError: --directory is given.
        DownloadError: see triton_sam.download.hub.download_onnx().
    """
    from ..download.hub import Hub, download_onnx

    if getattr(args, "directory", None) is not None:
        raise ConfigurationError("--directory is for checkpoints: the published ONNX files go to --model-repository")
    family, hub = get_family(args.family), Hub(args.mirror, not args.quiet)
    name = getattr(args, "name", None) or None
    for path in download_onnx(family, _options.repository(args), precision=precision, name=name, hub=hub).values():
        print(path)
    return 0


def precision_of(family: str, size: str | None) -> str:
    """Return the precision of a family's published models that a size stands for; None: the default one.

    Raises:
        ConfigurationError: there is no such size, or nothing on the hub.
    """
    precisions = list(_files(family).precisions)
    if size is not None and size not in precisions:
        raise ConfigurationError(f"{family} has no size {size!r}: one of {', '.join(precisions)}, {CHECKPOINT}")
    return size or precisions[0]


def run_checkpoint(args: argparse.Namespace) -> Path:
    """Download the gated checkpoint that a family has on the hub; return its folder."""
    from ..download.hub import Hub, download_checkpoint

    directory = args.directory or checkpoints.DIRECTORY
    family = get_family(args.family)
    return download_checkpoint(family, directory / family.name, hub=Hub(args.mirror, not args.quiet))


def script_parser(description: str | None, family: str) -> argparse.ArgumentParser:
    """Return a parser with the options that the scripts have in common."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mirror", metavar="URL", help="another hub than https://huggingface.co (also $HF_ENDPOINT)")
    _options.add_quiet(parser)
    parser.set_defaults(family=family)
    return parser


def _files(family: str) -> HubFiles:
    files = get_family(family).hub
    if files is None:
        raise ConfigurationError(f"{family} has nothing on the Hugging Face hub")
    return files
