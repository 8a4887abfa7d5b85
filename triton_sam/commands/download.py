"""Download an official checkpoint; rerun to continue, and the SHA-256 is checked.

SAM3's published ONNX models go straight into the model repository; its checkpoint is gated.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..download import catalogue as checkpoints
from ..errors import ConfigurationError
from ..families import FAMILIES, Family, get_family, variant_models
from ..families.tables import Checkpoint
from ..sessions.configs import write_programs
from ..sessions.encoder_front.install import rewrite_aliases
from . import _options

CHECKPOINT = "checkpoint"
"""The size that selects the checkpoint on the hub instead of the published ONNX models."""


def is_published(family: str, size: str | None) -> bool:
    """Return whether a size on the command line selects the family's published ONNX models."""
    return get_family(family).hub is not None and size != CHECKPOINT


def run_onnx(args: argparse.Namespace, precision: str) -> int:
    """Download a family's published ONNX models into the model repository and print their paths."""
    from ..download.hub import Hub, download_onnx
    from ..export.repair import guarded

    if getattr(args, "directory", None) is not None:
        raise ConfigurationError("--directory is for checkpoints: the published ONNX files go to --model-repository")
    family, hub = get_family(args.family), Hub(args.mirror, not args.quiet)
    name = getattr(args, "name", None) or None
    repository = _options.repository(args, writes=True)
    graphs = download_onnx(family, repository, precision=precision, name=name, hub=hub, guard=guarded)
    for path in graphs.values():
        print(path)
    warnings = write_programs(repository, family, name, video=False)
    for line in [*warnings, *rewrite_aliases(repository, variant_models(name or family.name))]:
        _options.say(args, line)
    return 0


def precision_of(family: str, size: str | None) -> str:
    """Return the precision of the published models of a size; without a size, the default precision."""
    precisions = list(get_family(family).hub_files.precisions)
    if size is not None and size not in precisions:
        raise ConfigurationError(f"{family} has no size {size!r}: one of {', '.join(precisions)}, {CHECKPOINT}")
    return size or precisions[0]


def run_checkpoint(args: argparse.Namespace) -> Path:
    """Download a family's gated checkpoint from the hub and return its folder."""
    from ..download.hub import Hub, download_checkpoint

    directory = args.directory or checkpoints.DIRECTORY
    family = get_family(args.family)
    return download_checkpoint(family, directory / family.name, hub=Hub(args.mirror, not args.quiet))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_family(parser)
    add_size(parser)
    add_download_options(parser)
    _options.add_repository(parser)
    _options.add_quiet(parser)


def add_size(parser: argparse.ArgumentParser) -> None:
    """Add the size, as a positional argument or as --size."""
    known = [line for family in FAMILIES.values() if (line := _sizes(family))]
    parser.add_argument("size", nargs="?", help="; ".join(known))
    parser.add_argument("--size", dest="named_size", metavar="SIZE", help="the same as the argument size")


def chosen_size(args: argparse.Namespace) -> str | None:
    if None not in (args.size, args.named_size) and args.size != args.named_size:
        raise ConfigurationError(f"{args.size} with --size {args.named_size}: give one of them")
    size: str | None = args.size if args.named_size is None else args.named_size
    return size


def add_download_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--directory",
        type=Path,
        metavar="DIR",
        help=f"folder for checkpoints (default: {checkpoints.DIRECTORY}); {_on_hub()}'s ONNX files go to "
        "--model-repository",
    )
    parser.add_argument(
        "--mirror",
        metavar="URL",
        help=f"get checkpoints from URL/FILENAME instead (also ${checkpoints.MIRROR_VARIABLE}); {_on_hub()}: hub "
        "to use instead of https://huggingface.co (also $HF_ENDPOINT)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command and print the path of each downloaded file."""
    size = chosen_size(args)
    if is_published(args.family, size):
        return run_onnx(args, precision_of(args.family, size))
    if args.model_repository is not None:
        raise ConfigurationError(f"--model-repository is for {_on_hub()}'s ONNX files: checkpoints go to --directory")
    print(fetch_checkpoint(args, chosen_row(args)))
    return 0


def chosen_row(args: argparse.Namespace) -> Checkpoint | None:
    """Return the selected row of the catalogue; None for the checkpoint on the hub."""
    if FAMILIES[args.family].hub is not None:
        return None
    return checkpoints.find(args.family, chosen_size(args) or checkpoints.default_size(args.family))


def fetch_checkpoint(args: argparse.Namespace, checkpoint: Checkpoint | None) -> Path:
    """Download a row of the catalogue (None: the family's checkpoint on the hub) and return the path."""
    if checkpoint is None:
        return run_checkpoint(args)
    mirror = "" if getattr(args, "url", None) else args.mirror  # a mirror needs a published hash
    return checkpoints.download(checkpoint, place(args, checkpoint).parent, mirror=mirror, progress=not args.quiet)


def place(args: argparse.Namespace, checkpoint: Checkpoint) -> Path:
    directory: Path = args.directory or checkpoints.DIRECTORY
    return directory / checkpoint.file_name


def _on_hub() -> str:
    """Return the labels of the families that publish models on the hub."""
    return ", ".join(family.label for family in FAMILIES.values() if family.hub is not None)


def _sizes(family: Family) -> str:
    """Return the help text about a family's downloads; empty without downloads."""
    if family.hub is not None:
        default, *others = family.hub.precisions
        return f"{family.label}: {default} (default), {', '.join(others)} (the published ONNX files) or {CHECKPOINT}"
    sizes = [f"{c.size} (default)" if c.size == family.default_size else c.size for c in family.checkpoints]
    sizes += [row.word for row in family.fine_tunes]
    return f"{family.label}: {', '.join(sizes)}" if sizes else ""
