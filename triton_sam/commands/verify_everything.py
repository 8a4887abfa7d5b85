"""`triton-sam verify sam2-everything`: compare automatic masks with those of the official mask generator."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .._common import strict_json
from .._common.bundle import bundled
from ..client.mask_generator import families_with_generators
from ..client.sync import SamTritonClient
from ..errors import ConfigurationError
from ..export import registry
from ..export.settings import Settings
from ..inputs.images import open_image
from ..repository.folder import models_to_load
from . import _families, _options, _server

if TYPE_CHECKING:
    from ..verify.everything import EverythingRow, Generator

SUFFIX = "-everything"
"""`verify FAMILY-everything` compares the automatic masks of a family."""
_PATIENCE = 3600.0  # seconds; a grid of 32x32 points with crops on a busy processor takes minutes
_POINTS = 32


def names() -> list[str]:
    """Return the names of the comparisons of automatic masks, for example "sam2-everything"."""
    return [f"{name}{SUFFIX}" for name in families_with_generators()]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that only automatic masks have."""
    parser.add_argument(
        "--points-per-side",
        type=int,
        metavar="N",
        help=f"{', '.join(names())}: points along one side of the image (default: {_POINTS})",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code: 1 if a row misses the threshold."""
    from ..verify.everything import verify_everything

    args.family = args.family.removesuffix(SUFFIX)
    points = _POINTS if args.points_per_side is None else args.points_per_side
    _check(args, points)
    image = args.image or bundled("test/images") / "coffee.jpg"
    pixels = np.asarray(open_image(image))
    model = _families.model(args, "verify", is_random=args.random)
    seed = (args.seed or 0) if args.random else None
    with contextlib.ExitStack() as stack:
        folder, files = _models(args, model, seed, stack)
        reference = registry.everything_reference(args.family, args.checkpoint, model, seed)
        runners = dict(_runners(args, folder, files, stack))
        _options.say(args, f"comparing {points} x {points} points on {image} ...")
        rows = list(verify_everything(reference, runners, pixels, points))
    print(_json(rows) if args.json else _report(rows))
    return 0 if all(row.passes() for row in rows) else 1


def _check(args: argparse.Namespace, points: int) -> None:
    """Check the options before the export.

    Raises:
        ConfigurationError: an option has no effect or a wrong value.
        SamError: --local is given, but no Triton can start here.
    """
    if points < 1:
        raise ConfigurationError(f"--points-per-side must be at least 1, not {points}")
    if args.seed is not None and not args.random:
        raise ConfigurationError("--seed is for --random: a checkpoint's weights are not random")
    if args.frames is not None or args.image_size is not None:
        raise ConfigurationError("--frames and --image-size are for videos")
    if args.exported is not None or args.precision != "fp32":
        raise ConfigurationError(
            f"--exported and --precision are for prompts: `verify {args.family}{SUFFIX}` exports fp32 models"
        )
    _server.check(args)


def _models(
    args: argparse.Namespace, model: str | None, seed: int | None, stack: contextlib.ExitStack
) -> tuple[Path, Mapping[str, Path]]:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="triton_sam_verify_")))
    settings = Settings(folder, args.checkpoint, model, random_seed=seed, progress=not args.quiet)
    return folder, registry.export(args.family, settings).files


def _runners(
    args: argparse.Namespace, folder: Path, files: Mapping[str, Path], stack: contextlib.ExitStack
) -> Iterator[tuple[str, Generator]]:
    """Yield a runner in this process, and runners of servers over HTTP and gRPC, by their names."""
    from ..verify.compare import OnnxClient
    from ..verify.everything import ClientGenerator

    clients: dict[str, SamTritonClient] = {"onnxruntime": OnnxClient(files, args.family)}
    if args.url is not None:
        options = {"model_name": args.name, "timeout": _PATIENCE, **_options.access(args)}
        clients["served"] = SamTritonClient(args.url, args.family, **options)
    elif args.local:
        server = stack.enter_context(_server.local_server(args, folder, models_to_load(folder, args.family)))
        clients["served over http"] = SamTritonClient(server.http_url, args.family, timeout=_PATIENCE)
        clients["served over grpc"] = SamTritonClient(server.grpc_url, args.family, timeout=_PATIENCE)
    for name, client in clients.items():
        yield name, ClientGenerator(stack.enter_context(client))


def _report(rows: list[EverythingRow]) -> str:
    from ..verify.everything import IOU, SHARE, format_table

    failed = sum(not row.passes() for row in rows)
    verdict = "all within" if not failed else f"{failed} of {len(rows)} outside"
    return f"{format_table(rows)}\n{verdict} the threshold: {SHARE:.0%} of masks matched at IoU >= {IOU:g}, both ways"


def _json(rows: list[EverythingRow]) -> str:
    from ..verify.everything import IOU, SHARE

    listed = [{**asdict(row), "ok": row.passes()} for row in rows]
    passed = all(row.passes() for row in rows)
    return strict_json.dumps({"threshold": {"iou": IOU, "share": SHARE}, "ok": passed, "rows": listed}, indent=1)
