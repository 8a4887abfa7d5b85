"""Fixtures of the tests of clients."""

import pytest
from support.image_server import ImageServer


@pytest.fixture
def server():
    with ImageServer() as server:
        yield server
