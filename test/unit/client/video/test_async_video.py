"""The async client of videos: the same masks as the sync one, and cancellation of tasks."""

import asyncio
import contextlib
import gc
import random
import threading

import numpy as np
import pytest
from support.conditions import PATIENCE, until, wait_until
from support.video_server import Camera, VideoServer

from triton_sam import AsyncSAM2VideoClient
from triton_sam.errors import InferenceError, ServerUnreachableError
from triton_sam.inputs.video.sequences import ImageFrames

FRAMES = [np.full((48, 64, 3), 3 * index, np.uint8) for index in range(30)]


@contextlib.asynccontextmanager
async def opened(server, source=FRAMES, **options):
    async with (
        AsyncSAM2VideoClient(server.url, retries=0) as client,
        await client.open(source, **options) as video,
    ):
        yield video


@pytest.fixture
def roomy_server():
    with VideoServer(max_sessions=300) as roomy_server:
        yield roomy_server


def test_the_client_tells_whether_the_model_is_ready(roomy_server):
    async def ask(**options):
        async with AsyncSAM2VideoClient(**options) as client:
            return await client.is_ready()

    assert asyncio.run(ask(url=roomy_server.url))
    assert not asyncio.run(ask(url=roomy_server.url, variant="sam2_other"))
    for scheme in ("http", "grpc"):  # nothing listens there
        assert not asyncio.run(ask(url=f"{scheme}://127.0.0.1:9", timeout=5))


def test_a_cancelled_task_leaves_the_session_certain(roomy_server):
    """The request under way ends on the server; the next call goes on from there, and no session is restored."""

    async def run():
        async with opened(roomy_server) as video:
            await video.add(0, 1, points=[[1, 1]])
            started = asyncio.Event()
            loop = asyncio.get_running_loop()

            def tell(number):
                if roomy_server.operation(number) == "propagate" and len(roomy_server.tracked) == 2:
                    loop.call_soon_threadsafe(started.set)

            roomy_server.before = tell

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
    assert roomy_server.tracked == [0, 1, 2, 3, 4]


def test_progress_is_counted_in_the_thread_of_the_event_loop(roomy_server):
    async def run():
        told = []
        async with opened(roomy_server) as video:
            await video.add(0, 1, points=[[1, 1]])
            count = video.propagate(count=2, on_progress=lambda *counts: told.append((*counts, threading.get_ident())))
            assert [frame async for frame, _ in count] == [0, 1]
        return told

    assert asyncio.run(run()) == [(done, 2, threading.get_ident()) for done in (1, 2)]


@pytest.mark.slow
def test_a_client_that_nobody_refers_to_closes_itself_and_one_with_an_open_video_does_not(roomy_server):
    """The threads of a client end with it."""

    def is_running():
        gc.collect()
        return any(thread.name == "triton-sam-call" for thread in threading.enumerate())

    async def open_forgotten():
        return await AsyncSAM2VideoClient(roomy_server.url, retries=0).open(FRAMES)

    async def run():
        video = await open_forgotten()
        assert is_running()
        await video.add(0, 1, points=[[1, 1]])
        await video.aclose()

    wait_until(lambda: not is_running())
    asyncio.run(run())
    wait_until(lambda: not is_running())
    assert roomy_server.operations() == ["start_session", "add_prompt", "close_session"]


@pytest.mark.parametrize("is_during", [False, True])
def test_a_video_of_a_closed_client_closes_its_source_and_hides_no_error(roomy_server, is_during):
    """The client is closed before its video, or while the video ends its session."""
    sources, ends = [], threading.Event()

    def close_client(number):
        if roomy_server.operation(number) == "close_session" and not ends.is_set():
            ends.set()
            client.close()

    async def run():
        nonlocal client
        client = AsyncSAM2VideoClient(roomy_server.url, retries=0)
        async with await client.open(CountedFrames(sources)):
            if is_during:
                roomy_server.before = close_client
            else:
                await client.aclose()
            raise KeyError("of the caller")

    client = None
    with pytest.raises(KeyError, match="of the caller"):
        asyncio.run(run())
    assert [source.is_closed for source in sources] == [True]


async def wait_for_frame(client, images, waits_in, received):
    """Open a stream, prompt it at frame 0 and track it, or prompt it at frame 1."""
    video = await client.open(images)
    await video.add(1 if waits_in == "add" else 0, 1, points=[[1, 1]])
    async for frame, _ in video.propagate():
        received.append(frame)


CLOSED = "this video is closed: open it again"
ENDS = {"open": "", "add": CLOSED, "propagate": CLOSED}
"""The error of a call whose client was closed."""


async def close_blocking(client):
    await asyncio.to_thread(client.close)


@pytest.mark.parametrize("close", [AsyncSAM2VideoClient.aclose, close_blocking])
@pytest.mark.parametrize("is_cancelled", [False, True])
@pytest.mark.parametrize("waits_in", ENDS)
def test_closing_the_client_and_cancelling_a_call_do_not_wait_for_a_frame_of_a_stream(
    roomy_server, monkeypatch, waits_in, is_cancelled, close
):
    monkeypatch.setattr("triton_sam.transport.threads.SECONDS_TO_CLOSE", PATIENCE)
    camera, received = Camera(FRAMES[: waits_in != "open"]), []

    async def run():
        client = AsyncSAM2VideoClient(roomy_server.url, retries=0)
        call = asyncio.create_task(wait_for_frame(client, iter(camera), waits_in, received))
        await until(lambda: camera.waits.is_set() and len(received) == (waits_in == "propagate"))
        if is_cancelled:
            call.cancel()
            await asyncio.wait([call])
        await close(client)
        assert not camera.comes.is_set()
        return str((await asyncio.gather(call, return_exceptions=True))[0])

    try:
        end = asyncio.run(asyncio.wait_for(run(), PATIENCE / 2))
        cancels = is_cancelled or (close is close_blocking and end == "")  # close() also cancels the calls
        assert end == ("" if cancels else ENDS[waits_in])
    finally:
        camera.comes.set()


def test_a_closed_client_names_the_reason_though_its_threads_are_busy(roomy_server, monkeypatch):
    """The end of the pass is a call of its own, which closing the client cancels."""
    monkeypatch.setattr("triton_sam.transport.threads.MOST_THREADS", 1)
    camera, received, others_end = Camera(FRAMES[:1]), [], threading.Event()

    async def run():
        client = AsyncSAM2VideoClient(roomy_server.url, retries=0)
        call = asyncio.create_task(wait_for_frame(client, iter(camera), "propagate", received))
        await until(lambda: camera.waits.is_set() and len(received) == 1)
        other = asyncio.create_task(client._run(others_end.wait, PATIENCE))
        await asyncio.sleep(0)  # its call waits for the only thread
        closing = asyncio.create_task(client.aclose())
        ends = await asyncio.gather(call, return_exceptions=True)
        others_end.set()
        await asyncio.gather(closing, other, return_exceptions=True)
        return str(ends[0])

    try:
        assert asyncio.run(asyncio.wait_for(run(), PATIENCE)) == CLOSED
    finally:
        camera.comes.set()
        others_end.set()


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


def test_no_session_and_no_source_is_lost_wherever_a_call_dies(roomy_server):
    """Each request fails, or its caller goes away, at random; only a close that fails leaves a session behind."""
    rng = random.Random(5)
    sources, failed_closes = [], []

    def fail(number):
        if rng.random() < 0.2:
            failed_closes.extend([number] if roomy_server.operation(number) == "close_session" else [])
            raise rng.choice([ServerUnreachableError("gone"), InferenceError("failed"), ZeroDivisionError("a bug")])

    async def run():
        async with AsyncSAM2VideoClient(roomy_server.url, retries=0) as client:
            roomy_server.before = fail
            for _ in range(12):
                await cancel_after([asyncio.create_task(use(client, sources)) for _ in range(5)], rng)
            await until(lambda: client._threads._futures <= client._lasting)  # closing would cancel late openings
            roomy_server.before = lambda number: None

    asyncio.run(asyncio.wait_for(run(), 120))
    assert len(sources) > 40  # other tasks were cancelled before they began
    assert all(source.is_closed for source in sources)
    assert roomy_server.operations().count("close_session") > 10
    assert len(roomy_server.sessions) <= len(failed_closes)
