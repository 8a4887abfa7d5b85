"""Many concurrent clients that click on a server with two session models and measure the times."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from support.session_requests import add_session_model, text

from triton_sam._common.bundle import bundled
from triton_sam.repository.accelerators import Tuning, tune
from triton_sam.transport import Transport
from triton_sam.transport.url import parse_url

CLIENTS = 20
CALLS, DECODES = "sam2", "sam2_decodes"
"""Session models: one calls the decoder, one runs it in its own process."""


def two_session_models(folder: Path) -> Path:
    """Fill a model repository with both session models and a fast encoder."""
    from support.light_encoder import light_repository

    repository = light_repository(folder)
    plain = (repository / CALLS / "config.pbtxt").read_text()
    add_session_model(repository, DECODES, tune(plain, Tuning(decoder_in_session=True)))
    return repository


def boxes(count: int, number: int = 0) -> dict[str, np.ndarray]:
    """Return the inputs of a click with some boxes, which are decoded one by one."""
    return {"boxes": np.array([[90 + number, 70, 310, 290]] * count, np.float32)}


def upload(grpc_url: str, model: str) -> bytes:
    """Send an image and click once; return the id of the image."""
    transport = Transport(parse_url(grpc_url), timeout=120)
    content = (bundled("test/images") / "shapes.jpg").read_bytes()
    (image_id,) = transport.infer(model, {"image": text(content), **boxes(1)}, ["image_id", "masks"])["image_id"]
    transport.close()
    return bytes(image_id)


def click_together(grpc_url: str, model: str, image_id: bytes, clicks: int, objects: int) -> list[float]:
    """Click ``clicks`` times with every client, on ``objects`` boxes each; return the seconds of all clicks."""

    def click(client: int) -> list[float]:
        transport = Transport(parse_url(grpc_url), timeout=300)
        took = []
        for number in range(clicks):
            inputs = {"image_id": text(image_id), **boxes(objects, client + number)}
            began = time.perf_counter()
            transport.infer(model, inputs, ["masks"])
            took.append(time.perf_counter() - began)
        transport.close()
        return took

    with ThreadPoolExecutor(CLIENTS) as clients:
        return [seconds for took in clients.map(click, range(CLIENTS)) for seconds in took]
