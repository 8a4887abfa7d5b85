"""Turn a checkpoint into an ONNX encoder/decoder pair in the model repository."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError
from ..export import options, registry
from ..families import FAMILIES
from . import _options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    _options.add_family(parser)
    add_export_options(parser, tuple(FAMILIES))
    _options.add_quiet(parser)


def add_export_options(parser: argparse.ArgumentParser, families: Sequence[str]) -> None:
    """Add what the command and the scripts share.

    Args:
        parser: changed in place.
        families: whose options: all for the command, one for its script.
    """
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--checkpoint", type=Path, metavar="FILE", help="official checkpoint; SAM3: a folder or a file in it"
    )
    source.add_argument("--random", type=int, metavar="SEED", help="seeded random weights instead, for tests")
    parser.add_argument("--size", help=options.SIZE_HELP)
    if "sam1" in families:
        parser.add_argument(
            "--model-type",
            choices=("vit_b", "vit_l", "vit_h"),
            help="SAM1: size of the checkpoint (default: by its file name)",
        )
    if "sam2" in families:
        parser.add_argument(
            "--model-cfg",
            metavar="NAME_OR_FILE",
            help="SAM2: model configuration, a name inside the sam2 package, for example "
            "configs/sam2.1/sam2.1_hiera_b+.yaml, or a file (default: by the checkpoint's file name)",
        )
        parser.add_argument(
            "--standard-operators",
            action="store_true",
            default=None,
            help="SAM2: operators of the ONNX standard alone, for TensorRT and other runtimes; ONNX Runtime encodes "
            "more slowly with them",
        )
    if "sam3" in families:
        parser.add_argument(
            "--no-memory",
            choices=("published", "meta"),
            help="SAM3: leave no_memory_embedding out, as transformers and the published ONNX files do (default), or "
            "add it to the coarsest map, as Meta's own code does",
        )
    parser.add_argument(
        "--output-dir",
        type=Path,
        metavar="DIR",
        help="model repository (default: the one that `triton-sam serve` takes)",
    )
    parser.add_argument("--image-size", type=int, metavar="PIXELS", help="encoder's square (default: the official one)")
    parser.add_argument("--device", default="cpu", help="torch device that traces the graphs (default: cpu)")
    parser.add_argument(
        "--name", metavar="VARIANT", help="models VARIANT_encoder, VARIANT_decoder (default: the family's name)"
    )
    parser.add_argument(
        "--precision",
        choices=options.PRECISIONS,
        default="fp32",
        help="fp16: for GPUs, FP32 inputs and outputs; int8: quantised encoder for CPUs (default: fp32)",
    )
    parser.add_argument(
        "--half-storage", action="store_true", help="store weights as FP16, compute in FP32: half the file"
    )
    parser.add_argument(
        "--version",
        type=int,
        metavar="N",
        help="version folder (default: 1; 2 where 1 is the built-in small model and this is another)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; prints the paths of the two models."""
    from ..repository.folder import default_repository

    exported = registry.export(
        args.family,
        args.checkpoint,
        _model(args),
        args.output_dir or default_repository(),
        name=args.name,
        image_size=FAMILIES[args.family].image_size if args.image_size is None else args.image_size,
        device=args.device,
        precision=args.precision,
        random_seed=args.random,
        half_storage=args.half_storage,
        version=args.version,
        progress=not args.quiet,
        **family_options(args),
    )
    for path in exported.files.values():
        print(path)
    return 0


def script(family: str, description: str) -> int:
    """Be `scripts/export_FAMILY_to_onnx.py`: the command for one family. Return the exit code."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_export_options(parser, (family,))
    parser.add_argument("-q", "--quiet", action="store_true", help="print the two paths and errors only")
    parser.set_defaults(family=family)
    args = parser.parse_args()
    return _options.run_script(lambda: run(args))


def _model(args: argparse.Namespace) -> str | None:
    """Return the model's configuration; None: by the checkpoint's name.

    Raises:
        ConfigurationError: an option of another family, or one that says the same as another.
    """
    families = {"model_type": "sam1", "model_cfg": "sam2", "standard_operators": "sam2", "no_memory": "sam3"}
    for name, family in families.items():
        if family != args.family and getattr(args, name, None) is not None:
            raise ConfigurationError(f"--{name.replace('_', '-')} is for {family}, not for {args.family}")
    model: str | None = getattr(args, {"sam1": "model_type", "sam2": "model_cfg"}.get(args.family, ""), None)
    if args.size and (args.random is None or model is not None):
        raise ConfigurationError("--size is for --random, and alone: --model-type and --model-cfg say the same")
    if args.random is not None and model is None:
        return registry.random_model(args.family, args.size)
    return model


def family_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options that one family alone has."""
    given = {name: getattr(args, name, None) for name in ("no_memory", "standard_operators")}
    return {name: value for name, value in given.items() if value}
