"""The parts of a search as a stream, on a real Triton."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time

import numpy as np
import pytest
from support.conditions import settled, wait_until
from support.exposition import Growth
from support.session_requests import point_inputs, text
from support.session_server import IMAGES_IN_CACHE

from triton_sam import InferenceError, SAM2TritonClient, SpeculativeSAM2Client
from triton_sam.client.aio import AsyncSAM2TritonClient
from triton_sam.errors import ConfigurationError, ServerBusyError, UnknownImageError
from triton_sam.transport.triton import Transport
from triton_sam.transport.url import parse_url
from triton_sam.wire import contract

STREAM = "sam2_everything"
ALL = {"points_per_side": 4, "pred_iou_thresh": 0.0, "stability_score_thresh": 0.0}
"""The light encoder's masks have no meaning, so every one passes."""
LONG = {**ALL, "points_per_side": 16}


@pytest.fixture
def triton(session_server):
    transport = Transport(parse_url(session_server.grpc_url))
    yield transport
    transport.close()


def count(triton, model: str) -> int:
    return settled(lambda: int(triton.statistics(model).get("inference_count", 0)))


def summary(objects) -> list[tuple]:
    return [(each.to_rle(), each.score, each.stability_score, each.point, each.crop_box) for each in objects]


def streamed(triton, more: dict, image_id: str = "none"):
    request = {"points": [[8, 8]], "parameters": {}, "points_per_answer": 8, **more}
    inputs = {contract.IMAGE_ID: text(image_id.encode()), contract.EVERYTHING_PART: text(json.dumps(request).encode())}
    return triton.stream(STREAM, inputs, [contract.RESULT_JSON])


def is_accepted(triton, image_id: str) -> bool:
    try:
        return bool(list(streamed(triton, {}, image_id)))
    except ServerBusyError:
        return False


@pytest.mark.parametrize(
    ("more", "streams"),
    [
        ({}, 1),
        pytest.param({"crop_n_layers": 1, "points_per_side": 3}, 5, marks=pytest.mark.nightly),
    ],
    ids=["grid", "crops"],
)
def test_a_stream_finds_the_same_as_single_requests(session_server, triton, content, more, streams):
    steps: list = []
    with SAM2TritonClient(session_server.http_url) as client:
        parts = client.everything(content, progress=lambda step: None, **{**ALL, **more})
    before = count(triton, STREAM)
    with SAM2TritonClient(session_server.grpc_url) as client:
        found = client.everything(content, progress=steps.append, **{**ALL, **more})
    assert found
    assert summary(found) == summary(parts)
    assert count(triton, STREAM) - before >= streams
    assert [step.done for step in steps] == sorted(step.done for step in steps)
    assert steps[-1].done == steps[-1].total


def test_the_metrics_have_the_time_of_a_stream(session_server, content):
    """Triton takes a stream for done as soon as it begins."""
    grown = Growth(session_server.metrics_url, STREAM, "stream")
    with SAM2TritonClient(session_server.grpc_url) as client:
        client.set_image(content)
        began = time.perf_counter()
        client.everything(content, progress=lambda step: None, **ALL)
        took = time.perf_counter() - began
    wait_until(lambda: grown("triton_sam_request_seconds_count") == 1)
    assert grown("triton_sam_request_seconds_sum") == pytest.approx(took, rel=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AsyncSAM2TritonClient, SpeculativeSAM2Client])
def test_the_async_clients_take_the_stream(session_server, triton, content, kind):
    async def search():
        async with kind(session_server.grpc_url, embeddings="server") as client:
            search = client.everything if kind is AsyncSAM2TritonClient else client.everything_async
            return await search(content, progress=lambda step: None, **ALL)

    before = count(triton, STREAM)
    with SAM2TritonClient(session_server.http_url) as client:
        expected = client.everything(content, progress=lambda step: None, **ALL)
    assert summary(asyncio.run(search())) == summary(expected)
    assert count(triton, STREAM) - before == 1


@pytest.mark.parametrize("kind", [SAM2TritonClient, AsyncSAM2TritonClient])
def test_a_search_that_ends_decodes_no_more_than_its_part(session_server, triton, content, kind):
    class EndError(Exception):
        pass

    def end(step):
        seen.append(int(triton.statistics("sam2_decoder").get("inference_count", 0)))
        raise EndError

    async def search_async():
        async with AsyncSAM2TritonClient(session_server.grpc_url, embeddings="server") as client:
            await client.everything(content, progress=end, **LONG)

    def search():
        with SAM2TritonClient(session_server.grpc_url) as client:
            client.everything(content, progress=end, **LONG)

    seen: list[int] = []
    before = count(triton, STREAM)
    with pytest.raises(EndError):
        search() if kind is SAM2TritonClient else asyncio.run(search_async())
    assert count(triton, "sam2_decoder") - seen[0] <= 2 * 8  # of 256: the part that was under way, and one if it ended
    assert count(triton, STREAM) - before <= 1


@pytest.mark.slow
def test_an_image_that_the_server_lost_is_sent_again(session_server, content):
    rng = np.random.default_rng(0)
    with SAM2TritonClient(session_server.grpc_url, embeddings="server") as client:
        handle = client.encode(content)
        expected = client.everything(handle, progress=lambda step: None, **ALL)
        for _ in range(IMAGES_IN_CACHE):
            client.encode(rng.integers(0, 255, (16, 16, 3), np.uint8))
        assert summary(client.everything(handle, progress=lambda step: None, **ALL)) == summary(expected)


def test_more_streams_than_allowed_are_refused_and_clicks_are_right_beside_them(session_server, triton, content):
    with SAM2TritonClient(session_server.grpc_url, embeddings="server") as client:
        name = client.encode(content).remote.image_id
        click = {"image_id": text(name.encode()), **point_inputs(300, 200)}
        expected = triton.infer("sam2", click, ["masks"])["masks"]
        points = [[x, 8] for x in range(200)]
        with contextlib.ExitStack() as stack:
            for _ in range(contract.DEFAULT_MAX_JOBS):
                running = stack.enter_context(contextlib.closing(streamed(triton, {"points": points}, name)))
                next(running)
            with pytest.raises(ServerBusyError):
                next(streamed(triton, {}, name))
            np.testing.assert_array_equal(triton.infer("sam2", click, ["masks"])["masks"], expected)
            found = client.everything(content, progress=lambda step: None, **ALL)  # by single requests
        assert found
        wait_until(lambda: is_accepted(triton, name))  # both streams must have ended: other tests need their places


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"points": []}, "points must be a list of 1 to 16384"),
        ({"points": [["a", 1]]}, "points must be a list of 1 to 64 pairs"),
        ({"points_per_answer": 0}, "points_per_answer must be a whole number within 1..64"),
        ({"points_per_answer": None}, "points_per_answer must be a whole number within 1..64"),
        ({"parameters": {"nonsense": 1}}, "there is no parameter 'nonsense'"),
        ({"nonsense": 1}, "has no 'nonsense'"),
    ],
)
def test_a_wrong_stream_is_one_clear_error(triton, more, message):
    with pytest.raises(InferenceError, match=message):
        next(streamed(triton, more))


def test_an_unknown_image_has_its_code(triton):
    with pytest.raises(InferenceError) as caught:
        next(streamed(triton, {}))
    assert isinstance(contract.read_error(caught.value), UnknownImageError)


def test_http_has_no_streams(session_server):
    transport = Transport(parse_url(session_server.http_url))
    with pytest.raises(ConfigurationError, match="no streams over HTTP"):
        next(streamed(transport, {}))
    transport.close()
