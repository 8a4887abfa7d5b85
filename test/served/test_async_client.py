"""The asynchronous client on a real Triton: its masks equal those of the synchronous client, also of many tasks."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from support.session_server import IMAGES_IN_CACHE

from triton_sam import AsyncSAM2TritonClient, SAM2TritonClient, ServerUnreachableError

POINTS = [[[60 + 25 * number, 180]] for number in range(16)]
LOW = {"points_per_side": 3, "pred_iou_thresh": 0.0, "stability_score_thresh": 0.0}
"""The light encoder's masks have no meaning, so every one passes."""


@pytest.fixture(params=["http", "grpc"])
def address(request: pytest.FixtureRequest, session_server) -> str:
    return session_server.http_url if request.param == "http" else session_server.grpc_url


@pytest.mark.parametrize("options", [{}, {"logits": False}, {"multimask_output": True}])
def test_sixteen_tasks_get_the_masks_of_the_synchronous_client(address, images, options):
    async def main():
        async with AsyncSAM2TritonClient(address, busy="wait") as client:
            assert await client.is_ready()
            await client.set_image(images / "shapes.jpg")
            return await asyncio.gather(*(client.segment(point, **options) for point in POINTS))

    with SAM2TritonClient(address) as client:
        client.set_image(images / "shapes.jpg")
        expected = [client.segment(point, **options) for point in POINTS]
    for found, segments in zip(asyncio.run(main()), expected, strict=True):
        assert [each.score for each in found] == pytest.approx([each.score for each in segments], abs=1e-5)
        for each, segment in zip(found, segments, strict=True):
            np.testing.assert_array_equal(each.mask, segment.mask)
            assert (each.logits is None) == (segment.logits is None)


@pytest.mark.parametrize("place", ["server", "client"])
def test_tasks_work_on_images_of_their_own(address, images, place):
    """More images than the server keeps: lost ones are sent again."""
    sizes = [(120 + 10 * number, 90) for number in range(IMAGES_IN_CACHE + 2)]
    sources = [np.full((height, width, 3), 10 * width % 256, np.uint8) for width, height in sizes]

    async def one(client, source):
        image = await client.encode(source)
        await asyncio.sleep(0)
        (segment,) = await client.segment([[20, 20]], image=image)
        masks, scores = await client.predict([[20, 20]], image=image)
        return segment.mask.shape[::-1], masks.shape, scores.shape

    async def main():
        async with AsyncSAM2TritonClient(address, embeddings=place, busy="wait") as client:
            return await asyncio.gather(*(one(client, source) for source in sources))

    assert asyncio.run(main()) == [(size, (1, 1, 256, 256), (1, 1)) for size in sizes]


def test_everything_with_and_without_progress_finds_the_objects_of_the_synchronous_client(session_server, images):
    steps = []

    async def main():
        async with AsyncSAM2TritonClient(session_server.grpc_url) as client:
            by_server = await client.everything(images / "shapes.jpg", **LOW)
            by_clicks = await client.everything(images / "shapes.jpg", progress=steps.append, **LOW)
            return by_server, by_clicks

    with SAM2TritonClient(session_server.grpc_url) as client:
        expected = client.everything(images / "shapes.jpg", **LOW)
    assert expected
    for found in asyncio.run(main()):
        assert [(each.box, each.area, each.point) for each in found] == [
            (each.box, each.area, each.point) for each in expected
        ]
    assert steps[-1].done == steps[-1].total == 9


def test_nobody_answers(images):
    async def main():
        async with AsyncSAM2TritonClient("127.0.0.1:9", timeout=5, retries=0) as client:
            assert not await client.is_ready()
            await client.set_image(images / "shapes.jpg")

    with pytest.raises(ServerUnreachableError, match=r"127\.0\.0\.1:9"):
        asyncio.run(main())
