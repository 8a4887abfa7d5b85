"""All objects of an image on a real Triton: a job, parts and clicks find the same, and who stops leaves no work behind.

Parameters, filters and answers are in test/unit/everything, test/unit/client and test/unit/sessions.
"""

import asyncio
import json
from typing import Any

import pytest
from support.conditions import settled, wait_until
from support.session_requests import serve, text

from triton_sam import SAM2TritonClient, SpeculativeSAM2Client
from triton_sam._common.bundle import bundled
from triton_sam.transport.threads import Threads
from triton_sam.transport.triton import Transport
from triton_sam.transport.url import parse_url

LOW = {"points_per_side": 4, "pred_iou_thresh": 0.5, "stability_score_thresh": 0.8}
LONG = {**LOW, "points_per_side": 24}
"""Of 576 points: on a processor, each decode is one point."""


def record(each: Any) -> tuple:
    return (each.to_rle()["counts"], each.area, each.score, each.stability_score, list(each.point))


def test_a_job_finds_the_same_as_parts_and_clicks_of_both_clients(server, transport, content):
    inputs = {"image": text(content), "everything": text(json.dumps(LOW).encode())}
    answer = json.loads(transport.infer("sam2", inputs, ["result_json"])["result_json"][0])["objects"]
    steps: list[tuple[int, int]] = []
    with SAM2TritonClient(server.http_url) as client:
        found = client.everything(content, progress=lambda step: steps.append((step.done, step.total)), **LOW)
        client.see_part = lambda part: None  # as with an older server
        clicked = client.everything(content, **LOW)

    async def search():
        async with SpeculativeSAM2Client(server.grpc_url) as client:
            return await client.everything_async(content, **LOW)

    assert found
    assert steps[-1][0] == steps[-1][1] >= LOW["points_per_side"] ** 2
    wanted = [record(each) for each in found]
    assert [record(each) for each in clicked] == wanted
    assert [record(each) for each in asyncio.run(search())] == wanted
    keys = ("area", "predicted_iou", "stability_score")
    assert [
        (each["segmentation"]["counts"], *(each[key] for key in keys), each["point_coords"][0]) for each in answer
    ] == wanted


@pytest.fixture(scope="module")
def counting_triton():
    """A Triton that runs the decoder itself, so that it counts every decode of a search when it ends."""
    with serve(bundled("model_repository"), decoder_in_session=False) as running:
        yield running


@pytest.mark.parametrize("kind", ["everything", "everything_part"])
def test_no_decode_follows_the_one_that_runs_at_a_cancellation(counting_triton, content, kind):
    """The demo model's decodes take long enough for a cancellation to arrive between them."""
    part = {"points": [[x, 300] for x in range(0, 640, 10)], "parameters": {}}
    request = {"image": text(content), kind: text(json.dumps(part if kind == "everything_part" else LONG).encode())}
    counting = Transport(parse_url(counting_triton.grpc_url))

    def decodes() -> int:
        return int(counting.statistics("sam2_decoder")["inference_count"])

    def search():
        transport, threads = Transport(parse_url(counting_triton.grpc_url)), Threads()
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
