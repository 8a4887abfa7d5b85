"""SAM3 tracker: the tensors and the image frame of the published ONNX files.

Reference: transformers' Sam3TrackerModel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from .base import LABEL_NO_POINT, Family, FloatArray
from .concepts import BACKBONE_STATES, sam3_concepts
from .tables import (
    DECODER,
    ENCODER,
    MAX_PROMPT_POINTS,
    MAX_PROMPTS,
    Dimension,
    HubFiles,
    ModelSize,
    ModelSpec,
    Option,
    Tensor,
    by_role,
)
from .tracking import sam2_tracking

LABEL_NO_POINT_IN_TRANSFORMERS = -10
"""The label that transformers' processor uses for "no point"; the other families use LABEL_NO_POINT."""

IMAGE = Tensor("pixel_values", "FP32", ("images", 3, 1008, 1008))
EMBEDDINGS = (
    Tensor("image_embeddings.0", "FP32", ("images", 32, 288, 288)),
    Tensor("image_embeddings.1", "FP32", ("images", 64, 144, 144)),
    Tensor("image_embeddings.2", "FP32", ("images", 256, 72, 72)),
)
BACKBONE = Tensor(BACKBONE_STATES, "FP32", ("images", 0, 72, 72))
TRACKING = sam2_tracking(EMBEDDINGS, 1008, prompted_memories=4)


def _decoder_inputs(
    coords: FloatArray,
    labels: npt.NDArray[np.int64],
    boxes: FloatArray | None,
    mask: FloatArray | None,  # noqa: ARG001
) -> dict[str, npt.NDArray[np.generic]]:
    """Turn prompts into tensors. Boxes have their own input; masks are not supported."""
    return {
        "input_points": np.ascontiguousarray(coords[None], np.float32),
        "input_labels": np.where(labels == LABEL_NO_POINT, LABEL_NO_POINT_IN_TRANSFORMERS, labels)[None].astype(
            np.int64
        ),
        "input_boxes": np.zeros((1, 0, 4), np.float32) if boxes is None else boxes[None].astype(np.float32),
    }


def _requested_outputs(multimask_output: bool) -> Sequence[str]:  # noqa: ARG001
    return ("pred_masks", "iou_scores")


def _read_masks(outputs: Mapping[str, FloatArray], multimask_output: bool) -> tuple[FloatArray, FloatArray]:
    """Return all three candidates of the graph, or the one with the best score as the single mask."""
    masks, scores = outputs["pred_masks"], outputs["iou_scores"]
    if masks.ndim != 5 or len(masks) != 1 or masks.shape[:3] != scores.shape:
        return masks, scores  # unexpected shapes, which the caller checks and reports
    masks, scores = masks[0], scores[0]
    if multimask_output:
        return masks, scores
    rows, best = np.arange(len(scores)), scores.argmax(axis=1)
    return masks[rows, best][:, None], scores[rows, best][:, None]


SAM3 = Family(
    name="sam3",
    label="SAM3",
    title="SAM3 tracker",
    image_size=1008,
    mask_size=288,
    value_range=(-1.0, 1.0),
    keep_aspect=False,
    pixel_mean=(0.5, 0.5, 0.5),
    pixel_std=(0.5, 0.5, 0.5),
    resampling="fixed_point",
    # The published decoder comes from transformers, where a padding point is a token of zeros that the attention reads.
    masks_out_padding=False,
    takes_mask=False,
    models=by_role(
        ModelSpec(
            role=ENCODER,
            inputs=(IMAGE,),
            outputs=EMBEDDINGS,
            filename="vision_encoder.onnx",
            further_outputs=(BACKBONE,),
        ),
        ModelSpec(
            role=DECODER,
            inputs=(
                *EMBEDDINGS,
                Tensor("input_points", "FP32", ("images", "prompts", "points", 2)),
                Tensor("input_labels", "INT64", ("images", "prompts", "points")),
                # Either no box, or one for each prompt.
                Tensor("input_boxes", "FP32", ("images", "boxes", 4)),
            ),
            outputs=(
                Tensor("iou_scores", "FP32", ("images", "prompts", 3)),
                Tensor("pred_masks", "FP32", ("images", "prompts", 3, 288, 288)),
                Tensor("object_score_logits", "FP32", ("images", "prompts", 1)),
            ),
            filename="prompt_encoder_mask_decoder.onnx",
            dimensions=MappingProxyType(
                {"points": Dimension(minimum=0), "boxes": Dimension(minimum=0, choices=(0, "prompts"))}
            ),
            limits=MappingProxyType(
                {("images", "prompts"): MAX_PROMPTS, ("images", "prompts", "points"): MAX_PROMPT_POINTS}
            ),
        ),
    ),
    decoder_inputs=_decoder_inputs,
    requested_outputs=_requested_outputs,
    read_masks=_read_masks,
    tracking=TRACKING,
    concepts=sam3_concepts(BACKBONE, EMBEDDINGS, tokens=32, queries=200),
    sizes=(
        ModelSize("reduced", official=False, config="sam3_tracker_reduced"),
        ModelSize("full", config="sam3_tracker_full"),
    ),
    random_size="reduced",
    quick_size="reduced",
    checkpoint_takes_size=False,
    hub=HubFiles(onnx="onnx-community/sam3-tracker-ONNX", checkpoint="facebook/sam3", licence="SAM License"),
    options=(
        Option("--full", "the same as --size full", commands=("verify",), is_switch=True, size="full"),
        Option("--model-cfg", "the same as --size", commands=("verify",), metavar="NAME_OR_FILE", names_model=True),
        Option(
            "--no-memory",
            "published (default): leave no_memory_embedding out, as transformers and the published ONNX files do; "
            "meta: add it to the coarsest feature map, as Meta's own code does",
            choices=("published", "meta"),
        ),
        Option(
            "--text-encoder",
            "with --concepts, folder of a SAM3-LiteText checkpoint, whose small text encoder replaces that of SAM3 "
            "(with random weights: lite)",
            commands=("export", "setup", "verify"),
            metavar="FOLDER",
            is_folder=True,
        ),
    ),
    exporter="triton_sam.export.sam3.recipe:EXPORTER",
    filled_exporter="triton_sam.export.sam3.checkpoints:Sam3Filled",
)
"""SAM3's tracker for points and boxes. The encoder takes RGB in -1..1, stretched or squashed to 1008x1008 pixels.

Names, shapes and ranges are those of onnx-community/sam3-tracker-ONNX, so that downloaded files and our own exports
are interchangeable. A decoder call takes B images with P prompts each; the clients of this package send B = 1.
"""
