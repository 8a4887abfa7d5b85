"""Fixtures of the tests of downloads."""

import os

import pytest
from support.file_server import Server

from triton_sam.download import catalogue as checkpoints
from triton_sam.download import fetch as download


@pytest.fixture
def file_server():
    with Server() as file_server, file_server.running():
        yield file_server


@pytest.fixture
def pauses(monkeypatch):
    """The pauses between attempts in seconds; the tests do not wait for them."""
    waited: list[float] = []
    monkeypatch.setattr(download, "sleep", waited.append)
    return waited


@pytest.fixture
def clean_environment(monkeypatch, pauses):
    """Remove the proxies and the mirror of this machine's environment, and do not wait between attempts."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name == checkpoints.MIRROR_VARIABLE:
            monkeypatch.delenv(name)
