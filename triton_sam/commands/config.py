"""Set how models run on GPUs: accelerator, devices, instances. Writes into config.pbtxt, and takes it out again.

Without a variant, all of the repository. An export writes config.pbtxt anew, so run this after it. A running server
takes the change with `triton-sam reload`. What each option does is in docs/server-options.md.
"""

from __future__ import annotations

import argparse
import difflib

from .._files import atomic_write
from ..errors import ConfigurationError, RepositoryError
from ..repository import CONFIG_NAME, list_models
from ..tuning import ACCELERATORS, ENGINE_CACHE, Accelerator, Tuning, models_of, tune
from . import _options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("variants", nargs="*", metavar="VARIANT", help="for example sam2 or sam2.1_large; default: all")
    parser.add_argument(
        "--accelerator",
        choices=ACCELERATORS,
        default="none",
        help="for encoders (default: none, the backend's own way)",
    )
    parser.add_argument(
        "--decoder-accelerator",
        choices=ACCELERATORS,
        help="for decoders (default: cuda with --accelerator cuda or tensorrt; they are small, and their shapes vary)",
    )
    parser.add_argument(
        "--gpus", type=_numbers, default=(), metavar="0,1", help="GPUs that get instances (default: all)"
    )
    parser.add_argument("--instances", type=int, default=1, metavar="N", help="instances on each GPU (default: 1)")
    parser.add_argument(
        "--gpu-memory-limit", type=int, default=0, metavar="BYTES", help="for one instance (default: no limit)"
    )
    parser.add_argument("--no-tf32", action="store_true", help="exact FP32 matrix products, slower than TF32")
    parser.add_argument(
        "--engine-cache",
        default=ENGINE_CACHE,
        metavar="DIR",
        help=f"TensorRT's, in the server (default: {ENGINE_CACHE})",
    )
    parser.add_argument("--max-images", type=int, default=1, metavar="N", help="TensorRT: images a call (default: 1)")
    parser.add_argument(
        "--max-prompts", type=int, default=16, metavar="N", help="TensorRT: objects a call (default: 16)"
    )
    parser.add_argument(
        "--max-points", type=int, default=16, metavar="N", help="TensorRT: points an object (default: 16)"
    )
    parser.add_argument("--dry-run", action="store_true", help="show the changes and write nothing")
    _options.add_repository(parser)
    _options.add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; prints the names of the models that changed, or the changes themselves with --dry-run."""
    repository = _options.repository(args)
    precision = {model.name: model.metadata.get("triton_sam.precision") for model in list_models(repository)}
    tuning = _tuning(args)
    changes = []
    for name in models_of(repository, tuple(args.variants)):
        path = repository / name / CONFIG_NAME
        old = path.read_text("utf-8")
        new = tune(old, tuning, fp16=precision.get(name) == "fp16")
        if new != old:
            changes.append((path, old, new))
    for path, old, new in changes:
        if args.dry_run:
            lines = difflib.unified_diff(old.splitlines(), new.splitlines(), str(path), str(path), lineterm="")
            print("\n".join(lines))
            continue
        try:
            atomic_write(path, new.encode())
        except OSError as error:
            raise RepositoryError(f"{path} cannot be written: {error.strerror or error}") from error
        print(path.parent.name)
    _options.say(args, "no change" if not changes else "a running server takes it with `triton-sam reload NAME`")
    return 0


def _tuning(args: argparse.Namespace) -> Tuning:
    decoder: Accelerator = args.decoder_accelerator or ("none" if args.accelerator == "none" else "cuda")
    if args.no_tf32 and "none" in (args.accelerator, decoder):
        raise ConfigurationError("--no-tf32 is an option of an accelerator: give --accelerator cuda, too")
    return Tuning(
        accelerator=args.accelerator,
        decoder_accelerator=decoder,
        gpus=args.gpus,
        instances=args.instances,
        memory_limit=args.gpu_memory_limit,
        tf32=not args.no_tf32,
        engine_cache=args.engine_cache.rstrip("/"),
        max_images=args.max_images,
        max_prompts=args.max_prompts,
        max_points=args.max_points,
    )


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers such as 0,1") from None
