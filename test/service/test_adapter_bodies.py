"""Requests of tools that are almost right: an answer or an error in the tool's form, never a 5xx, and it goes on."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import hypothesis
import pytest
from PIL import Image

pytest.importorskip("fastapi")
pytest.importorskip("av")

from support import clip
from support.adapter_bodies import almost, settings
from support.fake_video_client import FakeVideoClient
from support.fake_words import service_with_words
from support.running_service import RunningService, running_service
from support.tool_table import TOOLS
from support.tools import asked_of_label_studio, base64_of

from triton_sam.masks import mask_to_box
from triton_sam.service.adapters.brush_rle import encode_brush
from triton_sam.service.adapters.registry import ADAPTERS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EXAMPLES = [25, pytest.param(500, marks=pytest.mark.nightly)]
DISC = mask_to_box(clip.disc(0))


class Call(NamedTuple):
    """A right request of a tool."""

    path: str
    body: Any
    headers: Mapping[str, str] = {}


@pytest.fixture(scope="module")
def running(light_triton: Any) -> Iterator[RunningService]:
    with running_service(light_triton.url, adapters=tuple(ADAPTERS)) as running:
        yield running


@pytest.fixture(scope="module")
def without_triton() -> Iterator[RunningService]:
    """A service that finds words and tracks videos."""
    options: dict[str, Any] = {"adapters": tuple(ADAPTERS), "cvat_words": ("dog",), "max_videos": 100_000}
    client = FakeVideoClient()
    client.most_objects = 1 << 20  # the fake counts by the number of the object, and X-AnyLabeling says 10000
    with service_with_words(client, **options) as (running, _):
        yield running


@pytest.fixture(scope="module")
def small(images: Any) -> str:
    """A small picture: the requests matter here, and masks with many pixels take most of the time."""
    buffer = io.BytesIO()
    with Image.open(images / "shapes.jpg") as image:
        image.resize((80, 60)).save(buffer, "JPEG")
    return base64_of(buffer.getvalue())


def ask_often(running: RunningService, call: Call, examples: int) -> None:
    """Send requests like this one; the service answers each in the form of the tool, and goes on."""
    statuses = set()

    @hypothesis.given(body=almost(call.body))
    @settings(examples)
    def ask(body: Any) -> None:
        headers = {"content-type": "application/json", **call.headers}
        answer = running.http.post(call.path, content=json.dumps(body), headers=headers)
        statuses.add(answer.status_code)
        assert answer.status_code < 500, f"{answer.status_code} {answer.text[:300]} to {json.dumps(body)[:600]}"
        assert "problem+json" not in answer.headers["content-type"]

    ask()
    assert {200, 422} <= statuses
    assert running.http.get("/health").status_code == 200


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("name", TOOLS)
def test_clicks(running: RunningService, small: str, name: str, examples: int) -> None:
    tool = TOOLS[name]
    ask_often(running, Call(tool.path, tool.click(small), tool.headers), examples)


@pytest.mark.parametrize("examples", EXAMPLES)
def test_drawn_regions(running: RunningService, small: str, examples: int) -> None:
    brush = {"type": "brushlabels", "value": {"rle": encode_brush(clip.disc(0)), "brushlabels": ["cat"]}}
    outline = {"type": "polygonlabels", "value": {"points": [[10, 10], [60, 10], [40, 80]], "polygonlabels": ["cat"]}}
    ask_often(running, Call("/label-studio/predict", asked_of_label_studio(small, brush, outline)), examples)


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("name", TOOLS)
def test_words(without_triton: RunningService, picture: bytes, name: str, examples: int) -> None:
    path, body = TOOLS[name].word_request(base64_of(picture))
    ask_often(without_triton, Call(path, body, TOOLS[name].word_headers), examples)


def calls_of_videos(running: RunningService, picture: bytes) -> dict[str, Call]:
    """Return a right request of each tool that tracks objects; some need an answer to another one."""
    frames = [base64_of(clip.png(index)) for index in range(2)]
    tracker = {"x-nuclio-function-name": "triton-sam-sam2-tracker"}
    path, root = "/api/function_invocations", "/x-anylabeling/v1/video"
    first = {"image": frames[0], "shapes": [list(DISC or ()), {"type": "polygon", "points": [9, 9, 90, 9, 90, 90]}]}
    states = running.http.post(path, json=first, headers=tracker).json()["states"]
    begin = {"model": "sam2-video", "frames": frames, "start_frame_index": 0}
    session = running.http.post(f"{root}/init", json=begin).json()["data"]["session_id"]
    click = {"frame_index": 0, "points": [[0.2, 0.5]], "point_labels": [1], "obj_id": 10000}
    clicked = {"obj_id": 1, "point_coords": [list(clip.START)], "point_labels": [1], "bbox": None}
    series = {"type": "sam2_t", "b64imgs": frames, "axes": "XYT", "start_frame_idx": 0, "max_frame_num_to_track": 1}
    sought = {"obj_id": 3, "text": "dog", "boxes_xywh": [[10, 20, 30, 40]], "box_labels": [1]}
    return {
        "cvat: begin": Call(path, {**first, "states": []}, tracker),
        "cvat: follow": Call(path, {"image": frames[1], "shapes": [], "states": states}, tracker),
        "x-anylabeling: frames": Call(f"{root}/init", begin),
        "x-anylabeling: clicks": Call(f"{root}/prompt", {"model": "sam2-video", "session_id": session, **click}),
        "qupath": Call("/sam/video/", {**series, "objs": {"0": [clicked]}}),
        "qupath: words": Call(
            "/sam/sam3video/", {**series, "b64imgs": [base64_of(picture)] * 2, "objs": {"0": [sought]}}
        ),
    }


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize(
    "name",
    ["cvat: begin", "cvat: follow", "x-anylabeling: frames", "x-anylabeling: clicks", "qupath", "qupath: words"],
)
def test_videos(without_triton: RunningService, picture: bytes, name: str, examples: int) -> None:
    ask_often(without_triton, calls_of_videos(without_triton, picture)[name], examples)
