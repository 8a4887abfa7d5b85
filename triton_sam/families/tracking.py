"""The models that follow objects through a video, and the sizes of their memory.

Tensors and models have the names of SAM2, the first family with a memory. A family with the same parts, such as
EdgeTAM, calls sam2_tracking() with its own sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from .tables import MAX_PROMPT_POINTS, MAX_PROMPTS, Dimension, ModelSpec, Tensor, by_role

MEMORY_ATTENTION, MEMORY_ENCODER = "memory_attention", "memory_encoder"
TRACKING_DECODER, MASK_PROMPT = "tracking_decoder", "mask_prompt"
"""The roles of the models of a tracker."""
MEMORY = "memory"
"""The output of the memory encoder."""
MAX_MEMORIES = 320
"""Maximum number of memories in one request to the memory attention, over all objects. Each takes 4 to 33 MB."""


@dataclass(frozen=True)
class Tracking:
    """The part of a family's table that describes how it tracks objects.

    Reference for the numbers: sam2.modeling.sam2_base.SAM2Base.

    Args:
        models: the models in addition to the encoder of the family, by role. The sizes of memories, logits and object
            pointers are those of their tensors.
        memories: maximum number of memories of frames that were not prompted (``num_maskmem`` - 1).
        pointers: maximum number of object pointers that are added to the memories (``max_obj_ptrs_in_encoder``).
        multimask_points: a prompt of at most this many points chooses the best of three masks
            (``multimask_max_pt_num``). A box counts as two points, a missing prompt as zero points.
        bfloat16_memories: whether memories are stored as bfloat16, as in SAM2; else they stay float32.
        prompted_memories: maximum number of prompted frames that a frame attends to, those closest to it; None: all
            (``max_cond_frames_in_attn``).
    """

    models: Mapping[str, ModelSpec]
    memories: int = 6
    pointers: int = 16
    multimask_points: int = 1
    bfloat16_memories: bool = True
    prompted_memories: int | None = None

    @cached_property
    def memory_shape(self) -> tuple[int, ...]:
        """The shape of the memory of one object in one frame: (channels,height,width) in SAM2."""
        return self._output_shape(MEMORY_ENCODER, MEMORY)

    @cached_property
    def logits_shape(self) -> tuple[int, ...]:
        """The shape of the low-resolution logits of one object: (1,height,width)."""
        return self._output_shape(TRACKING_DECODER, "masks")

    @cached_property
    def pointer_channels(self) -> int:
        """The length of an object pointer."""
        return self._output_shape(TRACKING_DECODER, "object_pointers")[0]

    def _output_shape(self, role: str, output: str) -> tuple[int, ...]:
        tensor = next(tensor for tensor in self.models[role].outputs if tensor.name == output)
        return tuple(int(side) for side in tensor.shape[1:])


def sam2_tracking(
    embeddings: tuple[Tensor, ...],
    side: int,
    memory_shape: tuple[int, ...] | None = None,
    *,
    bfloat16_memories: bool = True,
    prompted_memories: int | None = None,
) -> Tracking:
    """Return the table of a tracker with the parts of SAM2.

    Args:
        embeddings: outputs of the family's encoder: the coarse embeddings and the high-resolution features.
        side: side of the square image that the encoder takes, in pixels.
        memory_shape: shape of the memory of one frame; None: 64 channels of the size of the coarse embeddings.
    """
    coarse = min(embeddings, key=lambda tensor: int(tensor.shape[-1]))
    channels, small = int(coarse.shape[1]), int(coarse.shape[-1])
    finer = [tensor for tensor in embeddings if tensor is not coarse]
    low = 4 * small
    features = Tensor(coarse.name, "FP32", ("images", channels, small, small))
    logits = Tensor("masks", "FP32", ("objects", 1, low, low))
    score = Tensor("object_score_logits", "FP32", ("objects", 1))
    memory = memory_shape or (64, small, small)
    shared = {"images": Dimension(choices=(1, "objects"))}
    objects: dict[tuple[str, ...], int] = {("objects",): MAX_PROMPTS}
    models = by_role(
        ModelSpec(
            MEMORY_ATTENTION,
            inputs=(
                features,
                Tensor("memories", "FP32", ("objects", "memories", *memory)),
                # Steps between the frame of a memory and this one: 1 to 6; 0 for a prompted frame at any distance.
                Tensor("memory_ages", "INT64", ("objects", "memories")),
                Tensor("object_pointers", "FP32", ("objects", "pointers", channels)),
                # Steps between the frame of a pointer and this one, divided by min(frames, 16) - 1.
                Tensor("pointer_ages", "FP32", ("objects", "pointers")),
            ),
            outputs=(Tensor("conditioned_embeddings", "FP32", ("objects", channels, small, small)),),
            dimensions={**shared, "pointers": Dimension(minimum=0)},
            limits={
                **objects,
                ("objects", "memories"): MAX_MEMORIES,
                ("objects", "pointers"): MAX_PROMPT_POINTS,  # four tokens each, as small as those of points
            },
        ),
        ModelSpec(
            MEMORY_ENCODER,
            inputs=(features, logits, score, Tensor("is_prompted", "FP32", ("objects",))),
            outputs=(Tensor(MEMORY, "FP32", ("objects", *memory)),),
            dimensions=shared,
            limits=objects,
        ),
        ModelSpec(
            TRACKING_DECODER,
            inputs=(
                *(Tensor(tensor.name, "FP32", tensor.shape) for tensor in (coarse, *finer)),
                Tensor("point_coords", "FP32", ("objects", "points", 2)),
                Tensor("point_labels", "FP32", ("objects", "points")),
                # 1: the best of three masks; 0: the single mask.
                Tensor("multimask", "FP32", ("objects",)),
                # 0: mask_input holds logits of an earlier prediction. 1: it is the output of the mask_prompt model, and
                # the embeddings are of a frame without memory. -1: the same, and the mask is empty.
                Tensor("mask_prompt", "FP32", ("objects",)),
                Tensor("mask_input", "FP32", ("masks", 1, low, low), optional=True),
                Tensor("has_mask_input", "FP32", ("masks",), optional=True),
            ),
            outputs=(
                logits,
                Tensor("iou_predictions", "FP32", ("objects", 1)),
                score,
                Tensor("object_pointers", "FP32", ("objects", channels)),
            ),
            dimensions={**shared, "masks": Dimension(choices=(1, "objects")), "points": Dimension(minimum=0)},
            limits={**objects, ("objects", "points"): MAX_PROMPT_POINTS},
        ),
        ModelSpec(
            MASK_PROMPT,
            # 1 inside the object, 0 outside, at the size of the encoder's image.
            inputs=(Tensor("mask", "FP32", ("objects", 1, side, side)),),
            outputs=(Tensor("mask_input", "FP32", ("objects", 1, low, low)), logits),
        ),
    )
    return Tracking(models, bfloat16_memories=bfloat16_memories, prompted_memories=prompted_memories)
