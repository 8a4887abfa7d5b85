"""Download an official checkpoint and export it into the model repository, in one step."""

from __future__ import annotations

import argparse
from dataclasses import replace

from ..errors import ConfigurationError
from ..export import registry
from ..export.settings import PRECISIONS, Settings
from ..families import FAMILIES, get_family
from . import _families, _hub, _options
from .download import add_download_options, add_size, chosen_size, fetch_checkpoint


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    _options.add_family(parser)
    add_size(parser)
    add_download_options(parser)
    _options.add_repository(parser)
    parser.add_argument("--precision", choices=PRECISIONS, help="default: fp32")
    _families.add_options(parser, "setup", FAMILIES)
    _options.add_video(parser, tuple(FAMILIES))
    _options.add_concepts(parser, tuple(FAMILIES))
    _options.add_name(parser, "name to serve the model under, beside the default one, for example sam2.1_large")
    _options.add_trace(parser)
    _options.add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    _families.refuse_foreign(args, "setup")
    if args.video and get_family(args.family).tracking is None:  # before the download
        raise ConfigurationError(f"{args.family} has no models for videos: leave --video out")
    if args.concepts:
        _choose_checkpoint(args)
    published = _hub.is_published(args.family, chosen_size(args))
    _families.check_before_download(args, "setup", published=published)
    if published:
        return _hub.run_onnx(args, _published_precision(args))
    settings = Settings(
        _options.repository(args, writes=True),
        trace=args.trace,
        name=args.name or None,
        precision=args.precision or "fp32",
        video=bool(args.video),
        concepts=bool(args.concepts),
        progress=not args.quiet,
        options=_families.exporter_options(args, "setup"),
    )
    registry.check_packages(args.family, settings)  # before the download
    registry.export(args.family, replace(settings, checkpoint=fetch_checkpoint(args)))
    return 0


def _choose_checkpoint(args: argparse.Namespace) -> None:
    """Choose the checkpoint for --concepts, because the published ONNX files have no models for words.

    Raises:
        ConfigurationError: the family has no models for words, or the size is one of published files.
    """
    if not get_family(args.family).concepts:
        raise ConfigurationError(f"{args.family} has no models for words: leave --concepts out")
    if chosen_size(args) not in (None, _hub.CHECKPOINT):
        raise ConfigurationError(f"--concepts needs the checkpoint: triton-sam setup {args.family} --concepts")
    args.size = _hub.CHECKPOINT


def _published_precision(args: argparse.Namespace) -> str:
    """Return the precision of the published models that the size and --precision select.

    Raises:
        ConfigurationError: the family has no such size, or the size contradicts --precision.
    """
    size = chosen_size(args)
    if size is None and args.precision is not None:
        return str(args.precision)
    precision = _hub.precision_of(args.family, size)
    if args.precision not in (None, precision):
        raise ConfigurationError(f"{args.family} {size} with --precision {args.precision}: give only one of them")
    return precision
