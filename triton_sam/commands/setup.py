"""Download and export an official checkpoint, a known fine-tune, or your own URL or file."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from pathlib import Path

from ..download.fetch import remove
from ..errors import CheckpointError, ConfigurationError
from ..export import registry
from ..export.settings import CHECKPOINT_HASH, PRECISIONS, Settings
from ..families import FAMILIES, get_family
from ..families.tables import Checkpoint
from ..repository.config import check_name
from . import _families, _options, download


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_family(parser)
    download.add_size(parser)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--url", metavar="URL", help="download this checkpoint of the family's architecture")
    source.add_argument(
        "--checkpoint", type=Path, metavar="FILE", help="checkpoint of the family's architecture; SAM3: its folder"
    )
    parser.add_argument("--sha256", metavar="HEX", help="SHA-256 of the file at --url")
    parser.add_argument(
        "--image-size",
        type=int,
        metavar="PIXELS",
        help="side of the encoder's input, with --url or --checkpoint (default: the official size)",
    )
    download.add_download_options(parser)
    _options.add_repository(parser)
    parser.add_argument("--precision", choices=PRECISIONS, help="default: fp32")
    _families.add_options(parser, "setup", FAMILIES)
    _options.add_video(parser, tuple(FAMILIES))
    _options.add_concepts(parser, tuple(FAMILIES))
    _options.add_name(
        parser,
        "name to serve the model under, beside the default one, for example sam2.1_large (fine-tunes: their own)",
    )
    _options.add_trace(parser)
    _options.add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    _families.refuse_foreign(args, "setup")
    family = get_family(args.family)
    has_own = args.url is not None or args.checkpoint is not None
    _check_source(args, has_own=has_own)
    if args.video and family.tracking is None:  # before the download
        raise ConfigurationError(f"{args.family} has no models for videos: leave --video out")
    if (args.concepts or (args.video and family.hub)) and not has_own:
        _choose_checkpoint(args)
    published = not has_own and download.is_published(args.family, download.chosen_size(args))
    _families.check_before_download(args, published=published)
    if published:
        if args.trace:
            raise ConfigurationError("--trace is for checkpoints: published ONNX files need no export")
        return download.run_onnx(args, _published_precision(args))
    row = _row_of_url(args) if has_own else download.chosen_row(args)
    size = download.chosen_size(args) if has_own else None
    side = args.image_size or (row.image_size if row else None)
    settings = Settings(
        _options.repository(args, writes=True),
        model=family.find_size(size).model if size else None,
        trace=args.trace,
        name=args.name or (row.name if row else None) or _families.variant_name(args, side),
        image_size=side,
        precision=args.precision or "fp32",
        # Clients support only the official image size.
        video=bool(args.video or (family.tracking and side not in (None, family.image_size))),
        concepts=bool(args.concepts),
        progress=not args.quiet,
        options=_families.exporter_options(args, "setup"),
    )
    registry.check_packages(args.family, settings)  # before the download
    file = None if row is None else download.place(args, row)
    before = file.stat().st_ino if file is not None and file.exists() else None
    checkpoint = args.checkpoint or download.fetch_checkpoint(args, row)
    try:
        exported = registry.export(args.family, replace(settings, checkpoint=checkpoint))
    except CheckpointError:
        if args.url is not None and checkpoint.stat().st_ino != before:  # it was downloaded just now
            remove(checkpoint)
        raise
    if args.url is not None and args.sha256 is None:
        print(f"{exported.metadata[CHECKPOINT_HASH]}  {checkpoint}")
    return 0


def _check_source(args: argparse.Namespace, *, has_own: bool) -> None:
    """Check the options for the caller's own checkpoint."""
    if args.name:
        check_name(args.name)
    if args.sha256 is not None and args.url is None:
        raise ConfigurationError("--sha256 is for --url")
    if args.sha256 is not None and not re.fullmatch("[0-9a-fA-F]{64}", args.sha256):
        raise ConfigurationError(f"--sha256 {args.sha256}: it must have 64 hexadecimal digits")
    if has_own and args.mirror is not None:
        raise ConfigurationError(
            "--mirror is for official files and fine-tunes of the catalogue, not for --url and --checkpoint"
        )
    if args.checkpoint is not None and args.directory is not None:
        raise ConfigurationError("--directory is for downloads: leave it out, or --checkpoint")
    if args.image_size is not None and not has_own:
        raise ConfigurationError("--image-size is for --url and --checkpoint")
    if args.url is not None and get_family(args.family).hub is not None:
        raise ConfigurationError(
            f"a checkpoint of {args.family} is a folder: download it, and give --checkpoint FOLDER"
        )


def _row_of_url(args: argparse.Namespace) -> Checkpoint | None:
    """Return a row for --url; None with --checkpoint."""
    if args.url is None:
        return None
    return Checkpoint(args.family, "", args.url, None, (args.sha256 or "").lower(), args.name or "")


def _choose_checkpoint(args: argparse.Namespace) -> None:
    """Choose the checkpoint for --concepts and --video, because the published ONNX files lack these models."""
    if args.concepts and not get_family(args.family).concepts:
        raise ConfigurationError(f"{args.family} has no models for words: leave --concepts out")
    if download.chosen_size(args) not in (None, download.CHECKPOINT):
        flag = "--concepts" if args.concepts else "--video"
        raise ConfigurationError(f"{flag} needs the checkpoint: triton-sam setup {args.family} {flag}")
    args.size = download.CHECKPOINT


def _published_precision(args: argparse.Namespace) -> str:
    """Return the precision of the published models selected by the size and --precision."""
    size = download.chosen_size(args)
    if size is None and args.precision is not None:
        return str(args.precision)
    precision = download.precision_of(args.family, size)
    if args.precision not in (None, precision):
        raise ConfigurationError(f"{args.family} {size} with --precision {args.precision}: give only one of them")
    return precision
