"""A SAM2 decoder without weights for the light encoder. It takes milliseconds and returns meaningful masks.

A pixel belongs to the mask if its colour is similar to the click's and it is not too far away. Masks of images with
plain colours are thus as expected. Boxes, negative points, mask prompts and the three candidates have an effect. The
tensors, their shapes and the guard are those of a real decoder.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from support.tiny_models import write_family

from triton_sam._common.bundle import bundled
from triton_sam.export.guards import add_guard
from triton_sam.families import get_family
from triton_sam.families.base import (
    LABEL_BACKGROUND,
    LABEL_BOX_BOTTOM_RIGHT,
    LABEL_BOX_TOP_LEFT,
    LABEL_FOREGROUND,
)
from triton_sam.families.tables import ModelSpec, Tensor
from triton_sam.repository.hashes import forget_hashes

SEEN = np.array([[0.3, 0.3, 0.3], [1.0, -1.0, 0.0], [0.5, 0.5, -1.0]])
"""Brightness, red against green, and yellow against blue. Brightness has a low weight, because objects have shadows."""
SIDE, FRAME = 256, 1024
PIXELS = SIDE * SIDE
COLOUR_SPREAD, PLACE_SPREAD = 0.2, 400.0
"""Maximum distance of colours, which are 0..1, and of positions in the frame."""
REACHES = (1.0, 1.5, 2.5, 2.0)
"""Maximum difference from the click: for the candidates (part, object, whole), and for the single mask."""
STEEPNESS, FLOOR, LIMIT, FAR = 8.0, -20.0, 32.0, 1e4
SPECK = 4.0
"""Decrease of the difference from the click in specks, and increase in holes."""
SHARES = {"high_res_feats_0": 0.8, "high_res_feats_1": 0.1, "image_embeddings": 0.1}
"""Share of a colour from each of the embeddings. None is 0, so that a missing embedding is noticed."""


def toy_decoder() -> onnx.ModelProto:
    """Return the graph, with the inputs and outputs of the family's decoder."""
    spec, graph = get_family("sam2").decoder, Graph()
    points, positive, negative, corners, has_box = _prompts(graph)
    unlike = _unlikeness(graph, points)
    inside = graph.reduce("ReduceMin", _only_of(graph, unlike, positive), 1)
    inside = graph.add("Add", inside, graph.constant(_specks()))
    outside = graph.reduce("ReduceMin", _only_of(graph, unlike, negative), 1)
    per_reach = graph.constant(np.reshape([STEEPNESS / reach for reach in REACHES], (1, -1, 1)))
    logits = graph.add("Sub", graph.constant(STEEPNESS), graph.add("Mul", inside, per_reach))
    rival = graph.scaled(graph.add("Sub", outside, inside), STEEPNESS)
    logits = graph.add("Min", logits, rival, _within(graph, corners, has_box))
    logits = graph.add("Max", logits, graph.constant(FLOOR))
    logits = graph.add("Add", logits, _mask_prompt(graph, positive))
    logits = graph.add("Clip", logits, graph.constant(-LIMIT), graph.constant(LIMIT))
    _outputs(graph, logits)
    return graph.model(spec)


def _prompts(graph: Graph) -> tuple[str, str, str, tuple[str, str], str]:
    """Return the points, with the centre of the box last, masks of positive and negative points (P,N,1), the corners of
    the box (P,1,2), and whether there is a box (P,1,1).
    """
    corners = []
    for label in (LABEL_BOX_TOP_LEFT, LABEL_BOX_BOTTOM_RIGHT):
        chosen = graph.unsqueeze(graph.has_label(label), 2)
        corners.append(graph.reduce("ReduceSum", graph.add("Mul", "point_coords", chosen), 1))
    has_box = graph.unsqueeze(graph.reduce("ReduceSum", graph.has_label(LABEL_BOX_TOP_LEFT), 1), 2)
    middle = graph.scaled(graph.add("Add", *corners), 0.5)
    points = graph.add("Concat", "point_coords", middle, axis=1)
    positive, negative = (graph.unsqueeze(graph.has_label(label), 2) for label in (LABEL_FOREGROUND, LABEL_BACKGROUND))
    positive = graph.add("Concat", positive, has_box, axis=1)
    negative = graph.add("Concat", negative, graph.scaled(has_box, 0.0), axis=1)
    return points, positive, negative, (corners[0], corners[1]), has_box


def _colours(graph: Graph) -> str:
    """Return the colours of the pixels (N,3,65536), which the light encoder has mixed into the embeddings."""
    parts = []
    for tensor in get_family("sam2").encoder.outputs:
        back = SHARES[tensor.name] * SEEN @ np.linalg.pinv(mix(tensor)[:, :, 0, 0])
        part = graph.add("Conv", tensor.name, graph.constant(back[:, :, None, None]))
        factor = SIDE // int(tensor.shape[2])
        if factor > 1:
            scales = graph.constant([1, 1, factor, factor])
            rule = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
            part = graph.add("Resize", part, "", scales, mode="nearest", **rule)
        parts.append(part)
    return graph.add("Reshape", graph.add("Sum", *parts), graph.constant([0, 3, PIXELS], np.int64))


def _grid() -> npt.NDArray[np.float32]:
    """Return the centres of the pixels in the frame, (2,65536): x and y."""
    middles = (np.arange(SIDE, dtype=np.float32) + 0.5) * FRAME / SIDE
    return np.stack([np.tile(middles, SIDE), np.repeat(middles, SIDE)])


def _specks() -> npt.NDArray[np.float32]:
    """Return specks and holes, (1,1,65536), which make masks as rough as the demo model's."""
    rough = np.zeros((SIDE, SIDE), np.float32)
    for row, column in ((0, 0), (0, 1), (1, 0), (1, 1)):
        rough[12 + row :: 32, 12 + column :: 32] = -SPECK
        rough[28 + row :: 32, 28 + column :: 32] = SPECK
    return rough.reshape(1, 1, PIXELS)


def _unlikeness(graph: Graph, points: str) -> str:
    """Return the difference of each pixel from each point in colour and position, (P,N,65536)."""
    colours = _colours(graph)
    images = graph.add("Shape", colours, end=1)
    grid = graph.constant(_grid()[None] / PLACE_SPREAD)
    places = graph.add("Expand", grid, graph.add("Concat", images, graph.constant([1, 1], np.int64), axis=0))
    pixels = graph.add("Concat", graph.scaled(colours, 1 / COLOUR_SPREAD), places, axis=1)
    rows = graph.add("Transpose", graph.scaled(colours, 1 / COLOUR_SPREAD), perm=[0, 2, 1])
    rows = graph.add("Reshape", rows, graph.constant([-1, 3], np.int64))
    own = graph.add("Gather", rows, _row_of_each_point(graph, points, images), axis=0)
    clicks = graph.add("Concat", own, graph.scaled(points, 1 / PLACE_SPREAD), axis=2)
    squares = [
        graph.reduce("ReduceSum", graph.add("Mul", value, value), axis) for value, axis in ((clicks, 2), (pixels, 1))
    ]
    products = graph.scaled(graph.add("MatMul", clicks, pixels), -2.0)
    return graph.add("Sum", products, *squares)


def _row_of_each_point(graph: Graph, points: str, images: str) -> str:
    """Return the row of each point's colour among all pixels, of one image or of one image per prompt."""
    cells = graph.add("Floor", graph.scaled(points, SIDE / FRAME))
    cells = graph.add("Clip", cells, graph.constant(0.0), graph.constant(SIDE - 1.0))
    places = graph.reduce("ReduceSum", graph.add("Mul", cells, graph.constant([1.0, SIDE])), 2)
    places = graph.add("Cast", places, to=TensorProto.INT64)
    places = graph.add("Squeeze", places, graph.constant([2], np.int64))
    zero, one = (graph.constant(number, np.int64) for number in (0, 1))
    prompts = graph.add("Squeeze", graph.add("Shape", points, end=1))
    several = graph.add("Min", graph.add("Sub", images, one), one)
    offsets = graph.add("Mul", graph.add("Range", zero, prompts, one), graph.constant(PIXELS, np.int64))
    return graph.add("Add", places, graph.unsqueeze(graph.add("Mul", offsets, several), 1))


def _only_of(graph: Graph, unlike: str, chosen: str) -> str:
    """Make all points that are not chosen very different."""
    return graph.add("Add", unlike, graph.scaled(graph.complement(chosen), FAR))


def _within(graph: Graph, corners: tuple[str, str], has_box: str) -> str:
    """Return logits (P,1,65536) that are negative outside the box, and large without a box."""
    low, high = (graph.add("Transpose", corner, perm=[0, 2, 1]) for corner in corners)
    grid = graph.constant(_grid()[None])
    sides = graph.add("Concat", graph.add("Sub", grid, low), graph.add("Sub", high, grid), axis=1)
    edge = graph.scaled(graph.reduce("ReduceMin", sides, 1), STEEPNESS / 16)
    return graph.add("Add", edge, graph.scaled(graph.complement(has_box), FAR))


def _mask_prompt(graph: Graph, positive: str) -> str:
    """Return the logits that a mask prompt adds. Without a positive point, only these are used."""
    given = graph.unsqueeze("has_mask_input", 1, 2)
    mask = graph.add("Reshape", "mask_input", graph.constant([0, 1, PIXELS], np.int64))
    lone = graph.scaled(graph.complement(graph.reduce("ReduceMax", positive, 1)), -FLOOR)
    return graph.add("Mul", given, graph.add("Add", graph.scaled(mask, 0.5), lone))


def _outputs(graph: Graph, logits: str) -> None:
    """Split the logits (P,4,65536). A score is high if few pixels are uncertain, and always in 0..1."""
    unsure = graph.as_float(graph.add("Less", graph.add("Abs", logits), graph.constant(2.0)))
    found = graph.as_float(graph.add("Greater", logits, graph.constant(0.0)))
    counts = [graph.reduce("ReduceSum", value, 2) for value in (found, unsure)]
    scores = graph.add("Div", counts[0], graph.add("Sum", *counts, graph.constant(1.0)))
    best = graph.reduce("ReduceMax", logits, 2)
    for values, single, several, sizes in (
        (logits, "masks", "multimask_masks", [SIDE, SIDE]),
        (scores, "iou_predictions", "multimask_iou_predictions", []),
        (best, "object_score_logits", "", []),
    ):
        for name, first, end in ((several, 0, 3), (single, 3, 4)):
            if name:
                bounds = [graph.constant([number], np.int64) for number in (first, end, 1)]
                part = graph.add("Slice", values, *bounds)
                shape = graph.constant([0, end - first, *sizes], np.int64)
                graph.add("Reshape", part, shape, output=name)


def toy_repository(folder: Path) -> Path:
    """Fill a model repository with the project's SAM2 models, with the toy pair instead of the demo model."""
    light_repository(folder)
    replace(folder / "sam2_decoder" / "1" / "model.onnx", toy_decoder())
    return folder


TYPES = {"FP32": TensorProto.FLOAT, "INT64": TensorProto.INT64}


class Graph:
    """Collects nodes. Each method that adds one returns the name of its output."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, value: npt.ArrayLike, kind: Any = np.float32) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, kind), name))
        return name

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        name = output or f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    def reduce(self, operator: str, value: str, *axes: int) -> str:
        return self.add(operator, value, self.constant(axes, np.int64), keepdims=1)

    def unsqueeze(self, value: str, *axes: int) -> str:
        return self.add("Unsqueeze", value, self.constant(axes, np.int64))

    def as_float(self, value: str) -> str:
        return self.add("Cast", value, to=TensorProto.FLOAT)

    def has_label(self, label: int) -> str:
        return self.as_float(self.add("Equal", "point_labels", self.constant(label)))

    def scaled(self, value: str, factor: float) -> str:
        return self.add("Mul", value, self.constant(factor))

    def complement(self, value: str) -> str:
        return self.add("Sub", self.constant(1.0), value)

    def model(self, spec: ModelSpec) -> onnx.ModelProto:
        """Return the graph with the inputs, outputs and guard of a real model. Optional inputs are 0 by default."""
        inputs, outputs = ([_info(tensor) for tensor in tensors] for tensors in (spec.inputs, spec.outputs))
        for tensor in spec.inputs:
            if tensor.optional:
                shape = [side if isinstance(side, int) else 1 for side in tensor.shape]
                self.constants.append(numpy_helper.from_array(np.zeros(shape, np.float32), tensor.name))
        made = helper.make_graph(self.nodes, spec.role, inputs, outputs, self.constants)
        model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
        add_guard(model, spec)
        return model


def _info(tensor: Tensor) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(tensor.name, TYPES[tensor.dtype], tensor.shape)


DEMO = ("sam2", "sam2_encoder", "sam2_decoder", "sam2_preprocess", "sam2_encoder_jpeg")
"""The models of the committed repository."""


def light_encoder() -> onnx.ModelProto:
    """Return the graph, with the inputs and outputs of the family's encoder."""
    spec, graph = get_family("sam2").encoder, Graph()
    for output in spec.outputs:
        square = get_family("sam2").image_size // int(output.shape[2])
        sides = [square, square]
        pooled = graph.add("AveragePool", spec.inputs[0].name, kernel_shape=sides, strides=sides)
        graph.add("Conv", pooled, graph.constant(mix(output)), output=output.name)
    return graph.model(spec)


def mix(output: Tensor) -> npt.NDArray[np.float32]:
    """Return the weights (C,3,1,1) that mix the colours into the channels of an output."""
    channels = int(output.shape[1])
    return np.random.default_rng(channels).normal(0, channels**-0.5, (channels, 3, 1, 1)).astype(np.float32)


def lighten(file: Path) -> None:
    """Replace a SAM2 encoder with the light encoder."""
    replace(file, light_encoder())


def replace(file: Path, graph: onnx.ModelProto) -> None:
    """Replace an ONNX file with another graph, and keep the metadata about its weights."""
    graph.metadata_props.extend(onnx.load(file).metadata_props)
    file.unlink()  # it may be a link to the project's file
    onnx.save(graph, file)
    forget_hashes([file])


def light_repository(folder: Path) -> Path:
    """Fill a model repository with SAM2's models, with this encoder instead of the demo model's."""
    for name in DEMO:
        shutil.copytree(bundled("model_repository") / name, folder / name, ignore=shutil.ignore_patterns("[2-9]*"))
    write_family(folder, "sam2")
    lighten(folder / "sam2_encoder" / "1" / "model.onnx")
    return folder
