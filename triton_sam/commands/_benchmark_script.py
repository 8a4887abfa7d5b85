"""The command `benchmark` under the options of scripts/benchmark_sam2.py and scripts/benchmark_sam3.py."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .._common.extras import install
from ..errors import ConfigurationError, SamError

OUTPUT = Path("test/output")


def script(family: str, description: str, arguments: Sequence[str] | None = None) -> int:
    """Run `triton-sam benchmark` for one family, on the CPU, on the GPU, or on both in turns; return the exit code.

    Args:
        family: name of the family.
        description: text for --help.
        arguments: arguments of the script; None for those of this process.
    """
    args, others = _parser(description).parse_known_args(arguments)
    try:
        return _run(family, args, others)
    except SamError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        epilog="All options of `triton-sam benchmark` work as well; see its --help.",
    )
    device = parser.add_mutually_exclusive_group()
    device.add_argument(
        "-d", "--device", choices=("cpu", "cuda"), help="device of the local Triton (default: its choice)"
    )
    device.add_argument("--both", action="store_true", help="measure the CPU, then the GPU")
    parser.add_argument(
        "-i", "--image", type=Path, metavar="FILE", help="image to use (default: a photo of this project)"
    )
    parser.add_argument(
        "-c", "--checkpoint", metavar="FILE", help="weights to measure (default: those of the repository)"
    )
    parser.add_argument(
        "-o",
        "--output-dir",
        type=Path,
        metavar="DIR",
        help=f"folder for the reports (default: {OUTPUT}/benchmark-FAMILY)",
    )
    return parser


def _run(family: str, args: argparse.Namespace, others: list[str]) -> int:
    elsewhere = any(option.partition("=")[0] in ("--url", "--diff") for option in others)
    devices = ["cpu", "cuda"] if args.both else [args.device]
    if elsewhere and devices != [None]:
        raise ConfigurationError("--device and --both are for a local Triton: leave out --url and --diff")
    if "cuda" in devices:
        _check_gpu()
    options = [] if elsewhere else ["--local"]
    options += ["--image", str(args.image)] if args.image is not None else []
    options += ["--weights", args.checkpoint] if args.checkpoint is not None else []
    for device in devices:
        folder = args.output_dir or OUTPUT / f"benchmark-{family}"
        if args.both:
            folder = folder / device
        environment = {**os.environ, **({"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {})}
        command = [sys.executable, "-m", "triton_sam", "benchmark", family, *options, "--out", str(folder), *others]
        code = subprocess.run(command, env=environment, check=False).returncode
        if code:
            return code
    return 0


def _check_gpu() -> None:
    """Check that ONNX Runtime can use a GPU here, before minutes of measurements on the CPU.

    Raises:
        ConfigurationError: it cannot.
    """
    try:
        import onnxruntime
    except ImportError:
        providers = []
    else:
        providers = onnxruntime.get_available_providers()
    if "CUDAExecutionProvider" not in providers or not any(Path("/dev").glob("nvidia[0-9]*")):
        raise ConfigurationError(
            f"ONNX Runtime has no GPU here: use --device cpu, or, on a machine with an NVIDIA GPU, {install('gpu')}"
        )
