"""Host-specific settings in config.pbtxt: devices, instances and execution accelerators.

This module writes only parameters that NVIDIA's ONNX Runtime backend reads. The backend silently ignores some unknown
parameters, and refuses the model for others. The only exception is the precision of OpenVINO: for a CPU accelerator,
NVIDIA's backend reads only the name (src/onnxruntime.cc, lines 912 to 951 in June 2026); the local backend reads both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import ConfigurationError, RepositoryError
from ..families import model_name, spec_of, split_model_name
from ..families.tables import DECODER, ENCODER, encoder_jpeg_name, preprocess_name
from .config import CONFIG_NAME, DECODER_IN_SESSION, parse_config
from .selection import models_of_variant, read_repository

Accelerator = Literal["none", "cuda", "tensorrt", "openvino"]
ACCELERATORS: tuple[Accelerator, ...] = ("none", "cuda", "tensorrt", "openvino")
DECODER_ACCELERATORS: tuple[Accelerator, ...] = ("none", "cuda", "tensorrt")
"""Accelerators for decoders. OpenVINO turns inputs with defaults (a decoder's mask and box) into constants."""
Precision = Literal["fp32", "bf16"]
OPENVINO_PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
ENGINE_CACHE = "/var/cache/triton-sam"
"""The folder for TensorRT engines in the container of docker-compose.yml, which mounts a volume there."""

_BEGIN = "# Written by `triton-sam config`; `triton-sam config --accelerator none` takes it out again."
_END = "# End of `triton-sam config`."
_BLOCK = re.compile(rf"(?ms)^{re.escape(_BEGIN)}$.*?^{re.escape(_END)}\n")
_INSTANCES = re.compile(r"(?m)^instance_group \[[^\]\n]*(?:\[[^\]\n]*\][^\]\n]*)*\]$")


@dataclass(frozen=True)
class Tuning:
    """The settings of tune().

    Args:
        accelerator: "cuda" or "tensorrt" for image encoders on GPUs, "openvino" on CPUs; "none" for the backend's
            defaults. "cuda" and "tensorrt" mean "cuda" for the models for videos and words.
        decoder_accelerator: "cuda", "tensorrt" or "none" for decoders.
        precision: precision of OpenVINO's arithmetic. NVIDIA's backend ignores it, and computes in fp32.
        gpus: numbers of the GPUs that get instances. If it is empty, Triton uses all visible GPUs, or the CPU.
        instances: number of instances on each GPU.
        memory_limit: maximum GPU memory of ONNX Runtime for one instance, in bytes; 0 for no limit.
        tf32: round the inputs of FP32 matrix products to TF32, as ONNX Runtime does by default; this is faster and less
            exact.
        engine_cache: folder on the server for TensorRT's engines.
        max_images: largest number of images in one call of the encoder, for TensorRT.
        max_prompts: largest number of objects in one call of the decoder, for TensorRT.
        max_points: largest number of points of an object, for TensorRT; a box counts as two points.
        decoder_in_session: run the decoders of image session models in the session models' processes, for CPUs.
    """

    accelerator: Accelerator = "none"
    decoder_accelerator: Accelerator = "none"
    precision: Precision = "bf16"
    gpus: tuple[int, ...] = ()
    instances: int = 1
    memory_limit: int = 0
    tf32: bool = True
    engine_cache: str = ENGINE_CACHE
    max_images: int = 1
    max_prompts: int = 16
    max_points: int = 16
    decoder_in_session: bool = False

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.decoder_accelerator not in DECODER_ACCELERATORS:
            raise ConfigurationError(
                f"decoders cannot run on {self.decoder_accelerator}: it makes their inputs constant"
            )
        if self.accelerator == "openvino" and (self.gpus or self.decoder_accelerator != "none"):
            raise ConfigurationError("--accelerator openvino is for CPUs: leave out GPUs and --decoder-accelerator")
        if self.decoder_in_session and (
            self.gpus or self.decoder_accelerator != "none" or self.accelerator not in ("none", "openvino")
        ):
            raise ConfigurationError("--decoder-in-session is for CPUs: leave out GPUs and their accelerators")
        if min(self.instances, self.max_images, self.max_prompts, self.max_points) < 1:
            raise ConfigurationError("the numbers of instances, images, prompts and points must be 1 or more")
        if self.memory_limit < 0 or any(gpu < 0 for gpu in self.gpus) or len(set(self.gpus)) < len(self.gpus):
            raise ConfigurationError(
                "GPUs must be different numbers from 0 on, and the memory limit must not be negative"
            )


def tune(text: str, tuning: Tuning) -> str:
    """Return the config.pbtxt of an encoder, a decoder or a session model with other settings.

    The settings of an earlier call are replaced. The default `Tuning` has no settings, so it restores the exporter's
    text, byte for byte.
    """
    plain = _BLOCK.sub("", text)
    config = parse_config(plain)
    if len(_INSTANCES.findall(plain)) != 1:
        raise RepositoryError(
            f"the config.pbtxt of {config.name} needs one line `instance_group [...]`: export the model again"
        )
    if "encoder" in config.parameters:
        # Every instance of a session model has its own cache. With two instances, half of the clicks would miss it.
        tuned = _INSTANCES.sub(_instances(tuning.gpus[:1], 1), plain)
        lines = _own_decoder(config) if tuning.decoder_in_session else []
    else:
        tuned = _INSTANCES.sub(_instances(tuning.gpus, tuning.instances), plain)
        lines = _accelerators(config, _accelerator_of(config, tuning), tuning)
    if lines:
        tuned += "\n".join([_BEGIN, *lines, _END]) + "\n"
    parse_config(tuned)
    return tuned


def models_of(repository: Path, variants: tuple[str, ...] = ()) -> list[str]:
    """Return the names of the models with host-specific settings, of some variants or all."""
    folders = read_repository(repository)
    models = {name: model for name, model in folders.items() if model.has_config}
    here = []
    for name, model in models.items():
        variant, role = split_model_name(name) or (name, "")
        if role == ENCODER and model.config_problem:
            raise RepositoryError(f"{model.path}/{model.config_problem}")
        if role == ENCODER and model.config.backend == "onnxruntime":
            here.append(variant)
    for variant in variants:
        wanted = model_name(variant, ENCODER)
        if wanted in folders and wanted not in models:
            raise RepositoryError(f"{repository / wanted} has no {CONFIG_NAME}: `triton-sam doctor --fix` writes it")
        if variant not in here:
            raise RepositoryError(f"no {wanted} in {repository}, which has {', '.join(here) or 'no variants'}")
    names = [name for each in variants or here for name in models_of_variant(each, models, models)]
    fixed = {name for each in variants or here for name in (preprocess_name(each), encoder_jpeg_name(each))}
    return [name for name in names if name not in fixed]


def _role(config: Any) -> str:
    return (split_model_name(config.name) or ("", ""))[1]


def _accelerator_of(config: Any, tuning: Tuning) -> Accelerator:
    role = _role(config)
    if role == DECODER:
        return tuning.decoder_accelerator
    # The models for videos and words take any number of memories and objects, which no profile covers.
    return "cuda" if tuning.accelerator == "tensorrt" and role != ENCODER else tuning.accelerator


def _instances(gpus: tuple[int, ...], count: int) -> str:
    if gpus:
        return f"instance_group [{{ count: {count}, kind: KIND_GPU, gpus: {list(gpus)} }}]"
    return f"instance_group [{{ count: {count}, kind: KIND_AUTO }}]"


def _own_decoder(config: Any) -> list[str]:
    if "decoder" not in config.parameters:  # the models for videos call several models
        return []
    return [
        "# The decoder runs in the process of this model, so that embeddings are not copied to another for each click.",
        f'parameters {{ key: "{DECODER_IN_SESSION}" value {{ string_value: "true" }} }}',
    ]


def _accelerators(config: Any, accelerator: Accelerator, tuning: Tuning) -> list[str]:
    if accelerator == "none":
        return []
    if accelerator == "openvino":
        return _openvino(config, tuning)
    accelerators = [("tensorrt", _tensorrt(config, tuning))] if accelerator == "tensorrt" else []
    # With TensorRT too, CUDA runs the operators that TensorRT does not support.
    accelerators.append(("cuda", _cuda(tuning)))
    lines = ["optimization { execution_accelerators { gpu_execution_accelerator ["]
    for name, parameters in accelerators:
        rows = [f'    parameters {{ key: "{key}" value: "{value}" }}' for key, value in parameters.items()]
        lines += [f'  {{ name: "{name}"', *rows, "  }" + ("" if name == "cuda" else ",")]
    lines += ["] } }", "# The backend reads these three here alone: it overwrites them in the accelerator above."]
    lines += [
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
        for key, value in _cuda_parameters(tuning).items()
    ]
    return lines


def _openvino(config: Any, tuning: Tuning) -> list[str]:
    if _role(config) != ENCODER:  # the models for videos were not measured
        return []
    return [
        "optimization { execution_accelerators { cpu_execution_accelerator [",
        '  { name: "openvino"',
        "    # NVIDIA's backend does not read it, and computes in fp32.",
        f'    parameters {{ key: "precision" value: "{tuning.precision}" }}',
        "  }",
        "] } }",
    ]


def _cuda(tuning: Tuning) -> dict[str, str]:
    """Return the options of ONNX Runtime's CUDA provider that the backend copies from the accelerator."""
    return {"cudnn_conv_use_max_workspace": "1", "use_tf32": "1" if tuning.tf32 else "0"}


def _cuda_parameters(tuning: Tuning) -> dict[str, str]:
    """Return the options of the CUDA provider that the backend reads only from the model's `parameters`.

    NVIDIA's backend (src/onnxruntime.cc, the same in 25.01 and 26.05) first copies the parameters of the accelerator,
    and then sets these options from the model's `parameters`. An option that is missing there gets the backend's
    default, even if the accelerator sets it. Two of the options are numbers there.
    """
    parameters = {
        # HEURISTIC. The default, EXHAUSTIVE, measures every algorithm when a shape occurs for the first time.
        "cudnn_conv_algo_search": "1",
        # kSameAsRequested. The default takes the next power of two, and several instances share a GPU.
        "arena_extend_strategy": "1",
    }
    return {**parameters, **({"gpu_mem_limit": str(tuning.memory_limit)} if tuning.memory_limit else {})}


def _tensorrt(config: Any, tuning: Tuning) -> dict[str, str]:
    """Return the options of ONNX Runtime's TensorRT provider.

    They do not include `precision_mode`. Without it, ONNX Runtime builds a strongly typed network: the engine computes
    in the types of the graph, in FP16 after an export with --precision fp16. TensorRT 10 and 11 both support this.
    TensorRT 11 supports only these networks: it removed the features behind `precision_mode` and
    `trt_layer_norm_fp32_fallback`.
    """
    return {
        "max_workspace_size_bytes": str(4 << 30),
        # TensorRT takes minutes to build an engine, so cache it. The user of the server must have write access.
        "trt_engine_cache_enable": "true",
        "trt_engine_cache_path": f"{tuning.engine_cache}/{config.name}",
        "trt_timing_cache_enable": "true",
        "trt_timing_cache_path": f"{tuning.engine_cache}/timing",
        # With these profiles, one engine serves all shapes. Without them, TensorRT rebuilds it for larger shapes.
        "trt_profile_min_shapes": _profile(config, 1, 1, 1),
        "trt_profile_opt_shapes": _profile(config, 1, 1, 2),
        "trt_profile_max_shapes": _profile(config, tuning.max_images, tuning.max_prompts, tuning.max_points),
    }


def _profile(config: Any, images: int, prompts: int, points: int) -> str:
    """Return the shapes of all inputs as `name:1x2x3,...`, with these numbers for the dynamic dimensions."""
    # A decoder takes several prompts on one image.
    counts = {"images": 1 if _role(config) == DECODER else images, "prompts": prompts, "points": points}
    symbols = _symbols(config)
    shapes = []
    for tensor in config.input:
        free = symbols.get(tensor.name, ("images",) * len(tensor.dims))
        dims = [dim if dim >= 0 else counts.get(str(free[axis]), prompts) for axis, dim in enumerate(tensor.dims)]
        shapes.append(f"{tensor.name}:{'x'.join(map(str, dims))}")
    return ",".join(shapes)


def _symbols(config: Any) -> dict[str, tuple[int | str, ...]]:
    """Return the shapes of the model's inputs from its family's table; empty without a family."""
    spec = spec_of(tensor.name for tensor in config.input)
    return {} if spec is None else {tensor.name: tensor.shape for tensor in spec.inputs}
