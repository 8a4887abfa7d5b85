"""SAM3 tracker: tensors and frames of the published ONNX files (reference: transformers' Sam3TrackerModel)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from .base import LABEL_NO_POINT, Family, FloatArray
from .tables import DECODER, ENCODER, HubFiles, ModelSize, ModelSpec, Option, Tensor, by_role

LABEL_PADDED = -10
"""What transformers' own processor writes where LABEL_NO_POINT stands for the other families."""

EMBEDDINGS = (
    Tensor("image_embeddings.0", "FP32", ("images", 32, 288, 288)),
    Tensor("image_embeddings.1", "FP32", ("images", 64, 144, 144)),
    Tensor("image_embeddings.2", "FP32", ("images", 256, 72, 72)),
)


class Sam3(Family):
    """SAM3's tracker for points and boxes: 1008x1008 squashed, RGB in -1..1.

    Names, shapes and ranges are those of onnx-community/sam3-tracker-ONNX, so that downloaded files and own exports can
    replace each other. A decoder call has B images with P prompts each; the clients here send B = 1.
    """

    name: ClassVar[str] = "sam3"
    title: ClassVar[str] = "SAM3 tracker"
    image_size: ClassVar[int] = 1008
    mask_size: ClassVar[int] = 288
    value_range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    keep_aspect: ClassVar[bool] = False
    resampling: ClassVar[Literal["float", "pillow", "fixed_point"]] = "fixed_point"
    # In transformers, where the published decoder comes from, LABEL_PADDED is a token of zeros that attention reads.
    masks_out_padding: ClassVar[bool] = False
    takes_mask: ClassVar[bool] = False
    models: ClassVar[Mapping[str, ModelSpec]] = by_role(
        ModelSpec(
            role=ENCODER,
            inputs=(Tensor("pixel_values", "FP32", ("images", 3, 1008, 1008)),),
            outputs=EMBEDDINGS,
            filename="vision_encoder.onnx",
        ),
        ModelSpec(
            role=DECODER,
            inputs=(
                *EMBEDDINGS,
                Tensor("input_points", "FP32", ("images", "prompts", "points", 2)),
                Tensor("input_labels", "INT64", ("images", "prompts", "points")),
                # 0, or one for each prompt.
                Tensor("input_boxes", "FP32", ("images", "boxes", 4)),
            ),
            outputs=(
                Tensor("iou_scores", "FP32", ("images", "prompts", 3)),
                Tensor("pred_masks", "FP32", ("images", "prompts", 3, 288, 288)),
                Tensor("object_score_logits", "FP32", ("images", "prompts", 1)),
            ),
            filename="prompt_encoder_mask_decoder.onnx",
        ),
    )
    sizes: ClassVar[tuple[ModelSize, ...]] = (
        ModelSize("reduced", official=False, config="sam3_tracker_reduced"),
        ModelSize("full", config="sam3_tracker_full"),
    )
    random_size: ClassVar[str] = "reduced"
    quick_size: ClassVar[str] = "reduced"
    checkpoint_takes_size: ClassVar[bool] = False
    hub: ClassVar[HubFiles | None] = HubFiles(onnx="onnx-community/sam3-tracker-ONNX", checkpoint="facebook/sam3")
    options: ClassVar[tuple[Option, ...]] = (
        Option("--full", "the same as --size full", commands=("verify",), is_switch=True, size="full"),
        Option("--model-cfg", "the same as --size", commands=("verify",), metavar="NAME_OR_FILE", names_model=True),
        Option(
            "--no-memory",
            "leave no_memory_embedding out, as transformers and the published ONNX files do (default), or add it to "
            "the coarsest map, as Meta's own code does",
            choices=("published", "meta"),
        ),
    )
    exporter: ClassVar[str] = "triton_sam.export.sam3.recipe:EXPORTER"
    export_script: ClassVar[str] = "scripts/export_sam3_to_onnx.py"

    def decoder_inputs(
        self,
        coords: FloatArray,
        labels: npt.NDArray[np.int64],
        boxes: FloatArray | None,
        mask: FloatArray | None,  # noqa: ARG002
    ) -> dict[str, npt.NDArray[np.generic]]:
        """See Family.decoder_inputs. Boxes have an input of their own, and there is none for a mask."""
        return {
            "input_points": np.ascontiguousarray(coords[None], np.float32),
            "input_labels": np.where(labels == LABEL_NO_POINT, LABEL_PADDED, labels)[None].astype(np.int64),
            "input_boxes": np.zeros((1, 0, 4), np.float32) if boxes is None else boxes[None].astype(np.float32),
        }

    def requested_outputs(self, multimask_output: bool) -> Sequence[str]:  # noqa: ARG002
        """See Family.requested_outputs."""
        return ("pred_masks", "iou_scores")

    def read_masks(self, outputs: Mapping[str, FloatArray], multimask_output: bool) -> tuple[FloatArray, FloatArray]:
        """See Family.read_masks. The graph answers three candidates; a single mask is the best scored of them."""
        masks, scores = outputs["pred_masks"], outputs["iou_scores"]
        if masks.ndim != 5 or len(masks) != 1 or masks.shape[:3] != scores.shape:
            return masks, scores  # not what was asked for: the caller says so
        masks, scores = masks[0], scores[0]
        if multimask_output:
            return masks, scores
        rows, best = np.arange(len(scores)), scores.argmax(axis=1)
        return masks[rows, best][:, None], scores[rows, best][:, None]
