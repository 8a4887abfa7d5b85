"""Set accelerator, devices and instances of models in their config.pbtxt.

Each call replaces all earlier settings of its models, so give all options in one call. `--accelerator none` alone
removes the settings. Without a variant, the command changes all models of the repository. An export writes config.pbtxt
anew, so run this command after it. `triton-sam reload` applies the changes to a running server.
docs/how-to/server-options.md explains each option.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
from typing import Any

from .._common.files import atomic_write
from ..errors import ConfigurationError, RepositoryError
from ..repository.accelerators import (
    ACCELERATORS,
    DECODER_ACCELERATORS,
    OPENVINO_PRECISIONS,
    Accelerator,
    Tuning,
    models_of,
    tune,
)
from ..repository.config import CONFIG_NAME
from ..repository.folder import list_models
from ..sessions.encoder_front.install import rewrite_aliases
from . import _options

_FIELDS = tuple(field.name for field in dataclasses.fields(Tuning))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("variants", nargs="*", metavar="VARIANT", help="for example sam2 or sam2.1_large; default: all")
    _add_settings(parser)
    parser.add_argument("--dry-run", action="store_true", help="show the changes and write nothing")
    _options.add_repository(parser)
    _options.add_quiet(parser)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """Add one option for each field of Tuning. Omitted options are not in the namespace: Tuning has the defaults."""
    default = Tuning()

    def add(option: str, field: str, text: str, **how: Any) -> None:
        parser.add_argument(option, dest=field, default=argparse.SUPPRESS, help=text, **how)

    def add_number(option: str, field: str, text: str, metavar: str = "N") -> None:
        add(option, field, f"{text} (default: {getattr(default, field) or 'no limit'})", type=int, metavar=metavar)

    add(
        "--accelerator",
        "accelerator",
        "for encoders (default: none: ONNX Runtime without an accelerator)",
        choices=ACCELERATORS,
    )
    add(
        "--decoder-accelerator",
        "decoder_accelerator",
        "for decoders (default: cuda with --accelerator cuda or tensorrt; they are small, and their shapes vary)",
        choices=DECODER_ACCELERATORS,
    )
    add(
        "--precision",
        "precision",
        "OpenVINO: precision of the arithmetic; `triton-sam verify openvino` compares the masks (default: bf16)",
        choices=OPENVINO_PRECISIONS,
    )
    add(
        "--decoder-in-session",
        "decoder_in_session",
        "on CPUs: session models run their decoders in their own processes, so that clicks copy less; the Python of "
        "Triton needs onnxruntime",
        action="store_true",
    )
    add("--gpus", "gpus", "GPUs that get instances (default: all)", type=_numbers, metavar="0,1")
    add_number("--instances", "instances", "instances on each GPU")
    add_number("--gpu-memory-limit", "memory_limit", "memory that an accelerator may use for one instance", "BYTES")
    add("--no-tf32", "tf32", "exact FP32 matrix products, slower than TF32", action="store_false")
    add(
        "--engine-cache",
        "engine_cache",
        f"folder on the server for TensorRT engines (default: {default.engine_cache})",
        metavar="DIR",
    )
    add_number("--max-images", "max_images", "TensorRT: images per call")
    add_number("--max-prompts", "max_prompts", "TensorRT: objects per call")
    add_number("--max-points", "max_points", "TensorRT: points per object")


def run(args: argparse.Namespace) -> int:
    """Run the command. Print the names of the changed models or, with --dry-run, the changes."""
    tuning = _tuning({name: getattr(args, name) for name in _FIELDS if name in args})
    repository = _options.repository(args, writes=not args.dry_run)
    list_models(repository)  # raises an error without a repository
    changes, replaced = [], False
    for name in models_of(repository, tuple(args.variants)):
        path = repository / name / CONFIG_NAME
        old = path.read_text("utf-8")
        new = tune(old, tuning)
        if new != old:
            changes.append((path, old, new))
            replaced = replaced or tune(old, Tuning()) not in (old, new)
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
        for line in rewrite_aliases(repository, [path.parent.name]):
            _options.say(args, line)
    if replaced:
        _options.say(
            args, "earlier settings are replaced: options that this call does not name have their defaults again"
        )
    _options.say(args, "no change" if not changes else "apply it to a running server with `triton-sam reload NAME`")
    return 0


def _tuning(given: dict[str, Any]) -> Tuning:
    if not given:
        raise ConfigurationError("nothing to set: give an option; --accelerator none alone removes all settings")
    if "engine_cache" in given:
        given["engine_cache"] = given["engine_cache"].rstrip("/")
    encoder: Accelerator = given.get("accelerator", "none")
    decoder: Accelerator = given.setdefault(
        "decoder_accelerator", "cuda" if encoder in ("cuda", "tensorrt") else "none"
    )
    _refuse_idle(given, encoder, decoder)
    return Tuning(**given)


def _refuse_idle(given: dict[str, Any], encoder: Accelerator, decoder: Accelerator) -> None:
    """Refuse options that would have no effect."""
    if "precision" in given and encoder != "openvino":
        raise ConfigurationError("--precision is an option of OpenVINO: also give --accelerator openvino")
    if "tf32" in given and not {"none", "openvino"}.isdisjoint((encoder, decoder)):
        raise ConfigurationError("--no-tf32 is an option of an accelerator: also give --accelerator cuda")
    if "memory_limit" in given and {"cuda", "tensorrt"}.isdisjoint((encoder, decoder)):
        raise ConfigurationError("--gpu-memory-limit is an option of an accelerator: also give --accelerator cuda")
    for name, readers in (
        ("engine_cache", {"--accelerator": encoder, "--decoder-accelerator": decoder}),
        ("max_images", {"--accelerator": encoder}),
        ("max_prompts", {"--decoder-accelerator": decoder}),
        ("max_points", {"--decoder-accelerator": decoder}),
    ):
        if name in given and "tensorrt" not in readers.values():
            option, needed = f"--{name.replace('_', '-')}", " or ".join(readers)
            raise ConfigurationError(f"{option} is an option of TensorRT: also give {needed} tensorrt")


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 0,1") from None
