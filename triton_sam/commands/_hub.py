"""Functions shared by the commands and scripts for the Hugging Face hub."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..download import catalogue as checkpoints
from ..errors import ConfigurationError
from ..families import get_family
from ..families.sam3 import SAM3
from ..families.tables import HubFiles
from ..sessions.configs import write_programs
from . import _options

CHECKPOINT = "checkpoint"
"""The size that selects the checkpoint on the hub instead of the published ONNX models."""


def is_published(family: str, size: str | None) -> bool:
    """Return whether a size on the command line selects the family's published ONNX models."""
    return get_family(family).hub is not None and size != CHECKPOINT


def run_onnx(args: argparse.Namespace, precision: str) -> int:
    """Download a family's published ONNX models into the model repository and print their paths."""
    from ..download.hub import Hub, download_onnx

    if getattr(args, "directory", None) is not None:
        raise ConfigurationError("--directory is for checkpoints: the published ONNX files go to --model-repository")
    family, hub = get_family(args.family), Hub(args.mirror, not args.quiet)
    name = getattr(args, "name", None) or None
    repository = _options.repository(args, writes=True)
    for path in download_onnx(family, repository, precision=precision, name=name, hub=hub).values():
        print(path)
    for warning in write_programs(repository, family, name, video=False):
        _options.say(args, warning)
    return 0


def precision_of(family: str, size: str | None) -> str:
    """Return the precision of the published models of a size; without a size, the default precision."""
    precisions = list(_files(family).precisions)
    if size is not None and size not in precisions:
        raise ConfigurationError(f"{family} has no size {size!r}: one of {', '.join(precisions)}, {CHECKPOINT}")
    return size or precisions[0]


def run_checkpoint(args: argparse.Namespace) -> Path:
    """Download a family's gated checkpoint from the hub and return its folder."""
    from ..download.hub import Hub, download_checkpoint

    directory = args.directory or checkpoints.DIRECTORY
    family = get_family(args.family)
    return download_checkpoint(family, directory / family.name, hub=Hub(args.mirror, not args.quiet))


def script_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options common to the scripts for SAM3."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--mirror", metavar="URL", help="hub to use instead of https://huggingface.co (also $HF_ENDPOINT)"
    )
    _options.add_quiet(parser)
    parser.set_defaults(family=SAM3.name)
    return parser


def _files(family: str) -> HubFiles:
    files = get_family(family).hub
    if files is None:
        raise ConfigurationError(f"{family} has nothing on the Hugging Face hub")
    return files
