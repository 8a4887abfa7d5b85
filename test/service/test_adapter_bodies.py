"""Requests of tools that are almost right: an answer or an error in the tool's form, never a 5xx, and it goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import hypothesis
import pytest
from hypothesis import strategies as st
from PIL import Image
from support import clip
from support.contents import encoded
from support.running_service import running_service
from support.tools import TOOLS, asked_of_label_studio, base64_of

from triton_sam.masks import mask_to_box
from triton_sam.service.adapters.brush_rle import encode_brush
from triton_sam.service.adapters.registry import ADAPTERS

NUMBERS = st.one_of(st.integers(-10, 900), st.floats(), st.booleans())
LEAVES = st.one_of(st.none(), NUMBERS, st.text(max_size=8), st.sampled_from(["%", "AAAA", "nothing"]))
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
)
LONG = 8
"""Length from which a list is treated as encoded data, whose parts are meaningless."""


def mostly(kind, other):
    """Return mostly values of a kind, sometimes others."""
    return st.integers(0, 19).flatmap(lambda number: other if number == 19 else kind)


def almost(value):
    """Return JSON values similar to a value; most equal it if it is small."""
    other = ANYTHING
    if isinstance(value, dict):
        members = {name: almost(each) for name, each in value.items()}
        kind = mostly(st.fixed_dictionaries(members), st.fixed_dictionaries({}, optional=members))
    elif isinstance(value, list) and len(value) < LONG:
        kind = mostly(
            st.tuples(*map(almost, value)).map(list), st.lists(st.one_of(*map(almost, value), ANYTHING), max_size=4)
        )
    else:
        kind = st.just(value)
        if isinstance(value, list):
            other = st.one_of(ANYTHING, st.integers(0, len(value)).map(lambda end: value[:end]))
        elif isinstance(value, (int, float)):
            other = st.one_of(ANYTHING, NUMBERS)
    return mostly(kind, other)


def settings(examples):
    """Return settings for a number of requests, the same in each run."""
    health = list(hypothesis.HealthCheck)
    return hypothesis.settings(
        max_examples=examples, deadline=None, database=None, derandomize=True, suppress_health_check=health
    )


pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EXAMPLES = [25, pytest.param(500, marks=pytest.mark.nightly)]
DISC = mask_to_box(clip.disc(0))


class Call(NamedTuple):
    """A right request of a tool."""

    path: str
    body: Any
    headers: Mapping[str, str] = {}


@pytest.fixture(scope="module")
def all_adapters(light_triton):
    with running_service(light_triton.url, adapters=tuple(ADAPTERS)) as all_adapters:
        yield all_adapters


SERVICE = {"words": True, "adapters": tuple(ADAPTERS), "cvat_words": ("dog",), "max_videos": 100_000}


@pytest.fixture(scope="module")
def without_triton(drawn):
    """A service that finds words and tracks videos."""
    return drawn.service


@pytest.fixture(scope="module")
def small(images):
    """A small picture: the requests matter here, and masks with many pixels take most of the time."""
    with Image.open(images / "shapes.jpg") as image:
        return base64_of(encoded(image.resize((80, 60)), "JPEG"))


def ask_often(running, call, examples):
    """Send requests like this one; the service answers each in the form of the tool, and goes on."""
    statuses = set()

    @hypothesis.given(body=almost(call.body))
    @settings(examples)
    def ask(body):
        headers = {"content-type": "application/json", **call.headers}
        answer = running.http.post(call.path, content=json.dumps(body), headers=headers)
        statuses.add(answer.status_code)
        assert answer.status_code < 500, f"{answer.status_code} {answer.text[:300]} to {json.dumps(body)[:600]}"
        assert "problem+json" not in answer.headers["content-type"]

    ask()
    assert 200 in statuses
    headers = {"content-type": "application/json", **call.headers}
    assert running.http.post(call.path, content="[]", headers=headers).status_code == 422
    assert running.http.get("/health").status_code == 200


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("name", TOOLS)
def test_clicks(all_adapters, small, name, examples):
    tool = TOOLS[name]
    ask_often(all_adapters, Call(tool.path, tool.click(small), tool.headers), examples)


@pytest.mark.parametrize("examples", EXAMPLES)
def test_drawn_regions(all_adapters, small, examples):
    brush = {"type": "brushlabels", "value": {"rle": encode_brush(clip.disc(0)), "brushlabels": ["cat"]}}
    outline = {"type": "polygonlabels", "value": {"points": [[10, 10], [60, 10], [40, 80]], "polygonlabels": ["cat"]}}
    ask_often(all_adapters, Call("/label-studio/predict", asked_of_label_studio(small, brush, outline)), examples)


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("name", ["qupath", "roboflow"])  # the others take words where they take clicks
def test_words(without_triton, picture, name, examples):
    path, body = TOOLS[name].word_request(base64_of(picture))
    ask_often(without_triton, Call(path, body, TOOLS[name].word_headers), examples)


def calls_of_videos(running, picture):
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
def test_videos(without_triton, picture, name, examples):
    ask_often(without_triton, calls_of_videos(without_triton, picture)[name], examples)
