"""`cvat-cli` with the functions of triton_sam, as the page of docs says, against a made-up CVAT.

Its shapes are those of the clients.
"""

import contextlib
import io
import json
import os
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import pytest
from PIL import Image
from support import clip
from support.tools import AWAY, BOX, CLICK
from support.uv_environment import make_environment

import triton_sam
from triton_sam import SAM2VideoClient
from triton_sam.masks import mask_to_box
from triton_sam.service.adapters.cvat_tracker import box_runs, mask_of_points

TASK, FUNCTION = 1, 5
QUEUE = f"/api/functions/queues/function:{FUNCTION}/requests"
DATE = "2026-01-01T00:00:00Z"


class FakeCvat(ThreadingHTTPServer):
    """A CVAT with one task.

    Attributes:
        annotations: the received annotations of the task.
        asked: parameters of requests that wait for an agent, in order. With the states "last", a request gets the
            states of the previous result.
        results: the answers of agents.
        unknown: unsupported requests, and reports of failures.
    """

    daemon_threads = True

    def __init__(self, images: list[Path], label: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.images = images
        self.annotations: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.results: list[dict[str, Any]] = []
        self.unknown: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"
        frames = []
        for path in images:
            with Image.open(path) as image:
                width, height = image.size
            frames.append({"name": path.name, "width": width, "height": height, "related_files": 0})
        chunks = {"data_chunk_size": len(images), "data_original_chunk_type": "imageset"}
        jobs = {"count": 1, "completed": 0, "validation": 0, "url": "jobs"}
        links = {"jobs": jobs, "labels": {"url": "labels"}, "organization": None}
        named = {"id": 7, "name": label, "type": "mask", "attributes": [], "sublabels": []}
        about = ("name", "description", "version", "logo_url", "subtitle")
        self.answers: dict[str, Any] = {
            "/api/server/about": {**dict.fromkeys(about, ""), "version": "2.80.0"},
            f"/api/tasks/{TASK}": {"id": TASK, "size": len(images), "updated_date": DATE, **chunks, **links},
            f"/api/tasks/{TASK}/data/meta": {"chunks_updated_date": DATE, "frames": frames, "deleted_frames": []},
            "/api/labels": {"count": 1, "next": None, "previous": None, "results": [named]},
        }

    def chunk(self) -> bytes:
        """Return the images as a ZIP archive."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for number, path in enumerate(self.images):
                archive.write(path, f"{number:06}{path.suffix}")
        return buffer.getvalue()


class Handler(BaseHTTPRequestHandler):
    """Answers a request."""

    server: FakeCvat

    def do_GET(self) -> None:
        path, query = self._place()
        kind = query.get("type", [""])[0] if path == f"/api/tasks/{TASK}/data" else ""
        if kind == "chunk":
            self._answer(self.server.chunk(), "application/zip")
        elif kind == "frame":
            self._answer(self.server.images[int(query["number"][0])].read_bytes(), "image/jpeg")
        elif path in self.server.answers:
            self._answer_json(self.server.answers[path])
        else:
            self._refuse()

    def do_PATCH(self) -> None:
        path, _ = self._place()
        sent = self._body()
        if path != f"/api/tasks/{TASK}/annotations":
            return self._refuse()
        self.server.annotations.append(sent)
        return self._answer_json({"version": 1, "tags": [], "shapes": [], "tracks": []})

    def do_POST(self) -> None:
        path, _ = self._place()
        sent = self._body()
        if path == "/api/functions":
            known = {"min_neg_points": -1, "startswith_box": False, "startswith_box_optional": False, **sent}
            self.server.answers[f"{path}/{FUNCTION}"] = {**known, "id": FUNCTION}
            return self._answer_json({**known, "id": FUNCTION}, 201)
        if path == f"{QUEUE}/acquire":
            waits = self.server.asked if sent["request_category"] == "interactive" else []
            assigned: Any = {"ar_id": "request", "ar_params": waits.pop(0)} if waits else None
            if assigned is not None and assigned["ar_params"].get("states") == "last":
                assigned["ar_params"]["states"] = self.server.results[-1]["states"]
            return self._answer_json({"ar_assignment": assigned})
        if path == f"{QUEUE}/request/complete":
            self.server.results.append(sent)
            return self._answer_json({})
        return self._refuse(str(sent))

    def log_message(self, *_: object) -> None:
        pass

    def _place(self) -> tuple[str, dict[str, list[str]]]:
        address = urlsplit(self.path)
        return unquote(address.path).rstrip("/"), parse_qs(address.query)

    def _body(self) -> dict[str, Any]:
        return dict(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer_json(self, value: Any, status: int = 200) -> None:
        self._answer(json.dumps(value).encode(), "application/vnd.cvat+json", status)

    def _answer(self, content: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _refuse(self, about: str = "") -> None:
        self.server.unknown.append(f"{self.command} {self.path} {about}")
        self._answer_json({}, 404)


@contextlib.contextmanager
def running_cvat(images: list[Path], label: str) -> Iterator[FakeCvat]:
    """Run a CVAT with one task, which has the images and a label."""
    server = FakeCvat(images, label)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


pytestmark = pytest.mark.timeout(900)

SIZE, CLIP_SIZE, FRAMES = (800, 600), (clip.WIDTH, clip.HEIGHT), 4
BOXES = [[x - 30, y - 30, x + 30, y + 30] for x in (60, 160) for y in (90, 140)]
"""The random weights of the fixture see the mask in the first frame alone, and these boxes nowhere."""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return make_environment(tmp_path_factory.mktemp("cvat") / "venv", ["cvat-cli"]).with_name("cvat-cli")


@pytest.fixture
def run(program, tmp_path):
    """Return a function that starts the program with a function of triton_sam, and returns the program's output.

    Its arguments are CVAT's URL, the words of the command, and the parameters of triton_sam's function.
    """
    folder = tmp_path  # of the program's cache
    places = [str(Path(triton_sam.__file__).parents[1]), str(Path(np.__file__).parents[1])]
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.path += {places!r}")  # after the program's packages
    variables = {"PYTHONPATH": str(folder), "XDG_CACHE_HOME": str(folder), "CVAT_ACCESS_TOKEN": "any"}

    def run(address: str, *words: str, **parameters: Any) -> str:
        given = [f"{name}={type(value).__name__}:{value}" for name, value in parameters.items()]
        command = [str(program), "--server-host", address, *words, "--function-module", "triton_sam.integrations.cvat"]
        command += [part for each in given for part in ("-p", each)]
        done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.strip()

    return run


@pytest.mark.slow
@pytest.mark.export
def test_an_agent_tracks_rectangles_and_a_mask(run, video_server, tmp_path):
    frames = clip.write_frames(tmp_path, FRAMES)
    with SAM2VideoClient(video_server.grpc_url) as client, client.open(frames) as video:
        for number, box in enumerate(BOXES, 2):
            video.add(0, number, box=box)
        video.add(0, 1, mask=clip.disc(0))
        expected = [masks for _, masks in video.propagate(start=0)]
    parameters = {"kind": "tracker", "url": video_server.grpc_url}
    drawn = [{"type": "mask", "points": box_runs(clip.disc(0))}]
    drawn += [{"type": "rectangle", "points": box} for box in BOXES]
    with running_cvat(frames, "object") as cvat:
        run(cvat.url, "function", "create-native", "SAM2 tracker", **parameters)
        cvat.asked += [
            {"type": "init_tracking", "task": TASK, "frame": 0, "shapes": drawn},
            *({"type": "track", "task": TASK, "frame": frame, "states": "last"} for frame in range(FRAMES)),
        ]
        run(cvat.url, "function", "run-agent", str(FUNCTION), "--burst", **parameters)
    assert (cvat.unknown, cvat.asked) == ([], [])
    assert expected[0][1].mask.any()
    for result, masks in zip(cvat.results[1:], expected, strict=True):
        mask, *rectangles = result["shapes"]
        boxes = [mask_to_box(masks[number].mask) for number in range(2, len(BOXES) + 2)]
        assert [each and each["points"] for each in rectangles] == [box and list(box) for box in boxes]
        shown = np.zeros_like(masks[1].mask) if mask is None else mask_of_points(mask["points"], CLIP_SIZE)
        assert np.array_equal(shown, masks[1].mask)


@pytest.mark.nightly
def test_it_annotates_a_task(run, service_triton, triton_client, images):
    """It uploads the objects that the client finds."""
    options = {"points_per_side": 4, "stability_score_thresh": 0.5}
    words = ["task", "auto-annotate", str(TASK), "--conf-threshold", "0.3"]
    with running_cvat([images / "shapes.jpg"], "object") as cvat:
        run(cvat.url, *words, kind="everything", url=service_triton.grpc_url, **options)
    assert cvat.unknown == []
    [sent] = cvat.annotations
    found = triton_client.everything(images / "shapes.jpg", pred_iou_thresh=0.3, **options)
    assert found
    assert [(shape["type"], shape["frame"]) for shape in sent["shapes"]] == [("mask", 0)] * len(found)
    for shape, segment in zip(sent["shapes"], found, strict=True):
        assert np.array_equal(mask_of_points(shape["points"], SIZE), segment.mask)


@pytest.mark.nightly
def test_an_agent_answers_clicks_and_boxes(run, service_triton, triton_client, images):
    """It makes the function in CVAT, and then its agent answers the requests that wait there."""
    frame = {"type": "interact", "task": TASK, "frame": 0}
    parameters = {"kind": "interactor", "url": service_triton.grpc_url}
    with running_cvat([images / "shapes.jpg"], "object") as cvat:
        assert run(cvat.url, "function", "create-native", "SAM2", **parameters) == str(FUNCTION)
        cvat.asked += [
            {**frame, "pos_points": [CLICK], "neg_points": [], "obj_bbox": []},
            {**frame, "pos_points": [], "neg_points": [], "obj_bbox": [BOX[:2], BOX[2:]]},
            {**frame, "pos_points": [CLICK], "neg_points": [AWAY], "obj_bbox": [BOX[:2], BOX[2:]]},
        ]
        run(cvat.url, "function", "run-agent", str(FUNCTION), "--burst", **parameters)
    assert (cvat.unknown, cvat.asked) == ([], [])
    prompts = (
        {"point_coords": [CLICK]},
        {"box": BOX},
        {"point_coords": [CLICK, AWAY], "point_labels": [1, 0], "box": BOX},
    )
    for result, prompt in zip(cvat.results, prompts, strict=True):
        [shape] = result["shapes"]
        assert shape["type"] == "mask"
        assert np.array_equal(mask_of_points(shape["points"], SIZE), triton_client.segment(**prompt)[0].mask)
