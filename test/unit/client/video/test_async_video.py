"""The async client of videos: the same masks as the sync one, and cancellation of tasks."""

import asyncio
import contextlib
import gc
import random
import threading

import numpy as np
import pytest
from support.conditions import settled, wait_until
from support.fake_video_server import AsyncVideoTransport, FakeVideoServer, VideoTransport

from triton_sam import AsyncSAM2VideoClient, SAM2VideoClient
from triton_sam.errors import InferenceError, PromptError, ServerUnreachableError, VideoError
from triton_sam.inputs.video.stills import ImageFrames

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


def test_a_video_whose_opening_is_cancelled_leaves_no_session_and_no_open_source():
    server, closed = FakeVideoServer(), []

    class Source(ImageFrames):
        def close(self):
            closed.append(True)

    async def run():
        async with AsyncSAM2VideoClient(transport=AsyncVideoTransport(server)) as client:
            inside, go_on = asyncio.Event(), threading.Event()
            loop = asyncio.get_running_loop()

            def hold(number):
                loop.call_soon_threadsafe(inside.set)
                assert go_on.wait(30)

            server.before = hold
            opening = asyncio.create_task(client.open(Source(FRAMES)))
            await inside.wait()
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            server.before = None
            go_on.set()

    asyncio.run(run())
    assert server.operations() == ["start_session", "close_session"]
    assert server.sessions == {}
    assert closed == [True]


def test_a_client_that_nobody_refers_to_closes_itself_and_one_with_an_open_video_does_not():
    """The thread of the event loop that all clients share ends with the last of them."""
    server = FakeVideoServer()

    def is_running():
        gc.collect()
        return any(thread.name == "triton-sam-io" for thread in threading.enumerate())

    async def open_forgotten():
        return await AsyncSAM2VideoClient(transport=AsyncVideoTransport(server)).open(FRAMES)

    async def run():
        video = await open_forgotten()
        assert is_running()
        await video.add(0, 1, points=[[1, 1]])
        await video.aclose()

    wait_until(lambda: not is_running())
    asyncio.run(run())
    wait_until(lambda: not is_running())
    assert server.operations() == ["start_session", "add_prompt", "close_session"]


class CountedFrames(ImageFrames):
    """A list of frames that notes when it is opened and closed."""

    def __init__(self, sources):
        super().__init__(FRAMES[:3])
        self.is_closed = False
        sources.append(self)

    def close(self):
        self.is_closed = True


async def use(client, sources):
    """Open, prompt and track a video, and close it."""
    video = await client.open(CountedFrames(sources), snapshot_every=2)
    try:
        await video.add(0, 1, points=[[1, 1]])
        async for _ in video.propagate():
            pass
    finally:
        await video.aclose()


async def cancel_after(tasks, rng):
    """Cancel every second task after some turns of the event loop; wait for all."""
    for task in tasks:
        if rng.random() < 0.5:
            for _ in range(rng.randrange(12)):
                await asyncio.sleep(0)
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_no_session_and_no_source_is_lost_wherever_a_call_dies():
    """Each request fails, or its caller goes away, at random; only a close that fails leaves a session behind."""
    server, rng = FakeVideoServer(max_sessions=10_000), random.Random(5)
    sources, failed_closes = [], []

    def fail(number):
        if rng.random() < 0.2:
            failed_closes.extend([number] if server.requests[number][0] == "close_session" else [])
            raise rng.choice([ServerUnreachableError("gone"), InferenceError("failed"), ZeroDivisionError("a bug")])

    async def run():
        async with AsyncSAM2VideoClient(transport=AsyncVideoTransport(server)) as client:
            server.before = fail
            for _ in range(80):
                await cancel_after([asyncio.create_task(use(client, sources)) for _ in range(5)], rng)
            server.before = None

    asyncio.run(asyncio.wait_for(run(), 120))
    assert len(sources) > 150  # other tasks were cancelled before they began
    assert all(source.is_closed for source in sources)
    assert server.operations().count("close_session") > 100
    assert len(server.sessions) <= len(failed_closes)


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
