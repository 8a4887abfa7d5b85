"""The clients of videos against a server that loses sessions and frames, refuses, and counts what it computes."""

import asyncio
import concurrent.futures
import threading

import numpy as np
import pytest
from support.conditions import PATIENCE, settled, wait_until
from support.in_process import refusal
from support.video_server import Camera, VideoServer, open_video

from triton_sam import AsyncSAM2VideoClient, SAM2VideoClient
from triton_sam.client.video.video import Video
from triton_sam.errors import (
    ConfigurationError,
    InferenceError,
    PromptError,
    ServerBusyError,
    VideoError,
)
from triton_sam.inputs.video.sequences import StreamFrames
from triton_sam.wire import video as wire

FRAMES = [np.full((48, 64, 3), 3 * index, np.uint8) for index in range(40)]


def test_a_pass_gives_all_objects_in_all_frames(video_server, face):
    with face(video_server, FRAMES) as video:
        assert (video.num_frames, video.frame_size, video.object_ids) == (40, (64, 48), [])
        segment = video.add(3, 5, points=[[10, 20]])
        video.add(7, 2, box=[1, 2, 3, 4])
        assert (segment.object_id, segment.frame, segment.mask.shape) == (5, 3, (48, 64))
        assert segment.logits.shape == (16, 16)
        assert segment.is_visible == (segment.object_score > 0)
        assert video.object_ids == [5, 2]
        passed = list(video.propagate())
        assert [frame for frame, _ in passed] == list(range(3, 40))
        assert all(list(segments) == [5, 2] for _, segments in passed)
        assert all(segments[2].object_index == 1 for _, segments in passed)
    assert video_server.sessions == {}
    assert video_server.tracked == list(range(3, 40))


def test_each_frame_is_sent_once_and_the_next_ones_before_they_are_tracked(video_server):
    with open_video(video_server, FRAMES, ahead=2) as video:
        video.add(0, 1, points=[[1, 1]])
        passed = video.propagate()
        next(passed)
        wait_until(lambda: video_server.operations().count("add_frames") == 2)
        assert settled(lambda: video_server.operations().count("add_frames")) == 2
        assert video_server.sent_frames() == [0, 1, 2]
        list(passed)
        assert len(list(video.propagate())) == 40  # a second pass sends none
    assert video_server.sent_frames() == list(range(40))


def test_a_frame_behind_the_window_of_a_stream_is_a_clear_error(video_server):
    with open_video(video_server, iter(FRAMES), window=4, ahead=0, snapshot_every=2) as video:
        video.add(0, 1, points=[[1, 1]])
        list(video.propagate(count=10))
        with pytest.raises(VideoError, match=r"frame 3 of the stream is gone: .* its last 4 frames, now 6 to 9"):
            video.add(3, 1, points=[[1, 1]])
        assert next(video.propagate(start=10))[0] == 10


def test_a_stream_that_waits_for_its_next_frame_delays_neither_close_nor_the_end_of_the_process(video_server):
    camera, released = Camera(FRAMES[:2]), threading.Event()
    with open_video(video_server, StreamFrames(iter(camera), close=released.set)) as video:
        video.add(0, 1, points=[[1, 1]])
        passed = video.propagate()
        assert next(passed)[0] == 0
        assert camera.waits.wait(PATIENCE)
        passed.close()
        assert camera.thread.daemon
    assert not released.is_set()
    camera.comes.set()
    assert released.wait(PATIENCE)
    camera.thread.join(PATIENCE)
    assert not camera.thread.is_alive()


def test_closing_a_video_ends_a_prompt_that_waits_for_its_frame(video_server):
    camera = Camera(FRAMES[:2])
    with concurrent.futures.ThreadPoolExecutor() as pool:
        with open_video(video_server, iter(camera)) as video:
            adding = pool.submit(video.add, 1, 1, points=[[1, 1]])
            assert camera.waits.wait(PATIENCE)
        with pytest.raises(ConfigurationError, match="this video is closed"):
            adding.result(PATIENCE / 2)
        camera.comes.set()
    assert "add_prompt" not in video_server.operations()


def test_only_cancel_ends_a_pass_without_an_error(video_server, face):
    for cancels in (False, True):
        with face(video_server, FRAMES) as video:
            close = video.close if isinstance(video, Video) else video.aclose
            video.add(0, 1, points=[[1, 1]])
            ended, passed = video.propagate(count=1), video.propagate()
            next(ended)
            next(passed)
            if cancels:
                video.cancel()
            close()
            assert list(ended) == []
            if cancels:
                assert list(passed) == []
            else:
                with pytest.raises(ConfigurationError, match="this video is closed: open it again"):
                    next(passed)


def test_a_damaged_frame_is_an_error_and_the_session_lives_on(video_server):
    def spoil(number):
        if spoils and wire.FRAMES in video_server.requests[number].inputs:
            raise InferenceError("sam2_video failed: BAD_IMAGE: the image is damaged")

    spoils = []
    video_server.before = spoil
    with open_video(video_server, FRAMES, ahead=0) as video:
        video.add(0, 1, points=[[1, 1]])
        passed = video.propagate()
        next(passed)
        spoils.append(1)
        with pytest.raises(VideoError, match="the server cannot read frame 1"):
            next(passed)
        spoils.clear()
        assert len(list(video.propagate())) == 40


def test_cancel_from_another_thread_ends_the_pass_after_its_frame(video_server, face):
    reached, go = threading.Event(), threading.Event()

    def wait(number):
        if video_server.operation(number) == "propagate" and len(video_server.tracked) == 3:
            reached.set()
            assert go.wait(60)

    video_server.before = wait
    with face(video_server, FRAMES) as video:
        video.add(0, 1, points=[[1, 1]])
        frames = []
        thread = threading.Thread(target=lambda: frames.extend(frame for frame, _ in video.propagate()))
        thread.start()
        assert reached.wait(60)
        video.cancel()
        go.set()
        thread.join(60)
        assert frames == [0, 1, 2, 3]
        assert video_server.tracked == frames
        assert [frame for frame, _ in video.propagate(start=4, count=2)] == [4, 5]  # it goes on


def test_leaving_the_loop_stops_the_server(video_server, face):
    with face(video_server, FRAMES) as video:
        video.add(0, 1, points=[[1, 1]])
        for frame, _ in (passed := video.propagate()):
            if frame == 4:
                break
        passed.close()
        assert settled(lambda: len(video_server.requests)) < 16
        assert video_server.tracked == [0, 1, 2, 3, 4]


def test_a_source_that_waits_for_its_next_frame_can_be_cancelled(video_server):
    camera = Camera(FRAMES[:1])
    with open_video(video_server, iter(camera)) as video:
        video.add(0, 1, points=[[1, 1]])
        frames = []
        thread = threading.Thread(target=lambda: frames.extend(frame for frame, _ in video.propagate()))
        thread.start()
        wait_until(lambda: camera.waits.is_set() and len(frames) == 1)
        video.cancel()
        thread.join(60)
        assert not thread.is_alive()
        camera.comes.set()


def test_every_nth_frame_is_a_video_of_fewer_frames(video_server):
    with (
        VideoServer() as thinned,
        open_video(video_server, FRAMES, every=np.int64(5)) as video,
        open_video(thinned, FRAMES[::5]) as short,
    ):
        assert video.num_frames == 40
        video.add(10, 1, points=[[1, 1]])
        short.add(2, 1, points=[[1, 1]])
        frames, other = list(video.propagate()), list(short.propagate())
        assert [frame for frame, _ in frames] == [10, 15, 20, 25, 30, 35]
        for (_, ours), (_, theirs) in zip(frames, other, strict=True):
            np.testing.assert_array_equal(ours[1].mask, theirs[1].mask)
        with pytest.raises(PromptError, match="every=5: give 10 or 15"):
            video.add(12, 1, points=[[1, 1]])


def test_the_default_start_is_the_first_prompt_at_a_frame_not_tracked_before(video_server):
    """As in the official predictor: a correction of a tracked frame is not one to start from."""
    with open_video(video_server, FRAMES) as video:
        video.add(10, 1, points=[[1, 1]])
        list(video.propagate(reverse=True))
        video.add(5, 1, points=[[1, 1]])
        assert next(video.propagate())[0] == 10
        video.add(7, 2, points=[[1, 1]])
        assert next(video.propagate())[0] == 7


def test_cancel_does_nothing_to_a_pass_that_another_thread_has_just_cancelled(video_server, monkeypatch):
    with open_video(video_server, FRAMES) as video:
        video.add(0, 1, points=[[1, 1]])
        passed = video.propagate()
        next(passed)
        video.cancel()
        monkeypatch.setattr(concurrent.futures.Future, "done", lambda future: False)  # what the other thread saw
        video.cancel()
        monkeypatch.undo()
        assert list(passed) == []


@pytest.mark.parametrize("kind", [SAM2VideoClient, AsyncSAM2VideoClient])
def test_both_clients_wait_for_a_busy_server_if_they_should(video_server, kind):
    """The first three requests are refused because all sessions are in use."""

    def refuse(number):
        if number < 3:
            raise refusal("BUSY", "UNAVAILABLE")

    async def open_and_close(**options):
        client = kind(video_server.url, retries=0, **options)
        opened = client.open(FRAMES[:1])
        video = await opened if kind is AsyncSAM2VideoClient else opened
        await (video.aclose() if kind is AsyncSAM2VideoClient else asyncio.to_thread(video.close))

    video_server.before = refuse
    with pytest.raises(ServerBusyError, match="words of the server"):
        asyncio.run(open_and_close())
    asyncio.run(open_and_close(busy="wait"))
    assert video_server.operations() == ["start_session"] * 4 + ["close_session"]


@pytest.mark.slow
def test_the_memory_of_the_client_stays_flat(video_server):
    def endless():
        while True:
            yield FRAMES[0]

    with open_video(video_server, endless(), snapshot_every=4, ahead=2) as video:
        video.add(0, 1, points=[[1, 1]])
        for frame, _ in video.propagate():
            with video._flows._lock:  # the thread that sends frames adds one before it drops one
                kept = len(video._frames._read), len(video._flows._journal), len(video._flows._known)
            if frame == 400:
                break
        assert kept[0] <= 4 + 4 + 1
        assert kept[1] < 4
        assert kept[2] <= 256


# Calls with bad arguments: one clear line each, no request, and the session lives on

BAD_PROMPTS = {
    "there is no frame 40: the video has the frames 0 to 39": {"frame": 40, "points": [[1, 1]]},
    "there is no frame -1": {"frame": -1, "points": [[1, 1]]},
    "a mask replaces points and box": {"points": [[1, 1]], "mask": np.zeros((48, 64))},
    r"mask must be an array \(48,64\)": {"mask": np.zeros((64, 48))},
    "a box comes before all points": {"box": [1, 2, 3, 4], "clear_old_points": False},
    "the prompt of one object, not of 2": {"points": [[[1, 1]], [[2, 2]]]},
    "frame must be a whole number": {"frame": 1.5, "points": [[1, 1]]},
    "object_id must fit 64 bits": {"object_id": 2**70, "points": [[1, 1]]},
}


@pytest.mark.parametrize("message", BAD_PROMPTS)
def test_a_bad_prompt_is_one_clear_line_and_asks_nothing(video_server, message):
    with open_video(video_server, FRAMES) as video:
        asked = len(video_server.requests)
        with pytest.raises(PromptError, match=message):
            video.add(**{"frame": 0, "object_id": 1, **BAD_PROMPTS[message]})
        assert len(video_server.requests) == asked


def test_bad_calls_are_clear_errors(video_server):
    with open_video(video_server, FRAMES) as video:
        with pytest.raises(PromptError, match="there is nothing to track: give a prompt"):
            video.propagate()
        with pytest.raises(PromptError, match="there is no object 4: the video has no objects"):
            video.remove(4)
        video.add(0, 1, points=[[1, 1]])
        with pytest.raises(PromptError, match=r"there is no object 4: the video has \[1\]"):
            video.clear(0, 4)
        with pytest.raises(PromptError, match="there is no frame 99"):
            video.propagate(start=99)
        with pytest.raises(PromptError, match="count must be at least 1"):
            video.propagate(count=0)
    for options in ({"ahead": -1}, {"snapshot_every": 0}, {"every": 0}, {"quality": 0}):
        with pytest.raises(ConfigurationError):
            open_video(video_server, FRAMES, **options)
    with pytest.raises(VideoError, match="the list is empty"):
        open_video(video_server, [])
    assert video_server.sessions == {}


def test_a_closed_video_begins_no_other_session(video_server):
    with open_video(video_server, iter(FRAMES)) as video:
        video.add(0, 1, points=[[1, 1]])
    with pytest.raises(ConfigurationError, match="this video is closed: open it again"):
        video.add(0, 1, points=[[1, 1]])
    with pytest.raises(ConfigurationError, match="this video is closed: open it again"):
        list(video.propagate(start=5))
    assert video_server.sessions == {}
