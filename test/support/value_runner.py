"""Runs ONNX files once each: `python value_runner.py FOLDER`. It requires only numpy and onnxruntime, of any version.

FOLDER/inputs/NAME.npz holds the inputs of FOLDER/graphs/NAME.onnx. The outputs are written to FOLDER/VERSION/NAME.npz,
where VERSION is ONNX Runtime's version.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnxruntime


def main(folder: Path) -> None:
    """Write the outputs of all graphs."""
    answers = folder / onnxruntime.__version__
    answers.mkdir()
    for path in sorted((folder / "graphs").glob("*.onnx")):
        with np.load(folder / "inputs" / f"{path.stem}.npz") as inputs:
            np.savez(answers / f"{path.stem}.npz", **_outputs(path, dict(inputs)))


def _outputs(path: Path, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run one graph. Its session ends before the next one begins, because one takes up to 2 GB."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 2
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
