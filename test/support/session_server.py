"""A local server with the session model."""

import time

import pytest

IMAGES_IN_CACHE = 3


def serve(repository, http_port=0, **options):
    local_server = pytest.importorskip("triton_sam.local_server")
    pytest.importorskip("onnxruntime")
    ports = {"http_port": http_port, "grpc_port": 0, "metrics_port": 0}
    return local_server.LocalServer(repository, models=["sam2", "sam2_encoder_jpeg"], **ports, **options)


def encoded(transport):
    """Return the number of images that the encoder has computed. Triton counts a moment after it has answered."""
    counts = []
    while len(counts) < 3 or len(set(counts[-3:])) > 1:
        time.sleep(0.05)
        counts.append(int(transport.statistics("sam2_encoder")["inference_count"]))
    return counts[-1]
