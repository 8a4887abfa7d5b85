"""A SAM2 encoder that needs a twentieth of the demo model's time.

It averages colours over squares and mixes them into the channels of the embeddings with random weights. The toy decoder
(support/toy_decoder.py) recovers the colours. Masks of other decoders are meaningless, but differ by image and prompt.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from support.family_configs import write_family
from support.toy_graph import Graph

from triton_sam._common.bundle import bundled
from triton_sam.families import get_family
from triton_sam.families.tables import Tensor
from triton_sam.repository.hashes import forget_hashes

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
