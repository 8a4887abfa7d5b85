"""The async client of videos: the same masks as the sync one, and cancellation of tasks."""

import asyncio
import contextlib

import numpy as np
import pytest
from support.conditions import settled
from support.fake_video_server import AsyncVideoTransport, FakeVideoServer, VideoTransport

from triton_sam import AsyncSAM2VideoClient, SAM2VideoClient
from triton_sam.errors import PromptError, VideoError

FRAMES = [np.full((48, 64, 3), 3 * index, np.uint8) for index in range(30)]


@contextlib.asynccontextmanager
async def opened(server, source=FRAMES, **options):
    async with (
        AsyncSAM2VideoClient(transport=AsyncVideoTransport(server)) as client,
        await client.open(source, **options) as video,
    ):
        yield video


def values(segments):
    return {id_: (segment.mask.tobytes(), segment.object_score) for id_, segment in segments.items()}


def sync_pass(**options):
    with SAM2VideoClient(transport=VideoTransport(FakeVideoServer())).open(FRAMES, **options) as video:
        video.add(2, 1, points=[[1, 2]])
        video.add(4, 3, box=[1, 2, 30, 40])
        video.remove(1)
        video.add(4, 1, mask=np.ones((48, 64)))
        return [(frame, values(segments)) for frame, segments in video.propagate()]


@pytest.mark.parametrize("loses", [False, True])
def test_the_masks_are_those_of_the_sync_client(loses):
    server = FakeVideoServer()

    async def run():
        async with opened(server, snapshot_every=4) as video:
            await video.add(2, 1, points=[[1, 2]])
            await video.add(4, 3, box=[1, 2, 30, 40])
            await video.remove(1)
            await video.add(4, 1, mask=np.ones((48, 64)))
            if loses:
                server.before = lambda number: server.lose_sessions() if number % 9 == 8 else None
            passed = [(frame, values(segments)) async for frame, segments in video.propagate()]
            assert (video.restored > 2) == loses
            return passed

    assert asyncio.run(run()) == sync_pass()
    assert server.sessions == {}


def test_the_client_tells_whether_the_model_is_ready():
    async def ask(**options):
        async with AsyncSAM2VideoClient(**options) as client:
            return await client.is_ready()

    transport = AsyncVideoTransport(FakeVideoServer())
    assert asyncio.run(ask(transport=transport))
    assert not asyncio.run(ask(transport=transport, variant="sam2_other"))
    for scheme in ("http", "grpc"):  # nothing listens there
        assert not asyncio.run(ask(url=f"{scheme}://127.0.0.1:9", timeout=5))


def test_cancel_and_early_ends_stop_the_server():
    server = FakeVideoServer()

    async def run():
        async with opened(server) as video:
            await video.add(0, 1, points=[[1, 1]])
            frames = []
            async for frame, _ in video.propagate():
                frames.append(frame)
                if frame == 3:
                    video.cancel()
            assert frames == [0, 1, 2, 3]
            async with contextlib.aclosing(video.propagate(start=4)) as passed:
                async for frame, _ in passed:
                    if frame == 6:
                        break
            assert settled(lambda: len(server.tracked)) == 7

    asyncio.run(run())


def test_a_cancelled_task_leaves_the_session_certain():
    """The request under way ends on the server; the next call goes on from there, and no session is restored."""
    server = FakeVideoServer()

    async def run():
        async with opened(server) as video:
            await video.add(0, 1, points=[[1, 1]])
            started = asyncio.Event()
            loop = asyncio.get_running_loop()

            def tell(number):
                if server.requests[number][0] == "propagate" and len(server.tracked) == 2:
                    loop.call_soon_threadsafe(started.set)

            server.before = tell

            async def consume():
                async for _ in video.propagate():
                    pass

            task = asyncio.create_task(consume())
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            frames = [frame async for frame, _ in video.propagate(start=3, count=2)]
            assert frames == [3, 4]
            assert video.restored == 0

    asyncio.run(run())
    assert server.tracked == [0, 1, 2, 3, 4]


def test_errors_of_the_source_and_of_prompts_come_through():
    server = FakeVideoServer()

    async def run():
        with pytest.raises(VideoError, match="there is no video at nowhere"):
            async with opened(server, "nowhere.mp4"):
                pass
        async with opened(server, [*FRAMES[:3], np.zeros((10, 10, 3), np.uint8)]) as video:
            with pytest.raises(PromptError, match="nothing to track"):
                video.propagate()
            await video.add(0, 1, points=[[1, 1]])
            frames = []

            async def consume():
                async for frame, _ in video.propagate():
                    frames.append(frame)

            with pytest.raises(VideoError, match=r"frame 3 of the list has 10 x 10 pixels, but the first .* 64 x 48"):
                await consume()
            assert frames == [0, 1, 2]
            await video.reset()
            assert video.object_ids == []

    asyncio.run(run())
