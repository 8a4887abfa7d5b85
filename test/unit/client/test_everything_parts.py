"""A search in parts: the session model decodes and filters, and the client hears of each part."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from support.fake_transport import AsyncFakeTransport, FakeTransport, text
from support.fuzzing import EmptyModels, NoMetrics

from triton_sam import ConfigurationError, InferenceError, NoImageError, SAM2TritonClient, SpeculativeSAM2Client
from triton_sam.client.aio import AsyncSAM2TritonClient
from triton_sam.families import get_family
from triton_sam.sessions import cache
from triton_sam.sessions.image.session import SessionModel
from triton_sam.wire import contract
from triton_sam.wire.pair import ModelPair

IMAGE = np.random.default_rng(0).integers(0, 255, (48, 64, 3), np.uint8)
LOW = {"points_per_side": 4, "pred_iou_thresh": 0.2, "stability_score_thresh": 0.0}


class Blobs(EmptyModels):
    """A decoder that draws a disc around each point, whose size and score depend on the point."""

    def decode(self, embeddings, inputs, outputs):
        objects, candidates = len(inputs["point_coords"]), 3 if outputs[0].startswith("multimask") else 1
        rows, columns = np.mgrid[:256, :256]
        x, y = inputs["point_coords"][0, 0] / 4
        logits = np.float32(12 + x / 8 - np.hypot(columns - x, rows - y))
        shapes = np.broadcast_to(logits, (objects, candidates, 256, 256)).copy()
        scores = np.tile(np.float32([x / 256, 0.1, y / 256])[:candidates], (objects, 1))
        return dict(zip(outputs, (shapes, scores), strict=True))


class Server:
    """Answers as Triton does with the session model of SAM2."""

    def __init__(self) -> None:
        self.model = SessionModel(
            ModelPair(get_family("sam2")), Blobs(), cache.ImageCache(1 << 30), NoMetrics(), "weights"
        )
        self.asked: list[str] = []

    def __call__(self, request):
        names = set(request.inputs)
        self.asked.append(next((name for name in ("everything", "everything_part") if name in names), "other"))
        if contract.EVERYTHING in names:
            reply = self.model.find_everything(request.inputs, lambda: False)
        elif contract.EVERYTHING_PART in names:
            reply = self.model.find_part(request.inputs, lambda: False)
        else:
            reply = self.model.answer(request.inputs)
        if reply.error is not None:
            return InferenceError(f"sam2 failed: {contract.code_of(reply.error)}: {reply.error}")
        return {name: reply.tensors[name] for name in request.outputs}

    def forget(self) -> None:
        while self.model.cache.evict_oldest(0):
            pass


def summary(objects) -> list[tuple]:
    return [(each.to_rle(), each.score, each.stability_score, each.point, each.crop_box, each.box) for each in objects]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"crop_n_layers": 1},
        {"use_m2m": True},
        {"min_mask_region_area": 5},
        {"multimask_output": False},
    ],
    ids=str,
)
def test_parts_find_the_same_as_one_request(more):
    server, steps = Server(), []
    with SAM2TritonClient(transport=FakeTransport(server)) as client:
        whole = client.everything(IMAGE, **{**LOW, **more})
        parts = client.everything(IMAGE, progress=steps.append, **{**LOW, **more})
    assert whole
    assert summary(parts) == summary(whole)
    assert parts.decodes == whole.decodes
    assert set(server.asked) == {"everything", "everything_part", "other"}
    assert [step.done for step in steps] == sorted(step.done for step in steps)
    assert steps[-1].done == steps[-1].total


@pytest.mark.parametrize("layers", [0, 1])
@pytest.mark.parametrize("size", [(1, 1), (20_000, 20), (20, 20_000)])
def test_images_of_odd_sizes_are_searched_in_parts(size, layers):
    with SAM2TritonClient(transport=FakeTransport(Server())) as client:
        image, chosen = (
            np.zeros((size[1], size[0], 3), np.uint8),
            {**LOW, "points_per_side": 1, "crop_n_layers": layers},
        )
        found = client.everything(image, progress=lambda step: None, **chosen)
        assert summary(found) == summary(client.everything(image, **chosen))
    assert all(each.mask.shape == size[::-1] for each in found)


@pytest.mark.parametrize("kind", [SpeculativeSAM2Client, AsyncSAM2TritonClient])
def test_the_async_clients_search_in_parts(kind):
    server, steps = Server(), []

    async def search():
        async with kind(transport=AsyncFakeTransport(server), embeddings="auto") as client:
            method = client.everything_async if kind is SpeculativeSAM2Client else client.everything
            found = await method(IMAGE, progress=steps.append, **LOW)
            return found, await method(IMAGE, **LOW)

    parts, whole = asyncio.run(search())
    assert whole
    assert summary(parts) == summary(whole)
    assert server.asked.count("everything_part") == len(steps) == 2


def test_a_lost_image_is_sent_again():
    server = Server()
    with SAM2TritonClient(transport=FakeTransport(server)) as client:
        whole = client.everything(IMAGE, **LOW)
        found = client.everything(IMAGE, progress=lambda step: server.forget(), **LOW)
    assert summary(found) == summary(whole)
    assert server.asked.count("everything_part") == 3  # the second one once more


@pytest.mark.parametrize("progress", [None, lambda step: None], ids=["one request", "parts"])
def test_the_image_that_was_set_is_searched(progress):
    server = Server()
    with SAM2TritonClient(transport=FakeTransport(server)) as client:
        with pytest.raises(NoImageError):
            client.everything(progress=progress, **LOW)
        client.set_image(IMAGE)
        assert summary(client.everything(progress=progress, **LOW)) == summary(client.everything(IMAGE, **LOW))
        again = client.everything(client.image_embeddings, progress=progress, **{**LOW, "crop_n_layers": 1})
        assert summary(again) == summary(client.everything(IMAGE, **LOW, crop_n_layers=1))


def test_an_image_whose_embeddings_are_here_is_searched_without_crops():
    family = get_family("sam2")
    embeddings = {
        spec.name: np.zeros([side if isinstance(side, int) else 1 for side in spec.shape], np.float32)
        for spec in family.encoder.outputs
    }

    def answer(request):
        if request.model == "sam2_encoder":
            return embeddings
        return Blobs().decode(None, request.inputs, request.outputs)

    with SAM2TritonClient(transport=FakeTransport(answer), embeddings="client") as client:
        client.set_image(IMAGE)
        found = client.everything(points_per_side=1, pred_iou_thresh=0.2, stability_score_thresh=0)
        assert [each.mask.shape for each in found] == [(48, 64)]
        with pytest.raises(ConfigurationError, match="crop_n_layers needs the image itself"):
            client.everything(crop_n_layers=1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("[]", "must be an object"),
        ({}, "points must be a list of 1 to 64 pairs"),
        ({"points": []}, "points must be a list of 1 to 64 pairs"),
        ({"points": [[1, 1]] * 65}, "points must be a list of 1 to 64 pairs"),
        ({"points": [[1, 2, 3]]}, "points must be a list of 1 to 64 pairs"),
        ({"points": [["a", 2]]}, "points must be a list of 1 to 64 pairs"),
        ({"points": [[65, 2]]}, "points must lie in the image"),
        ({"points": [[float("nan"), 2]]}, "points must lie in the image"),
        ({"points": [[1, 1]], "more": 1}, "everything_part has no 'more'"),
        ({"points": [[1, 1]], "parameters": []}, "parameters must be an object"),
        ({"points": [[1, 1]], "parameters": {"many": 1}}, "there is no parameter 'many'"),
        ({"points": [[1, 1]], "crop": [0, 0, 9, 9]}, "crop and image_size belong together"),
        ({"points": [[1, 1]], "crop": [0, 0, 9], "image_size": [99, 99]}, "crop must be a list of 4 whole numbers"),
        ({"points": [[1, 1]], "crop": [0, 0, 9, 9], "image_size": [99, 99]}, "does not have the size of the image"),
        ({"points": [[1, 1]], "crop": [0, 0, 9, 9], "image_size": [8, 99]}, "does not lie in an image"),
        ({"points": [[1, 1]], "crop": [0, 0, 64, 48], "image_size": [10**6, 10**6]}, "image_size may have at most"),
    ],
    ids=str,
)
def test_a_wrong_part_is_one_clear_error(given, message):
    content = given if isinstance(given, str) else json.dumps(given)
    model = Server().model
    with SAM2TritonClient(transport=FakeTransport(Server())) as client:
        image = client.encode(IMAGE).remote.content
    reply = model.find_part({"image": text(image), "everything_part": text(content.encode())}, lambda: False)
    assert isinstance(reply.error, ValueError)
    assert message in str(reply.error)


def test_a_part_needs_an_image_and_nothing_else():
    model = Server().model
    asked = {"everything_part": text(b'{"points": [[1, 1]]}')}
    assert "either an image or the image_id" in str(model.find_part(asked, lambda: False).error)
    more = {**asked, "image_id": text(b"id"), "boxes": np.zeros((1, 4), np.float32)}
    assert "cannot be combined with boxes" in str(model.find_part(more, lambda: False).error)
    assert "no image 'id' here" in str(model.find_part({**asked, "image_id": text(b"id")}, lambda: False).error)
