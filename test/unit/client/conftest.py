"""Fixtures of the tests of clients."""

import pytest
from support.in_process import ImageServer


@pytest.fixture
def server():
    with ImageServer() as server:
        yield server
