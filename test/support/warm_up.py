"""Runs the `model_warmup` of a config.pbtxt in ONNX Runtime, to check that the graph accepts it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from triton_sam.repository.config import parse_config

_TYPES = {"TYPE_FP32": np.float32, "TYPE_INT64": np.int64}


def run_warm_up(file: Path, config_text: str) -> list[np.ndarray]:
    """Return the outputs for the sample of zeros."""
    onnxruntime = pytest.importorskip("onnxruntime")
    from tritonclient.grpc.model_config_pb2 import DataType

    (sample,) = parse_config(config_text).model_warmup
    feed = {
        name: np.zeros(tuple(given.dims), _TYPES[DataType.Name(given.data_type)])
        for name, given in sample.inputs.items()
    }
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return session.run(None, feed)
