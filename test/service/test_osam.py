"""osam's protocol: its rule for the mask of an answer, and embeddings that stand for images."""

from __future__ import annotations

import asyncio
import base64
import io
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi")
from support.running_service import running_service
from support.tools import AWAY, BOX, CLICK, base64_of

from triton_sam import SAM2TritonClient
from triton_sam.families import get_family
from triton_sam.masks.segment import Segment
from triton_sam.service.adapters import osam

SIZE = (800, 600)
CORNERS = [BOX[:2], BOX[2:]]
PROMPTS = {
    "point": ({"points": [CLICK], "point_labels": [1]}, {"point_coords": [CLICK]}),
    "points": (
        {"points": [CLICK, AWAY], "point_labels": [1, 0]},
        {"point_coords": [CLICK, AWAY], "point_labels": [1, 0]},
    ),
    "box": ({"points": CORNERS, "point_labels": [2, 3]}, {"box": BOX}),
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


@pytest.fixture(scope="module")
def image64(picture):
    return base64_of(picture)


@pytest.fixture(scope="module")
def client(service_triton, picture):
    with SAM2TritonClient(service_triton.grpc_url) as client:
        client.set_image(picture)
        yield client


@pytest.fixture
def generate(http):
    def generate(status=200, **members):
        answer = http.post("/api/generate", json={"model": "sam2:latest", **members})
        assert answer.status_code == status, answer.text
        return answer.json() if status == 200 else answer.json()["detail"]

    return generate


def drawn(annotation):
    """The mask of an annotation at full size."""
    box = annotation["bounding_box"]
    with Image.open(io.BytesIO(base64.b64decode(annotation["mask"]))) as part:
        pixels = np.asarray(part) > 0
    assert pixels.shape == (box["ymax"] - box["ymin"] + 1, box["xmax"] - box["xmin"] + 1)
    mask = np.zeros(SIZE[::-1], bool)
    mask[box["ymin"] : box["ymax"] + 1, box["xmin"] : box["xmax"] + 1] = pixels
    return mask


@pytest.mark.parametrize("name", PROMPTS)
def test_the_best_of_three_masks_is_the_answer(generate, client, image64, name):
    prompt, ours = PROMPTS[name]
    answer = generate(image=image64, prompt=prompt)
    [annotation] = answer["annotations"]
    best = max(client.segment(**ours, multimask_output=True), key=lambda each: each.score)
    assert np.array_equal(drawn(annotation), best.mask)
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
    ("family", "name", "is_single"),
    [
        ("sam1", "point", False),
        ("sam1", "points", True),
        ("sam1", "box", True),
        ("mobilesam", "both", True),
        ("sam2", "both", False),
    ],
)
def test_sam1_chooses_the_single_mask_for_more_than_a_point(family, name, is_single):
    masks, pair = Masks(), SimpleNamespace(family=get_family(family))
    target = osam.target_of(osam.Prompt(**PROMPTS[name][0]))
    [found] = asyncio.run(osam._best(masks, None, None, pair, target))
    assert (masks.multimask, found["score"]) == (not is_single, 0.1 if is_single else 0.9)


def test_the_embedding_of_an_answer_takes_the_place_of_the_image(generate, image64):
    first = generate(image=image64, prompt=PROMPTS["point"][0])
    embedding = first["image_embedding"]
    assert (embedding["original_width"], embedding["original_height"]) == SIZE
    assert np.array(embedding["embedding"], np.float32).ndim == 3  # osam's types want it
    assert generate(image_embedding=embedding, prompt=PROMPTS["point"][0]) == first
    assert generate(image_embedding=embedding, image="no image", prompt=PROMPTS["point"][0]) == first


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
