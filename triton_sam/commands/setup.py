"""Download an official checkpoint and export it into the model repository, in one go."""

from __future__ import annotations

import argparse

from .. import checkpoints
from ..errors import ConfigurationError
from . import _hub, _options
from .download import add_download_options, add_size
from .export import family_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    _options.add_family(parser)
    add_size(parser)
    add_download_options(parser)
    _options.add_repository(parser)
    parser.add_argument("--precision", choices=("fp32", "fp16", "int8"), default="fp32", help="default: fp32")
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
        return _hub.run_onnx(args, _hub.precision_of(args.size) or args.precision)
    from ..export import registry

    registry.exporter(args.family)  # before the download: no gigabyte for an export that cannot start
    if args.family == "sam3":
        path = _hub.run_checkpoint(args)
    else:
        checkpoint = checkpoints.find(args.family, args.size or checkpoints.default_size(args.family))
        path = checkpoints.download(checkpoint, args.directory, mirror=args.mirror, progress=not args.quiet)
    registry.export(
        args.family,
        path,
        None,
        _options.repository(args),
        name=args.name,
        precision=args.precision,
        progress=not args.quiet,
        **family_options(args),
    )
    return 0
