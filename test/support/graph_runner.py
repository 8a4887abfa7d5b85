"""Runs requests against an ONNX file one by one, and writes a line after each.

This program requires only numpy and onnxruntime, so that it runs with any version of ONNX Runtime:
`python graph_runner.py MODEL.onnx REQUESTS.json ANSWERS.jsonl`. REQUESTS.json is a list of requests, and a request is a
list of tensors: name, dtype, shape and fill. The program writes one line for each request without a line in
ANSWERS.jsonl. If it ends early, the first request without a line is the cause.
"""

from __future__ import annotations

import functools
import hashlib
import json
import resource
import sys
from pathlib import Path

import numpy as np
import onnxruntime

MEMORY = 4 << 30
"""Address space of this process in bytes. If a request needs more, ONNX Runtime must return an error."""


@functools.lru_cache(maxsize=24)
def tensor(dtype: str, shape: tuple[int, ...], fill: str) -> np.ndarray:
    """Return an array: "nan", "inf", "huge" (3e38), or "random" with a fixed seed; for integers the minimum."""
    if dtype == "str":
        return np.full(shape, "x", np.object_)
    kind = np.dtype(dtype)
    is_float = kind.kind == "f"
    if fill == "random":
        values = np.random.default_rng(7).random(shape, np.float32)
        return values.astype(kind) if is_float else (values * 4).astype(kind)
    if is_float:
        return np.full(shape, {"nan": np.nan, "inf": np.inf, "huge": np.finfo(kind).max}[fill], kind)
    return np.full(shape, np.iinfo(kind).min if kind.kind == "i" else 1, kind)


def answer(session: onnxruntime.InferenceSession, request: list[dict]) -> dict:
    """Run one request; return the shapes and hash of its outputs, or the error."""
    try:
        feed = {part["name"]: tensor(part["dtype"], tuple(part["shape"]), part["fill"]) for part in request}
    except (MemoryError, ValueError) as error:
        return {"unmade": f"{type(error).__name__}: {error}"}  # numpy cannot create this array
    options = onnxruntime.RunOptions()
    # The next request must not run in a full address space.
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    try:
        outputs = session.run(None, feed, options)
    except Exception as error:
        return {"error": type(error).__name__, "text": " ".join(str(error).split())[:400]}
    digest = hashlib.sha256(b"".join(output.tobytes() for output in outputs)).hexdigest()
    return {"shapes": [list(output.shape) for output in outputs], "digest": digest}


def main(model: str, requests: str, answers: str) -> None:
    """Answer the requests that have no answer yet."""
    todo = json.loads(Path(requests).read_text())
    done = len(Path(answers).read_text().splitlines()) if Path(answers).exists() else 0
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 2
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with Path(answers).open("a") as stream:
        for request in todo[done:]:
            line = {"version": onnxruntime.__version__, **answer(session, request)}
            stream.write(json.dumps(line) + "\n")
            stream.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
