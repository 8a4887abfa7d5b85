"""The comparison that `triton-sam config --accelerator openvino` asks for, and its lines in `models` and `doctor`."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from .._common.bundle import bundled
from ..errors import ConfigurationError, RepositoryError
from ..families import FAMILIES, model_name, spec_of, split_model_name
from ..families.tables import DECODER, ENCODER
from ..repository.accelerators import models_of
from ..repository.aliases import read_config
from ..repository.folder import version_folders
from ..repository.verified import LIMITS, Comparison, comparisons, store_comparison
from . import _options


def check(args: argparse.Namespace, repository: Path, precision: str) -> None:
    """Compare each encoder that will run on OpenVINO with fp32, unless a stored result says that it was compared.

    Args:
        args: arguments of the command, with `variants` and --quiet.
        repository: the model repository.
        precision: "fp32" or "bf16".

    Raises:
        ConfigurationError: the masks of an encoder differ too much.
        MissingDependencyError: openvino or onnxruntime is missing.
        SamError: see verify.accelerated.compare_precision().
    """
    for name in models_of(repository, tuple(args.variants)):
        split = split_model_name(name)
        if split is None or split[1] != ENCODER or _file(repository / name) is None:
            continue
        found = _compared(args, repository, split[0], precision)
        _options.say(args, f"{name}: {found.describe()}")
        if not found.passed:
            raise ConfigurationError(
                f"{name}: with OpenVINO in {precision}, masks have an IoU of {found.mean_iou:.4f} to fp32, below "
                f"{LIMITS[precision]:g}: use --precision fp32, or --force to accept it"
            )


def photos() -> list[Path]:
    """Return the images of this project whose parts are compared."""
    return [bundled("test/images") / name for name in ("coffee.jpg", "shapes.jpg")]


def results(folder: Path) -> list[str]:
    """Return one line for each stored result about the newest weights of a model.

    There is none for a model whose config.pbtxt cannot be read: `list_models` says what is wrong with it.
    """
    with contextlib.suppress(RepositoryError):
        file = _file(folder)
        return [] if file is None else [found.describe() for found in comparisons(folder, file)]
    return []


def _compared(args: argparse.Namespace, repository: Path, variant: str, precision: str) -> Comparison:
    files = {role: _file(repository / model_name(variant, role)) for role in (ENCODER, DECODER)}
    present = {role: file for role, file in files.items() if file is not None}
    if len(present) < len(files):
        raise RepositoryError(f"{variant} has no decoder with weights, which the comparison needs: use --force")
    folder = repository / model_name(variant, ENCODER)
    for found in comparisons(folder, present[ENCODER]):
        if found.precision == precision:
            return found
    from ..verify.accelerated import compare_precision, crops

    _options.say(args, f"comparing {folder.name} on OpenVINO with fp32 ...")
    found = compare_precision(present, _family(repository / model_name(variant, DECODER)), precision, crops(photos()))
    store_comparison(folder, found)
    return found


def _family(folder: Path) -> str:
    """Return the family of a decoder by its inputs. Encoders of several families have the same input."""
    config = read_config(folder)
    spec = spec_of(tensor.name for tensor in config.input)
    for name, family in FAMILIES.items():
        if spec is not None and spec in family.models.values():
            return name
    raise RepositoryError(f"{folder} belongs to no family, so its masks cannot be compared: use --force")


def _file(folder: Path) -> Path | None:
    """Return the ONNX file of the newest version; None if there is none."""
    versions = version_folders(folder) if folder.is_dir() else []
    if not versions:
        return None
    config = read_config(folder)
    file = versions[-1] / (config.default_model_filename or "model.onnx")
    return file if file.is_file() else None
