"""Requests to the session model, also of many clients at a time, and metrics of its server."""

from __future__ import annotations

import itertools
import json
import shutil
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import contents
from support.conditions import PATIENCE, settled
from support.custom_metrics import Scrape
from support.fuzzing import text

from triton_sam._common.bundle import bundled
from triton_sam.repository.accelerators import Tuning, tune
from triton_sam.transport import Transport
from triton_sam.transport.url import parse_url

IMAGE_BYTES = 16_777_216


def point_inputs(x=200.0, y=180.0):
    return {"point_coords": np.array([[[x, y]]], np.float32), "point_labels": np.ones((1, 1), np.float32)}


def colored(number):
    return contents.encoded(Image.new("RGB", (64, 48), (number % 256, 200, 40)))


def upload(transport, content, **more):
    return transport.infer("sam2", {"image": text(content), **more}, ["image_id", "image_size"])


def metrics(server, as_wanted=lambda figures: True, model="sam2"):
    """Return the metrics of a session model when they match, or when patience ends. They lag behind the answer."""
    deadline = time.monotonic() + PATIENCE
    while True:
        time.sleep(0.2)
        samples = (each for each in Scrape(server.metrics_url).samples if each.labels.get("model") == model)
        own = (each for each in samples if each.name.startswith("triton_sam_"))
        figures = {each.name.removeprefix("triton_sam_"): each.value for each in own}
        if as_wanted(figures) or time.monotonic() > deadline:
            return figures


def ask(server, **inputs):
    return json.loads(post(server, **inputs)["result_json"])


def post(server, *, model="sam2", shape=(1,), **inputs):
    """Send JSON as curl does; return the status and JSON."""
    tensors = [{"name": k, "shape": shape, "datatype": "BYTES", "data": [v]} for k, v in inputs.items()]
    request = urllib.request.Request(
        f"{server.http_url}/v2/models/{model}/infer", json.dumps({"inputs": tensors}).encode()
    )
    try:
        answer = json.loads(urllib.request.urlopen(request).read())
    except urllib.error.HTTPError as error:
        return json.loads(error.read())
    return {output["name"]: output["data"][0] for output in answer["outputs"]}


IMAGES_IN_CACHE = 3


def serve(repository, **options):
    local_server = pytest.importorskip("triton_sam.local_server")
    pytest.importorskip("onnxruntime")
    return local_server.LocalServer(repository, models=["sam2"], **options)


def add_session_model(repository: Path, name: str, config: str) -> None:
    """Add a session model of the default pair under another name, or write the config of the pair's own."""
    if name != "sam2":
        shutil.copytree(repository / "sam2", repository / name)
    (repository / name / "config.pbtxt").write_text(config.replace('name: "sam2"\n', f'name: "{name}"\n', 1))


def inferences(transport, model):
    """Return the number of requests that a model has computed."""
    return settled(lambda: int(transport.statistics(model)["inference_count"]))


def decodes(client, transport):
    """Return a reader of Triton's counter of decodes. Triton may count a decode late, but not after the next one."""
    own = itertools.count(1)

    def read():
        client.predict([[200, 180]])
        return inferences(transport, "sam2_decoder") - next(own)

    return lambda: settled(read)


def encoded(transport):
    """Return the number of images that the encoder has computed."""
    return inferences(transport, "sam2_encoder")


# --- many clients that click at the same time on a server with two session models, and measure the times ------------

CLIENTS = 20
CALLS, DECODES = "sam2", "sam2_decodes"
"""Session models: one calls the decoder, one runs it in its own process."""


def two_session_models(folder: Path) -> Path:
    """Fill a model repository with both session models and a fast encoder."""
    from support.toy_decoder import light_repository

    repository = light_repository(folder)
    plain = (repository / CALLS / "config.pbtxt").read_text()
    add_session_model(repository, DECODES, tune(plain, Tuning(decoder_in_session=True)))
    return repository


def boxes(count: int, number: int = 0) -> dict[str, np.ndarray]:
    """Return the inputs of a click with some boxes, which are decoded one by one."""
    return {"boxes": np.array([[90 + number, 70, 310, 290]] * count, np.float32)}


def upload_and_click(grpc_url: str, model: str) -> bytes:
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
