"""The search in one request: clients use it where the server offers it, and send clicks where it does not."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.conditions import wait_until
from support.fake_transport import NEVER, AsyncFakeTransport, FakeTransport, clicked, decoded, encoded, text, uploaded
from support.found_masks import found_mask

from triton_sam import ImageError, InferenceError, SAM2TritonClient, ServerBusyError, SpeculativeSAM2Client
from triton_sam.errors import ConfigurationError, ModelNotReadyError, ServerTimeoutError
from triton_sam.everything.search import Found
from triton_sam.sessions.image.everything import write_found

IMAGE = np.zeros((48, 64, 3), np.uint8)
ALL = {"pred_iou_thresh": 0, "stability_score_thresh": 0}
SMALL = {"points_per_side": 2, "multimask_output": False, **ALL}
UNKNOWN = InferenceError("[400] unexpected inference input 'everything' for model 'sam2'")
UNKNOWN_PART = InferenceError("[400] unexpected inference input 'everything_part' for model 'sam2'")


def two_objects() -> Found:
    whole, part = np.zeros((48, 64), bool), np.zeros((48, 64), bool)
    whole[3:9, 5:20] = True
    part[10:20, 12:30] = True
    masks = [found_mask(whole, (6.5, 4.0), (0, 0, 64, 48)), found_mask(part, (3.0, 2.5), (10, 8, 40, 30))]
    return Found(masks, decodes=9, candidates=27)


def summary(objects) -> list[tuple]:
    return [(each.to_rle(), each.score, each.stability_score, each.point, each.crop_box) for each in objects]


def test_one_request_brings_all_objects():
    transport = FakeTransport(write_found(two_objects()))
    with SAM2TritonClient(transport=transport) as client:
        found = client.everything(IMAGE, points_per_side=3, pred_iou_thresh=np.float32(0.5))
    assert summary(found) == summary(two_objects().objects)
    (request,) = transport.requests
    assert transport.calls == [1]
    assert (request.model, request.outputs, set(request.inputs)) == ("sam2", ("result_json",), {"image", "everything"})
    sent = json.loads(request.inputs["everything"][0])
    assert sent["points_per_side"] == 3
    assert sent["pred_iou_thresh"] == 0.5
    assert sent["box_nms_thresh"] == 0.7  # the defaults of this side hold
    assert "stability_score_thresh" not in sent  # but the server knows the threshold that fits the model


def test_the_async_client_sends_the_same_request():
    transport = AsyncFakeTransport(write_found(two_objects()))

    async def search():
        async with SpeculativeSAM2Client(transport=transport) as client:
            return await client.everything_async(IMAGE, points_per_side=3)

    assert summary(asyncio.run(search())) == summary(two_objects().objects)
    assert transport.models == ["sam2"]


def test_cancelling_the_task_cancels_the_request():
    transport = AsyncFakeTransport(NEVER)

    async def search():
        async with SpeculativeSAM2Client(transport=transport) as client:
            task = asyncio.create_task(client.everything_async(IMAGE, **SMALL))
            await asyncio.to_thread(wait_until, lambda: transport.requests)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(wait_until, lambda: transport.cancelled)

    asyncio.run(asyncio.wait_for(search(), 10))
    assert transport.models == ["sam2"]


@pytest.mark.parametrize("progress", [None, lambda step: None], ids=["job", "clicks"])
def test_an_empty_list_has_its_reason(progress):
    nothing = Found([], 4, 12, Counter(pred_iou_thresh=10, stability_score_thresh=2))
    transport = FakeTransport(older(write_found(nothing)))
    with SAM2TritonClient(transport=transport) as client:
        found = client.everything(IMAGE, points_per_side=2, multimask_output=False, progress=progress)
        full = client.everything(IMAGE, progress=lambda step: None, **SMALL)
    assert found == []
    job = "Of 12 masks, pred_iou_thresh dropped 10, stability_score_thresh dropped 2: try lower thresholds."
    assert found.reason == (job if progress is None else "Of 4 masks, pred_iou_thresh dropped 4: try lower thresholds.")
    assert found.decodes == 4
    assert full.reason is None


def older(error: Any):
    """A server with this answer to a search, and answers to everything else; an error makes it an older server."""

    def answer(request):
        if "everything" in request.inputs:
            return error
        if "everything_part" in request.inputs:
            return UNKNOWN_PART
        if request.model == "sam2":
            return (
                clicked(objects=len(request.inputs["point_coords"])) if "point_coords" in request.inputs else uploaded()
            )
        return encoded() if request.model == "sam2_encoder" else decoded(objects=len(request.inputs["point_coords"]))

    return answer


@pytest.mark.parametrize("error", [UNKNOWN, ModelNotReadyError("none"), ServerTimeoutError("late")])
def test_servers_without_the_job_get_clicks_and_are_asked_once(error):
    transport = FakeTransport(older(error))
    with SAM2TritonClient(transport=transport) as client:
        for _ in range(2):
            found = client.everything(IMAGE, **SMALL)
            assert [each.area for each in found] == [48 * 64]  # of equal masks, one is left
    assert sum("everything" in request.inputs for request in transport.requests) == 1


def test_the_async_client_falls_back_to_clicks_too():
    transport = AsyncFakeTransport(older(UNKNOWN))

    async def search():
        async with SpeculativeSAM2Client(transport=transport) as client:
            return await client.everything_async(IMAGE, **SMALL)

    assert [each.area for each in asyncio.run(search())] == [48 * 64]


@pytest.mark.parametrize(
    ("options", "parameters"),
    [
        ({"embeddings": "client"}, SMALL),
        ({}, {"points_per_side": None, "point_grids": [np.full((1, 2), 0.5)], "multimask_output": False, **ALL}),
        ({}, {**SMALL, "progress": lambda step: None}),
    ],
    ids=["embeddings here", "own points", "progress"],
)
def test_clicks_where_the_job_does_not_fit(options, parameters):
    transport = FakeTransport(older(AssertionError("a search was sent")))
    with SAM2TritonClient(transport=transport, **options) as client:
        assert len(client.everything(IMAGE, **parameters)) == 1


def test_more_points_than_a_job_takes_are_sent_as_clicks():
    class StopError(Exception):
        pass

    def answer(request):
        assert "everything" not in request.inputs
        return StopError()

    with SAM2TritonClient(transport=FakeTransport(answer)) as client, pytest.raises(StopError):
        client.everything(IMAGE, points_per_side=64, crop_n_layers=1)  # 5 x 4096


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InferenceError("sam2 failed: BAD_IMAGE: not an image"), ImageError),
        (InferenceError("sam2 failed: BUSY: try again"), ServerBusyError),
        (InferenceError("sam2 failed: BAD_REQUEST: there is no parameter 'new'"), InferenceError),
    ],
)
def test_errors_of_the_server_have_their_type(error, kind):
    with SAM2TritonClient(transport=FakeTransport(older(error))) as client, pytest.raises(kind):
        client.everything(IMAGE, **SMALL)


def test_a_family_without_mask_prompts_refines_no_masks():
    transport = FakeTransport()
    with (
        SAM2TritonClient(model_type="sam3", transport=transport) as client,
        pytest.raises(ConfigurationError, match="sam3 takes no mask as a prompt"),
    ):
        client.everything(IMAGE, use_m2m=True)
    assert not transport.requests


@pytest.mark.parametrize("answer", ["[]", "{", '{"objects": [{}]}', '{"objects": []}', '{"objects": 3}'])
def test_a_broken_answer_is_one_clear_error(answer):
    transport = FakeTransport({"result_json": text(answer.encode())})
    with (
        SAM2TritonClient(transport=transport) as client,
        pytest.raises(
            InferenceError,
            match=r"^sam2 answered in an unknown form: the server .*; update it or this client$",
        ),
    ):
        client.everything(IMAGE, **SMALL)


def test_an_open_file_is_read_once_for_the_job_and_the_clicks(tmp_path: Path):
    from PIL import Image

    Image.fromarray(IMAGE).save(tmp_path / "image.png")
    transport = FakeTransport(older(UNKNOWN))
    with (tmp_path / "image.png").open("rb") as file, SAM2TritonClient(transport=transport) as client:
        assert len(client.everything(file, **SMALL)) == 1
