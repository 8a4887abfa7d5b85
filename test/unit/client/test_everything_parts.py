"""A search in parts: the session model decodes and filters, and a client without one does it by itself."""

import asyncio
import json
import shutil
import threading
import time
import weakref

import numpy as np
import pytest
from support.conditions import until, wait_until
from support.fuzzing import text
from support.in_process import ImageServer, refusal

from triton_sam import (
    ConfigurationError,
    InferenceError,
    NoImageError,
    SAM2AutomaticMaskGenerator,
    SAM2TritonClient,
    ServerBusyError,
    SpeculativeSAM2Client,
)
from triton_sam._common.bundle import bundled
from triton_sam.cli import main
from triton_sam.client.aio import AsyncSAM2TritonClient
from triton_sam.client.everything import last_of, search
from triton_sam.client.flows import ASK_AGAIN_SECONDS
from triton_sam.everything.parameters import METADATA_KEY, parameters_of, thresholds_in, thresholds_of
from triton_sam.everything.search import Found
from triton_sam.inputs.images import open_image
from triton_sam.repository.folder import BUILT_IN_CHECKPOINT
from triton_sam.sessions.image.everything import read_job, read_part
from triton_sam.wire import contract

IMAGE = np.random.default_rng(0).integers(0, 255, (48, 64, 3), np.uint8)
LOW = {"points_per_side": 4, "pred_iou_thresh": 0.2, "stability_score_thresh": 0.0}
LOW8 = {**LOW, "points_per_side": 8}
"""64 points, so 8 parts."""
ASYNC = [SpeculativeSAM2Client, AsyncSAM2TritonClient]


@pytest.fixture
def client(image_server):
    with SAM2TritonClient(image_server.url) as client:
        yield client


def parts_of(server):
    return server.sent(contract.EVERYTHING_PART).count(True)


def everything(client):
    """Return the search of an async client."""
    return client.everything_async if isinstance(client, SpeculativeSAM2Client) else client.everything


def summary(objects):
    return [(each.to_rle(), each.score, each.stability_score, each.point, each.crop_box, each.box) for each in objects]


def in_one_request(server, image, **parameters):
    """Return the answer to a search in one request, as programs in other languages send it."""
    inputs = {contract.IMAGE: text(image), contract.EVERYTHING: text(json.dumps(parameters).encode())}
    reply = server.program._model.find_everything(inputs, lambda: False)
    assert reply.error is None
    return json.loads(reply.tensors[contract.RESULT_JSON][0])


@pytest.mark.parametrize(
    "more",
    [{}, {"crop_n_layers": 1}, {"use_m2m": True}, {"min_mask_region_area": 5}, {"multimask_output": False}],
    ids=str,
)
def test_parts_find_the_same_as_one_request_and_as_clicks(image_server, client, more):
    steps = []
    with ImageServer() as older, SAM2TritonClient(older.url) as other:
        older.lacks = (contract.EVERYTHING_PART,)
        parts = client.everything(IMAGE, progress=steps.append, **{**LOW, **more})
        clicks = other.everything(IMAGE, **{**LOW, **more})
        whole = in_one_request(image_server, client.encode(IMAGE).remote.content, **{**LOW, **more})
    assert parts
    assert [each.object_index for each in parts] == list(range(len(parts)))
    assert [(each.to_rle(), each.score) for each in parts] == [
        (each["segmentation"], each["predicted_iou"]) for each in whole["objects"]
    ]
    assert summary(parts) == summary(clicks)
    assert parts.decodes == whole["decodes"] == clicks.decodes
    assert parts_of(image_server) > parts_of(older) == 0
    assert [step.done for step in steps] == sorted(step.done for step in steps)
    assert steps[-1].done == steps[-1].total


def test_logits_are_not_clamped_before_the_filters(client):
    """They are clamped only in predictions, and where they refine a mask, as in the official generator."""
    with ImageServer() as older, SAM2TritonClient(older.url) as other:
        older.lacks = (contract.EVERYTHING_PART,)
        for each in (client, other):
            found = each.everything(IMAGE, **LOW, stability_score_offset=36.0)
            assert max(one.stability_score for one in found) > 0


def test_a_part_names_all_parameters_but_the_thresholds_that_the_server_knows(image_server, client):
    client.everything(IMAGE, points_per_side=3, pred_iou_thresh=np.float32(0.5))
    request = next(each for each in image_server.requests if contract.EVERYTHING_PART in each.inputs)
    assert (request.model, set(request.inputs)) == ("sam2", {"image_id", "everything_part"})
    sent = json.loads(request.inputs["everything_part"][0])["parameters"]
    assert (sent["points_per_side"], sent["pred_iou_thresh"], sent["box_nms_thresh"]) == (3, 0.5, 0.7)
    assert "stability_score_thresh" not in sent


class Together(ImageServer):
    """Answers a part only once two parts are under way, if there are two."""

    left = 8
    under_way = most = 0

    def answer(self, model, request, number):
        if not self.sent(contract.EVERYTHING_PART)[number]:
            return super().answer(model, request, number)
        with changed:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            changed.notify_all()
            assert changed.wait_for(lambda: self.most == 2 or self.left == 1, 60)
            self.under_way -= 1
            self.left -= 1
        return super().answer(model, request, number)


changed = threading.Condition()


def test_two_parts_are_under_way_at_a_time(client):
    with Together() as server, SAM2TritonClient(server.url) as other:
        assert summary(other.everything(IMAGE, **LOW8)) == summary(client.everything(IMAGE, **LOW8))
    assert (server.most, server.left) == (2, 0)


@pytest.mark.parametrize("kind", ASYNC)
def test_cancelling_the_task_cancels_both_parts(image_server, kind):
    async def search():
        async with kind(image_server.url) as client:
            task = asyncio.create_task(everything(client)(IMAGE, **LOW8))
            await until(lambda: len(image_server.requests) == 3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: image_server.cancelled == 2)

    image_server.after = lambda number: image_server.triton.gate.clear()  # after the upload
    asyncio.run(asyncio.wait_for(search(), 60))
    assert len(image_server.requests) == 3


def test_an_error_of_progress_ends_the_search_after_the_parts_under_way(image_server, client):
    def stop(step):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        client.everything(IMAGE, progress=stop, **LOW8)
    assert parts_of(image_server) <= 2


def test_an_empty_list_has_its_reason(client):
    found = client.everything(IMAGE, points_per_side=2, pred_iou_thresh=1, stability_score_thresh=0)
    assert client.everything(IMAGE, **LOW).reason is None
    assert found == []
    assert found.reason == "Of 12 masks, pred_iou_thresh dropped 12: try lower thresholds."


def test_a_server_that_was_updated_is_noticed_after_a_while(image_server, client, monkeypatch):
    image_server.lacks = (contract.EVERYTHING_PART,)
    client.everything(IMAGE, **LOW)
    image_server.lacks = ()
    client.everything(IMAGE, **LOW)
    assert parts_of(image_server) == 0
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + ASK_AGAIN_SECONDS + 1)
    client.everything(IMAGE, **LOW)
    assert parts_of(image_server)
    assert len(image_server.configs) == 2


def test_an_error_of_a_part_is_that_of_the_search(image_server, client):
    image_server.failures = [None, *[refusal("BUSY", "UNAVAILABLE")] * 2]
    with pytest.raises(ServerBusyError):
        client.everything(IMAGE, **LOW)


@pytest.mark.parametrize("answer", ["{", '{"objects": [{}]}'])
def test_a_broken_answer_is_one_clear_error(image_server, client, answer):
    def broken(model, tensors, code, message):
        given = {name: text(answer.encode()) for name in tensors if name == contract.RESULT_JSON}
        return {**tensors, **given}, code, message

    image_server.altered = broken
    with pytest.raises(InferenceError, match=r"^sam2 answered in an unknown form: the server .*; update it or this c"):
        client.everything(IMAGE, **LOW)


def test_a_family_without_mask_prompts_refines_no_masks(image_server):
    with (
        SAM2TritonClient(image_server.url, model_type="sam3") as client,
        pytest.raises(ConfigurationError, match="sam3 takes no mask as a prompt"),
    ):
        client.everything(IMAGE, use_m2m=True)
    assert not image_server.requests


@pytest.mark.parametrize("kind", ASYNC)
def test_the_async_clients_search_in_parts(image_server, client, kind):
    steps = []

    async def search():
        async with kind(image_server.url) as client:
            return await everything(client)(IMAGE, progress=steps.append, **LOW)

    found = asyncio.run(search())
    assert found
    assert parts_of(image_server) == len(steps) == 2
    assert summary(found) == summary(client.everything(IMAGE, **LOW))


def test_the_image_that_was_set_is_searched(client):
    with pytest.raises(NoImageError):
        client.everything(**LOW)
    client.set_image(IMAGE)
    assert summary(client.everything(**LOW)) == summary(client.everything(IMAGE, **LOW))
    again = client.everything(client.image_embeddings, **{**LOW, "crop_n_layers": 1})
    assert summary(again) == summary(client.everything(IMAGE, **LOW, crop_n_layers=1))


def test_an_image_is_encoded_once_and_opened_for_crops_only(image_server, client, monkeypatch):
    opened = []
    monkeypatch.setattr("triton_sam.client.everything.open_image", lambda image: opened.append(1) or open_image(image))
    client.set_image(IMAGE)
    client.everything(**LOW)
    assert not opened
    client.everything(**LOW, crop_n_layers=1)
    assert (len(opened), image_server.sent(contract.IMAGE).count(True)) == (1, 1 + 4)


def test_an_image_whose_embeddings_are_here_is_searched_without_crops(image_server):
    with SAM2TritonClient(image_server.url, embeddings="client") as client:
        client.set_image(IMAGE)
        found = client.everything(points_per_side=1, pred_iou_thresh=0.2, stability_score_thresh=0)
        assert [each.mask.shape for each in found] == [(48, 64)]
        with pytest.raises(ConfigurationError, match="crop_n_layers needs the image itself"):
            client.everything(crop_n_layers=1)


def test_the_embeddings_of_an_image_are_freed_before_its_crops_are_encoded(image_server):
    made = []

    def encode(image):
        wait_until(lambda: all(embeddings() is None for embeddings in made))  # a thread may still end its call
        encoded = client.encode(image)
        made.append(weakref.ref(encoded))
        return encoded

    parameters = parameters_of("sam2", {**LOW, "crop_n_layers": 1})
    with SAM2TritonClient(image_server.url, embeddings="client") as client:
        last_of(search(encode, lambda part: Found(), IMAGE, parameters))
    assert len(made) == 1 + 4


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "must be an object"),
        ({"points": [[1, 1]] * 65}, "points must be a list of 1 to 64 pairs"),
        ({"points": [[1, 2, 3]]}, "points must be a list of 1 to 64 pairs"),
        ({"points": [[65, 2]]}, "points must lie in the image"),
        ({"points": [[float("nan"), 2]]}, "points must lie in the image"),
        ({"points": [[1, 1]], "more": 1}, "everything_part has no 'more'"),
        ({"points": [[1, 1]], "parameters": []}, "parameters must be an object"),
        ({"points": [[1, 1]], "crop": [0, 0, 9, 9]}, "crop and image_size belong together"),
        ({"points": [[1, 1]], "crop": [0, 0, 9], "image_size": [99, 99]}, "crop must be a list of 4 whole numbers"),
        ({"points": [[1, 1]], "crop": [0, 0, 9, 9], "image_size": [99, 99]}, "does not have the size of the image"),
        ({"points": [[1, 1]], "crop": [0, 0, 9, 9], "image_size": [8, 99]}, "does not lie in an image"),
        ({"points": [[1, 1]], "crop": [0, 0, 64, 48], "image_size": [10**6, 10**6]}, "image_size may have at most"),
    ],
    ids=str,
)
def test_a_wrong_part_is_one_clear_error(image_server, client, given, message):
    inputs = {"image": text(client.encode(IMAGE).remote.content), "everything_part": text(json.dumps(given).encode())}
    reply = image_server.program._model.find_part(inputs, lambda: False)
    assert isinstance(reply.error, ValueError)
    assert message in str(reply.error)


def test_a_part_needs_an_image_and_nothing_else(image_server):
    model, asked = image_server.program._model, {"everything_part": text(b'{"points": [[1, 1]]}')}
    assert "either an image or the image_id" in str(model.find_part(asked, lambda: False).error)
    more = {**asked, "image_id": text(b"id"), "boxes": np.zeros((1, 4), np.float32)}
    assert "cannot be combined with boxes" in str(model.find_part(more, lambda: False).error)
    assert "unknown or expired image 'id'" in str(
        model.find_part({**asked, "image_id": text(b"id")}, lambda: False).error
    )


# Thresholds that fit a model: in its metadata, in the session model, and where a caller names none

FITTING = {"pred_iou_thresh": 0.3, "stability_score_thresh": 0.5}


def test_metadata_have_the_thresholds(tmp_path):
    ends = {"pred_iou_thresh": 0, "stability_score_thresh": 1}  # of the range
    for thresholds in (FITTING, ends):
        assert thresholds_of({METADATA_KEY: json.dumps(thresholds)}) == thresholds
    assert thresholds_of({"triton_sam.checkpoint": "sam2.1_hiera_tiny"}) == {}
    demo = thresholds_of({"triton_sam.checkpoint": BUILT_IN_CHECKPOINT})
    assert set(demo) == set(FITTING)
    assert thresholds_in(bundled("model_repository") / "sam2_decoder", "model.onnx") == demo
    assert thresholds_in(bundled("model_repository") / "sam2", "model.onnx") == {}
    shutil.copy(bundled("model_repository") / "sam2_decoder" / "1" / "model.onnx", tmp_path)
    assert thresholds_in(tmp_path, "model.onnx") == demo  # a folder without versions


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"box_nms_thresh": 0.5}', '{"pred_iou_thresh": 2}', '{"pred_iou_thresh": "a"}']
)
def test_broken_metadata_are_one_clear_error(content):
    with pytest.raises(ConfigurationError):
        thresholds_of({METADATA_KEY: content})


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (lambda client: client.everything(IMAGE), (0.3, 0.5)),
        (lambda client: client.everything(IMAGE, pred_iou_thresh=0.9), (0.9, 0.5)),
        (lambda client: SAM2AutomaticMaskGenerator(client).generate(IMAGE), (0.8, 0.95)),
    ],
    ids=["none named", "one named", "the official class"],
)
def test_a_session_model_fills_in_what_the_caller_does_not_name(ask, expected):
    with ImageServer() as server, SAM2TritonClient(server.url) as client:
        server.failures = [None, KeyError("sent")]
        with pytest.raises(KeyError, match="sent"):
            ask(client)
    chosen = read_part(server.requests[1].inputs, "sam2", FITTING).parameters
    assert (chosen.pred_iou_thresh, chosen.stability_score_thresh) == expected


def test_without_fitting_thresholds_the_official_ones_hold():
    inputs = {"image": text(b"image"), "everything": text(b"{}")}
    chosen = [read_job(inputs, family, {})[1].pred_iou_thresh for family in ("sam1", "sam2")]
    assert chosen == [0.88, 0.8]


def test_models_shows_the_thresholds(capsys):
    folder = str(bundled("model_repository"))
    assert main(["models", "--model-repository", folder]) == 0
    # The list of a server that runs at the default URL comes later.
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("  sam2_decoder "))
    assert "demo model, everything: pred_iou_thresh 0.35, stability_score_thresh 0.6" in line
