"""An ONNX model on OpenVINO, with the methods of ONNX Runtime's InferenceSession that the backend uses.

This file runs in Triton's stub processes and must not import triton_sam. `verify/accelerated.py` also imports it, so
a comparison measures the server's own code.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

ACCELERATOR = "openvino"
HINTS = {"fp32": "f32", "bf16": "bf16"}
"""OpenVINO's `INFERENCE_PRECISION_HINT` by this project's names of precisions."""
INSTALL = "the openvino package is missing: pip install openvino"
_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})


class OpenVinoSession:
    """An ONNX model, compiled by OpenVINO for the CPU.

    Args:
        precision: "fp32" or "bf16", the precision of the arithmetic; inputs and outputs keep their types.
    """

    def __init__(self, file: Path, precision: str, threads: int = 0) -> None:
        import onnxruntime
        import openvino

        if precision not in HINTS:
            raise ValueError(f"precision {precision!r} of OpenVINO must be one of {', '.join(HINTS)}")
        with tempfile.TemporaryDirectory(prefix="triton_sam_openvino_") as folder:
            folded, signature = _fold_constants(onnxruntime, file, Path(folder))
            if signature.get_overridable_initializers():
                raise ValueError("OpenVINO cannot run a graph whose inputs have defaults, such as a decoder")
            core = openvino.Core()
            settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": HINTS[precision]}
            if threads:
                settings["INFERENCE_NUM_THREADS"] = threads
            self._compiled = core.compile_model(core.read_model(folded), "CPU", settings)
        self._inputs, self._outputs = signature.get_inputs(), signature.get_outputs()
        self._by_rows = len(self._inputs) == 1 and all(_is_free(node) for node in (*self._inputs, *self._outputs))
        self._provider = f"OpenVINO {precision}"

    def get_inputs(self) -> list[Any]:
        """Return the inputs of the graph, as ONNX Runtime describes them."""
        return list(self._inputs)

    def get_overridable_initializers(self) -> list[Any]:
        """Return no inputs: graphs with inputs of this kind are refused."""
        return []

    def get_outputs(self) -> list[Any]:
        """Return the outputs of the graph, as ONNX Runtime describes them."""
        return list(self._outputs)

    def get_providers(self) -> list[str]:
        """Return OpenVINO and its precision, for logs."""
        return [self._provider]

    def run(self, outputs: Sequence[str], feed: Mapping[str, Array]) -> list[Array]:
        """Run the model.

        OpenVINO has no memory limit, so an encoder gets the images of a batch one by one.

        Returns:
            The requested outputs, in the requested order.
        """
        rows = len(next(iter(feed.values()))) if self._by_rows else 1
        if rows < 2:
            return self._run(outputs, feed)
        ((name, batch),) = feed.items()
        answers = [self._run(outputs, {name: batch[row : row + 1]}) for row in range(rows)]
        return [np.concatenate(parts) for parts in zip(*answers, strict=True)]

    def _run(self, outputs: Sequence[str], feed: Mapping[str, Array]) -> list[Array]:
        self._check_types(feed)
        try:
            answer = self._compiled(dict(feed))
        except RuntimeError as error:
            raise RuntimeError(_reason(error)) from error
        return [np.array(answer[name]) for name in outputs]

    def _check_types(self, feed: Mapping[str, Array]) -> None:
        """Refuse types that differ from the graph's, because OpenVINO converts them silently."""
        for node in self._inputs:
            if node.type == "tensor(float)" and feed[node.name].dtype != np.float32:
                raise RuntimeError(f"input {node.name} must be float32, not {feed[node.name].dtype}")


def wanted_precision(config: Mapping[str, Any]) -> str | None:
    """Return the precision that a model's configuration sets for OpenVINO; None if it does not use OpenVINO.

    NVIDIA's C++ backend reads only the name of the accelerator, and computes in fp32.
    """
    accelerators = config.get("optimization", {}).get("execution_accelerators", {}).get("cpu_execution_accelerator")
    for accelerator in accelerators or ():
        if accelerator.get("name") != ACCELERATOR:
            raise ValueError(f"unknown Execution Accelerator {accelerator.get('name')!r} is requested")
        return str((accelerator.get("parameters") or {}).get("precision", "fp32"))
    return None


def computes_in_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether this processor has bf16 instructions (AVX512-BF16 or AMX). Without them, bf16 is slower."""
    try:
        lines = cpuinfo.read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    flags = (line.partition(":")[2].split() for line in lines if line.startswith("flags"))
    return any(_FLAGS.intersection(found) for found in flags)


def _fold_constants(onnxruntime: Any, file: Path, folder: Path) -> tuple[Path, Any]:
    """Write the graph with its constant parts computed; return its path and a session with its signature.

    OpenVINO 2026.4 needs 42 s to compute the position embeddings of SAM2's encoder (a bicubic Resize of a constant);
    ONNX Runtime needs 1 s. "Basic" optimisations do not fuse nodes, so OpenVINO supports all operators.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(folder / "model.onnx")
    # Weights in a separate file, because an ONNX file is limited to 2 GB.
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "model.data")
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return folder / "model.onnx", session


def _is_free(node: Any) -> bool:
    return bool(node.shape) and not isinstance(node.shape[0], int)


def _reason(error: Exception) -> str:
    """Return the last meaningful line of OpenVINO's text; the lines before it refer to its source code."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith("Exception from")]
    return (told or lines or [type(error).__name__])[-1]
