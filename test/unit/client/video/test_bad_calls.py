"""Calls with bad arguments: one clear line each, no request, and the session lives on."""

import numpy as np
import pytest
from support.video_server import VideoServer, open_video

from triton_sam.errors import ConfigurationError, PromptError, VideoError

FRAMES = [np.full((48, 64, 3), 3 * index, np.uint8) for index in range(40)]


@pytest.fixture
def server():
    with VideoServer() as server:
        yield server


BAD_PROMPTS = {
    "there is no frame 40: the video has the frames 0 to 39": {"frame": 40, "points": [[1, 1]]},
    "there is no frame -1": {"frame": -1, "points": [[1, 1]]},
    "there is nothing to go by": {},
    "lies outside the image of 64x48": {"points": [[64.5, 1]]},
    "a mask replaces points and box": {"points": [[1, 1]], "mask": np.zeros((48, 64))},
    r"mask must be an array \(48,64\)": {"mask": np.zeros((64, 48))},
    "a box comes before all points": {"box": [1, 2, 3, 4], "clear_old_points": False},
    "the prompt of one object, not of 2": {"points": [[[1, 1]], [[2, 2]]]},
    "frame must be a whole number": {"frame": 1.5, "points": [[1, 1]]},
    "object_id must fit 64 bits": {"object_id": 2**70, "points": [[1, 1]]},
}


@pytest.mark.parametrize("message", BAD_PROMPTS)
def test_a_bad_prompt_is_one_clear_line_and_asks_nothing(server, message):
    with open_video(server, FRAMES) as video:
        asked = len(server.requests)
        with pytest.raises(PromptError, match=message):
            video.add(**{"frame": 0, "object_id": 1, **BAD_PROMPTS[message]})
        assert len(server.requests) == asked


def test_bad_calls_are_clear_errors(server):
    with open_video(server, FRAMES) as video:
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
            open_video(server, FRAMES, **options)
    with pytest.raises(VideoError, match="the list is empty"):
        open_video(server, [])
    assert server.sessions == {}


def test_a_prompt_beyond_the_end_of_a_stream_is_an_error(server):
    with (
        open_video(server, iter(FRAMES[:5])) as video,
        pytest.raises(PromptError, match="no frame 9: the video"),
    ):
        video.add(9, 1, points=[[1, 1]])


def test_a_closed_video_begins_no_other_session(server):
    with open_video(server, FRAMES) as video:
        pass
    with pytest.raises(ConfigurationError, match="this video is closed: open it again"):
        video.add(0, 1, points=[[1, 1]])
    assert server.sessions == {}
