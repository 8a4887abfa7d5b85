"""All objects of an image on a real Triton: a job, parts and clicks find the same, and who stops leaves no work behind.

Parameters, filters and answers are in test/unit/everything, test/unit/client and test/unit/sessions.
"""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import numpy as np
import pytest
from support.conditions import settled, wait_until
from support.session_requests import point_inputs, text

from triton_sam import SAM2TritonClient, ServerBusyError, SpeculativeSAM2Client
from triton_sam.errors import ModelNotReadyError
from triton_sam.families import get_family
from triton_sam.transport.threads import Threads
from triton_sam.transport.triton import Transport
from triton_sam.transport.url import parse_url
from triton_sam.wire import contract

LOW = {"points_per_side": 4, "pred_iou_thresh": 0.5, "stability_score_thresh": 0.8}
LOWER = {**LOW, "points_per_side": 3, "pred_iou_thresh": 0.2, "stability_score_thresh": 0.6}
LONG = {**LOW, "points_per_side": 24}
"""Of 576 points: on a processor, each decode is one point."""


@pytest.fixture
def triton(server):
    transport = Transport(parse_url(server.grpc_url))
    yield transport
    transport.close()


@pytest.fixture
def decodes(triton):
    """Reads the server's own counter of decodes."""
    return lambda: int(triton.statistics("sam2_decoder")["inference_count"])


def find(transport: Transport, photo: bytes, **parameters: Any) -> dict:
    inputs = {"image": text(photo), "everything": text(json.dumps(parameters).encode())}
    return json.loads(transport.infer("sam2", inputs, ["result_json"])["result_json"][0])


def record(each: Any) -> tuple:
    return (each.to_rle()["counts"], each.area, each.score, each.stability_score, list(each.point))


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(LOW, id="grid"),
        pytest.param({**LOWER, "use_m2m": True}, id="refined", marks=pytest.mark.slow),
        pytest.param({**LOWER, "crop_n_layers": 1}, id="crops", marks=pytest.mark.nightly),
    ],
)
def test_a_job_finds_the_same_as_parts_and_clicks_of_both_clients(server, triton, content, more):
    answer = find(triton, content, **more)["objects"]
    steps: list[tuple[int, int]] = []
    with SAM2TritonClient(server.http_url) as client:
        found = client.everything(content, progress=lambda step: steps.append((step.done, step.total)), **more)
        client.see_part = lambda part: None  # as with an older server
        clicked = client.everything(content, **more)

    async def search():
        async with SpeculativeSAM2Client(server.grpc_url) as client:
            return await client.everything_async(content, **more)

    assert found
    assert steps[-1][0] == steps[-1][1] >= more["points_per_side"] ** 2
    wanted = [record(each) for each in found]
    assert [record(each) for each in clicked] == wanted
    assert [record(each) for each in asyncio.run(search())] == wanted
    keys = ("area", "predicted_iou", "stability_score")
    assert [
        (each["segmentation"]["counts"], *(each[key] for key in keys), each["point_coords"][0]) for each in answer
    ] == wanted


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_session_model_says_by_its_configuration_which_inputs_it_has(server, protocol):
    """So a client recognises one of an earlier version."""
    url = server.http_url if protocol == "http" else server.grpc_url

    transport = Transport(parse_url(url))
    config = transport.model_config("sam2")
    with pytest.raises(ModelNotReadyError):
        transport.model_config("sam9")
    transport.close()
    assert {tensor["name"] for tensor in config["input"]} == {each.name for each in contract.inputs(get_family("sam2"))}


@pytest.mark.parametrize("kind", ["everything", "everything_part"])
def test_no_decode_follows_the_one_that_runs_at_a_cancellation(service_triton, content, kind):
    """The demo model's decodes take long enough for a cancellation to arrive between them."""
    part = {"points": [[x, 300] for x in range(0, 640, 10)], "parameters": {}}
    request = {"image": text(content), kind: text(json.dumps(part if kind == "everything_part" else LONG).encode())}
    counting = Transport(parse_url(service_triton.grpc_url))

    def decodes() -> int:
        return int(counting.statistics("sam2_decoder")["inference_count"])

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
    counting.close()


def test_a_cancelled_task_of_the_client_ends_its_search(server, decodes, content):
    async def search():
        async with SpeculativeSAM2Client(server.grpc_url) as client:
            task = asyncio.create_task(client.everything_async(content, **LONG))
            await asyncio.to_thread(wait_until, lambda: decodes() >= before + 3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    before = settled(decodes)
    asyncio.run(search())
    assert settled(decodes) - before < 400  # of 576: what began until the cancellation had arrived


@pytest.mark.slow
def test_too_many_jobs_are_refused_at_once_and_clicks_are_right_beside_them(server, triton, content):
    image_id = triton.infer("sam2", {"image": text(content)}, ["image_id"])["image_id"]
    click = {"image_id": image_id, **point_inputs()}
    alone = triton.infer("sam2", click, ["masks"])["masks"]
    answers: list[dict] = []
    refused: list[ServerBusyError] = []

    def job() -> None:
        transport = Transport(parse_url(server.grpc_url))
        try:
            answers.append(find(transport, content, **{**LOW, "points_per_side": 9}))
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


def test_without_thresholds_those_hold_that_fit_the_demo_model(service_triton, content):
    with SAM2TritonClient(service_triton.grpc_url) as client:
        found = client.everything(content, points_per_side=4)
        official = client.everything(content, points_per_side=4, pred_iou_thresh=0.8, stability_score_thresh=0.95)
    assert found
    assert len(official) < len(found)
