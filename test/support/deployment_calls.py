"""Calls to a deployment of containers: clicks on Triton, the service, and plain HTTP, with retries."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import uuid
from types import SimpleNamespace
from typing import Any

import numpy as np

from triton_sam import SAM2TritonClient
from triton_sam._common.bundle import bundled

IMAGE = bundled("test/images") / "shapes.jpg"
POINTS = np.array([[200.0, 180.0]])
TOKEN = "a-token-of-the-service"


def click(url: str, fresh: bool = False, **options: Any) -> np.ndarray:
    """Return the mask of one click, from a new client."""
    image = IMAGE.read_bytes() + (uuid.uuid4().bytes if fresh else b"")  # other bytes are another image for the cache
    with SAM2TritonClient(url, timeout=30, **options) as client:
        client.set_image(image)
        mask: np.ndarray = client.segment(POINTS, np.ones(1))[0].mask
        return mask


def segment(deployment: SimpleNamespace) -> dict[str, Any]:
    """Return the service's answer to one click."""
    boundary = uuid.uuid4().hex
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="shapes.jpg"\r\n\r\n'
    body = head.encode() + IMAGE.read_bytes() + f"\r\n--{boundary}--\r\n".encode()
    kind = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    image = json.loads(ask(f"{deployment.service}/v1/images", body, token=TOKEN, **kind))["id"]
    prompt = json.dumps({"points": POINTS.tolist(), "labels": [1]}).encode()
    kind = {"Content-Type": "application/json"}
    answer: dict[str, Any] = json.loads(
        ask(f"{deployment.service}/v1/images/{image}/segment", prompt, token=TOKEN, **kind)
    )
    return answer


def version(deployment: SimpleNamespace) -> str:
    """Return the ready version of the encoder."""
    return str(max(json.loads(ask(f"{deployment.http}/v2/models/sam2_encoder"))["versions"], key=int))


def ask(url: str, body: bytes | None = None, token: str = "", **headers: str) -> bytes:
    """Return the body of an HTTP answer."""
    if token:
        headers["Authorization"] = f"Bearer {token}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30) as answer:
            content: bytes = answer.read()
            return content
    except urllib.error.HTTPError as error:
        error.close()  # an open socket would cause a warning at garbage collection
        raise
