"""Aliases: further names of models, for clients that expect other names.

An alias is a Triton ensemble whose only step calls the model. It can also rename outputs.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from .._common.files import atomic_write
from ..errors import RepositoryError
from ..families import model_name
from ..families.tables import ENCODER
from .config import parse_config
from .names import CONFIG_NAME, check_name, pair_names
from .selection import read_repository, select_models, unloadable


@dataclass(frozen=True)
class Alias:
    """A further name of a model.

    Args:
        name: the alias.
        target: the name of the model that the alias stands for.
        outputs: maps outputs of the target to their names in the alias; other outputs keep their names.

    Raises:
        ConfigurationError: a name is not a valid model name, for example because it leads out of the repository.
    """

    name: str
    target: str
    outputs: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name(self.name)
        check_name(self.target)


def paintera(sam2: str = "sam2", sam3: str = "sam3") -> tuple[Alias, ...]:
    """Return the aliases that sam-link, the client of Paintera, needs. For SAM1, it uses the names of this package.

    Args:
        sam2: the variant that sam2.1_large_encoder stands for.
        sam3: the variant that sam3_tracker_encoder_fp16 stands for.
    """
    return (
        Alias("sam2.1_large_encoder", model_name(sam2, ENCODER), {"image_embeddings": "image_embed"}),
        Alias("sam3_tracker_encoder_fp16", model_name(sam3, ENCODER)),
    )


def pair(name: str, variant: str) -> tuple[Alias, ...]:
    """Return the aliases NAME_encoder and NAME_decoder for the model pair of a variant."""
    return tuple(Alias(*names) for names in zip(pair_names(name), pair_names(variant), strict=True))


def is_served(repository: Path, model: str) -> bool:
    """Return whether Triton would load a model, because it has a config.pbtxt, and all weights exist that it needs.

    Raises:
        RepositoryError: the repository does not exist.
    """
    models = read_repository(repository)
    return model in models and models[model].has_config and model not in unloadable(models)


def write_alias(repository: Path, alias: Alias) -> Path:
    """Write the ensemble of an alias, and replace an alias of the same name.

    Returns:
        Path of the alias's config.pbtxt.

    Raises:
        RepositoryError: the target does not exist, has no weights, or calls the alias; or another model than an alias
            has this name.
        OSError: the repository cannot be written.
    """
    text = ensemble_config(_read(repository / alias.target), alias)
    folder = repository / alias.name
    is_new = not folder.exists()
    if not is_new and _read(folder).platform != "ensemble":
        raise RepositoryError(
            f"{alias.name} is a model and not an alias: remove its folder from {repository}, "
            "or export it under another --name"
        )
    if alias.name in {model.name for model in select_models(repository, [alias.target])}:
        raise RepositoryError(f"{alias.target} calls {alias.name}: an alias cannot stand for itself")
    path = folder / CONFIG_NAME
    try:
        # Triton requires a version folder, even if it is empty.
        (folder / "1").mkdir(parents=True, exist_ok=True)
        atomic_write(path, text.encode())
    except BaseException:  # also for Ctrl-C: a folder without config.pbtxt would count as a model that is not an alias
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return path


def remove_alias(repository: Path, name: str) -> None:
    """Remove an alias.

    Raises:
        RepositoryError: there is no such alias; a model that is no alias has this name; or other aliases stand for it.
        OSError: the repository cannot be written.
    """
    if _read(repository / name).platform != "ensemble":
        raise RepositoryError(f"{name} is a model and not an alias: it stays")
    folders = read_repository(repository)
    users = sorted(other for other, folder in folders.items() if name in folder.dependencies(()))
    if users:
        raise RepositoryError(f"{', '.join(users)} call {name}: remove them first")
    shutil.rmtree(repository / name)


def ensemble_config(target: Any, alias: Alias) -> str:
    """Return the config.pbtxt of the ensemble.

    Args:
        target: the ModelConfig of the target.
        alias: the alias.

    Raises:
        RepositoryError: the alias renames an output that the target does not have.
    """
    unknown = set(alias.outputs) - {tensor.name for tensor in target.output}
    if unknown:
        raise RepositoryError(f"{alias.target} has no output {min(unknown)!r}")
    config = ModelConfig(name=alias.name, platform="ensemble", max_batch_size=target.max_batch_size)
    config.input.extend(target.input)
    config.output.extend(target.output)
    step = config.ensemble_scheduling.step.add(model_name=alias.target, model_version=-1)
    for tensor in target.input:
        step.input_map[tensor.name] = tensor.name
    for tensor in config.output:
        renamed = alias.outputs.get(tensor.name, tensor.name)
        step.output_map[tensor.name] = renamed
        tensor.name = renamed
    head = f"# Written by `triton-sam alias`: {alias.target} under another name.\n"
    return head + str(text_format.MessageToString(config))


def _read(folder: Path) -> Any:
    try:
        return parse_config((folder / CONFIG_NAME).read_text(encoding="utf-8"))
    except OSError as error:
        raise RepositoryError(f"no model {folder.name} in {folder.parent}: see `triton-sam models`") from error
