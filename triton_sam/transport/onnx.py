"""A transport that runs models with ONNX Runtime in this process instead of calling a server."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy.typing as npt

from .._common import onnx_session, process
from .._common.extras import missing
from .._common.text import first_line
from ..errors import ExportError, ModelNotReadyError
from .base import Tensors


class OnnxTransport:
    """A BaseTransport that runs models in this process.

    Args:
        files: ONNX files by model name.

    Raises:
        MissingDependencyError: onnxruntime is not installed.
        ExportError: ONNX Runtime cannot load a file.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        process.turn_off_telemetry()
        try:
            import onnxruntime
        except ImportError as error:
            raise missing("the comparison needs", "local", error) from error
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # torch needs the cores
        options.add_session_config_entry("session.set_denormal_as_zero", "1")  # as the server's backend does
        options.enable_mem_pattern = False  # likewise: it would double the memory from the second run on
        # The thread that calls a model computes a share of it. The arithmetic of the caller's own threads, including
        # torch's, stays unchanged.
        self._thread = ThreadPoolExecutor(1, "onnxruntime", initializer=onnx_session.flush_in_this_thread)
        try:
            self._runtime_sessions = {
                model: self._thread.submit(
                    onnxruntime.InferenceSession, file, options, providers=["CPUExecutionProvider"]
                ).result()
                for model, file in files.items()
            }
        except Exception as error:  # ONNX Runtime's errors share no base class below Exception
            raise ExportError(f"ONNX Runtime cannot load the model: {first_line(error)}") from error

    def one_call(self) -> contextlib.AbstractContextManager[None]:
        """Do nothing: without a network there is no timeout. See BaseTransport.one_call."""
        return contextlib.nullcontext()

    def infer(self, model: str, inputs: Tensors, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Run one inference; see BaseTransport.infer."""
        session = self._session(model)
        answers = self._thread.submit(session.run, list(outputs), dict(inputs)).result()
        return dict(zip(outputs, answers, strict=True))

    def is_ready(self) -> bool:
        """Return whether models are loaded, which is the case until close()."""
        return bool(self._runtime_sessions)

    def ready_models(self) -> dict[str, str]:
        """Return name -> version of the models. Files have no versions, so each version is "1"."""
        return dict.fromkeys(self._runtime_sessions, "1")

    def model_config(self, model: str) -> dict[str, Any]:
        """Return the names of a model's tensors in the form of BaseTransport.model_config."""
        session = self._session(model)
        inputs = [*session.get_inputs(), *session.get_overridable_initializers()]
        return {
            "input": [{"name": node.name} for node in inputs],
            "output": [{"name": node.name} for node in session.get_outputs()],
        }

    def close(self) -> None:
        """Release the models."""
        self._thread.shutdown()
        self._runtime_sessions = {}

    def _session(self, model: str) -> Any:
        if model not in self._runtime_sessions:
            raise ModelNotReadyError(f"there is no model {model} in this process")
        return self._runtime_sessions[model]
