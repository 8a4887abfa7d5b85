"""A Triton backend named `onnxruntime`, written in Python, for a Triton that has only the Python backend.

It reads the same model repositories as Triton's own C++ backend of that name. It supports `default_model_filename`,
optional inputs (overridable initializers of the graph), `instance_group`, and the parameters `intra_op_thread_count`,
`inter_op_thread_count`, `execution_mode`, `gpu_mem_limit` and `cpu_mem_limit`. A parameter whose key starts with
"session." is passed to ONNX Runtime's session options unchanged. With a `cpu_execution_accelerator` named "openvino",
OpenVINO runs the model on a CPU (`openvino_session.py`). The backend runs the requests of a batch one by one. It runs
the requests of `model_warmup` only on a GPU. On a CPU they would only delay the start, so it answers them without
running the model.

This file runs in Triton's stub processes, one for each model instance, without triton_sam.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent))  # Triton starts this file without its folder on the path
import openvino_session

try:
    import onnx_session  # a copy of triton_sam/_common/onnx_session.py, made by prepare_triton()
except ImportError:  # this file runs inside the package, as in tests
    from triton_sam._common import onnx_session

Array = NDArray[Any]

CANCELLED = "the request was cancelled before it was computed"
CPU = "CPUExecutionProvider"

TRITON_TYPES = {
    "tensor(float)": "TYPE_FP32",
    "tensor(float16)": "TYPE_FP16",
    "tensor(double)": "TYPE_FP64",
    "tensor(int8)": "TYPE_INT8",
    "tensor(int16)": "TYPE_INT16",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(uint8)": "TYPE_UINT8",
    "tensor(uint16)": "TYPE_UINT16",
    "tensor(uint32)": "TYPE_UINT32",
    "tensor(uint64)": "TYPE_UINT64",
    "tensor(bool)": "TYPE_BOOL",
    "tensor(string)": "TYPE_STRING",
}


class TritonPythonModel:
    """One instance of one ONNX model."""

    warm_ups_to_skip = 0

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Add the inputs and outputs of the ONNX graph, unless config.pbtxt already lists both."""
        described = config.as_dict()
        if described.get("input") and described.get("output"):
            return config
        session = open_session(model_file_of_this_process(), set_up(onnx_session.session_options, {}), [CPU])
        batched = described.get("max_batch_size", 0) > 0
        known = {entry["name"] for key in ("input", "output") for entry in described.get(key) or ()}
        optional = [{**describe(node, batched), "optional": True} for node in session.get_overridable_initializers()]
        for entry in [*(describe(node, batched) for node in session.get_inputs()), *optional]:
            if entry["name"] not in known:
                config.add_input(entry)
        for node in session.get_outputs():
            if node.name not in known:
                config.add_output(describe(node, batched))
        return config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Open the ONNX file of the model's version on the device of this instance."""
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        folder = Path(args["model_repository"], args["model_version"])
        file = folder / (config["default_model_filename"] or "model.onnx")
        providers = choose_providers(args, parameters)
        on_cpu = providers == [CPU]
        options = set_up(onnx_session.cpu_options if on_cpu else onnx_session.session_options, parameters)
        precision = openvino_precision(config) if on_cpu else None
        if precision is None:
            self.session = open_session(file, options, providers)
        else:
            self.session = open_openvino(file, precision, options.intra_op_num_threads)
        self.inputs = {node.name: node for node in self.session.get_inputs()}
        self.optional = {node.name: node for node in self.session.get_overridable_initializers()}
        self.outputs = [node.name for node in self.session.get_outputs()]
        check_names(config, set(self.inputs), set(self.optional), set(self.outputs))
        chosen = self.session.get_providers()[0]
        if providers[0] != CPU and chosen == CPU:
            self.refuse_or_accept_cpu(args)
        if chosen == CPU or precision is not None:
            # Triton sends the warm-up requests before any other request.
            self.warm_ups_to_skip = count_warm_ups(config)
        pb_utils.Logger.log_info(f"{args['model_instance_name']}: {file.name} on {chosen}")

    def refuse_or_accept_cpu(self, args: Mapping[str, str]) -> None:
        """Refuse a model that must run on a GPU, or log a warning.

        ONNX Runtime itself falls back to the CPU without an error when CUDA does not start.
        """
        reason = "ONNX Runtime could not start CUDA (driver, CUDA or cuDNN libraries; see the server's log)"
        if asks_for_gpu(args):
            raise pb_utils.TritonModelException(f"{reason}: pip install 'onnxruntime-gpu[cuda,cudnn]'")
        pb_utils.Logger.log_warn(f"{args['model_name']} runs on the CPU: {reason}")

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request separately, so that a failure affects only one request. Skip cancelled requests."""
        cancelled = [request.is_cancelled() for request in requests]
        if all(cancelled):
            # Triton counts an error in a single response as an inference, but not a batch that fails completely.
            raise pb_utils.TritonModelException(CANCELLED)
        return [
            failure(CANCELLED, pb_utils.TritonError.CANCELLED) if is_cancelled else self.answer(request)
            for request, is_cancelled in zip(requests, cancelled, strict=True)
        ]

    def answer(self, request: Any) -> Any:
        """Run one request. An error becomes the response, as one line of text.

        As in the C++ backend, every error of ONNX Runtime is INTERNAL (HTTP status 500).
        """
        if self.warm_ups_to_skip:
            self.warm_ups_to_skip -= 1
            return pb_utils.InferenceResponse(output_tensors=[])
        try:
            feed = {tensor.name(): to_ort(tensor.as_numpy()) for tensor in request.inputs()}
        except Exception as error:  # noqa: BLE001 - an error of one request must not affect the others
            return failure(onnx_session.one_line(error), pb_utils.TritonError.INVALID_ARG)
        missing = self.inputs.keys() - feed.keys()
        if missing:
            return failure(f"missing input {', '.join(sorted(missing))}", pb_utils.TritonError.INVALID_ARG)
        requested = [name for name in self.outputs if name in request.requested_output_names()]
        try:
            arrays = self.session.run(requested, feed)
        except Exception as error:  # noqa: BLE001 - see above
            return failure(onnx_session.one_line(error), pb_utils.TritonError.INTERNAL)
        tensors = [pb_utils.Tensor(name, to_triton(array)) for name, array in zip(requested, arrays, strict=True)]
        return pb_utils.InferenceResponse(output_tensors=tensors)

    def finalize(self) -> None:
        """Free the runtime session before the interpreter ends."""
        self.session = None


def count_warm_ups(config: Mapping[str, Any]) -> int:
    """Return the number of warm-up requests that Triton sends to each instance. It skips samples of batch size 0."""
    samples = config.get("model_warmup") or []
    return sum(max(1, int(sample.get("count", 1))) for sample in samples if int(sample.get("batch_size", 0)))


def failure(message: str, code: int) -> Any:
    return pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError(message, code))


def to_ort(array: Array) -> Array:
    """Return an input for ONNX Runtime, which expects `str` objects instead of Triton's `bytes`."""
    if array.dtype != np.object_:
        return array
    return np.array([item.decode() for item in array.flat], dtype=np.object_).reshape(array.shape)


def to_triton(array: Array) -> Array:
    """Return an output for Triton, which expects `bytes` objects instead of ONNX Runtime's `str`."""
    if array.dtype != np.object_:
        return array
    return np.array([str(item).encode() for item in array.flat], dtype=np.object_).reshape(array.shape)


def import_onnxruntime() -> Any:
    """Import ONNX Runtime late, because Triton may start this file only to complete a configuration."""
    try:
        import onnxruntime
    except ImportError as error:
        raise pb_utils.TritonModelException(
            f"the onnxruntime package cannot be imported ({error}): pip install onnxruntime"
        ) from error
    return onnxruntime


def set_up(make: Callable[[Mapping[str, str]], Any], parameters: Mapping[str, str]) -> Any:
    """Return the result of a function of onnx_session for a model's parameters."""
    import_onnxruntime()
    try:
        return make(parameters)
    except ValueError as error:
        raise pb_utils.TritonModelException(str(error)) from error


def open_session(file: Path, options: Any, providers: list[Any]) -> Any:
    if not file.is_file():
        raise pb_utils.TritonModelException(f"no such file: {onnx_session.shown(file)}")
    try:
        return import_onnxruntime().InferenceSession(str(file), options, providers=providers)
    except pb_utils.TritonModelException:
        raise
    except Exception as error:
        raise pb_utils.TritonModelException(f"{onnx_session.shown(file)}: {onnx_session.one_line(error)}") from error


def openvino_precision(config: Mapping[str, Any]) -> str | None:
    """Return the precision in which OpenVINO computes a model on a CPU; None if ONNX Runtime computes it."""
    try:
        wanted: str | None = openvino_session.wanted_precision(config)
    except ValueError as error:
        raise pb_utils.TritonModelException(str(error)) from error
    return wanted


def open_openvino(file: Path, precision: str, threads: int) -> Any:
    if not file.is_file():
        raise pb_utils.TritonModelException(f"no such file: {onnx_session.shown(file)}")
    try:
        return openvino_session.OpenVinoSession(file, precision, threads)
    except ImportError as error:
        raise pb_utils.TritonModelException(
            f"{openvino_session.INSTALL}; config.pbtxt requires it (`triton-sam config --accelerator none` does not)"
        ) from error
    except Exception as error:
        text = f"{onnx_session.shown(file)} with OpenVINO: {onnx_session.one_line(error)}"
        raise pb_utils.TritonModelException(text) from error


def choose_providers(args: Mapping[str, str], parameters: Mapping[str, str]) -> list[Any]:
    """Return ONNX Runtime's execution providers for the device that Triton chose for this instance."""
    if args["model_instance_kind"] == "CPU":
        return [CPU]
    onnxruntime = import_onnxruntime()
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        reason = "this ONNX Runtime has no CUDA: pip uninstall onnxruntime; pip install onnxruntime-gpu"
        if asks_for_gpu(args):
            raise pb_utils.TritonModelException(f"instance_group says KIND_GPU, but {reason}")
        pb_utils.Logger.log_warn(f"{args['model_name']} runs on the CPU: {reason}")
        return [CPU]
    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()  # pip packages of CUDA and cuDNN are not on the library path
    options: dict[str, Any] = {"device_id": int(args["model_instance_device_id"])}
    if limit := set_up(gpu_limit, parameters):
        options["gpu_mem_limit"] = limit
    return [("CUDAExecutionProvider", options), CPU]


def gpu_limit(parameters: Mapping[str, str]) -> int:
    """Return the GPU memory in bytes that this instance may use; 0 for no limit."""
    # NVIDIA's name, which `triton-sam config --gpu-memory-limit` writes, and an older name of this backend.
    limits = [onnx_session.number(parameters, key) for key in ("gpu_mem_limit", "cuda_mem_limit")]
    return next(filter(None, limits), 0)


def asks_for_gpu(args: Mapping[str, str]) -> bool:
    """Return whether config.pbtxt demands a GPU.

    The file is read because Triton's own copy of the configuration turns KIND_AUTO into KIND_GPU.
    """
    try:
        text = Path(args["model_repository"], "config.pbtxt").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return "KIND_GPU" in re.sub(r"(?m)#.*$", "", text)


def check_names(config: Mapping[str, Any], inputs: set[str], optional: set[str], outputs: set[str]) -> None:
    """Compare the tensors in config.pbtxt with those of the graph."""
    for key, in_graph in (("input", inputs | optional), ("output", outputs)):
        unknown = {entry["name"] for entry in config[key]} - in_graph
        if unknown:
            listed, known = ", ".join(sorted(unknown)), ", ".join(sorted(in_graph))
            raise pb_utils.TritonModelException(f"config.pbtxt names {key} {listed}; the ONNX file has {known}")
    missing = inputs - {entry["name"] for entry in config["input"]}
    if config["input"] and missing:
        listed = ", ".join(sorted(missing))
        raise pb_utils.TritonModelException(f"config.pbtxt leaves out input {listed}, which the ONNX file needs")


def describe(node: Any, batched: bool) -> dict[str, Any]:
    """Return the entry of a graph input or output for config.pbtxt."""
    if node.type not in TRITON_TYPES:
        raise pb_utils.TritonModelException(f"{node.name} has the type {node.type}, which Triton does not support")
    dims = [dim if isinstance(dim, int) and dim >= 0 else -1 for dim in node.shape]
    return {"name": node.name, "data_type": TRITON_TYPES[node.type], "dims": dims[1:] if batched else dims or [1]}


def model_file_of_this_process() -> Path:
    """Return the ONNX file of this stub process, which is its first argument.

    Before `initialize`, there is no other way to find it.
    """
    arguments = Path("/proc/self/cmdline").read_bytes().split(b"\0")
    return Path(os.fsdecode(arguments[1]))
