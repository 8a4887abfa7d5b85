"""Export a checkpoint as the ONNX models of its family into the model repository."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from .._common.process import run_program
from ..errors import ConfigurationError
from ..everything.parameters import THRESHOLDS
from ..export import registry
from ..export.settings import PRECISIONS, Settings
from ..families import FAMILIES
from . import _families, _options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_family(parser)
    add_export_options(parser, tuple(FAMILIES))
    _options.add_quiet(parser)


def add_export_options(parser: argparse.ArgumentParser, families: Sequence[str]) -> None:
    """Add the options common to the command and the scripts.

    Args:
        families: names of the families whose options are added: all families for the command, one for a script.
    """
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--checkpoint", type=Path, metavar="FILE", help="official checkpoint; SAM3: its folder or a file in it"
    )
    source.add_argument("--random", type=int, metavar="SEED", help="use random weights with this seed, for tests")
    _families.add_size(parser, families)
    _families.add_options(parser, "export", families)
    _options.add_repository(parser)
    parser.add_argument(
        "--image-size", type=int, metavar="PIXELS", help="side of the encoder's input (default: the official size)"
    )
    _options.add_trace(parser)
    parser.add_argument("--device", default="cpu", help="torch device that traces the graphs (default: cpu)")
    _options.add_name(
        parser,
        "name the models VARIANT_encoder and VARIANT_decoder (default: the family's name, as in sam2, with another "
        "image size sam2_512)",
    )
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="fp32",
        help="fp16: for GPUs, with FP32 inputs and outputs; int8: for CPUs, with a quantised encoder (default: fp32)",
    )
    parser.add_argument(
        "--half-storage",
        action="store_true",
        help="store weights as FP16 but compute in FP32, for files of half the size",
    )
    parser.add_argument(
        "--required-inputs",
        action="store_true",
        help="give the decoder's mask input no default, for ONNX Runtime in browsers and optimisers of graphs, which "
        "remove inputs with defaults; such a variant is not for this project's clients",
    )
    _options.add_video(parser, families)
    _options.add_concepts(parser, families)
    parser.add_argument(
        "--version",
        type=int,
        metavar="N",
        help="number of the version folder (default: 1, or 2 if folder 1 holds the demo model)",
    )
    for name in THRESHOLDS:
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=float,
            metavar="0..1",
            help="threshold of `triton-sam everything` that fits these weights (default: the official one)",
        )


def run(args: argparse.Namespace) -> int:
    """Run the command and print the paths of the models."""
    if args.required_inputs and not args.name and args.model_repository is None:
        raise ConfigurationError(
            "--required-inputs would break clicks on the served model: give --name or --output-dir"
        )
    settings = Settings(
        _options.repository(args, writes=True),
        checkpoint=args.checkpoint,
        model=_families.model(args, "export", is_random=args.random is not None),
        name=_families.variant_name(args, args.image_size),
        image_size=args.image_size,
        random_seed=args.random,
        trace=args.trace,
        device=args.device,
        precision=args.precision,
        half_storage=args.half_storage,
        video=bool(args.video),
        concepts=bool(args.concepts),
        required_inputs=args.required_inputs,
        thresholds=_thresholds(args),
        version=args.version,
        progress=not args.quiet,
        options=_families.exporter_options(args, "export"),
    )
    exported = registry.export(args.family, settings)
    for path in exported.files.values():
        print(path)
    return 0


def _thresholds(args: argparse.Namespace) -> dict[str, float]:
    given = {name: getattr(args, name) for name in THRESHOLDS}
    return {name: value for name, value in given.items() if value is not None}


def script(family: str, description: str) -> int:
    """Run the command for one family, for `scripts/export_FAMILY_to_onnx.py`, and return the exit code."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_export_options(parser, (family,))
    _options.add_quiet(parser)
    parser.set_defaults(family=family)
    args = parser.parse_args()
    return run_program(lambda: run(args))
