"""All objects of an image on a real Triton: a job, parts and clicks find the same.

Parameters, filters and answers are in test/unit/everything, test/unit/client and test/unit/sessions.
"""

import asyncio
import json
from typing import Any

from support.session_requests import text

from triton_sam import SAM2TritonClient, SpeculativeSAM2Client

LOW = {"points_per_side": 4, "pred_iou_thresh": 0.5, "stability_score_thresh": 0.8}


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
