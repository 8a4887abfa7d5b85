"""A Triton backend named `onnxruntime`, written in Python, for a Triton that has only the Python backend.

It reads the same model repository as Triton's own C++ backend of that name: `default_model_filename`, optional
inputs (overridable initializers of the graph), `instance_group`, and the parameters `intra_op_thread_count`,
`inter_op_thread_count`, `execution_mode`, `cuda_mem_limit`. A parameter whose key starts with "session." goes to ONNX
Runtime's session options as it is. Requests of one batch are answered one by one. The requests of `model_warmup` are
computed on a GPU; on a CPU they would only make the start longer, so they are answered without computing.

This file runs inside Triton's stub process, one per model instance; it imports nothing of triton_sam.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

Array = NDArray[Any]

CANCELLED = "the request was cancelled before it was computed"
CGROUP = Path("/sys/fs/cgroup")

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
        """Fill in inputs and outputs from the ONNX graph when config.pbtxt names none; otherwise change nothing."""
        described = config.as_dict()
        if described.get("input") and described.get("output"):
            return config
        session = open_session(model_file_of_this_process(), session_options({}), ["CPUExecutionProvider"])
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
        """Open the ONNX file of this version on the device of this instance."""
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        # The real folder: what LocalServer hands to Triton is a link to it, and an error must name what one can mend.
        folder = Path(args["model_repository"]).resolve() / args["model_version"]
        file = folder / (config["default_model_filename"] or "model.onnx")
        providers = choose_providers(args, parameters)
        self.session = open_session(file, session_options(parameters), providers)
        self.inputs = {node.name: node for node in self.session.get_inputs()}
        self.optional = {node.name: node for node in self.session.get_overridable_initializers()}
        self.outputs = [node.name for node in self.session.get_outputs()]
        check_names(config, set(self.inputs), set(self.optional), set(self.outputs))
        chosen = self.session.get_providers()[0]
        if providers[0] != "CPUExecutionProvider" and chosen == "CPUExecutionProvider":
            self.refuse_or_accept_cpu(args)
        if chosen == "CPUExecutionProvider":
            # Triton sends them before it lets any other request in, so they are the first that come.
            self.warm_ups_to_skip = count_warm_ups(config)
        pb_utils.Logger.log_info(f"{args['model_instance_name']}: {file.name} on {chosen}")

    def refuse_or_accept_cpu(self, args: Mapping[str, str]) -> None:
        """ONNX Runtime falls back to the CPU by itself when CUDA does not come up: say so, or refuse."""
        reason = "ONNX Runtime could not start CUDA (driver, CUDA or cuDNN libraries; see the server's log)"
        if asks_for_gpu(args):
            raise pb_utils.TritonModelException(f"{reason}: pip install 'onnxruntime-gpu[cuda,cudnn]'")
        pb_utils.Logger.log_warn(f"{args['model_name']} runs on the CPU: {reason}")

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer every request by itself: one that fails does not touch the others. None that was cancelled is run."""
        cancelled = [request.is_cancelled() for request in requests]
        if all(cancelled):
            # Only a batch that is refused as a whole stays out of Triton's counters of computed inferences.
            raise pb_utils.TritonModelException(CANCELLED)
        return [
            failure(CANCELLED, pb_utils.TritonError.CANCELLED) if gone else self.answer(request)
            for request, gone in zip(requests, cancelled, strict=True)
        ]

    def answer(self, request: Any) -> Any:
        """Run one request; whatever goes wrong becomes its answer, in one line."""
        if self.warm_ups_to_skip:
            self.warm_ups_to_skip -= 1
            return pb_utils.InferenceResponse(output_tensors=[])
        try:
            feed = {tensor.name(): to_ort(tensor.as_numpy()) for tensor in request.inputs()}
            missing = self.inputs.keys() - feed.keys()
            if missing:
                return failure(f"missing input {', '.join(sorted(missing))}", pb_utils.TritonError.INVALID_ARG)
            requested = [name for name in self.outputs if name in request.requested_output_names()]
            arrays = self.session.run(requested, feed)
        except Exception as error:  # noqa: BLE001 - whatever one request does, the others go on
            return failure(one_line(error), pb_utils.TritonError.INVALID_ARG)
        tensors = [pb_utils.Tensor(name, to_triton(array)) for name, array in zip(requested, arrays, strict=True)]
        return pb_utils.InferenceResponse(output_tensors=tensors)

    def finalize(self) -> None:
        """Free the session before the interpreter goes."""
        self.session = None


def count_warm_ups(config: Mapping[str, Any]) -> int:
    """Return how many warm-up requests Triton sends to each instance: samples of batch size 0 are left out."""
    samples = config.get("model_warmup") or []
    return sum(max(1, int(sample.get("count", 1))) for sample in samples if int(sample.get("batch_size", 0)))


def failure(message: str, code: int) -> Any:
    """Return a response that carries an error."""
    return pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError(message, code))


def one_line(error: Exception) -> str:
    """Return an error's text without ONNX Runtime's wrapping: its prefix, source paths and stack."""
    text = " ".join(str(error).split())
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    return re.sub(r"\S+/onnxruntime/\S+:\d+ [^\[]*?(?=[A-Z])", "", text) or type(error).__name__


def to_ort(array: Array) -> Array:
    """Triton hands BYTES over as `bytes` objects, ONNX Runtime wants `str`."""
    if array.dtype != np.object_:
        return array
    return np.array([item.decode() for item in array.flat], dtype=np.object_).reshape(array.shape)


def to_triton(array: Array) -> Array:
    """Return an output as Triton takes it: `bytes` instead of `str`."""
    if array.dtype != np.object_:
        return array
    return np.array([str(item).encode() for item in array.flat], dtype=np.object_).reshape(array.shape)


def import_onnxruntime() -> Any:
    """Import ONNX Runtime late: Triton starts this file once more, only to ask about the configuration."""
    try:
        import onnxruntime
    except ImportError as error:
        raise pb_utils.TritonModelException(
            f"the onnxruntime package cannot be imported ({error}): pip install onnxruntime"
        ) from error
    return onnxruntime


def open_session(file: Path, options: Any, providers: list[Any]) -> Any:
    """Open an ONNX file, or raise a TritonModelException that names the file and the reason."""
    if not file.is_file():
        raise pb_utils.TritonModelException(f"no such file: {file}")
    try:
        return import_onnxruntime().InferenceSession(str(file), options, providers=providers)
    except pb_utils.TritonModelException:
        raise
    except Exception as error:
        raise pb_utils.TritonModelException(f"{file}: {one_line(error)}") from error


def session_options(parameters: Mapping[str, str]) -> Any:
    """Translate a model's parameters into ONNX Runtime's session options."""
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = number(parameters, "intra_op_thread_count") or usable_cores()
    options.inter_op_num_threads = number(parameters, "inter_op_thread_count")
    if number(parameters, "execution_mode"):
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    # Threads that spin while they wait for work make back-to-back runs 4 % faster (33 against 34 ms for a decoder
    # on two idle cores) and cost twice the CPU time per click (115 against 59 ms), for whatever else runs there: on
    # busy cores a click took 210 ms with and 125 ms without.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    # The softmax over 4096 places of an image leaves weights below 1e-38, with which a processor computes many times as
    # slowly. Taken for zero, a click of the built-in model cost 87 ms of processor time in place of 145, same bits.
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    for key, value in parameters.items():
        if key.startswith("session."):
            options.add_session_config_entry(key, value)
    return options


def number(parameters: Mapping[str, str], key: str) -> int:
    """Return a parameter as a number, 0 when it is not given."""
    text = parameters.get(key, "0")
    if not text.isdecimal():
        raise pb_utils.TritonModelException(f"parameter {key} must be a whole number, not {text!r}")
    return int(text)


def choose_providers(args: Mapping[str, str], parameters: Mapping[str, str]) -> list[Any]:
    """Return the execution providers for the device that Triton placed this instance on."""
    if args["model_instance_kind"] == "CPU":
        return ["CPUExecutionProvider"]
    onnxruntime = import_onnxruntime()
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        reason = "this ONNX Runtime has no CUDA: pip uninstall onnxruntime; pip install onnxruntime-gpu"
        if asks_for_gpu(args):
            raise pb_utils.TritonModelException(f"instance_group says KIND_GPU, but {reason}")
        pb_utils.Logger.log_warn(f"{args['model_name']} runs on the CPU: {reason}")
        return ["CPUExecutionProvider"]
    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()  # CUDA and cuDNN as pip packages are on no library path
    options: dict[str, Any] = {"device_id": int(args["model_instance_device_id"])}
    if number(parameters, "cuda_mem_limit"):
        options["gpu_mem_limit"] = number(parameters, "cuda_mem_limit")
    return [("CUDAExecutionProvider", options), "CPUExecutionProvider"]


def asks_for_gpu(args: Mapping[str, str]) -> bool:
    """True when config.pbtxt insists on a GPU. Triton's own copy of it says so for KIND_AUTO as well."""
    try:
        text = Path(args["model_repository"], "config.pbtxt").read_text()
    except OSError:
        return False
    return "KIND_GPU" in re.sub(r"(?m)#.*$", "", text)


def check_names(config: Mapping[str, Any], inputs: set[str], optional: set[str], outputs: set[str]) -> None:
    """Refuse a config.pbtxt that names tensors which the graph does not have, or lists inputs without a needed one."""
    for key, there in (("input", inputs | optional), ("output", outputs)):
        unknown = {entry["name"] for entry in config[key]} - there
        if unknown:
            listed, known = ", ".join(sorted(unknown)), ", ".join(sorted(there))
            raise pb_utils.TritonModelException(f"config.pbtxt names {key} {listed}; the ONNX file has {known}")
    missing = inputs - {entry["name"] for entry in config["input"]}
    if config["input"] and missing:
        listed = ", ".join(sorted(missing))
        raise pb_utils.TritonModelException(f"config.pbtxt leaves out input {listed}, which the ONNX file needs")


def describe(node: Any, batched: bool) -> dict[str, Any]:
    """Return a graph input or output as an entry of config.pbtxt."""
    if node.type not in TRITON_TYPES:
        raise pb_utils.TritonModelException(f"{node.name} is a {node.type}, which Triton cannot carry")
    dims = [dim if isinstance(dim, int) and dim >= 0 else -1 for dim in node.shape]
    return {"name": node.name, "data_type": TRITON_TYPES[node.type], "dims": dims[1:] if batched else dims or [1]}


def model_file_of_this_process() -> Path:
    """Return the ONNX file that this stub process was started for: its first argument.

    There is no other way to learn it before `initialize`.
    """
    arguments = Path("/proc/self/cmdline").read_bytes().split(b"\0")
    return Path(os.fsdecode(arguments[1]))


def usable_cores() -> int:
    """Return how many physical cores this process may use, by its CPU affinity and its container's quota."""
    allowed = os.sched_getaffinity(0)
    cores = {thread_siblings(cpu) for cpu in allowed}
    return max(1, int(min(cgroup_quota(), len(cores))))


def thread_siblings(cpu: int) -> str:
    """Return what names the physical core of a logical one."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(cpu)


def cgroup_quota() -> float:
    """Return the container's CPU limit in cores, infinity when there is none."""
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):  # cgroup v2, v1
        try:
            quota, period = " ".join((CGROUP / file).read_text() for file in files).split()
        except (OSError, ValueError):
            continue
        return math.inf if quota in ("max", "-1") else int(quota) / int(period)
    return math.inf
