"""Writes the front end that streams searches into a model repository: its config.pbtxt and its model.py."""

from __future__ import annotations

from pathlib import Path

from ...repository.aliases import Alias, install_alias
from ...repository.config import QUEUE, tensor_list
from ...repository.names import ALIAS_KEY
from ...wire import contract
from ...wire.contract import Parameter, WireTensor
from ..config_text import checked, explained, parameter_lines, program

MODEL_TEXT = program(
    "everything_front", "Streams the parts of a search for all objects; see docs/how-to/everything.md."
)
"""The text of model.py in the folder of every front end."""
_INPUTS = (
    WireTensor(contract.IMAGE_ID, "BYTES", (1,), note="of an image that the session model keeps"),
    WireTensor(contract.EVERYTHING_PART, "BYTES", (1,), note=f"JSON, with {contract.POINTS_PER_ANSWER}"),
)
_OUTPUT = WireTensor(contract.RESULT_JSON, "BYTES", (1,), note="one answer for each part")


def write_stream(repository: Path, alias: Alias) -> Path:
    """Write a front end, and replace an alias of the same name.

    Args:
        repository: the model repository.
        alias: the name of the front end, and that of the session model.

    Returns:
        Path of its config.pbtxt.

    Raises:
        RepositoryError: see repository.aliases.install_alias.
        OSError: the repository cannot be written.
    """
    return install_alias(repository, alias, stream_config(alias), {"model.py": MODEL_TEXT})


def stream_config(alias: Alias) -> str:
    """Return the config.pbtxt of a front end."""
    parameters = (
        Parameter(ALIAS_KEY, alias.target),
        Parameter("max_jobs", str(contract.DEFAULT_MAX_JOBS), "Streams at a time; more are refused."),
    )
    return checked(
        [
            f"# Written by `triton-sam alias`: streams the searches of {alias.target}, see docs/how-to/everything.md.",
            f'name: "{alias.name}"',
            'backend: "python"',
            "max_batch_size: 0",
            *QUEUE,
            "# Many answers to one request. Triton takes such requests over gRPC alone.",
            "model_transaction_policy { decoupled: true }",
            f"input {tensor_list([explained(tensor) for tensor in _INPUTS])}",
            f"output {tensor_list([explained(_OUTPUT)])}",
            "# It computes nothing itself.",
            "instance_group [{ count: 1, kind: KIND_CPU }]",
            *parameter_lines(parameters),
        ]
    )
