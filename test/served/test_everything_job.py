"""The search for all objects inside the session model, on a real Triton."""

from __future__ import annotations

import asyncio
import json
import threading

import numpy as np
import pytest
from support.conditions import settled, wait_until
from support.session_requests import point_inputs, text

from triton_sam import InferenceError, SAM2TritonClient, ServerBusyError, SpeculativeSAM2Client
from triton_sam.errors import ModelNotReadyError
from triton_sam.families import get_family
from triton_sam.transport.threads import Threads
from triton_sam.transport.triton import Transport
from triton_sam.transport.url import parse_url
from triton_sam.wire import contract

LOW = {"points_per_side": 6, "pred_iou_thresh": 0.5, "stability_score_thresh": 0.8}
"""The demo model rates its masks low."""
LONG = {**LOW, "points_per_side": 24}


@pytest.fixture
def triton(service_triton):
    transport = Transport(parse_url(service_triton.grpc_url))
    yield transport
    transport.close()


@pytest.fixture
def photo(images) -> bytes:
    return (images / "shapes.jpg").read_bytes()


def inputs(photo: bytes, **parameters) -> dict:
    return {"image": text(photo), "everything": text(json.dumps(parameters).encode())}


def find(transport, photo: bytes, **parameters) -> dict:
    return json.loads(transport.infer("sam2", inputs(photo, **parameters), ["result_json"])["result_json"][0])


def record(each) -> tuple:
    rle = each.to_rle()
    return (rle["counts"], each.area, each.score, each.stability_score, list(each.point))


@pytest.mark.parametrize(
    "more",
    [
        {},
        pytest.param(
            {"use_m2m": True, "points_per_side": 3, "pred_iou_thresh": 0.2, "stability_score_thresh": 0.6},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"crop_n_layers": 1, "points_per_side": 3, "pred_iou_thresh": 0.2, "stability_score_thresh": 0.6},
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["grid", "refined", "crops"],
)
def test_a_job_finds_the_same_as_parts_and_clicks(service_triton, triton, photo, more):
    answer = find(triton, photo, **{**LOW, **more})["objects"]
    with SAM2TritonClient(service_triton.grpc_url) as client:
        found = client.everything(photo, **{**LOW, **more})
        client.see_part = lambda part: None  # as with an older server
        clicked = client.everything(photo, **{**LOW, **more})
    assert found
    assert [record(each) for each in clicked] == [record(each) for each in found]
    assert [
        (
            each["segmentation"]["counts"],
            each["area"],
            each["predicted_iou"],
            each["stability_score"],
            each["point_coords"][0],
        )
        for each in answer
    ] == [record(each) for each in found]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_session_model_says_by_its_configuration_which_inputs_it_has(service_triton, protocol):
    """So a client recognises one of an earlier version."""
    transport = Transport(parse_url(service_triton.http_url if protocol == "http" else service_triton.grpc_url))
    config = transport.model_config("sam2")
    with pytest.raises(ModelNotReadyError):
        transport.model_config("sam9")
    transport.close()
    assert {tensor["name"] for tensor in config["input"]} == {each.name for each in contract.inputs(get_family("sam2"))}


def test_a_cancelled_task_ends_the_search(service_triton, triton, photo):
    def decodes() -> int:
        return int(triton.statistics("sam2_decoder")["inference_count"])

    async def search():
        async with SpeculativeSAM2Client(service_triton.grpc_url) as client:
            task = asyncio.create_task(client.everything_async(photo, **LONG))
            await asyncio.to_thread(wait_until, lambda: decodes() >= before + 3)
            seen = await asyncio.to_thread(decodes)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return seen

    before = settled(decodes)
    seen = asyncio.run(search())
    assert settled(decodes) - seen < 30  # of 576: what began until the cancellation had arrived


@pytest.mark.parametrize("kind", ["everything", "everything_part"])
def test_no_decode_follows_the_one_that_runs_at_a_cancellation(service_triton, triton, photo, kind):
    """A search of 576 points, or a part of 64: on a processor, each decode is one point."""
    part = {"points": [[x, 300] for x in range(0, 640, 10)], "parameters": {}}
    request = {"image": text(photo), kind: text(json.dumps(part if kind == "everything_part" else LONG).encode())}

    def decodes() -> int:
        return int(triton.statistics("sam2_decoder")["inference_count"])

    def search():
        transport, threads = Transport(parse_url(service_triton.grpc_url)), Threads()
        job = threads.submit(lambda: transport.infer("sam2", request, ["result_json"]))
        wait_until(lambda: decodes() >= before + 3)
        job.cancel()
        seen = decodes()
        threads.close()
        transport.close()
        return seen

    before = settled(decodes)
    seen = search()
    # The decode that runs, and one that begins before Triton has heard of the cancellation.
    assert settled(decodes) - seen <= 2


@pytest.mark.slow
def test_too_many_jobs_are_refused_at_once_and_clicks_are_right_beside_them(service_triton, triton, photo):
    image_id = triton.infer("sam2", {"image": text(photo)}, ["image_id"])["image_id"]
    click = {"image_id": image_id, **point_inputs()}
    alone = triton.infer("sam2", click, ["masks"])["masks"]
    answers: list[dict] = []
    refused: list[ServerBusyError] = []

    def job() -> None:
        transport = Transport(parse_url(service_triton.grpc_url))
        try:
            answers.append(find(transport, photo, **{**LOW, "points_per_side": 9}))
        except ServerBusyError as error:
            refused.append(error)
        transport.close()

    jobs = [threading.Thread(target=job) for _ in range(contract.DEFAULT_MAX_JOBS + 1)]
    for each in jobs:
        each.start()
    wait_until(lambda: len(refused) == 1)
    for _ in range(5):
        assert np.array_equal(triton.infer("sam2", click, ["masks"])["masks"], alone)
    assert not answers  # the jobs were running all the while
    for each in jobs:
        each.join(60)
    assert [answer["decodes"] for answer in answers] == [81, 81]
    assert len(refused) == 1


def test_without_thresholds_those_hold_that_fit_the_demo_model(service_triton, photo):
    with SAM2TritonClient(service_triton.grpc_url) as client:
        found = client.everything(photo, points_per_side=4)
        official = client.everything(photo, points_per_side=4, pred_iou_thresh=0.8, stability_score_thresh=0.95)
    assert found
    assert len(official) < len(found)


def test_a_wrong_job_is_one_clear_error(triton, photo):
    with pytest.raises(InferenceError, match="BAD_REQUEST: there is no parameter 'points'"):
        find(triton, photo, points=3)
