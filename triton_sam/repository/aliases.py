"""Second names for models: ensembles of one step that rename, so that clients with other names need no change."""

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
    """A second name of a model.

    Args:
        name: the new model.
        target: the model behind it.
        outputs: tensor of the target -> its name in the new model; all others keep theirs.

    Raises:
        ConfigurationError: a name that cannot be a model's, since it leads out of the repository, say.
    """

    name: str
    target: str
    outputs: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name(self.name)
        check_name(self.target)


def paintera(sam2: str = "sam2", sam3: str = "sam3") -> tuple[Alias, ...]:
    """Return what sam-link, the client of Paintera, asks for. Its SAM1 names are those of this kit.

    Args:
        sam2: variant to stand behind sam2.1_large_encoder.
        sam3: variant to stand behind sam3_tracker_encoder_fp16.
    """
    return (
        Alias("sam2.1_large_encoder", model_name(sam2, ENCODER), {"image_embeddings": "image_embed"}),
        Alias("sam3_tracker_encoder_fp16", model_name(sam3, ENCODER)),
    )


def pair(name: str, variant: str) -> tuple[Alias, ...]:
    """Return the aliases that make NAME_encoder and NAME_decoder out of a variant's pair."""
    return tuple(Alias(*names) for names in zip(pair_names(name), pair_names(variant), strict=True))


def is_served(repository: Path, model: str) -> bool:
    """Whether a model has a config.pbtxt and weights, itself or behind it, so that Triton would load it.

    Raises:
        RepositoryError: there is no such repository.
    """
    models = read_repository(repository)
    return model in models and models[model].has_config and model not in unloadable(models)


def write_alias(repository: Path, alias: Alias) -> Path:
    """Write the ensemble of an alias; one that is there already is replaced.

    Returns:
        Path of its config.pbtxt.

    Raises:
        RepositoryError: the target is not there or has no weights, calls the alias itself, or a model of that name is
            no alias.
        OSError: the repository cannot be written.
    """
    text = ensemble_config(_read(repository / alias.target), alias)
    folder = repository / alias.name
    is_new = not folder.exists()
    if not is_new and _read(folder).platform != "ensemble":
        raise RepositoryError(
            f"{alias.name} is a model of its own in {repository}: remove its folder, or export it under another --name"
        )
    if alias.name in {model.name for model in select_models(repository, [alias.target])}:
        raise RepositoryError(f"{alias.target} leads back to {alias.name}: an alias cannot stand for itself")
    path = folder / CONFIG_NAME
    try:
        # Triton wants a version folder, also where nothing lies in it.
        (folder / "1").mkdir(parents=True, exist_ok=True)
        atomic_write(path, text.encode())
    except BaseException:  # also Ctrl-C: a folder without its config.pbtxt would be taken for a model of its own
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return path


def ensemble_config(target: Any, alias: Alias) -> str:
    """Return the config.pbtxt of the ensemble.

    Args:
        target: ModelConfig of the target.
        alias: its second name.

    Raises:
        RepositoryError: the target has no output that is to be renamed.
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
