"""The texts of models in Python that are written from the wire contract: lines of config.pbtxt, and model.py."""

from __future__ import annotations

from collections.abc import Iterable

from ..repository.config import ConfigTensor, parse_config
from ..wire.contract import Parameter, WireTensor


def program(package: str, purpose: str, module: str = "triton_model") -> str:
    """Return the text of a model.py that takes its program from a package in triton_sam.sessions.

    Args:
        package: name of the package.
        purpose: the docstring.
        module: the module of the package that has the program.
    """
    return f'''"""{purpose}"""

try:
    from triton_sam.sessions.{package}.{module} import TritonPythonModel
except ImportError as error:
    raise ImportError(f"this model needs the triton_sam package: pip install triton-sam ({{error}})") from error

__all__ = ["TritonPythonModel"]
'''


def explained(tensor: WireTensor) -> ConfigTensor:
    """Return a tensor with its comment for config.pbtxt: its free dimensions, and its note."""
    is_free = any(isinstance(side, str) for side in tensor.shape)
    words = [" x ".join(map(str, tensor.shape))] if is_free else []
    comment = ", ".join([*words, *([tensor.note] if tensor.note else [])])
    return ConfigTensor(tensor.name, tensor.dtype, tensor.shape, tensor.optional, comment, tensor.heading)


def parameter(key: str, value: str) -> str:
    """Return the line of one parameter."""
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


def parameter_lines(parameters: Iterable[Parameter]) -> list[str]:
    """Return the lines of parameters, with their meanings as comments above them."""
    lines = []
    for item in parameters:
        lines += [f"# {item.meaning}"] if item.meaning else []
        lines.append(parameter(item.name, item.value))
    return lines


def checked(lines: list[str]) -> str:
    """Return lines as the text of a config.pbtxt.

    Raises:
        RepositoryError: Triton could not parse it.
    """
    text = "\n".join(lines) + "\n"
    parse_config(text)
    return text
