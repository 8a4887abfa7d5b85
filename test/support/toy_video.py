"""The video models without weights, for the light encoder.

Every output depends on every input, so that a wrong input is visible. A mask is a ramp whose height depends on inputs.
"""

from __future__ import annotations

import numpy as np
import onnx
from support.toy_graph import Graph

from triton_sam.families import get_family
from triton_sam.families.tracking import MASK_PROMPT, MEMORY_ATTENTION, MEMORY_ENCODER, TRACKING_DECODER

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
