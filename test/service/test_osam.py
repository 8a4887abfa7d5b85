"""osam's protocol: its rule for the mask of an answer, and embeddings that stand for images."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi")
from support.running_service import running_service
from support.tools import AWAY, BOX, CLICK, osam_mask

from triton_sam.families import get_family
from triton_sam.masks.segment import Segment
from triton_sam.service.adapters import osam

SIZE = (800, 600)
CORNERS = [BOX[:2], BOX[2:]]
POINT = {"points": [CLICK], "point_labels": [1]}
PROMPTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "points": (
        {"points": [CLICK, AWAY], "point_labels": [1, 0]},
        {"point_coords": [CLICK, AWAY], "point_labels": [1, 0]},
    ),
    "both": (
        {"points": [*CORNERS, CLICK], "point_labels": [2, 3, 1]},
        {"point_coords": [CLICK], "point_labels": [1], "box": BOX},
    ),
    "nothing": (None, {"point_coords": [[400, 300]]}),
}


@pytest.fixture(scope="module")
def http(service_triton):
    with running_service(service_triton.grpc_url, adapters=("osam",)) as running:
        yield running.http


@pytest.fixture
def generate(http):
    def generate(status=200, **members):
        answer = http.post("/api/generate", json={"model": "sam2:latest", **members})
        assert answer.status_code == status, answer.text
        return answer.json() if status == 200 else answer.json()["detail"]

    return generate


def test_the_best_of_three_masks_is_the_answer(generate, sam2, image64):
    for prompt, ours in PROMPTS.values():
        answer = generate(image=image64, prompt=prompt)
        [annotation] = answer["annotations"]
        best = max(sam2.segment(**ours, multimask_output=True), key=lambda each: each.score)
        assert np.array_equal(osam_mask(annotation, SIZE[::-1]), best.mask)
        assert annotation["score"] == pytest.approx(best.score, abs=1e-6)
        assert answer["model"] == "sam2:latest"


class Masks:
    """Takes the place of a bridge: it notes whether candidates are wanted."""

    multimask = None

    async def masks(self, request, image, pair, targets, convert, *, multimask):
        self.multimask = multimask
        scores = (0.2, 0.9, 0.5) if multimask else (0.1,)
        masks = [np.full((4, 4), score > 0.1 or not multimask) for score in scores]
        return [[convert(Segment(mask, score, (0, 0, 4, 4))) for mask, score in zip(masks, scores, strict=True)]]


@pytest.mark.parametrize(
    ("family", "prompt", "is_single"),
    [
        ("sam1", POINT, False),
        ("sam1", PROMPTS["points"][0], True),
        ("sam1", {"points": CORNERS, "point_labels": [2, 3]}, True),
        ("mobilesam", PROMPTS["both"][0], True),
        ("sam2", PROMPTS["both"][0], False),
    ],
)
def test_sam1_chooses_the_single_mask_for_more_than_a_point(family, prompt, is_single):
    masks, pair = Masks(), SimpleNamespace(family=get_family(family))
    target = osam.target_of(osam.Prompt(**prompt))
    [found] = asyncio.run(osam._best(masks, None, None, pair, target))
    assert (masks.multimask, found["score"]) == (not is_single, 0.1 if is_single else 0.9)


def test_the_embedding_of_an_answer_takes_the_place_of_the_image(generate, image64):
    first = generate(image=image64, prompt=POINT)
    embedding = first["image_embedding"]
    assert (embedding["original_width"], embedding["original_height"]) == SIZE
    assert np.array(embedding["embedding"], np.float32).ndim == 3  # osam's types want it
    assert generate(image_embedding=embedding, prompt=POINT) == first
    assert generate(image_embedding=embedding, image="no image", prompt=POINT) == first


def test_embeddings_of_other_programs_are_refused(generate, image64):
    real = {"original_height": 600, "original_width": 800, "embedding": np.zeros((256, 4, 4)).tolist()}
    features = [{"shape": [1, 1, 1], "dtype": "float32", "data": "AAAAAA=="}]
    [mine] = [generate(image=image64)["image_embedding"]]
    for embedding in (
        {**real, "extra_features": []},
        {**mine, "extra_features": features},
        {**mine, "embedding": [[[0.5, 300, "a", None]]]},
        {**mine, "embedding": [[["7"] * 16]]},
        {**mine, "embedding": [[[1.0] * 4096]]},
        {"embedding": 3},
        {},
    ):
        assert "only those of this service's answers" in generate(422, image_embedding=embedding)
        assert generate(image_embedding=embedding, image=image64)["image_embedding"] == mine
    unknown = {**mine, "embedding": [[[7.0] * len(mine["embedding"][0][0])]]}
    assert "upload it again" in generate(404, image_embedding=unknown)
    assert generate(image_embedding=unknown, image=image64)["image_embedding"] == mine
    assert "send an image" in generate(422)
