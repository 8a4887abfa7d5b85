"""ONNX Runtime in this process in place of a server: the same calls, no network."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy.typing as npt

from .._common.extras import missing
from ..errors import ExportError, ModelNotReadyError


class OnnxTransport:
    """The part of Transport that a prediction needs."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise missing("the comparison needs", "local", error) from error
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # torch wants the cores in between
        options.add_session_config_entry("session.set_denormal_as_zero", "1")  # as the server's backend does
        # ONNX Runtime sets that for the calling thread as well, and there it would change torch's arithmetic.
        self._thread = ThreadPoolExecutor(1, "onnxruntime")
        try:
            self._sessions = {
                model: self._thread.submit(
                    onnxruntime.InferenceSession, file, options, providers=["CPUExecutionProvider"]
                ).result()
                for model, file in files.items()
            }
        except Exception as error:  # ONNX Runtime's errors share no base class below Exception
            raise ExportError(f"ONNX Runtime cannot load the model: {str(error).splitlines()[0]}") from error

    def one_call(self) -> contextlib.AbstractContextManager[None]:
        """Nothing waits for a network here; see Transport.one_call."""
        return contextlib.nullcontext()

    def infer(
        self, model: str, inputs: Mapping[str, npt.NDArray[Any]], outputs: Sequence[str]
    ) -> dict[str, npt.NDArray[Any]]:
        """Run one inference; see Transport.infer."""
        if model not in self._sessions:
            raise ModelNotReadyError(f"no model {model} in this process")
        answers = self._thread.submit(self._sessions[model].run, list(outputs), dict(inputs)).result()
        return dict(zip(outputs, answers, strict=True))

    def close(self) -> None:
        """Forget the sessions."""
        self._thread.shutdown()
        self._sessions = {}
