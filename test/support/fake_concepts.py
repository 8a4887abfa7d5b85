"""Models of concepts that compute nothing much: each text finds a square whose place depends on its tokens."""

from __future__ import annotations

import numpy as np
from support.fuzzing import EmptyModels

from triton_sam.errors import ModelNotReadyError, PromptError
from triton_sam.families import get_family

FAMILY = get_family("sam3")
QUERIES, SIDE = 3, 288


class NoMaps(EmptyModels):
    """The encoder and the decoder of clicks."""

    objects_at_a_time = 1

    def __init__(self) -> None:
        self.encodes = 0

    def encode(self, inputs):
        self.encodes += 1
        return {name: np.zeros(4, np.float32) for name in FAMILY.encoder.output_names}

    def decode(self, embeddings, inputs, outputs):
        assert set(embeddings) == set(FAMILY.encoder.output_names)
        shape = (1, 1, 3, SIDE, SIDE)
        return {"pred_masks": np.zeros(shape, np.float32), "iou_scores": np.zeros((1, 1, 3), np.float32)}


class FakeConcepts:
    """See sessions.image.concepts.ConceptModels. The first letter of a text is its token, and the row of its square."""

    prompts_at_a_time = 2
    ready = True

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.encodes = 0
        self.texts: list[int] = []
        self.inputs: list[dict] = []

    def identity(self) -> str:
        return "weights"

    def encode(self, inputs):
        self.encodes += 1
        (pixels,) = inputs.values()
        assert pixels.shape == (1, 3, 1008, 1008)
        names = FAMILY.concepts["concept_encoder"].output_names
        return {name: np.full(4, self.encodes, np.float32) for name in names}

    def nbytes(self, embeddings) -> int:
        return sum(array.nbytes for array in embeddings.values())

    def tokens(self, texts):
        if not self.ready:
            raise ModelNotReadyError("this server does not have sam3_detector: export it")
        if any(len(text) > 20 for text in texts):
            raise PromptError("too long")
        ids = np.array([[ord(text[0]) - ord("a") + 1, 0] for text in texts], np.int64)
        return ids, (ids > 0).astype(np.int64)

    def encode_text(self, ids, mask):
        self.texts += ids[:, 0].tolist()
        return np.repeat(ids[:, :, None], 4, axis=2).astype(np.float32)

    def run(self, role, held, inputs):
        self.calls.append(role)
        self.inputs.append({**held, **inputs})
        if role == "mask_head":
            assert set(held) == {"concept_features.0", "concept_features.1"}
            rows = inputs["mask_queries"][0, :, 0].astype(int)
            masks = np.full((1, len(rows), SIDE, SIDE), -9, np.float32)
            for index, row in enumerate(rows):
                masks[0, index, row * 8 : row * 8 + 8, :8] = 9
            return {"pred_masks": masks}
        assert set(held) == {"concept_states", "example_features"}
        count = len(inputs["text_features"])
        token = inputs["text_features"][:, :1, :1]
        logits = np.tile(np.array([[-9, 0, 2]], np.float32), (count, 1))  # two of three are instances
        return {
            "pred_boxes": np.tile(np.array([0, 0, 0.5, 0.5], np.float32), (count, QUERIES, 1)),
            "pred_logits": logits,
            "presence_logits": np.full((count, 1), 9, np.float32),
            "mask_queries": np.repeat(token, QUERIES, axis=1),
            "mask_features": np.zeros((count, 4), np.float32),
        }
