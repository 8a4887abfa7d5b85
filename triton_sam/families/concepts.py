"""The models that find every instance of a concept, given as words or example boxes.

Tensors have the names of transformers' Sam3Model where it has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from .tables import MAX_PROMPTS, Dimension, ModelSpec, Tensor, by_role

CONCEPT_ENCODER, TEXT_ENCODER, DETECTOR, MASK_HEAD = "concept_encoder", "text_encoder", "detector", "mask_head"
"""The roles of the models of a detector of concepts."""

BACKBONE_STATES = "backbone_states"
"""The output of the backbone, which the encoders for clicks and for concepts share. The encoder for clicks computes it,
so that an image takes one pass of the backbone."""
STATES = "concept_states"
"""The part of the detector's work that does not depend on the concept, as an output of the encoder."""
EXAMPLE_FEATURES = "example_features"
"""The input of the detector for the coarsest features of the image that the example boxes belong to."""

MAX_BOXES = 64
"""Maximum number of example boxes for each prompt; they attend to each other."""
_MAX_MASKED = 8
"""Maximum number of prompts in one request to the mask head; docs/reference/models.md has their memory."""

LABEL_NO_BOX = -10
"""The label of a padding box, so that prompts with different numbers of boxes fit into one batch."""


def sam3_concepts(
    backbone: Tensor, embeddings: tuple[Tensor, ...], tokens: int, queries: int
) -> Mapping[str, ModelSpec]:
    """Return the models of a detector of concepts with the parts of SAM3, by role.

    Args:
        backbone: BACKBONE_STATES, a further output of the family's encoder.
        embeddings: the outputs of the family's encoder, the finest first.
        tokens: length of a text in tokens, with its padding.
        queries: number of instances that the detector proposes for each prompt.
    """
    channels, low = int(embeddings[-1].shape[1]), int(embeddings[0].shape[2])
    # The detector takes one image with any number of prompts, so that no feature map is sent twice.
    sides = [int(tensor.shape[2]) for tensor in embeddings]
    features = [(f"concept_features.{level}", (channels, side, side)) for level, side in enumerate(sides)]
    text = Tensor("text_features", "FP32", ("prompts", tokens, channels))
    mask = Tensor("attention_mask", "INT64", ("prompts", tokens))
    fine, middle, coarse = (Tensor(name, "FP32", (1, *shape)) for name, shape in features)
    mask_features = Tensor("mask_features", "FP32", ("prompts", *features[-1][1]))
    return by_role(
        ModelSpec(
            CONCEPT_ENCODER,
            inputs=(backbone,),
            outputs=(
                *(Tensor(name, "FP32", ("images", *shape)) for name, shape in features),
                Tensor(STATES, "FP32", ("images", *features[-1][1])),
            ),
        ),
        ModelSpec(
            TEXT_ENCODER,
            inputs=(Tensor("input_ids", "INT64", ("prompts", tokens)), mask),
            outputs=(text,),
            limits=MappingProxyType({("prompts",): MAX_PROMPTS}),
        ),
        ModelSpec(
            DETECTOR,
            inputs=(
                replace(coarse, name=STATES),
                # The coarsest features of the image that the boxes belong to, which usually is the same image.
                replace(coarse, name=EXAMPLE_FEATURES),
                text,
                mask,
                # Centre x, centre y, width, height, each from 0 to 1.
                Tensor("input_boxes", "FP32", ("prompts", "boxes", 4)),
                # 1: a positive example; 0: a negative example; LABEL_NO_BOX: padding.
                Tensor("input_boxes_labels", "INT64", ("prompts", "boxes")),
            ),
            outputs=(
                # x1, y1, x2, y2, each from 0 to 1.
                Tensor("pred_boxes", "FP32", ("prompts", queries, 4)),
                Tensor("pred_logits", "FP32", ("prompts", queries)),
                Tensor("presence_logits", "FP32", ("prompts", 1)),
                Tensor("mask_queries", "FP32", ("prompts", queries, channels)),
                mask_features,
            ),
            dimensions=MappingProxyType({"boxes": Dimension(minimum=0)}),
            limits=MappingProxyType({("prompts",): MAX_PROMPTS, ("boxes",): MAX_BOXES}),
        ),
        ModelSpec(
            MASK_HEAD,
            inputs=(fine, middle, mask_features, Tensor("mask_queries", "FP32", ("prompts", "instances", channels))),
            outputs=(Tensor("pred_masks", "FP32", ("prompts", "instances", low, low)),),
            limits=MappingProxyType({("prompts",): _MAX_MASKED, ("prompts", "instances"): _MAX_MASKED * queries}),
        ),
    )
