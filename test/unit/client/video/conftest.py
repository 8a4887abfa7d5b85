"""Fixtures of the tests of video clients."""

import pytest
from support.video_server import FACES, VideoServer


@pytest.fixture
def video_server():
    with VideoServer() as video_server:
        yield video_server


@pytest.fixture(params=FACES)
def face(request):
    """A function that opens a video with the sync client, or with the async one."""
    return FACES[request.param]
