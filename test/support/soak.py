"""What the long runs share: whether they run in full, their images, and how they measure memory."""

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
IN_CACHE = 20 if FULL else 8


PATIENCE = 3 * 3600.0
"""Seconds that a call may take: a long run shares its machine with others, which may hold it up."""


def drawn(number):
    """A picture of its own for each number."""
    rng = np.random.default_rng(number)
    picture = np.full((120, 160, 3), rng.integers(0, 256, 3), np.uint8)
    left, top = rng.integers(10, 60, 2)
    picture[top : top + 50, left : left + 80] = rng.integers(0, 256, 3)
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG")
    return buffer.getvalue()


def memory(server):
    """Bytes of the server and of all its processes."""
    parent = psutil.Process(server.pid)
    return proportional([parent, *parent.children(recursive=True)])


def proportional(processes):
    """Bytes of these processes together. Resident sizes would count a shared page once for every mapping."""
    return sum(process.memory_full_info().pss for process in processes)


@pytest.fixture(scope="module")
def soaked(tmp_path_factory):
    """A server whose session model keeps IN_CACHE images."""
    local_server = pytest.importorskip("triton_sam.local_server")
    repository = tmp_path_factory.mktemp("soak") / "models"
    shutil.copytree(bundled("model_repository"), repository, ignore=shutil.ignore_patterns("sam1*", "sam3*"))
    config = repository / "sam2" / "config.pbtxt"
    config.write_text(config.read_text().replace("536870912", str(IN_CACHE * IMAGE_BYTES)))
    with local_server.LocalServer(repository, models=["sam2"], http_port=0, grpc_port=0, metrics_port=0) as running:
        yield running
