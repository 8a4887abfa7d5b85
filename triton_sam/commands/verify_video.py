"""`triton-sam verify sam2-video`: compare video models with the official video predictor."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .._common import strict_json
from ..client.video.sync import SAM2VideoClient
from ..errors import ConfigurationError
from ..export import registry
from ..export.settings import Settings
from ..families import get_family, tracking_families
from ..repository.folder import models_to_load
from ..wire.video import video_model
from . import _families, _options, _server

if TYPE_CHECKING:
    from ..verify.video import ClientRunner, VideoRow

SUFFIX = "-video"
"""`verify FAMILY-video` compares the models for videos of a family."""
_PATIENCE = 600.0  # seconds; a frame of a large model on a busy processor takes long
_SEED, _FRAMES = 10_000_001, 8


def names() -> list[str]:
    """Return the names of the comparisons of videos, for example "sam2-video"."""
    return [f"{name}{SUFFIX}" for name in tracking_families()]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that only videos have."""
    parser.add_argument(
        "--frames", type=int, metavar="N", help=f"videos: number of frames of the drawn clip (default: {_FRAMES})"
    )
    parser.add_argument(
        "--image-size", type=int, metavar="PIXELS", help="videos: side of the encoder's image (default: 1024)"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code: 1 if a row misses the threshold."""
    from ..scenes.clip import generate_clip
    from ..verify.video import ReferenceRunner, threshold, verify_video

    args.family = args.family.removesuffix(SUFFIX)
    frames = args.frames or _FRAMES
    _check(args, frames)
    family, model = get_family(args.family), _families.model(args, "verify", is_random=args.random)
    side = args.image_size or family.image_size
    seed = (args.seed or 0) if args.random else None
    clip = list(generate_clip(_SEED, frames).images)
    height, width = clip[0].shape[:2]
    least = threshold(frames, args.precision)
    with contextlib.ExitStack() as stack:
        folder, files = _models(args, model, seed, side, stack)
        reference = registry.video_reference(args.family, args.checkpoint, model, seed, side, clip)
        runners = dict(_runners(args, side, folder, files, clip, stack))
        _options.say(args, f"comparing {frames} frames of {width}x{height} pixels ...")
        rows = list(verify_video(ReferenceRunner(reference), runners, (width, height), frames))
    print(_json(rows, least) if args.json else _report(rows, least))
    return 0 if all(row.passes(least) for row in rows) else 1


def _check(args: argparse.Namespace, frames: int) -> None:
    """Check the options before the export.

    Raises:
        ConfigurationError: an option has no effect or a wrong value.
        SamError: --local is given, but no Triton can start here.
    """
    if frames < 4:
        raise ConfigurationError(f"--frames {frames}: the cases need at least 4 frames")
    if args.seed is not None and not args.random:
        raise ConfigurationError("--seed is for --random: a checkpoint's weights are not random")
    unused = {
        "--image": args.image,
        "--exported": args.exported,
        "--name": args.name,
        "--points-per-side": args.points_per_side,
    }
    given = [flag for flag, value in unused.items() if value is not None]
    if given:
        raise ConfigurationError(f"{given[0]} is for single images, not for `verify {args.family}{SUFFIX}`")
    _server.check(args)


def _models(
    args: argparse.Namespace, model: str | None, seed: int | None, side: int, stack: contextlib.ExitStack
) -> tuple[Path, Mapping[str, Path]]:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="triton_sam_verify_")))
    settings = Settings(
        folder,
        args.checkpoint,
        model,
        image_size=side,
        random_seed=seed,
        precision=args.precision,
        progress=not args.quiet,
        video=True,
    )
    return folder, registry.export(args.family, settings).files


def _runners(
    args: argparse.Namespace,
    side: int,
    folder: Path,
    files: Mapping[str, Path],
    clip: Sequence[npt.NDArray[np.uint8]],
    stack: contextlib.ExitStack,
) -> Iterator[tuple[str, ClientRunner]]:
    """Yield a runner in this process, and runners of servers over HTTP and gRPC, by their names."""
    from ..transport.onnx import OnnxTransport
    from ..verify.video import ClientRunner
    from ..verify.video_transport import VideoTransport

    family = get_family(args.family).at(side)
    models = OnnxTransport({family.model_name(role): file for role, file in files.items()})
    shared: dict[str, Any] = {"model_type": args.family}
    clients = {"onnxruntime": SAM2VideoClient(transport=VideoTransport(family, models), **shared)}
    if args.url is not None:
        clients["served"] = SAM2VideoClient(args.url, timeout=_PATIENCE, **shared, **_options.access(args))
    elif args.local:
        server = stack.enter_context(
            _server.local_server(args, folder, models_to_load(folder, video_model(get_family(args.family))))
        )
        clients["served over http"] = SAM2VideoClient(server.http_url, timeout=_PATIENCE, **shared)
        clients["served over grpc"] = SAM2VideoClient(server.grpc_url, timeout=_PATIENCE, **shared)
    for name, client in clients.items():
        yield name, ClientRunner(stack.enter_context(stack.enter_context(client).open(clip)))


def _report(rows: list[VideoRow], least: float) -> str:
    from ..verify.video import format_table

    failed = sum(not row.passes(least) for row in rows)
    verdict = "all within" if not failed else f"{failed} of {len(rows)} outside"
    return f"{format_table(rows, least)}\n{verdict} the threshold: IoU >= {least:g} or one pixel"


def _json(rows: list[VideoRow], least: float) -> str:
    listed = [{**asdict(row), "ok": row.passes(least)} for row in rows]
    passed = all(row.passes(least) for row in rows)
    return strict_json.dumps({"threshold": least, "ok": passed, "rows": listed}, indent=1)
