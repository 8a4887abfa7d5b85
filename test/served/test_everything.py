"""All objects of an image, on a real Triton: both clients find the same, and whoever stops leaves no work behind."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from support.conditions import settled

from triton_sam import SAM2TritonClient, SpeculativeSAM2Client
from triton_sam.everything.parts import FoundObject
from triton_sam.transport.triton import Transport
from triton_sam.transport.url import parse_url

LOW = {"points_per_side": 6, "pred_iou_thresh": 0.5, "stability_score_thresh": 0.8}
"""The demo model rates its masks low."""


@pytest.fixture(params=[pytest.param("http", marks=pytest.mark.slow), "grpc"])
def address(request: pytest.FixtureRequest, service_triton) -> str:
    return service_triton.http_url if request.param == "http" else service_triton.grpc_url


@pytest.fixture
def decodes(service_triton):
    """Reads the server's own counter of decodes."""
    transport = Transport(parse_url(service_triton.http_url))
    yield lambda: int(transport.statistics("sam2_decoder")["inference_count"])
    transport.close()


def summary(found: list[FoundObject]) -> list[tuple]:
    return [(each.box, each.area, each.score, each.stability_score, each.point) for each in found]


def test_both_clients_find_the_same_objects(address, images):
    steps: list[tuple[int, int]] = []
    with SAM2TritonClient(address) as client:
        found = client.everything(
            images / "shapes.jpg", progress=lambda step: steps.append((step.done, step.total)), **LOW
        )
        whole = client.encode(images / "shapes.jpg")
        for each in found:  # each is the answer to its click
            candidates = client.segment([each.point], [1], multimask_output=True, image=whole)
            assert any(np.array_equal(each.mask, one.mask) for one in candidates)
    assert found
    assert steps[-1] == (36, 36)

    async def search():
        async with SpeculativeSAM2Client(address) as client:
            return await client.everything_async(images / "shapes.jpg", **LOW)

    assert summary(asyncio.run(search())) == summary(found)


@pytest.mark.slow
def test_crops_find_small_objects_in_pixels_of_the_image(address, images):
    lower = {**LOW, "pred_iou_thresh": 0.2, "stability_score_thresh": 0.6}
    with SAM2TritonClient(address) as client:
        found = client.everything(images / "shapes.jpg", crop_n_layers=1, crop_n_points_downscale_factor=3, **lower)
    assert len({each.crop_box for each in found}) > 1
    assert all(each.mask.shape == (600, 800) for each in found)
    for each in found:
        left, top, right, bottom = each.crop_box
        assert each.mask[top:bottom, left:right].sum() == each.area


def test_a_cancelled_search_decodes_no_more_than_its_request(service_triton, images, decodes):
    async def search():
        async with SpeculativeSAM2Client(service_triton.grpc_url) as client:
            running = asyncio.Event()

            def progress(step):
                running.set()

            task = asyncio.create_task(client.everything_async(images / "shapes.jpg", progress=progress, **LOW))
            await running.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    before = settled(decodes)
    asyncio.run(search())
    assert settled(decodes) - before <= 2 * 8  # the request that was answered, and the one under way


@pytest.mark.parametrize(("size", "place"), [((1, 1), "client"), ((20_000, 20), "auto")])
def test_odd_sizes_have_an_answer(service_triton, size, place):
    image = np.zeros((*size[::-1], 3), np.uint8)
    everything = {"pred_iou_thresh": 0, "stability_score_thresh": 0}
    with SAM2TritonClient(service_triton.grpc_url, embeddings=place) as client:
        found = client.everything(image, points_per_side=2, **everything)
        assert all(each.mask.shape == size[::-1] for each in found)
        nothing = client.everything(image, points_per_side=2, pred_iou_thresh=1)
    assert found
    assert nothing == []
    assert nothing.reason == "Of 12 masks, pred_iou_thresh dropped 12: try lower thresholds."
