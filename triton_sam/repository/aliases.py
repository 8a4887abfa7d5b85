"""Aliases: additional names of models, for clients that expect other names.

An alias is a Triton ensemble with one step, which calls the model. It can also rename outputs. The aliases of session
models and the front ends of triton_sam.sessions.encoder_front are programs.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from .._common.files import atomic_write
from ..errors import RepositoryError
from ..families import model_name, variant_models
from ..families.tables import ENCODER
from .config import ALIAS_KEY, CONFIG_NAME, FAMILY_KEY, check_name, parse_config
from .folder import RepositoryModel, weights_in
from .selection import models_of_variant, read_repository, select_models, unloadable

PAINTERA_SAM1 = "sam1_paintera_encoder"
"""The front end of SAM1 for Paintera, if the encoder itself has the name that Paintera requests."""
HEAD = "# Written by `triton-sam alias`: "
"""The beginning of the config.pbtxt of every alias."""
KEPT_CONFIG = "config.pbtxt.kept"
"""The config.pbtxt of a model without weights whose name an alias uses; remove_alias() restores it."""


@dataclass(frozen=True)
class Alias:
    """An additional name of a model.

    Args:
        outputs: maps outputs of the target to their names in the alias; other outputs keep their names.
    """

    name: str
    target: str
    outputs: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name(self.name)
        check_name(self.target)


def paintera(sam1: str = "sam1", sam2: str = "sam2", sam3: str = "sam3") -> dict[str, Alias]:
    """Return the front ends for sam-link, Paintera's client, by the name of their family.

    sam-link and this package use the same name for SAM1, so the front end gets it only if the encoder has another name.

    Args:
        sam1: the variant for SAM1. The front end of "sam1" is sam1_paintera_encoder, that of others sam1_encoder.
        sam2: the variant behind sam2.1_large_encoder.
        sam3: the variant behind sam3_tracker_encoder_fp16.
    """
    own = model_name("sam1", ENCODER)
    return {
        "sam2": Alias("sam2.1_large_encoder", model_name(sam2, ENCODER), {"image_embeddings": "image_embed"}),
        "sam3": Alias("sam3_tracker_encoder_fp16", model_name(sam3, ENCODER)),
        "sam1": Alias(PAINTERA_SAM1 if sam1 == "sam1" else own, model_name(sam1, ENCODER)),
    }


def of_variant(repository: Path, name: str, variant: str) -> list[Alias]:
    """Return the aliases for all models of a variant: NAME_encoder, NAME_decoder, NAME, and others it has."""
    check_name(name)
    check_name(variant)
    models = read_repository(repository)
    targets = models_of_variant(variant, models.keys() - unloadable(models).keys(), models)
    if targets == [variant]:  # a single model, which is no variant
        return []
    return [Alias(name + target.removeprefix(variant), target) for target in targets]


def left_over(repository: Path, name: str, aliases: Collection[Alias]) -> list[str]:
    """Return the aliases of an earlier variant under the same name that a new variant does not replace."""
    kept = {alias.name for alias in aliases}
    return [each for each in reversed(variant_models(name)) if each not in kept and is_alias(repository, each)]


def is_served(repository: Path, model: str) -> bool:
    """Return whether Triton would load a model: it has a config.pbtxt, and all required weights exist."""
    models = read_repository(repository)
    return model in models and models[model].has_config and model not in unloadable(models)


def is_alias(repository: Path, name: str) -> bool:
    """Return whether a repository has an alias with this name."""
    return (repository / name / CONFIG_NAME).is_file() and bool(_folder(repository / name).alias_of)


def write_alias(repository: Path, alias: Alias) -> None:
    """Write an alias, and replace an alias with the same name.

    The alias is an ensemble. For a session model or video model, whose errors an ensemble would change, it is a second
    program that calls the same models.
    """
    target = read_config(repository / alias.target)
    if ENCODER not in target.parameters:
        install_alias(repository, alias, ensemble_config(target, alias))
        return
    programs = [path for path in weights_in(repository / alias.target) if path.suffix == ".py"]
    files = {path.name: path.read_text(encoding="utf-8") for path in programs}
    install_alias(repository, alias, _session_config(target, alias), files)


def install_alias(repository: Path, alias: Alias, text: str, program: Mapping[str, str] | None = None) -> None:
    """Write the files of an alias, and replace an alias with the same name.

    Args:
        program: the files of its version folder, by name; None for an ensemble, which has none. A program may also
            use the name of a model without weights; remove_alias() restores that model's config.pbtxt.
    """
    folder = repository / alias.name
    check_place(repository, alias, takes_empty=program is not None)
    path = folder / CONFIG_NAME
    files = {folder / "1" / name: content for name, content in (program or {}).items()}
    replaced = None if not folder.exists() or _folder(folder).alias_of else path.read_bytes()
    new = [file for file in (folder, folder / "1", *files) if not file.exists()]
    try:
        # Triton requires a version folder, which may be empty.
        (folder / "1").mkdir(parents=True, exist_ok=True)
        for file, content in files.items():
            atomic_write(file, content.encode())
        if replaced is not None:
            atomic_write(folder / KEPT_CONFIG, replaced)
        atomic_write(path, text.encode())
    except BaseException:  # also Ctrl-C: a folder without config.pbtxt would count as a model that is not an alias
        for file in new:
            shutil.rmtree(file, ignore_errors=True) if file.is_dir() else file.unlink(missing_ok=True)
        if replaced is not None:
            (folder / KEPT_CONFIG).unlink(missing_ok=True)
        raise


def check_place(repository: Path, alias: Alias, *, takes_empty: bool = False) -> None:
    """Check that an alias can be written, without writing it.

    Args:
        takes_empty: whether it may take the name of a model without weights.
    """
    folder = repository / alias.name
    if folder.exists():
        there = _folder(folder)
        if not there.alias_of and not (takes_empty and not there.has_content):
            raise RepositoryError(
                f"{alias.name} is a model and not an alias: remove its folder from {repository}, "
                "or export it under another --name"
            )
    if alias.name in {model.name for model in select_models(repository, [alias.target])}:
        raise RepositoryError(f"{alias.target} calls {alias.name}: an alias needs another target")


def check_removal(repository: Path, names: Collection[str]) -> None:
    """Check that no other model calls one of these aliases, or is an alias of it."""
    models = read_repository(repository)
    for name in names:
        users = sorted(
            other
            for other, model in models.items()
            if other not in names and (name in model.dependencies(()) or model.alias_of == name)
        )
        if users:
            raise RepositoryError(f"{', '.join(users)} call {name}: remove them first")


def remove_alias(repository: Path, name: str) -> None:
    """Remove an alias."""
    folder = repository / name
    if not _folder(folder).alias_of:
        raise RepositoryError(f"{name} is a model and not an alias: only aliases are removed")
    kept = folder / KEPT_CONFIG
    if kept.exists():  # the callers of this name keep the restored model
        shutil.rmtree(folder / "1" / "__pycache__", ignore_errors=True)
        (folder / "1" / "model.py").unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it has other files
            (folder / "1").rmdir()
        kept.replace(folder / CONFIG_NAME)
        return
    check_removal(repository, [name])
    shutil.rmtree(folder)


def ensemble_config(target: Any, alias: Alias) -> str:
    """Return the config.pbtxt of an alias's ensemble."""
    unknown = set(alias.outputs) - {tensor.name for tensor in target.output}
    if unknown:
        raise RepositoryError(f"{alias.target} has no output {min(unknown)!r}")
    config = ModelConfig(name=alias.name, platform="ensemble", max_batch_size=target.max_batch_size)
    config.input.extend(target.input)
    config.output.extend(target.output)
    if FAMILY_KEY in target.parameters:
        config.parameters[FAMILY_KEY].CopyFrom(target.parameters[FAMILY_KEY])
    step = config.ensemble_scheduling.step.add(model_name=alias.target, model_version=-1)
    for tensor in target.input:
        step.input_map[tensor.name] = tensor.name
    for tensor in config.output:
        renamed = alias.outputs.get(tensor.name, tensor.name)
        step.output_map[tensor.name] = renamed
        tensor.name = renamed
    return _head(alias) + str(text_format.MessageToString(config))


def _session_config(target: Any, alias: Alias) -> str:
    config = ModelConfig()
    config.CopyFrom(target)
    config.name = alias.name
    config.parameters[ALIAS_KEY].string_value = alias.target
    return _head(alias) + str(text_format.MessageToString(config))


def _head(alias: Alias) -> str:
    return f"{HEAD}{alias.target} under another name. Exports write it again.\n"


def read_config(folder: Path) -> Any:
    """Return the ModelConfig of a model."""
    path = folder / CONFIG_NAME
    try:
        return parse_config(path.read_text(encoding="utf-8"), path)
    except OSError as error:
        raise RepositoryError(f"no model {folder.name} in {folder.parent}: see `triton-sam models`") from error


def _folder(folder: Path) -> RepositoryModel:
    return RepositoryModel(folder, read_config(folder))
