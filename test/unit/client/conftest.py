"""Fixtures of the tests of clients."""

import pytest
from support.in_process import ImageServer


@pytest.fixture
def image_server():
    with ImageServer() as image_server:
        yield image_server
