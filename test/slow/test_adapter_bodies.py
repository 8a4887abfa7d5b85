"""Made-up bodies for each adapter: an answer or an error in the tool's form, never a 5xx, and the service lives."""

from __future__ import annotations

import io
import json

import hypothesis
import pytest
from PIL import Image

pytest.importorskip("fastapi")
from support import clip
from support.adapter_bodies import cases, cases_of_videos, cases_of_words, sent
from support.fake_video_client import FakeVideoClient, service_with_videos
from support.fake_words import service_with_words
from support.running_service import running_service
from support.tools import base64_of

from triton_sam.service.adapters.registry import ADAPTERS

pytestmark = pytest.mark.slow

BODIES = 500


@pytest.fixture(scope="module")
def with_videos():
    with service_with_videos(adapters=tuple(ADAPTERS), max_videos=100_000) as (running, _):
        yield running


@pytest.fixture(scope="module")
def small(images):
    """A small picture: the bodies matter here, and masks with many pixels take most of the time."""
    buffer = io.BytesIO()
    with Image.open(images / "shapes.jpg") as image:
        image.resize((80, 60)).save(buffer, "JPEG")
    return base64_of(buffer.getvalue())


@pytest.fixture(scope="module")
def running(service_triton):
    with running_service(service_triton.grpc_url, adapters=tuple(ADAPTERS)) as running:
        yield running


@pytest.fixture(scope="module")
def with_words():
    options = {"adapters": tuple(ADAPTERS), "cvat_words": ("dog",), "max_videos": 100_000}
    with service_with_words(FakeVideoClient(), **options) as (running, _):
        yield running


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", list(ADAPTERS))
def test_made_up_bodies(running, small, name):
    ask_often(running, *cases(small)[name])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["qupath", "qupath: series", "roboflow", "cvat", "label-studio"])
def test_made_up_words(with_words, images, name):
    ask_often(with_words, *cases_of_words(base64_of((images / "shapes.jpg").read_bytes()))[name])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["cvat", "x-anylabeling", "x-anylabeling: frames", "qupath", "qupath: uploads"])
def test_made_up_videos(with_videos, name):
    ask_often(with_videos, *cases_of_videos(with_videos, base64_of(clip.png(0)))[name])


def ask_often(running, path, headers, bodies):
    """Send bodies; the service answers each in the form of the tool, and goes on."""
    statuses = []

    @hypothesis.given(body=bodies)
    @hypothesis.settings(
        max_examples=BODIES,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    def ask(body):
        answer = sent(running.http, path, headers, body)
        statuses.append(answer.status_code)
        assert answer.status_code < 500, f"{answer.status_code} {answer.text[:300]} to {json.dumps(body)[:600]}"
        assert "problem+json" not in answer.headers["content-type"]

    ask()
    assert len(statuses) >= BODIES // 2
    assert {200, 422} <= set(statuses)
    assert running.http.get("/health").status_code == 200
