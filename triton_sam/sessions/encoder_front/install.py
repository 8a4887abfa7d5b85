"""Writes front ends of encoders into a model repository, and aliases of all kinds again when their models change."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import RepositoryError
from ...families import get_family
from ...families.tables import ENCODER
from ...repository.aliases import HEAD, Alias, install_alias, read_config, write_alias
from ...repository.config import ALIAS_KEY, CONFIG_NAME, FAMILY_KEY, ConfigTensor, tensor_list
from ...repository.folder import RepositoryModel
from ...repository.selection import read_repository
from ...wire.encoder_front import PIXELS, PRIORITY_LEVELS, Pixels, check_pixels, front_inputs, front_parameters
from ..configs import checked_config, parameter_lines, program, with_note

MODEL_TEXT = program("encoder_front", "An encoder under the name that Paintera asks for; see docs/how-to/paintera.md.")
"""The text of model.py in the folder of every front end."""
QUEUE = (
    "# Triton's queue: a cancelled request is dropped there, and priority 1 overtakes. Other priorities count as 2.",
    f"dynamic_batching {{ priority_levels: {PRIORITY_LEVELS}, default_priority_level: {PRIORITY_LEVELS} }}",
)


def write_front(repository: Path, alias: Alias, family: str, pixels: str = "auto") -> None:
    """Write a front end, and replace an alias of the same name, or an encoder of this name that has no weights."""
    text = front_config(read_config(repository / alias.target), alias, family, check_pixels(pixels))
    install_alias(repository, alias, text, {"model.py": MODEL_TEXT})


def front_config(target: Any, alias: Alias, family: str, pixels: Pixels = "auto") -> str:
    """Return the config.pbtxt of a front end."""
    table = get_family(family)
    (raw,) = table.encoder.input_names
    inputs = {tensor.name: tuple(tensor.dims) for tensor in target.input}
    sides = {tensor.name: tuple(tensor.dims) for tensor in target.output}
    if raw not in inputs or not set(table.encoder.output_names) <= sides.keys():
        raise RepositoryError(f"{alias.target} is not an encoder of {family}: it has no input {raw}, or other outputs")
    unknown = set(alias.outputs) - set(table.encoder.output_names)
    if unknown:
        raise RepositoryError(f"{alias.target} has no output {min(unknown)!r}")
    shape = ("images", *inputs[raw][1:])
    outputs = [
        ConfigTensor(alias.outputs.get(tensor.name, tensor.name), tensor.dtype, sides[tensor.name])
        for tensor in table.encoder.outputs
    ]
    outputs[0] = replace(outputs[0], heading="FP16 if the request has the parameter request_fp16.")
    return checked_config(
        [
            f"{HEAD}{alias.target} for Paintera's clients, see docs/how-to/paintera.md.",
            f'name: "{alias.name}"',
            'backend: "python"',
            "max_batch_size: 0",
            *QUEUE,
            f"input {tensor_list([with_note(tensor) for tensor in front_inputs(table, shape)])}",
            f"output {tensor_list(outputs)}",
            "# It keeps nothing, and hands images on one at a time.",
            "instance_group [{ count: 1, kind: KIND_AUTO }]",
            *parameter_lines(front_parameters(table, alias.target, pixels)),
        ]
    )


def rewrite_aliases(repository: Path, targets: Collection[str]) -> list[str]:
    """Write the aliases of some models again, which have copies of their configurations.

    Returns:
        A line for each alias that has changed, or that no longer fits its model.
    """
    lines = []
    for name, model in read_repository(repository).items():
        if model.alias_of not in targets:
            continue
        path = repository / name / CONFIG_NAME
        before = path.read_text("utf-8")
        if not before.startswith(HEAD):  # an ensemble of somebody else
            continue
        try:
            _rewrite(repository, model)
        except (OSError, RepositoryError) as error:
            lines.append(f"{name} no longer fits {model.alias_of}: {error}")
            continue
        if path.read_text("utf-8") != before:
            lines.append(f"{name}, another name of {model.alias_of}, is written again: reload both")
        lines += rewrite_aliases(repository, [name])
    return lines


def _rewrite(repository: Path, model: RepositoryModel) -> None:
    parameters = {key: value.string_value for key, value in model.config.parameters.items()}
    if ALIAS_KEY in parameters and ENCODER not in parameters:
        family = parameters[FAMILY_KEY].lower()
        names = zip(get_family(family).encoder.output_names, model.config.output, strict=True)
        outputs = {ours: tensor.name for ours, tensor in names}
        write_front(repository, Alias(model.name, model.alias_of, outputs), family, parameters[PIXELS])
        return
    outputs = {
        ours: theirs for step in model.config.ensemble_scheduling.step for ours, theirs in step.output_map.items()
    }
    write_alias(repository, Alias(model.name, model.alias_of, outputs))
