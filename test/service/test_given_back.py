"""Whatever a request takes is given back, however it ends: places, bytes, pixels, files, sessions, tasks and threads.

Hundreds of requests to an application in this process (nightly: thousands) end at random moments, which a seed
chooses, and its models fail at random. Afterwards, every budget in /metrics, the tasks of the event loop and the open
descriptors are as they were at the beginning, and no file is left; when the application ends, its threads end.
"""

import asyncio
import contextlib
import functools
import gc
import json
import logging
import os
import random
import re
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from support import clip
from support.conditions import PATIENCE, wait_until
from support.drawn_server import DrawnServer
from support.dying_requests import WAYS, Dying, DyingPage, fail, form_request, json_request
from support.running_service import made_up_models
from support.session_requests import colored
from support.tools import base64_of

from triton_sam.service.app import create_app
from triton_sam.service.settings import ServiceSettings
from triton_sam.wire.video import CLOSE_SESSION

# Starlette's FileResponse may be cancelled while it opens its file, which is closed a moment later.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

REQUESTS, AT_A_TIME = 600, 12
IDLE_SECONDS = 1.0


class Users:
    """Make up requests of users of every part of the service."""

    def __init__(self, chance, video):
        self.chance = chance
        self.image = colored(9)
        self.image_id = ""
        self.video = video
        self.frames = [base64_of(clip.png(number)) for number in range(3)]
        self.videos = []
        self.sessions = []
        self.states = []

    def one(self):
        """Return the next request."""
        steps = int(10 ** self.chance.uniform(0, 2.6)) - 1
        made = self.chance.choice(self.kinds)(self)
        if isinstance(made, Dying):
            made.way, made.steps = self.chance.choices(WAYS, (3, 3, 2, 1))[0], steps
            if self.chance.random() < 0.04:
                made.body = made.body[: len(made.body) // 2]  # damaged
            return made
        return DyingPage(made, steps, self.chance.choice(WAYS))

    def learn(self, request):
        """Remember what an answer names, for later requests."""
        if request.status >= 300 or not request.answer.startswith(b"{"):
            return
        with contextlib.suppress(ValueError):
            told = request.json()
            if request.path.startswith("/v1/videos?") and "num_frames" in told:
                self.videos = [*self.videos[-5:], told["id"]]
            elif "states" in told:
                self.states = [*self.states[-5:], *filter(None, told["states"])]
            elif isinstance(told.get("data"), dict) and "session_id" in told["data"]:
                self.sessions = [*self.sessions[-5:], told["data"]["session_id"]]

    def some(self, known):
        return self.chance.choice(known) if known else "0" * 32

    def page(self):
        click = {"type": "segment", "lane": "click", "seq": 1, "image": self.image_id, "points": [[9, 9]]}
        return [{"type": "hello", "version": 2}, click, {**click, "lane": "hover"}, {"type": "cancel", "lane": "hover"}]

    def segment(self):
        form = self.chance.choice(["rle", "png", "polygons"])
        return json_request("POST", f"/v1/images/{self.image_id}/segment", {"points": [[9, 9]], "format": form})

    def everything(self):
        accept = self.chance.choice(["text/event-stream", "application/json"])
        return json_request("POST", f"/v1/images/{self.image_id}/everything", {"points_per_side": 4}, accept=accept)

    def find(self):
        return json_request("POST", f"/v1/images/{self.image_id}/find", {"text": "dog", "model": "sam3"})

    def upload_video(self):
        if self.chance.random() < 0.5:
            return form_request("/v1/videos", {}, [("video", "a.mp4", self.video)], every="1")
        frames = [("frames", f"{number}.png", clip.png(number)) for number in range(3)]
        return form_request("/v1/videos", {}, frames, every="1")

    def prompt_video(self):
        body = {"frame": 0, "object_id": 1, "points": [[60, 120]]}
        return json_request("POST", f"/v1/videos/{self.some(self.videos)}/prompts", body)

    def propagate(self):
        return json_request("POST", f"/v1/videos/{self.some(self.videos)}/propagate", {})

    def download(self):
        form = self.chance.choice(["png", "rle", "coco", "overlay"])
        request = Dying("GET", f"/v1/videos/{self.some(self.videos)}/masks?format={form}")
        spans = [b"bytes=0-3", b"bytes=99999999-", b"bytes=x-y"]  # one that fits, and two that make it fail
        request.headers = [(b"range", self.chance.choice(spans))] if self.chance.random() < 0.5 else []
        return request

    def delete_video(self):
        return Dying("DELETE", f"/v1/videos/{self.some(self.videos)}")

    def cvat(self):
        begins = not self.states or self.chance.random() < 0.5
        shapes = [[10, 10, 90, 90]] if begins else []
        states = [] if begins else [self.some(self.states)]
        body = {"image": self.chance.choice(self.frames), "shapes": shapes, "states": states}
        return json_request("POST", "/api/function_invocations", body, x_nuclio_function_name="triton-sam-sam2-tracker")

    def annotate(self):
        body = {"model": "sam2-video", "frames": self.frames}
        return json_request("POST", "/x-anylabeling/v1/video/init", body)

    def annotate_click(self):
        body = {"points": [[0.2, 0.5]], "point_labels": [1], "obj_id": 10000, "session_id": self.some(self.sessions)}
        return json_request("POST", "/x-anylabeling/v1/video/prompt", {"model": "sam2-video", **body})

    def annotate_follow(self):
        body = {"model": "sam2-video", "session_id": self.some(self.sessions)}
        return json_request("POST", "/x-anylabeling/v1/video/propagate/stream", body)

    def qupath_upload(self):
        name, file = self.chance.choice("abc"), f"{self.chance.randrange(3)}.png"
        return form_request("/sam/upload/", {"dirname": name}, [("file", file, self.image)])

    def qupath_video(self):
        objects = {"0": [{"obj_id": 1, "bbox": [5, 5, 9, 9]}]}
        body = {"type": "sam2_t", "dirname": self.chance.choice("abc"), "objs": objects}
        if self.chance.random() < 0.4:
            del body["dirname"]
            body["b64imgs"] = self.frames
        return json_request("POST", "/sam/video/", body)

    def roboflow(self):
        body = {"image": {"type": "base64", "value": base64_of(self.image)}, "nms_iou_threshold": 0.5}
        return json_request("POST", "/sam3/concept_segment", {**body, "prompts": [{"type": "text", "text": "dog"}]})

    def export(self):
        rle = {"size": [30, 40], "counts": "0`0"}
        line = json.dumps({"name": "a", "width": 40, "height": 30, "objects": [{"label": "a", "rle": rle}]}).encode()
        return form_request("/v1/exports", {}, [("images", "a.jsonl", line)], format="coco")

    kinds = (
        page, segment, everything, find, upload_video, prompt_video, prompt_video, propagate, download, download,
        delete_video, cvat, annotate, annotate_click, annotate_follow, qupath_upload, qupath_video, roboflow, export,
    )  # fmt: skip


async def ask(app, request):
    await request.send_to(app)
    return request


async def used(app):
    """Return how much of each budget is used, the service's other counters, and the process's tasks and open files."""
    text = (await ask(app, Dying("GET", "/metrics"))).answer.decode()
    names = ("triton_sam_service_budget_used", "triton_sam_service_pages", "triton_sam_service_requests_in_flight")
    lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith(names)]
    counted = {name: float(value) for name, _, value in lines}
    return {**counted, **descriptors(), "tasks": len(asyncio.all_tasks())}


def descriptors():
    """Return how many descriptors of each file, and of each kind of socket and pipe, this process has open."""
    found = Counter()
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of this listing
            found[re.sub(r":\[\d+\]", "", str(each.readlink()))] += 1
    return found


def counts(found):
    """Return what the service counts, without what the process holds."""
    return {value for name, value in found.items() if name.startswith("triton_sam")}


async def settled(app, files, expected):
    """Wait until what is used is as expected and no file is left. Return both, after a while in any case."""
    end = time.monotonic() + PATIENCE
    while True:
        gc.collect()  # a file that a FileResponse opened while it was cancelled is closed with its task
        found, left = await used(app), [str(each) for each in files()]
        if (expected(found) and not left) or time.monotonic() > end:
            return found, left
        await asyncio.sleep(0.05)


def growth(found, before):
    """Return what is used more than before. Other tests' connections in this process may have ended meanwhile."""
    return {name: value for name, value in found.items() if value > before.get(name, 0)}


async def drive(app, users, requests):
    left = iter(range(requests))

    async def user():
        for _ in left:
            request = users.one()
            await request.send_to(app)
            if isinstance(request, Dying):
                users.learn(request)

    await asyncio.gather(*(user() for _ in range(AT_A_TIME)))


def run(tmp_path, seed, requests, server):
    """Let requests die, and check that everything is given back."""
    chance = random.Random(seed)
    video = clip.write_clip(tmp_path / "clip.mp4", 3).read_bytes()
    settings = ServiceSettings(
        url=server.url,
        adapters=("cvat", "label-studio", "x-anylabeling", "qupath", "roboflow", "osam"),
        video_idle_seconds=IDLE_SECONDS,
        max_videos=8,
        max_searches=2,
        max_tracks=2,
        timeout=60.0,
    )
    app = create_app(settings)
    app.state.engine._pairs = functools.partial(made_up_models(words=True, videos=True), app.state.engine)
    server.before = lambda number: fail(chance) if server.operation(number) != CLOSE_SESSION else None
    folders = tmp_path / "temporary"

    def files():
        # os.walk passes over folders that the service removes meanwhile.
        walked = [(Path(folder), [*inner, *names]) for folder, inner, names in os.walk(folders)]
        return [folder / name for folder, names in walked if folder != folders for name in names]

    async def all_of_it():
        async with app.router.lifespan_context(app):
            users = Users(chance, video)
            uploaded = await ask(app, form_request("/v1/images", {}, [("image", "a.png", users.image)]))
            while uploaded.status != 201:
                uploaded = await ask(app, form_request("/v1/images", {}, [("image", "a.png", users.image)]))
            users.image_id = uploaded.json()["id"]
            # Most of the later requests name a video, a session or a state, so there must be one of each.
            for begin, known in ((Users.upload_video, "videos"), (Users.annotate, "sessions"), (Users.cvat, "states")):
                while not getattr(users, known):
                    users.learn(await ask(app, begin(users)))
            before, _ = await settled(app, files, lambda found: counts(found) <= {0, 1})
            assert counts(before) == {0, 1}  # the request for the metrics itself is counted
            await drive(app, users, requests)
            found, left = await settled(app, files, lambda found: not growth(found, before))
            assert growth(found, before) == {}
            assert left == []
        assert not server.sessions

    asyncio.run(all_of_it())


@pytest.fixture(autouse=True)
def _temporary(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    logging.disable()  # the text of a thousand tracebacks takes longer than the requests
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(900)
def test_nothing_is_lost_when_requests_die_at_random_moments(tmp_path):
    before = set(threading.enumerate())
    with DrawnServer() as server:
        run(tmp_path, 1, REQUESTS, server)
    # Pools keep their threads while the application or the server runs.
    wait_until(lambda: set(threading.enumerate()) <= before)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2, 8))
def test_nothing_is_lost_in_ten_thousand_requests(tmp_path, seed):
    with DrawnServer() as server:
        run(tmp_path, seed, 10_000, server)
