"""The sync client of videos against a server that loses sessions and frames, refuses, and counts what it computes."""

import asyncio
import concurrent.futures
import json
import struct
import threading

import numpy as np
import pytest
from support.conditions import settled, wait_until
from support.fake_video_server import FakeVideoServer, VideoTransport, unreachable
from support.socket_server import Server, response, tensors

from triton_sam import AsyncSAM2VideoClient, SAM2VideoClient
from triton_sam.client.video.lookahead import look_ahead
from triton_sam.errors import (
    ConfigurationError,
    InferenceError,
    PromptError,
    ServerBusyError,
    ServerTimeoutError,
    ServerUnreachableError,
    UnknownSessionError,
    VideoError,
)

REQUESTS = 62
"""The number of requests of story()."""
FRAMES = [np.full((48, 64, 3), 3 * index, np.uint8) for index in range(40)]


@pytest.fixture
def server():
    return FakeVideoServer()


def open_video(server, source=FRAMES, **options):
    return SAM2VideoClient(transport=VideoTransport(server)).open(source, **options)


def number(segment):
    """Return all that a segment says, as one value."""
    logits = None if segment.logits is None else segment.logits.tobytes()
    return segment.frame, segment.object_id, segment.object_score, segment.mask.tobytes(), logits


def numbers(passed):
    return [(frame, [number(segment) for segment in segments.values()]) for frame, segments in passed]


def story(video):
    """Do everything that a video can, and return everything that it said."""
    said = [number(video.add(2, 1, points=[[10, 20]], labels=[1]))]
    said += numbers(video.propagate(count=9))
    said.append(number(video.add(5, 1, points=[[11, 20], [30, 40]], labels=[1, 0], clear_old_points=False)))
    said.append(number(video.add(6, 7, box=[1, 2, 30, 40])))
    said += numbers(video.propagate(count=4, logits=False))
    mask = np.zeros((48, 64), bool)
    mask[3:9] = True
    said.append(number(video.add(12, 8, mask=mask)))
    said += numbers(video.propagate(start=12, reverse=True, count=5))
    video.clear(6, 7)
    said += numbers(video.propagate(start=3, count=4))
    video.remove(7)
    said += numbers(video.propagate(start=9, count=20))
    video.reset()
    said.append(number(video.add(30, 3, points=[[1, 1]])))
    said += numbers(video.propagate())
    return said


@pytest.fixture(scope="module")
def undisturbed():
    server = FakeVideoServer()
    with open_video(server, snapshot_every=4, ahead=0) as video:
        said = story(video)
        assert video.restored == 0
    return said, server


def test_a_pass_gives_all_objects_in_all_frames(server):
    with open_video(server) as video:
        assert (video.num_frames, video.frame_size, video.object_ids) == (40, (64, 48), [])
        segment = video.add(3, 5, points=[[10, 20]])
        video.add(7, 2, box=[1, 2, 3, 4])
        assert (segment.object_id, segment.frame, segment.mask.shape) == (5, 3, (48, 64))
        assert segment.logits.shape == (8, 8)
        assert segment.is_visible == (segment.object_score > 0)
        assert video.object_ids == [5, 2]
        passed = list(video.propagate())
        assert [frame for frame, _ in passed] == list(range(3, 40))
        assert all(list(segments) == [5, 2] for _, segments in passed)
        assert all(segments[2].object_index == 1 for _, segments in passed)
    assert server.sessions == {}
    assert server.tracked == list(range(3, 40))


def test_each_frame_is_sent_once_and_the_next_ones_before_they_are_tracked(server):
    with open_video(server, ahead=2) as video:
        video.add(0, 1, points=[[1, 1]])
        passed = video.propagate()
        next(passed)
        sent = [arguments["frame_indexes"][0] for name, arguments in server.requests if name == "add_frames"]
        assert settled(lambda: len([1 for name in server.operations() if name == "add_frames"])) == 2
        assert set(sent) <= {1, 2}
        list(passed)
    times = [index for _, arguments in server.requests for index in arguments.get("frame_indexes", [])]
    assert times == list(range(40))


@pytest.mark.parametrize("at", range(REQUESTS))
def test_losing_the_session_at_any_request_changes_no_mask(server, undisturbed, at):
    said, calm = undisturbed
    assert len(calm.requests) == REQUESTS
    server.before = lambda number: server.lose_sessions() if number == at else None
    with open_video(server, snapshot_every=4, ahead=0) as video:
        assert story(video) == said
    assert len(server.tracked) - len(calm.tracked) <= 5


def test_losing_the_session_again_and_again_changes_no_mask(server, undisturbed):
    server.before = lambda number: server.lose_sessions() if number % 9 == 8 else None
    with open_video(server, snapshot_every=4, ahead=2) as video:
        assert story(video) == undisturbed[0]
        assert video.restored > 5


def test_a_server_that_keeps_no_frames_gets_them_again(undisturbed):
    server = FakeVideoServer(cache=1)
    with open_video(server, snapshot_every=4, ahead=2) as video:
        assert story(video) == undisturbed[0]
        assert video.restored == 0


@pytest.mark.parametrize("cache", [1, 1000])
def test_a_server_of_an_earlier_version_gives_the_same_masks(undisturbed, cache):
    """It does not name the frame that it lacks, and not the frame that a pass starts from."""
    server = FakeVideoServer(cache=cache, is_older=True)
    with open_video(server, snapshot_every=4, ahead=0) as video:
        assert story(video) == undisturbed[0]
        assert video.restored == 0


def test_a_lost_session_is_logged_once(server, caplog):
    with open_video(server) as video:
        for _ in range(3):
            server.lose_sessions()
            video.add(2, 1, points=[[10, 20]])
        assert video.restored == 3
    (message,) = caplog.messages
    assert message.startswith("sam2_video lost the session of a video. The client restores it")


def test_losing_frames_at_any_request_changes_no_mask(server, undisturbed):
    server.before = lambda number: server.lose_frames() if number % 2 else None
    with open_video(server, snapshot_every=4, ahead=1) as video:
        assert story(video) == undisturbed[0]


def test_a_stream_heals_with_the_frames_that_it_kept(server, undisturbed):
    """After a loss, frames long gone from the window are needed: prompted ones whose memory is not encoded yet."""

    def run(before):
        fresh = FakeVideoServer(cache=1)
        fresh.before = lambda number: before(fresh, number)
        with open_video(fresh, (frame for frame in FRAMES), snapshot_every=50, window=2, ahead=1) as video:
            said = [number(video.add(0, 1, points=[[1, 1]]))]
            said += numbers(video.propagate(count=20))
            said.append(number(video.add(21, 2, points=[[1, 1]])))
            said += numbers(video.propagate(start=20))
            assert video.num_frames is None
        return said

    calm = run(lambda fresh, number: None)
    assert calm[-1][0] == 39
    assert run(lambda fresh, number: fresh.lose_sessions() if number == 45 else None) == calm


def test_a_frame_behind_the_window_of_a_stream_is_a_clear_error(server):
    with open_video(server, iter(FRAMES), window=4, ahead=0, snapshot_every=2) as video:
        video.add(0, 1, points=[[1, 1]])
        list(video.propagate(count=10))
        with pytest.raises(VideoError, match=r"frame 3 of the stream is gone: .* its last 4 frames, now 6 to 9"):
            video.add(3, 1, points=[[1, 1]])
        assert next(video.propagate(start=10))[0] == 10


@pytest.mark.parametrize("at", [1, 4, 9])
def test_an_answer_that_was_lost_is_not_computed_twice(server, undisturbed, at):
    """The transport repeats a request; the server knows its step."""

    class Repeating(VideoTransport):
        def infer(self, model, inputs, outputs):
            answer = super().infer(model, inputs, outputs)
            return super().infer(model, inputs, outputs) if len(self.server.requests) % 10 == at else answer

    client = SAM2VideoClient(transport=Repeating(server))
    with client.open(FRAMES, snapshot_every=4, ahead=0) as video:
        assert story(video) == undisturbed[0]
    assert server.tracked == undisturbed[1].tracked


@pytest.mark.parametrize("error", [ServerTimeoutError("late"), unreachable(), InferenceError("out of memory")])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_call_that_failed_has_changed_nothing(server, error, when):
    """Whether the server has done it or not: the call can be repeated."""

    def fail(number):
        if number in failing:
            failing.clear()
            raise error

    failing = set()
    setattr(server, when, fail)
    calm = FakeVideoServer()
    said = []
    for fresh in (calm, server):
        with open_video(fresh, ahead=0) as video:
            video.add(0, 1, points=[[1, 1]])
            passed = numbers(video.propagate(count=3))
            if fresh is server:
                failing.add(len(server.requests))
                with pytest.raises(type(error)):
                    video.add(2, 1, points=[[5, 5]])
                failing.add(len(server.requests) + 5)  # inside the restoration of the next call
                with pytest.raises(type(error)):
                    list(video.propagate(start=3, count=2))
            passed += numbers(video.propagate(start=3, count=3))
            said.append(passed)
    assert said[0] == said[1]
    assert server.sessions == {}


def test_a_refused_prompt_leaves_the_session_as_it_is(server):
    with open_video(server) as video:
        video.add(0, 1, points=[[1, 1]])
        with pytest.raises(PromptError, match="max_objects is reached"):
            video.add(0, 666, points=[[1, 1]])
        assert video.object_ids == [1]
        assert len(list(video.propagate())) == 40
        assert video.restored == 0


def test_no_place_on_the_server_is_an_error_at_once():
    server = FakeVideoServer(max_sessions=1)
    with open_video(server), pytest.raises(ServerBusyError):
        open_video(server)


def test_a_server_that_loses_every_session_is_an_error(server):
    server.after = lambda number: server.lose_sessions()
    video = open_video(server)
    with pytest.raises(UnknownSessionError, match="all requests of a client must go to one of them"):
        video.add(0, 1, points=[[1, 1]])
    assert len(server.requests) < 12


def test_a_damaged_frame_is_an_error_and_the_session_lives_on(server):
    class Damaged(VideoTransport):
        def infer(self, model, inputs, outputs):
            spoilt = {**inputs, "frames": np.array([b"damaged"], np.object_)} if spoils else inputs
            return super().infer(model, spoilt if "frames" in inputs else inputs, outputs)

    spoils = []
    with SAM2VideoClient(transport=Damaged(server)).open(FRAMES, ahead=0) as video:
        video.add(0, 1, points=[[1, 1]])
        passed = video.propagate()
        next(passed)
        spoils.append(1)
        with pytest.raises(VideoError, match="the server cannot read frame 1"):
            next(passed)
        spoils.clear()
        assert len(list(video.propagate())) == 40


def test_cancel_from_another_thread_ends_the_pass_after_its_frame(server):
    reached, go = threading.Event(), threading.Event()

    def wait(number):
        if server.requests[number][0] == "propagate" and len(server.tracked) == 3:
            reached.set()
            assert go.wait(60)

    server.before = wait
    with open_video(server) as video:
        video.add(0, 1, points=[[1, 1]])
        frames = []
        thread = threading.Thread(target=lambda: frames.extend(frame for frame, _ in video.propagate()))
        thread.start()
        assert reached.wait(60)
        video.cancel()
        go.set()
        thread.join(60)
        assert frames == [0, 1, 2, 3]
        assert server.tracked == frames
        assert [frame for frame, _ in video.propagate(start=4, count=2)] == [4, 5]  # it goes on


def test_leaving_the_loop_stops_the_server(server):
    with open_video(server) as video:
        video.add(0, 1, points=[[1, 1]])
        for frame, _ in video.propagate():
            if frame == 4:
                break
        assert settled(lambda: len(server.requests)) < 16
        assert server.tracked == [0, 1, 2, 3, 4]


def test_a_source_that_waits_for_its_next_frame_can_be_cancelled(server):
    release = threading.Event()

    def camera():
        yield FRAMES[0]
        yield FRAMES[1]
        release.wait(60)

    with open_video(server, camera()) as video:
        video.add(0, 1, points=[[1, 1]])
        frames = []
        thread = threading.Thread(target=lambda: frames.extend(frame for frame, _ in video.propagate()))
        thread.start()
        wait_until(lambda: len(frames) == 2)
        video.cancel()
        thread.join(60)
        assert not thread.is_alive()
        release.set()


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_the_reader_never_runs_further_ahead_than_it_may(ahead):
    import concurrent.futures

    read = []

    def prepare(index, sends):
        read.append(index)
        return True

    indexes = look_ahead(iter(range(20)), prepare, ahead, concurrent.futures.Future())
    for index in indexes:
        wait_until(lambda: len(read) == min(index + ahead + 1, 20))  # noqa: B023 - called at once
        assert settled(lambda: len(read)) == min(index + ahead + 1, 20) if index == 3 else True


def test_every_nth_frame_is_a_video_of_fewer_frames(server):
    thinned = FakeVideoServer()
    with open_video(server, every=5) as video, open_video(thinned, FRAMES[::5]) as short:
        assert video.num_frames == 40
        video.add(10, 1, points=[[1, 1]])
        short.add(2, 1, points=[[1, 1]])
        frames, other = list(video.propagate()), list(short.propagate())
        assert [frame for frame, _ in frames] == [10, 15, 20, 25, 30, 35]
        for (_, ours), (_, theirs) in zip(frames, other, strict=True):
            np.testing.assert_array_equal(ours[1].mask, theirs[1].mask)
        with pytest.raises(PromptError, match="every=5: give 10 or 15"):
            video.add(12, 1, points=[[1, 1]])


def test_progress_counts_frames(server):
    with open_video(server) as video:
        video.add(30, 1, points=[[1, 1]])
        told = []
        list(video.propagate(count=4, on_progress=lambda *counts: told.append(counts)))
        assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
        told.clear()
        list(video.propagate(reverse=True, on_progress=lambda *counts: told.append(counts)))
        assert told[-1] == (31, 31)
    with open_video(server, iter(FRAMES[:3])) as video:
        video.add(0, 1, points=[[1, 1]])
        list(video.propagate(on_progress=lambda *counts: told.append(counts)))
        assert told[-1] == (3, None)


def test_the_default_start_is_the_first_prompt_at_a_frame_not_tracked_before(server):
    """As in the official predictor: a correction of a tracked frame is not one to start from."""
    with open_video(server) as video:
        video.add(10, 1, points=[[1, 1]])
        list(video.propagate(reverse=True))
        video.add(5, 1, points=[[1, 1]])
        assert next(video.propagate())[0] == 10
        video.add(7, 2, points=[[1, 1]])
        assert next(video.propagate())[0] == 7


def test_cancel_does_nothing_to_a_pass_that_another_thread_has_just_cancelled(server, monkeypatch):
    with open_video(server) as video:
        video.add(0, 1, points=[[1, 1]])
        passed = video.propagate()
        next(passed)
        video.cancel()
        monkeypatch.setattr(concurrent.futures.Future, "done", lambda future: False)  # what the other thread saw
        video.cancel()
        monkeypatch.undo()
        assert list(passed) == []


@pytest.mark.parametrize("kind", [SAM2VideoClient, AsyncSAM2VideoClient])
def test_both_clients_wait_for_a_busy_server_if_they_should(kind):
    """The first three requests are refused because all sessions are in use."""
    busy = response(json.dumps({"error": "BUSY: 32 video sessions are open here"}).encode(), "503 Service Unavailable")
    started = json.dumps({"session_id": "s", "next_step": 1}).encode()
    data = struct.pack("<I", len(started)) + started
    output = {"name": "result", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(data)}}

    def serve(server, connection):
        while server.read(connection):
            connection.sendall(busy if len(server.requests) <= 3 else tensors(output, data=data))

    def open_and_close(url, **options):
        if kind is SAM2VideoClient:
            with kind(url, retries=0, **options) as client:
                client.open(FRAMES[:1]).close()
            return

        async def run():
            async with kind(url, retries=0, **options) as client:
                await (await client.open(FRAMES[:1])).aclose()

        asyncio.run(run())

    with Server(serve) as impatient, pytest.raises(ServerBusyError, match="32 video sessions are open"):
        open_and_close(impatient.url)
    with Server(serve) as patient:
        open_and_close(patient.url, busy="wait", timeout=30)
        assert len(patient.requests) == 5  # the last one closes the session
    with pytest.raises(ConfigurationError, match="busy must be one of raise, wait, not 'later'"):
        kind(busy="later")


def test_the_memory_of_the_client_stays_flat(server):
    def endless():
        while True:
            yield FRAMES[0]

    with open_video(server, endless(), snapshot_every=4, ahead=2) as video:
        video.add(0, 1, points=[[1, 1]])
        for frame, _ in video.propagate():
            kept = len(video._frames._read), len(video._flows._journal), len(video._flows._known)
            if frame == 400:
                break
        assert kept[0] <= 4 + 4 + 1
        assert kept[1] < 4
        assert kept[2] <= 256


def test_the_error_of_an_unreachable_server_is_the_error_of_open():
    server = FakeVideoServer()

    def fail(number):
        raise unreachable()

    server.before = fail
    with pytest.raises(ServerUnreachableError):
        open_video(server)
