"""Support for the long runs: their length, their images, their server and the measurement of memory."""

from __future__ import annotations

import io
import os
import shutil

import numpy as np
import psutil
import pytest
from PIL import Image
from support.session_requests import IMAGE_BYTES

from triton_sam._common.bundle import bundled

FULL = os.environ.get("TRITON_SAM_SOAK") == "full"
"""Whether the long runs have their full length."""
IMAGES_IN_CACHE = 20 if FULL else 8
"""Capacity of the server's cache in images."""
CALL_TIMEOUT = 3 * 3600.0
"""Timeout of a call in seconds, long because other programs may slow down the machine for a long time."""


def draw_image(number):
    """Return a different image for each number, 160x120 pixels, as PNG."""
    rng = np.random.default_rng(number)
    pixels = np.full((120, 160, 3), rng.integers(0, 256, 3), np.uint8)
    left, top = rng.integers(10, 60, 2)
    pixels[top : top + 50, left : left + 80] = rng.integers(0, 256, 3)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def server_memory(server):
    """Return the memory of the server and of all its child processes, in bytes."""
    parent = psutil.Process(server.pid)
    return total_memory([parent, *parent.children(recursive=True)])


def total_memory(processes):
    """Return the total memory of processes in bytes. Shared pages count once.

    Resident sizes, the usual measure, would count a shared page once per process.
    """
    return sum(process.memory_full_info().pss for process in processes)


@pytest.fixture(scope="module")
def small_cache_server(tmp_path_factory):
    """A server whose session model keeps IMAGES_IN_CACHE images."""
    local_server = pytest.importorskip("triton_sam.local_server")
    repository = tmp_path_factory.mktemp("soak") / "models"
    shutil.copytree(bundled("model_repository"), repository, ignore=shutil.ignore_patterns("sam1*", "sam3*"))
    config = repository / "sam2" / "config.pbtxt"
    config.write_text(config.read_text().replace("536870912", str(IMAGES_IN_CACHE * IMAGE_BYTES)))
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    log = repository.parent / "server.log"  # pytest keeps it for finding the cause of a restart
    with local_server.LocalServer(repository, models=["sam2"], log_file=log, **ports) as running:
        yield running
