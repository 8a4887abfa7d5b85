"""Compare the masks of an encoder on OpenVINO with those of the same encoder on ONNX Runtime in fp32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.extras import missing
from ..client.sync import SAM2TritonClient
from ..errors import ExportError
from ..families import get_family
from ..inputs.images import ImageSource, open_image
from ..local_server.backends.onnxruntime.openvino_session import OpenVinoSession
from ..masks.boxes import intersection_over_union
from ..transport.base import Tensors
from ..transport.onnx import OnnxTransport
from ..wire.pair import ModelPair
from .compare import OnnxClient

LIMITS = {"fp32": 0.9999, "bf16": 0.995}
"""Smallest passing mean IoU of masks, by precision."""
IMAGES = 20
_POINTS = ((0.5, 0.5), (0.3, 0.3), (0.7, 0.65))
_BOXES = ((0.2, 0.2, 0.8, 0.8), (0.4, 0.1, 0.95, 0.6))
_SEED = 26


@dataclass(frozen=True)
class Comparison:
    """The comparison of a model pair whose encoder runs on OpenVINO with ONNX Runtime in fp32."""

    precision: str
    images: int
    masks: int
    mean_iou: float
    worst_iou: float
    openvino: str

    @property
    def passed(self) -> bool:
        """Whether the mean IoU reaches the limit of the precision. NaN never passes."""
        return self.mean_iou >= LIMITS[self.precision]

    def describe(self) -> str:
        """Return a readable line of text."""
        verdict = "passed" if self.passed else f"below {LIMITS[self.precision]:g}"
        return (
            f"OpenVINO {self.precision}: mask IoU {self.mean_iou:.4f} to fp32 (worst {self.worst_iou:.4f}, "
            f"{self.masks} masks on {self.images} images), {verdict}"
        )


class _Accelerated(OnnxTransport):
    """A transport for one model pair in this process, whose encoder runs on OpenVINO."""

    def __init__(self, files: Mapping[str, Path], encoder: str, precision: str) -> None:
        super().__init__({name: file for name, file in files.items() if name != encoder})
        self._encoder = encoder
        try:
            self._openvino = OpenVinoSession(files[encoder], precision)
        except ImportError as error:
            raise missing("OpenVINO needs", "openvino", error) from error
        except (RuntimeError, ValueError) as error:
            raise ExportError(f"OpenVINO cannot run {files[encoder]}: {error}") from error

    def infer(self, model: str, inputs: Tensors, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Run one inference; see BaseTransport.infer."""
        if model != self._encoder:
            return super().infer(model, inputs, outputs)
        return dict(zip(outputs, self._openvino.run(outputs, dict(inputs)), strict=True))


def openvino_client(files: Mapping[str, Path], model_type: str, precision: str) -> SAM2TritonClient:
    """Return a client for a model pair in this process. The encoder runs on OpenVINO, the decoder does not."""
    pair = ModelPair(get_family(model_type))
    named = {pair.encoder: files["encoder"], pair.decoder: files["decoder"]}
    # The client sends no request. Without this URL, it would read the one of the environment, which may be wrong.
    transport = _Accelerated(named, pair.encoder, precision)
    return SAM2TritonClient("localhost", model_type, embeddings="client", transport=transport)


def compare_precision(
    files: Mapping[str, Path], model_type: str, precision: str, images: Sequence[ImageSource]
) -> Comparison:
    """Compare the masks of a model pair whose encoder runs on OpenVINO with those of ONNX Runtime in fp32.

    Each image gets three clicks and two boxes, each with a single mask.
    """
    found: list[float] = []
    with openvino_client(files, model_type, precision) as tested, OnnxClient(files, model_type) as expected:
        for image in images:
            found += _compare(tested, expected, image)
    return Comparison(precision, len(images), len(found), float(np.mean(found)), min(found), _version())


def crops(images: Sequence[ImageSource], count: int = IMAGES) -> list[npt.NDArray[np.uint8]]:
    """Return parts of images, uint8 (H,W,3), with half to all of each side; equal arguments give equal parts."""
    rng = np.random.default_rng(_SEED)
    opened = [np.asarray(open_image(image)) for image in images]
    parts = []
    for number in range(count):
        whole = opened[number % len(opened)]
        share = rng.uniform(0.5, 1.0)
        height, width = (int(side * share) for side in whole.shape[:2])
        top, left = (int(rng.integers(0, rest + 1)) for rest in (whole.shape[0] - height, whole.shape[1] - width))
        parts.append(whole[top : top + height, left : left + width].copy())
    return parts


def _compare(tested: SAM2TritonClient, expected: SAM2TritonClient, image: ImageSource) -> list[float]:
    opened = open_image(image)
    width, height = opened.size
    for client in (tested, expected):
        client.set_image(opened)
    prompts: list[dict[str, Any]] = [
        *({"point_coords": [[x * width, y * height]], "point_labels": [1]} for x, y in _POINTS),
        *({"box": [x1 * width, y1 * height, x2 * width, y2 * height]} for x1, y1, x2, y2 in _BOXES),
    ]
    masks = [[client.segment(**prompt)[0].mask for prompt in prompts] for client in (tested, expected)]
    return [intersection_over_union(one, other) for one, other in zip(*masks, strict=True)]


def _version() -> str:
    import openvino

    return str(openvino.__version__).partition("-")[0]
