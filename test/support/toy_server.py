"""The local Triton of most tests, one per process for the whole run. It serves the toy pair in all settings.

Its session models use the same pair. ``sam2`` caches three images and calls the decoder.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from support.session_requests import IMAGE_BYTES, IMAGES_IN_CACHE, add_session_model
from support.toy_decoder import Graph, toy_repository

from triton_sam.families import get_family
from triton_sam.families.tracking import MASK_PROMPT, MEMORY_ATTENTION, MEMORY_ENCODER, TRACKING_DECODER
from triton_sam.repository.accelerators import Tuning, tune

if TYPE_CHECKING:
    from triton_sam.local_server import LocalServer

CALLS, CONFIGURED, CHOSEN = "sam2", "sam2_configured", "sam2_chosen"
"""Session models: one calls the decoder, one decodes by its config.pbtxt, one by the server's default."""
NARROW, MAX_PENDING = "sam2_narrow", 2
"""A session model with a short queue, and the queue's length."""
BATCHED, OLD = "sam2_batched", "old"
"""A session model whose bodies have a batch dimension, and one of the project's first version."""
CACHED = "sam2_cached_jpeg"
"""The encoder of image files with Triton's response cache."""
VIDEO = "sam2_video"


def toy_server(folder: Path) -> LocalServer:
    """Fill a model repository and return the server, not started."""
    from triton_sam.local_server import LocalServer

    repository = toy_repository(folder)
    plain = (repository / CALLS / "config.pbtxt").read_text()
    own = tune(plain, Tuning(decoder_in_session=True))
    add_session_model(repository, CONFIGURED, own)
    add_session_model(repository, CHOSEN, plain)
    add_session_model(repository, NARROW, plain.replace('"24"', f'"{MAX_PENDING}"'))
    add_session_model(repository, BATCHED, batched(plain))
    calls = own.replace('string_value: "true"', 'string_value: "false"')
    add_session_model(repository, CALLS, calls.replace("536870912", str(IMAGES_IN_CACHE * IMAGE_BYTES + 1)))
    _write_old_model(repository / OLD)
    _add_cached_encoder(repository)
    for role, graph in toy_video_models().items():
        file = repository / FAMILY.model_name(role) / "1" / "model.onnx"
        file.parent.mkdir()
        onnx.save(graph, file)
    models = [CALLS, CONFIGURED, CHOSEN, NARROW, BATCHED, OLD, "sam2_encoder_jpeg", CACHED, VIDEO]
    options = ["--cache-config=local,size=268435456"]
    return LocalServer(repository, models=models, extra_args=options)


def batched(config: str) -> str:
    """Change the two lines of config.pbtxt that docs/reference/session-models.md gives."""
    for name in ("image_b64", "prompt_json"):
        line = f'{{ name: "{name}", data_type: TYPE_STRING, dims: [1], optional: true }}'
        assert line in config
        config = config.replace(line, line.replace("[1]", "[1, 1]"))
    return config


def _write_old_model(folder: Path) -> None:
    (folder / "1").mkdir(parents=True)
    tensors = ", ".join(
        f'{{ name: "{name}", data_type: TYPE_STRING, dims: [1] }}' for name in ("image_b64", "prompt_json")
    )
    (folder / "config.pbtxt").write_text(
        f'backend: "python"\nmax_batch_size: 16\ninput [{tensors}]\n'
        'output [{ name: "result_json", data_type: TYPE_STRING, dims: [1] }]\ninstance_group [{ kind: KIND_CPU }]\n'
    )
    (folder / "1" / "model.py").write_text(
        "import numpy as np\nimport triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        "        result = np.array([[b'{\"mask\": null}']], np.object_)\n"
        "        return [pb_utils.InferenceResponse([pb_utils.Tensor('result_json', result)]) for _ in requests]\n"
    )


def _add_cached_encoder(repository: Path) -> None:
    encoder = repository / "sam2_encoder_jpeg"
    shutil.copytree(encoder, repository / CACHED)
    config = (encoder / "config.pbtxt").read_text().replace(f'"{encoder.name}"', f'"{CACHED}"')
    (repository / CACHED / "config.pbtxt").write_text(f"{config}response_cache {{ enable: true }}\n")


FAMILY = get_family("sam2")
assert FAMILY.tracking is not None
TABLE = FAMILY.tracking
GAIN = 50.0
"""Weight of the means of embeddings, which differ little."""


def toy_video_models() -> dict[str, onnx.ModelProto]:
    """Return the graphs by role."""
    return {
        MEMORY_ATTENTION: _memory_attention(),
        MEMORY_ENCODER: _memory_encoder(),
        TRACKING_DECODER: _tracking_decoder(),
        MASK_PROMPT: _mask_prompt(),
    }


def _memory_attention() -> onnx.ModelProto:
    graph = Graph()
    ages = graph.add("Add", graph.as_float("memory_ages"), graph.constant(1.0))
    pointer_ages = graph.add("Add", "pointer_ages", graph.constant(1.0))
    memories = graph.add(
        "Squeeze", graph.reduce("ReduceMean", "memories", 2, 3, 4), graph.constant([2, 3, 4], np.int64)
    )
    pointers = graph.add("Squeeze", graph.reduce("ReduceMean", "object_pointers", 2), graph.constant([2], np.int64))
    sums = [
        graph.reduce("ReduceSum", graph.add("Div", values, weights), 1)
        for values, weights in ((memories, ages), (pointers, pointer_ages))
    ]
    total = graph.unsqueeze(graph.scaled(graph.add("Sum", *sums), 0.37 / GAIN), 2, 3)
    graph.add("Add", "image_embeddings", total, output="conditioned_embeddings")
    return graph.model(TABLE.models[MEMORY_ATTENTION])


def _memory_encoder() -> onnx.ModelProto:
    graph = Graph()
    score = graph.unsqueeze(graph.scaled("object_score_logits", 0.5), 2, 3)
    prompted = graph.unsqueeze(graph.scaled("is_prompted", 0.25), 1, 2, 3)
    value = graph.add("Sum", graph.reduce("ReduceMean", "masks", 1, 2, 3), score, prompted, _mean(graph))
    channels, *sides = TABLE.memory_shape
    ramp = np.linspace(0.5, 1.5, channels).reshape(1, channels, 1, 1)
    shape = graph.constant([1, channels, *sides], np.int64)
    graph.add("Expand", graph.add("Mul", value, graph.constant(ramp)), shape, output="memory")
    return graph.model(TABLE.models[MEMORY_ENCODER])


def _tracking_decoder() -> onnx.ModelProto:
    graph = Graph()
    coords = graph.scaled(graph.reduce("ReduceSum", "point_coords", 1, 2), 0.01)
    labels = graph.unsqueeze(graph.scaled(graph.reduce("ReduceSum", "point_labels", 1), 0.01), 2)
    given = graph.unsqueeze("has_mask_input", 1, 2, 3)
    mask = graph.add("Mul", graph.reduce("ReduceMean", "mask_input", 1, 2, 3), given)
    words = graph.unsqueeze(graph.add("Add", "multimask", "mask_prompt"), 1, 2, 3)
    prompt = graph.unsqueeze(graph.add("Add", coords, labels), 3)
    means = [_mean(graph, name) for name in FAMILY.encoder.output_names]
    value = graph.add("Sin", graph.add("Sum", *means, prompt, mask, words))
    side = TABLE.logits_shape[-1]
    graph.add("Add", value, graph.constant(np.linspace(-1, 1, side * side).reshape(1, 1, side, side)), output="masks")
    flat = graph.add("Squeeze", value, graph.constant([2, 3], np.int64))
    graph.add("Abs", flat, output="iou_predictions")
    graph.add("Identity", flat, output="object_score_logits")
    ramp = graph.constant(np.linspace(1, 2, TABLE.pointer_channels)[None])
    graph.add("Mul", flat, ramp, output="object_pointers")
    return graph.model(TABLE.models[TRACKING_DECODER])


def _mask_prompt() -> onnx.ModelProto:
    graph = Graph()
    graph.add("AveragePool", "mask", kernel_shape=[4, 4], strides=[4, 4], output="mask_input")
    graph.add("Add", graph.scaled("mask_input", 20.0), graph.constant(-10.0), output="masks")
    return graph.model(TABLE.models[MASK_PROMPT])


def _mean(graph: Graph, embeddings: str = FAMILY.encoder.output_names[0]) -> str:
    """Return the mean of embeddings (N,1,1,1)."""
    return graph.scaled(graph.reduce("ReduceMean", embeddings, 1, 2, 3), GAIN)
