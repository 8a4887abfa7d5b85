"""Download an official checkpoint and export it into the model repository, in one go."""

from __future__ import annotations

import argparse

from ..errors import ConfigurationError
from ..export import options, registry
from . import _hub, _options
from .download import add_download_options, add_size, fetch_checkpoint
from .export import family_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    _options.add_family(parser)
    add_size(parser)
    add_download_options(parser)
    _options.add_repository(parser)
    parser.add_argument("--precision", choices=options.PRECISIONS, help="default: fp32")
    parser.add_argument(
        "--standard-operators", action="store_true", help="SAM2: as `triton-sam export` has it, for TensorRT"
    )
    parser.add_argument("--name", metavar="VARIANT", help="serve beside the default, for example as sam2.1_large")
    _options.add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.standard_operators and args.family != "sam2":
        raise ConfigurationError(f"--standard-operators is for sam2, not for {args.family}")
    if args.family == "sam3" and args.size != "checkpoint":
        return _hub.run_onnx(args, _published_precision(args))
    registry.exporter(args.family)  # before the download: no gigabyte for an export that cannot start
    registry.export(
        args.family,
        fetch_checkpoint(args),
        None,
        _options.repository(args),
        name=args.name,
        precision=args.precision or "fp32",
        progress=not args.quiet,
        **family_options(args),
    )
    return 0


def _published_precision(args: argparse.Namespace) -> str:
    """Return the precision of SAM3's published pair that size and --precision stand for.

    Raises:
        ConfigurationError: there is no such size, or they contradict each other.
    """
    size = _hub.precision_of(args.size)
    if size is not None and args.precision not in (None, size):
        raise ConfigurationError(f"sam3 {size} with --precision {args.precision}: give one of them")
    return size or args.precision or "fp32"
