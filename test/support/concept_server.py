"""A real session model of SAM3 in this process, over trivial models of concepts: each text finds two squares.

The first letter of a text is its token, and determines the rows of the squares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from support.in_process import ImageServer

from triton_sam import PromptError
from triton_sam.families import get_family
from triton_sam.wire import contract

FAMILY = get_family("sam3")
QUERIES, SIDE = 3, 288
Arrays = dict[str, npt.NDArray[Any]]


class ConceptServer(ImageServer):
    """A server that finds concepts.

    Args:
        has_models: whether it has the models of concepts.
        parameters: parameters of the session model.

    Attributes:
        texts: the tokens of the encoded texts.
        calls: the roles and inputs of the models called by searches, except encoders.
    """

    def __init__(self, *, has_models: bool = True, **parameters: str) -> None:
        self.texts: list[int] = []
        self.calls: list[tuple[str, Arrays]] = []
        names = {contract.CONCEPT_MODELS: " ".join(f"sam3_{role}" for role in FAMILY.concepts)}
        super().__init__(self._computed, "sam3", keeps_images=True, **names, **parameters)
        if has_models:
            self.program.concept_models.tokenizer = self
        else:
            self.triton.missing.update(f"sam3_{role}" for role in FAMILY.concepts)

    @property
    def encodes(self) -> list[str]:
        """The encoders called by the session model."""
        return [call.model for call in self.triton.calls if call.model in ("sam3_encoder", "sam3_concept_encoder")]

    def roles(self) -> list[str]:
        return [role for role, _ in self.calls]

    def tokens(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Replace the tokenizer."""
        if any(len(text) > 20 for text in texts):
            raise PromptError("too long")
        ids = np.array([[ord(text[0]) - ord("a") + 1, 0] for text in texts], np.int64)
        return ids, (ids > 0).astype(np.int64)

    def _computed(self, model: str, inputs: Arrays, wanted: tuple[str, ...]) -> Mapping[str, npt.NDArray[Any]]:
        role = model.removeprefix("sam3_")
        if "backbone_states" in inputs:
            return dict.fromkeys(wanted, inputs["backbone_states"])
        if role in ("encoder", "concept_encoder"):
            (pixels,) = inputs.values()
            assert pixels.shape == (1, 3, 1008, 1008)
            return {name: np.full(4, len(self.encodes), np.float32) for name in wanted}
        if role == "decoder":
            shape = (1, 1, 3, SIDE, SIDE)
            return {"pred_masks": np.zeros(shape, np.float32), "iou_scores": np.zeros((1, 1, 3), np.float32)}
        if role == "text_encoder":
            ids = inputs["input_ids"]
            self.texts += ids[:, 0].tolist()
            return {wanted[0]: np.repeat(ids[:, :, None], 4, axis=2).astype(np.float32)}
        self.calls.append((role, inputs))
        return {"pred_masks": self.draw(inputs)} if role == "mask_head" else self.detect(inputs)

    def draw(self, inputs: Arrays) -> npt.NDArray[np.float32]:
        """Return the logits (1,I,288,288) of instances."""
        rows = inputs["mask_queries"][0, :, 0].astype(int)
        masks = np.full((1, len(rows), SIDE, SIDE), -9, np.float32)
        for index, row in enumerate(rows):
            masks[0, index, row * 8 : row * 8 + 8, :8] = 9 - index
        return masks

    def detect(self, inputs: Arrays) -> Arrays:
        """Return the outputs of the detector."""
        count = len(inputs["text_features"])
        return {
            "pred_boxes": np.tile(np.array([0, 0, 0.5, 0.5], np.float32), (count, QUERIES, 1)),
            "pred_logits": np.tile(np.array([[-9, 0, 2]], np.float32), (count, 1)),  # two of three are instances
            "presence_logits": np.full((count, 1), 9, np.float32),
            "mask_queries": np.repeat(inputs["text_features"][:, :1, :1], QUERIES, axis=1),
            "mask_features": np.zeros((count, 4), np.float32),
        }
