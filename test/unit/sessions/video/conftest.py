"""Fixtures of the tests of video sessions."""

import pytest
from support.fake_tracking import Server


@pytest.fixture
def video_sessions():
    return Server()
