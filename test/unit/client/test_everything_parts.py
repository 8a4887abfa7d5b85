"""A search in parts: the session model decodes and filters, and a client without one does it by itself."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import numpy as np
import pytest
from PIL import Image
from support.conditions import wait_until
from support.fake_transport import NEVER, AsyncFakeTransport, FakeTransport, encoded, text, uploaded
from support.fuzzing import EmptyModels, NoMetrics

from triton_sam import (
    ConfigurationError,
    ImageError,
    InferenceError,
    NoImageError,
    SAM2TritonClient,
    ServerBusyError,
    SpeculativeSAM2Client,
)
from triton_sam.client.aio import AsyncSAM2TritonClient
from triton_sam.client.lacks import ASK_AGAIN_SECONDS
from triton_sam.errors import ServerTimeoutError
from triton_sam.families import get_family
from triton_sam.sessions import cache
from triton_sam.sessions.image.session import SessionModel
from triton_sam.wire import contract
from triton_sam.wire.pair import ModelPair

IMAGE = np.random.default_rng(0).integers(0, 255, (48, 64, 3), np.uint8)
LOW = {"points_per_side": 4, "pred_iou_thresh": 0.2, "stability_score_thresh": 0.0}
LOW8 = {**LOW, "points_per_side": 8}
"""64 points, so 8 parts."""


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


def in_one_request(server: Server, image: bytes, **parameters) -> dict:
    """Return the answer to a search in one request, as programs in other languages send it."""
    inputs = {contract.IMAGE: text(image), contract.EVERYTHING: text(json.dumps(parameters).encode())}
    reply = server.model.find_everything(inputs, lambda: False)
    assert reply.error is None
    return json.loads(reply.tensors[contract.RESULT_JSON][0])


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
def test_parts_find_the_same_as_one_request_and_as_clicks(more):
    server, older, steps = Server(), FakeTransport(Server()), []
    older.lacks = (contract.EVERYTHING_PART,)
    with SAM2TritonClient(transport=FakeTransport(server)) as client, SAM2TritonClient(transport=older) as other:
        parts = client.everything(IMAGE, progress=steps.append, **{**LOW, **more})
        clicks = other.everything(IMAGE, **{**LOW, **more})
        whole = in_one_request(server, client.encode(IMAGE).remote.content, **{**LOW, **more})
    assert parts
    assert [(each.to_rle(), each.score) for each in parts] == [
        (each["segmentation"], each["predicted_iou"]) for each in whole["objects"]
    ]
    assert summary(parts) == summary(clicks)
    assert parts.decodes == whole["decodes"] == clicks.decodes
    assert set(server.asked) == {"everything_part", "other"}
    assert [step.done for step in steps] == sorted(step.done for step in steps)
    assert steps[-1].done == steps[-1].total


def test_a_part_names_all_parameters_but_the_thresholds_that_the_server_knows():
    server = Server()
    transport = FakeTransport(server)
    with SAM2TritonClient(transport=transport) as client:
        client.everything(IMAGE, points_per_side=3, pred_iou_thresh=np.float32(0.5))
    request = next(each for each in transport.requests if contract.EVERYTHING_PART in each.inputs)
    assert (request.model, set(request.inputs)) == ("sam2", {"image_id", "everything_part"})
    sent = json.loads(request.inputs["everything_part"][0])["parameters"]
    assert (sent["points_per_side"], sent["pred_iou_thresh"], sent["box_nms_thresh"]) == (3, 0.5, 0.7)
    assert "stability_score_thresh" not in sent


class Together(Server):
    """Answers a part only once two parts are under way, if there are two."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.left = parts
        self.under_way = self.most = 0
        self.changed = threading.Condition()

    def __call__(self, request):
        if contract.EVERYTHING_PART not in request.inputs:
            return super().__call__(request)
        with self.changed:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self.most == 2 or self.left == 1, 10)
            self.under_way -= 1
            self.left -= 1
        return super().__call__(request)


def test_two_parts_are_under_way_at_a_time():
    server = Together(8)
    with SAM2TritonClient(transport=FakeTransport(server)) as client:
        found = client.everything(IMAGE, **{**LOW, "points_per_side": 8})
        assert summary(found) == summary(SAM2TritonClient(transport=FakeTransport(Server())).everything(IMAGE, **LOW8))
    assert (server.most, server.left) == (2, 0)


@pytest.mark.parametrize("kind", [SpeculativeSAM2Client, AsyncSAM2TritonClient])
def test_cancelling_the_task_cancels_both_parts(kind):
    server = Server()

    def answer(request):
        return NEVER if contract.EVERYTHING_PART in request.inputs else server(request)

    transport = AsyncFakeTransport(answer)

    async def search():
        async with kind(transport=transport) as client:
            method = client.everything_async if kind is SpeculativeSAM2Client else client.everything
            task = asyncio.create_task(method(IMAGE, **LOW8))
            await asyncio.to_thread(wait_until, lambda: len(transport.requests) == 3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(wait_until, lambda: transport.cancelled == 2)

    asyncio.run(asyncio.wait_for(search(), 10))
    assert len(transport.requests) == 3


def test_an_error_of_progress_ends_the_search_after_the_parts_under_way():
    server = Server()

    def stop(step):
        raise KeyboardInterrupt

    with SAM2TritonClient(transport=FakeTransport(server)) as client, pytest.raises(KeyboardInterrupt):
        client.everything(IMAGE, progress=stop, **LOW8)
    assert server.asked.count("everything_part") <= 2


def test_an_empty_list_has_its_reason():
    with SAM2TritonClient(transport=FakeTransport(Server())) as client:
        found = client.everything(IMAGE, points_per_side=2, pred_iou_thresh=1, stability_score_thresh=0)
        assert client.everything(IMAGE, **LOW).reason is None
    assert found == []
    assert found.reason == "Of 12 masks, pred_iou_thresh dropped 12: try lower thresholds."


@pytest.mark.parametrize(
    ("place", "lacks", "said"),
    [
        ("auto", (contract.EVERYTHING_PART,), "sam2 of this server is of an earlier version: update it"),
        ("client", (), "this client keeps the embeddings; embeddings='auto' or 'server' avoids it"),
    ],
)
def test_a_client_that_filters_by_itself_says_so_once_and_names_the_open_thresholds(caplog, place, lacks, said):
    transport = FakeTransport(Embedded(Server()))
    transport.lacks = lacks
    with SAM2TritonClient(transport=transport, embeddings=place) as client:
        for _ in range(2):
            client.everything(IMAGE, points_per_side=1)
    (message,) = caplog.messages
    assert said in message
    assert "official defaults of pred_iou_thresh and stability_score_thresh" in message
    assert len(transport.configs) == (place == "auto")


def test_a_server_that_was_updated_is_noticed_after_a_while(monkeypatch):
    server = Server()
    transport = FakeTransport(server)
    transport.lacks = (contract.EVERYTHING_PART,)
    with SAM2TritonClient(transport=transport) as client:
        client.everything(IMAGE, **LOW)
        transport.lacks = ()
        client.everything(IMAGE, **LOW)
        assert "everything_part" not in server.asked
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + ASK_AGAIN_SECONDS + 1)
        client.everything(IMAGE, **LOW)
    assert "everything_part" in server.asked
    assert len(transport.configs) == 2


class Embedded:
    """A server whose encoder and decoder answer besides its session model."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def __call__(self, request):
        if request.model == "sam2_encoder":
            return encoded()
        return (
            self.server(request) if request.model == "sam2" else Blobs().decode(None, request.inputs, request.outputs)
        )


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InferenceError("sam2 failed: BAD_IMAGE: not an image"), ImageError),
        (InferenceError("sam2 failed: BUSY: try again"), ServerBusyError),
        (InferenceError("sam2 failed: BAD_REQUEST: there is no parameter 'new'"), InferenceError),
        (ServerTimeoutError("late"), ServerTimeoutError),
    ],
)
def test_errors_of_the_server_have_their_type(error, kind):
    transport = FakeTransport(lambda request: uploaded() if contract.IMAGE in request.inputs else error)
    with SAM2TritonClient(transport=transport) as client, pytest.raises(kind):
        client.everything(IMAGE, **LOW)


@pytest.mark.parametrize("answer", ["[]", "{", '{"objects": [{}]}', '{"objects": []}', '{"objects": 3}'])
def test_a_broken_answer_is_one_clear_error(answer):
    broken = {"result_json": text(answer.encode()), "image_id": text(b"id")}
    transport = FakeTransport(lambda request: uploaded() if contract.IMAGE in request.inputs else broken)
    with (
        SAM2TritonClient(transport=transport) as client,
        pytest.raises(
            InferenceError,
            match=r"^sam2 answered in an unknown form: the server .*; update it or this client$",
        ),
    ):
        client.everything(IMAGE, **LOW)


def test_a_family_without_mask_prompts_refines_no_masks():
    transport = FakeTransport()
    with (
        SAM2TritonClient(model_type="sam3", transport=transport) as client,
        pytest.raises(ConfigurationError, match="sam3 takes no mask as a prompt"),
    ):
        client.everything(IMAGE, use_m2m=True)
    assert not transport.requests


def test_an_open_file_is_read_once(tmp_path):
    Image.fromarray(IMAGE).save(tmp_path / "image.png")
    with (
        (tmp_path / "image.png").open("rb") as file,
        SAM2TritonClient(transport=FakeTransport(Server())) as client,
    ):
        assert summary(client.everything(file, **LOW)) == summary(client.everything(IMAGE, **LOW))


@pytest.mark.parametrize(("size", "layers"), [((1, 1), 1), ((20_000, 20), 0), ((20, 20_000), 1)])
def test_images_of_odd_sizes_are_searched_in_parts(size, layers):
    with SAM2TritonClient(transport=FakeTransport(Server())) as client:
        image, chosen = (
            np.zeros((size[1], size[0], 3), np.uint8),
            {**LOW, "points_per_side": 1, "crop_n_layers": layers},
        )
        found = client.everything(image, **chosen)
    assert all(each.mask.shape == size[::-1] for each in found)


@pytest.mark.parametrize("kind", [SpeculativeSAM2Client, AsyncSAM2TritonClient])
def test_the_async_clients_search_in_parts(kind):
    server, steps = Server(), []

    async def search():
        async with kind(transport=AsyncFakeTransport(server), embeddings="auto") as client:
            method = client.everything_async if kind is SpeculativeSAM2Client else client.everything
            return await method(IMAGE, progress=steps.append, **LOW)

    found = asyncio.run(search())
    assert found
    assert server.asked.count("everything_part") == len(steps) == 2
    with SAM2TritonClient(transport=FakeTransport(Server())) as client:
        assert summary(found) == summary(client.everything(IMAGE, **LOW))


def test_a_lost_image_is_sent_again():
    server = Server()
    with SAM2TritonClient(transport=FakeTransport(server)) as client:
        image = client.encode(IMAGE)
        whole = client.everything(image, **LOW)
        server.forget()
        asked = len(server.asked)
        assert summary(client.everything(image, **LOW)) == summary(whole)
    assert (
        len(server.asked) - asked <= 5
    )  # two parts, each once more with the image, or twice if both were lost at the same time


def test_the_image_that_was_set_is_searched():
    server = Server()
    with SAM2TritonClient(transport=FakeTransport(server)) as client:
        with pytest.raises(NoImageError):
            client.everything(**LOW)
        client.set_image(IMAGE)
        assert summary(client.everything(**LOW)) == summary(client.everything(IMAGE, **LOW))
        again = client.everything(client.image_embeddings, **{**LOW, "crop_n_layers": 1})
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
