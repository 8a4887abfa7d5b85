"""Fixtures of the tests of sessions."""

import pytest
from support.fake_tracking import Server


@pytest.fixture
def video_sessions():
    video_sessions = Server()
    yield video_sessions
    video_sessions.threads.shutdown()
