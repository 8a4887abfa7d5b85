"""A decoder that runs inside the process of its session model, instead of as a separate model.

A session model receives the embeddings of an image from the encoder once. If the decoder is a separate model in Triton,
they are copied to its process for each click; here they stay. Compared with the local `onnxruntime` backend, results
are equal to the bit, because both open the same file with the same settings (`_common/onnx_session.py`). NVIDIA's
backend has its own ONNX Runtime.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy.typing as npt

from ..._common import onnx_session, process
from ...errors import ConfigurationError, MissingDependencyError, ModelNotReadyError, RepositoryError
from ...families.base import FloatArray
from ...repository.config import CONFIG_NAME, DECODER_IN_SESSION, DECODER_IN_SESSION_VARIABLE, IF_POSSIBLE, parse_config
from .. import bls
from ..tasks import waiting

_YES_OR_NO = {"true": True, "false": False}
_KIND_AUTO = 0
_BY_VARIABLE = {"1": True, IF_POSSIBLE: None}


class Decoder:
    """The version of a decoder that Triton serves, on ONNX Runtime in this process, on the CPU.

    Args:
        folder: the folder of the decoder in the model repository. Its config.pbtxt chooses the version (default: the
            newest), and its parameters apply.
        like: the folder of a session model. Refuse a decoder that Triton would run in another way than this process:
            with an accelerator, a limited queue, several instances at the same time, or other processors, which may
            be GPUs.
    """

    def __init__(self, folder: Path, *, like: Path | None = None) -> None:
        self._name = folder.name
        config = _read_config(folder)
        if like is not None:
            if config.backend != "onnxruntime" or _of_triton(config):
                raise ConfigurationError(f"{folder.name} has settings that only Triton applies")
            if sum(group.count for group in config.instance_group) != 1:
                raise ConfigurationError(f"{folder.name} has not exactly one instance")
            if _kinds(config) != _kinds(_read_config(like)):
                raise ConfigurationError(f"{folder.name} and {like.name} have different kinds of instances")
        self.file = _find_file(folder, config)
        parameters = {key: value.string_value for key, value in config.parameters.items()}
        # One thread opens the decoder and runs it. ONNX Runtime sets denormals to zero only in the thread that opens
        # the first model of a process, and clicks are decoded in order, as in a model with one instance.
        self._thread = ThreadPoolExecutor(1, "decode")
        self._session = self._thread.submit(_open, self.file, parameters).result()

    def run(self, arrays: Mapping[str, npt.NDArray[Any]], outputs: tuple[str, ...]) -> Mapping[str, FloatArray]:
        """Run the decoder, after earlier calls of other threads."""
        try:
            with waiting() as work:

                def run() -> Any:
                    work()
                    return self._session.run(list(outputs), arrays)

                answers = self._thread.submit(run).result()
        except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors share no base class below Exception
            text = f"{self._name} failed: {onnx_session.one_line(error)}"
        else:
            return dict(zip(outputs, answers, strict=True))
        # Outside the block, because an error that refers to the first one would keep its arrays in memory.
        raise bls.read_failure(text)

    def close(self) -> None:
        """Wait for the running call, and free the memory before the interpreter ends."""
        self._thread.shutdown()
        self._session = None


def is_asked_for(parameters: Mapping[str, str]) -> bool | None:
    """Return whether a session model has to run its decoder itself; None: only if nothing prevents it.

    Args:
        parameters: the parameters of its config.pbtxt. Without `decoder_in_session`, the environment of Triton decides,
            which `triton-sam serve` sets.
    """
    text = parameters.get(DECODER_IN_SESSION)
    if text is None:
        return _BY_VARIABLE.get(os.environ.get(DECODER_IN_SESSION_VARIABLE, ""), False)
    if text not in _YES_OR_NO:
        raise ConfigurationError(f"parameter {DECODER_IN_SESSION} must be true or false, not {text!r}")
    return _YES_OR_NO[text]


def _read_config(folder: Path) -> Any:
    try:
        return parse_config((folder / CONFIG_NAME).read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RepositoryError(f"{onnx_session.shown(folder / CONFIG_NAME)} cannot be read: {reason}") from error


def _of_triton(config: Any) -> bool:
    """Return whether Triton does more for a decoder than to run it, for example refuses requests in a full queue."""
    return bool(
        config.HasField("optimization")
        or config.dynamic_batching.ListFields()
        or any(group.HasField("rate_limiter") for group in config.instance_group)
    )


def _kinds(config: Any) -> set[int]:
    return {group.kind for group in config.instance_group} or {_KIND_AUTO}


def _find_file(folder: Path, config: Any) -> Path:
    """Return the ONNX file of the version that Triton serves."""
    named = config.version_policy.specific.versions
    version = folder / str(max(named)) if named else bls.newest_version(folder)
    file = (version or folder / "1") / (config.default_model_filename or "model.onnx")
    if not file.is_file():
        raise ModelNotReadyError(f"no decoder at {onnx_session.shown(file)}, which {DECODER_IN_SESSION} needs")
    return file


def _open(file: Path, parameters: Mapping[str, str]) -> Any:
    process.turn_off_telemetry()
    try:
        import onnxruntime

        options = onnx_session.cpu_options(parameters)
    except ImportError as error:
        raise MissingDependencyError(
            f"{DECODER_IN_SESSION} needs the onnxruntime package in the Python of Triton's Python backend ({error}): "
            "pip install onnxruntime there, or leave the option out"
        ) from error
    except ValueError as error:
        raise RepositoryError(f"{onnx_session.shown(file.parents[1] / CONFIG_NAME)}: {error}") from error
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's errors share no base class below Exception
        raise RepositoryError(f"{onnx_session.shown(file)}: {onnx_session.one_line(error)}") from error
