"""`triton-sam verify FAMILY --accelerator openvino`: compare the masks of an accelerator with those of fp32."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from .._common import strict_json
from ..errors import ConfigurationError, ModelNotReadyError
from ..export import registry
from ..export.settings import Settings
from ..families import FAMILIES, get_family
from ..inputs.images import open_image
from ..repository.accelerators import OPENVINO_PRECISIONS
from ..repository.verified import LIMITS
from . import _families, _openvino, _options

ACCELERATORS = ("openvino",)
DEFAULT_PRECISION = "bf16"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the option that chooses this comparison."""
    parser.add_argument(
        "--accelerator",
        choices=ACCELERATORS,
        help="compare the image encoder on this accelerator with ONNX Runtime in fp32, on 20 parts of images; without "
        "--checkpoint and --random: the weights in --exported, else in the model repository",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code: 1 if masks differ too much."""
    _check(args)
    precision = args.precision or DEFAULT_PRECISION
    photos = [args.image] if args.image else _openvino.photos()
    open_image(photos[0])  # before the export, so that a wrong path is reported at once
    with contextlib.ExitStack() as stack:
        files = _files(args, stack)
        from ..verify.accelerated import compare_precision, crops

        _options.say(args, f"comparing {args.family} on {args.accelerator} in {precision} with fp32 ...")
        found = compare_precision(files, args.family, precision, crops(photos))
    limit = LIMITS[precision]
    if args.json:
        print(strict_json.dumps({"ok": found.passed, "limit": limit, **asdict(found)}, indent=1))
    else:
        print(found.describe())
    return 0 if found.passed else 1


def _check(args: argparse.Namespace) -> None:
    """Check the options before the export.

    Raises:
        ConfigurationError: an option has no effect or a wrong value.
    """
    if args.family not in FAMILIES:
        raise ConfigurationError(f"--accelerator is for image encoders: {', '.join(FAMILIES)}")
    idle = [name for name in ("frames", "image_size", "points_per_side") if getattr(args, name) is not None]
    if idle:
        raise ConfigurationError(f"--{idle[0].replace('_', '-')} has no effect with --accelerator")
    if args.url is not None or args.local:
        raise ConfigurationError("--accelerator compares in this process: leave out --url and --local")
    if args.precision not in (None, *OPENVINO_PRECISIONS):
        raise ConfigurationError(f"--accelerator computes in {' or '.join(OPENVINO_PRECISIONS)}, not {args.precision}")
    is_fresh = args.checkpoint is not None or args.random
    if is_fresh and (args.exported is not None or args.name):
        raise ConfigurationError(
            "--accelerator needs no checkpoint for models that exist: give --exported and --name, or --checkpoint"
        )
    if args.seed is not None and not args.random:
        raise ConfigurationError("--seed is for --random: a checkpoint's weights are not random")
    options = [(option.flag, option.destination) for option in get_family(args.family).options]
    for flag, destination in (("--size", "size"), *options):
        if not is_fresh and getattr(args, destination, None) is not None:
            raise ConfigurationError(f"{flag} is for a fresh export: give --checkpoint or --random, too")


def _files(args: argparse.Namespace, stack: contextlib.ExitStack) -> Mapping[str, Path]:
    """Return the ONNX files by role: of a repository, or of a fresh export in fp32.

    Raises:
        ModelNotReadyError: the repository has no weights for the variant.
        SamError: see export.registry.export().
    """
    if args.checkpoint is None and not args.random:
        from ..benchmark.weights import find_weights
        from ..repository.folder import default_repository

        repository = args.exported or default_repository()
        found = find_weights(args.family, repository, args.name)
        if found is None:
            wanted = args.name or args.family
            raise ModelNotReadyError(f"{repository} holds no weights for {wanted}: see `triton-sam export`")
        return found.files
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="triton_sam_verify_")))
    model = _families.model(args, "verify", is_random=args.random)
    seed = (args.seed or 0) if args.random else None
    settings = Settings(folder, args.checkpoint, model, random_seed=seed, progress=not args.quiet)
    return registry.export(args.family, settings).files
