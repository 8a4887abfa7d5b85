"""Fixtures of the tests of video clients."""

import pytest
from support.video_server import FACES, VideoServer


@pytest.fixture
def server():
    with VideoServer() as server:
        yield server


@pytest.fixture(params=FACES)
def face(request):
    """A function that opens a video with the sync client, or with the async one."""
    return FACES[request.param]
