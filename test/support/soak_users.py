"""The users of the endurance run. Each is a generator that counts its work at every step and checks its answers."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from support import clip
from support.soak import CALL_TIMEOUT, draw_image

from triton_sam import SAM2TritonClient, SAM2VideoClient, SpeculativeSAM2Client
from triton_sam.errors import ImageError, PromptError

IMAGES = 60
"""Number of different images, more than the server's cache holds."""
VIDEO_FRAMES = 20
CLICK = (1600, 1000)
"""Pixel of the large image that users click."""


class PatientClient(httpx.Client):
    """A client of the service that repeats a request while the service is busy."""

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        while (answer := super().send(request, **options)).status_code == 503:
            time.sleep(float(answer.headers["Retry-After"]))
        return answer


def click_with_sync_client(url, count):
    """Simulate a user of the sync client, with images, clicks and mistakes. Every 20 images, a new client is used."""
    for turn in itertools.count():
        with SAM2TritonClient(url, timeout=CALL_TIMEOUT, busy="wait") as client:
            for number in range(20):
                client.set_image(draw_image((20 * turn + number) % IMAGES))
                client.predict([[60.0, 50.0]])
                client.segment([[20.0, 30.0]], logits=False)
                yield count("clicks", 2)
                for error, mistake in (
                    (ImageError, lambda: client.set_image(b"no image")),
                    (PromptError, lambda: client.predict([[float("nan"), 1.0]])),
                ):
                    with pytest.raises(error):
                        mistake()
                    yield count("mistakes")


def move_with_speculative_client(url, count):
    """Simulate a mouse that moves over images. Most of its positions are replaced before they are sent."""

    async def move(client):
        tasks = [(await client.predict_async([[5.0 + n, 40.0]], session_id="mouse"))[1] for n in range(20)]
        client.cancel_session_requests("mouse")
        await asyncio.wait(tasks)
        return tasks[-1].result()

    for turn in itertools.count():
        with SpeculativeSAM2Client(url, timeout=CALL_TIMEOUT, busy="wait") as client:
            for number in range(20):
                client.set_image(draw_image((7 * turn + number) % IMAGES))
                asyncio.run(move(client))
                yield count("positions", 20)


def call_service(url, count):
    """Simulate a client of the service, with uploads, masks and mistakes."""
    for turn in itertools.count():
        with PatientClient(base_url=url, timeout=CALL_TIMEOUT) as http:
            for number in range(20):
                content = draw_image((11 * turn + number) % IMAGES)
                answer = http.post("/v1/images", files={"image": ("image.png", content)})
                assert answer.status_code == 201, answer.text
                path = f"/v1/images/{answer.json()['id']}/segment"
                for body, status in (({"points": [[60, 50]]}, 200), ({"points": "here"}, 422)):
                    assert http.post(path, json=body).status_code == status
                yield count("service requests", 3)


def search_for_everything(url, count):
    """Simulate a user who searches for all objects, and sometimes cancels a search."""
    thresholds: dict[str, Any] = {"points_per_side": 4, "pred_iou_thresh": 0.0, "stability_score_thresh": 0.0}

    class GivenUpError(Exception):
        pass

    def give_up(_):
        raise GivenUpError

    for turn in itertools.count():
        with SAM2TritonClient(url, timeout=CALL_TIMEOUT, busy="wait") as client:
            for number in range(20):
                content = draw_image((13 * turn + number) % IMAGES)
                assert client.everything(content, **thresholds)
                with pytest.raises(GivenUpError):
                    client.everything(content, progress=give_up, **thresholds)
                yield count("searches", 2)


def track_videos(url, count):
    """Simulate a user who tracks objects, each in a new session, with mistakes."""
    frames = [clip.image(index) for index in range(VIDEO_FRAMES)]
    while True:
        with SAM2VideoClient(url, timeout=CALL_TIMEOUT) as client:
            for _ in range(5):
                with client.open(frames) as video:
                    video.add(0, 1, points=[clip.START])
                    with pytest.raises(PromptError):
                        video.add(0, 2, points=[[float("nan"), 1.0]])
                    assert len(list(video.propagate(logits=False))) == VIDEO_FRAMES
                yield count("frames of videos", VIDEO_FRAMES)


def call_adapter(url, count):
    """Simulate a tool with Osam's protocol, with mistakes."""
    prompt = {"points": [[60, 50]], "point_labels": [1]}
    with PatientClient(base_url=url, timeout=CALL_TIMEOUT) as http:
        for turn in itertools.count():
            image = base64.b64encode(draw_image(17 * turn % IMAGES)).decode()
            for each, status in ((image, 200), ("no image", 422)):
                answer = http.post("/api/generate", json={"model": "sam2:latest", "image": each, "prompt": prompt})
                assert answer.status_code == status, answer.text
            yield count("adapter requests", 2)


def look_at_a_large_image(url, count):
    """Simulate a user who moves over a slide and clicks, with mistakes."""
    with PatientClient(base_url=url, timeout=CALL_TIMEOUT) as http:
        (listed,) = http.get("/v1/large").json()["images"]
        path = f"/v1/large/{listed['id']}"
        for turn in itertools.count():
            for place, status in ((f"{turn % 6}/{turn % 4}", 200), ("6/0", 404)):
                assert http.get(f"{path}/levels/0/tiles/{place}").status_code == status
            answer = http.post(f"{path}/segment", json={"points": [[CLICK[0] + turn % 40, CLICK[1]]], "format": "rle"})
            assert answer.status_code == 200, answer.text
            yield count("large image requests", 3)


def annotate_batches(url, count, scenes: Path, folder: Path):
    """Simulate nightly jobs, which annotate the scenes repeatedly, each time into a new folder."""
    for turn in itertools.count():
        out = folder / f"out{turn}"
        options = ["--with", "boxes", "--url", url, "--timeout", str(CALL_TIMEOUT), "--out", str(out), "-q"]
        subprocess.run([sys.executable, "-m", "triton_sam", "annotate", str(scenes), *options], check=True)
        number = len(json.loads((out / "coco.json").read_text(encoding="utf-8"))["annotations"])
        assert number
        yield count("annotations", number)
