"""Compare exported and served models with the official predictors."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from .._common import strict_json
from .._common.bundle import bundled
from ..client.sync import SAM2TritonClient
from ..errors import ConfigurationError, ModelNotReadyError
from ..export import registry
from ..export.settings import PRECISIONS, Settings
from ..families import FAMILIES
from ..inputs.images import open_image
from ..repository.accelerators import OPENVINO_PRECISIONS
from ..repository.folder import models_to_load
from . import _families, _options, _server, verify_accelerated, verify_concepts, verify_everything, verify_video

if TYPE_CHECKING:
    from ..verify.compare import Row, Thresholds

_PATIENCE = 600.0  # seconds; a full-size encoder on a busy processor takes minutes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    names = (*FAMILIES, *verify_video.names(), *verify_everything.names(), *verify_concepts.names())
    parser.add_argument(
        "family", choices=names, help="model family, its video models, its automatic masks, or its words"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--checkpoint", type=Path, metavar="FILE", help="official checkpoint")
    source.add_argument("--random", action="store_true", help="use random weights, without a checkpoint")
    _families.add_size(parser, FAMILIES)
    _families.add_options(parser, "verify", FAMILIES)
    parser.add_argument("--seed", type=int, metavar="N", help="seed for --random (default: 0)")
    parser.add_argument("--image", metavar="FILE", help="image to compare on (default: a photo of this project)")
    parser.add_argument(
        "--precision",
        choices=tuple(dict.fromkeys((*PRECISIONS, *OPENVINO_PRECISIONS))),
        help="precision of the export (default: fp32), or of the accelerator (default: bf16)",
    )
    verify_accelerated.add_arguments(parser)
    parser.add_argument(
        "--exported",
        type=Path,
        metavar="DIR",
        help="compare the models in this repository instead of a fresh export; they must have the same weights",
    )
    server = parser.add_mutually_exclusive_group()
    server.add_argument("--url", help="also compare the models of this server; they must have the same weights")
    server.add_argument("--local", action="store_true", help="also serve the export with a local Triton and compare")
    _options.add_name(parser, "variant in --exported and at --url (default: the family's name)")
    _options.add_access(parser)
    verify_video.add_arguments(parser)
    verify_everything.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    _options.add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code: 1 if a row misses the thresholds."""
    if args.family not in verify_concepts.names():
        verify_concepts.refuse_options(args)
    if args.accelerator is not None:
        return verify_accelerated.run(args)
    _check_source(args)
    if args.family in verify_video.names():
        return verify_video.run(args)
    if args.family in verify_everything.names():
        return verify_everything.run(args)
    if args.family in verify_concepts.names():
        return verify_concepts.run(args)
    from ..verify.compare import THRESHOLDS, OnnxClient, verify

    _check(args)
    image = args.image or bundled("test/images") / "coffee.jpg"
    picture = open_image(image)  # before the export, so that a wrong path is reported at once
    with contextlib.ExitStack() as stack:
        family, model = args.family, _families.model(args, "verify", is_random=args.random)
        seed = (args.seed or 0) if args.random else None
        folder, files = _models(args, model, seed, stack)
        clients: dict[str, SAM2TritonClient] = {"onnxruntime": stack.enter_context(OnnxClient(files, family))}
        if args.url is not None:
            clients["served"] = stack.enter_context(
                SAM2TritonClient(args.url, family, model_name=args.name, timeout=_PATIENCE, **_options.access(args))
            )
        elif args.local:
            url = _serve(args, folder, stack)
            clients["served"] = stack.enter_context(
                SAM2TritonClient(url, family, model_name=args.name, timeout=_PATIENCE)
            )
        _options.say(args, f"comparing on {image} ...")
        rows = verify(registry.reference(family, args.checkpoint, model, seed), picture, clients)
    thresholds = THRESHOLDS[args.precision]
    print(_json(rows, thresholds) if args.json else _report(rows, thresholds))
    return 0 if all(row.passes(thresholds) for row in rows) else 1


def _check_source(args: argparse.Namespace) -> None:
    """Check the options about the weights, and fill in the precision of the export.

    Raises:
        ConfigurationError: no weights are named, or the precision is none of an export.
    """
    if args.checkpoint is None and not args.random:
        raise ConfigurationError("give --checkpoint FILE or --random; for models that exist: --accelerator openvino")
    args.precision = args.precision or "fp32"
    if args.precision not in PRECISIONS:
        raise ConfigurationError(f"--precision {args.precision} is for --accelerator openvino")


def _check(args: argparse.Namespace) -> None:
    """Check the options before the export.

    Raises:
        ConfigurationError: an option would have no effect.
        SamError: --local is given, but no Triton can start here; or no Triton answers at --url.
    """
    if args.frames is not None or args.image_size is not None:
        raise ConfigurationError(f"--frames and --image-size are for videos: {', '.join(verify_video.names())}")
    if args.points_per_side is not None:
        raise ConfigurationError(f"--points-per-side is for automatic masks: {', '.join(verify_everything.names())}")
    if args.seed is not None and not args.random:
        raise ConfigurationError("--seed is for --random: a checkpoint's weights are not random")
    if args.name and args.exported is None and args.url is None:
        raise ConfigurationError("--name is for models that exist already: give --exported or --url, too")
    _server.check(args)
    if args.url is not None:
        with SAM2TritonClient(args.url, args.family, **_options.access(args)) as client:
            client.models()


def _models(
    args: argparse.Namespace, model: str | None, seed: int | None, stack: contextlib.ExitStack
) -> tuple[Path, Mapping[str, Path]]:
    """Return the model repository and its files by role: those of --exported, or a fresh export.

    Raises:
        ModelNotReadyError: the repository of --exported has no weights for the variant.
        SamError: see export.registry.export().
    """
    if args.exported is not None:
        from ..benchmark.weights import find_weights

        found = find_weights(args.family, args.exported, args.name)
        if found is None:
            wanted = args.name or args.family
            raise ModelNotReadyError(f"{args.exported} holds no weights for {wanted}: see `triton-sam export`")
        return args.exported, found.files
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="triton_sam_verify_")))
    settings = Settings(
        folder, args.checkpoint, model, random_seed=seed, precision=args.precision, progress=not args.quiet
    )
    return folder, registry.export(args.family, settings).files


def _serve(args: argparse.Namespace, folder: Path, stack: contextlib.ExitStack) -> str:
    models = models_to_load(folder, args.name or args.family)
    return stack.enter_context(_server.local_server(args, folder, models)).http_url


def _report(rows: list[Row], thresholds: Thresholds) -> str:
    from ..verify.compare import format_table

    failed = sum(not row.passes(thresholds) for row in rows)
    logit = "" if thresholds.logit is None else f" or one pixel, logit difference < {thresholds.logit:g}"
    verdict = "all within" if not failed else f"{failed} of {len(rows)} outside"
    limits = f"IoU > {thresholds.iou:g}{logit}, score difference < {thresholds.score:g}"
    return f"{format_table(rows, thresholds)}\n{verdict} the thresholds: {limits}"


def _json(rows: list[Row], thresholds: Thresholds) -> str:
    listed = [{**asdict(row), "ok": row.passes(thresholds)} for row in rows]
    passed = all(row.passes(thresholds) for row in rows)
    return strict_json.dumps({"bars": asdict(thresholds), "ok": passed, "rows": listed}, indent=1)
