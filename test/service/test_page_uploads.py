"""Uploads of the page: it shows which part has been sent, and a cancelled upload changes nothing."""

import contextlib

import numpy as np
import pytest
from PIL import Image
from support import clip

pytest.importorskip("playwright.sync_api")
pytest.importorskip("fastapi")

from support.fake_video_client import service_with_videos
from support.running_browser import open_page

SLOW = 200_000
"""Bytes a second of a slow line."""
PART = "document.getElementById('busy-part')"


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    """An image that takes seconds over a slow line."""
    path = tmp_path_factory.mktemp("noise") / "noise.png"
    pixels = np.random.default_rng(0).integers(0, 256, (700, 700, 3), np.uint8)
    Image.fromarray(pixels).save(path, compress_level=1)
    return path


@contextlib.contextmanager
def slow_line(page):
    """Let the browser send SLOW bytes a second."""
    session = page.page.context.new_cdp_session(page.page)
    session.send("Network.enable")
    conditions = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": SLOW}
    session.send("Network.emulateNetworkConditions", conditions)
    yield
    session.send("Network.emulateNetworkConditions", {**conditions, "uploadThroughput": -1})
    session.detach()


def test_an_upload_says_how_far_it_is_and_can_be_cancelled(shapes, noise):
    page = shapes
    page.click(200, 180)
    page.settled()
    facts = page.facts()
    with slow_line(page):
        page.page.set_input_files("#file", noise)
        page.wait(f"!{PART}.hidden && {PART}.value > 0 && {PART}.value < 1")
        assert page.page.inner_text("#busy-text") == "Sending the image …"
        part = page.page.evaluate(f"{PART}.value")
        page.wait(f"{PART}.value > {part}")
        page.page.click("#busy-cancel")
        page.wait("document.getElementById('busy').hidden")
    assert page.page.is_hidden("#banner")
    assert page.page.evaluate("tritonSam.image.name") == "shapes.jpg"
    assert page.facts() == facts
    page.click(240, 200)  # the open image still takes clicks
    page.wait("tritonSam.scene.active.points.length === 2")
    page.open(noise)


def test_the_upload_of_a_video_can_be_cancelled(browser, tmp_path):
    pytest.importorskip("av")
    path = clip.write_clip(tmp_path / "clip.mp4", 10)
    large = tmp_path / "large.mp4"
    large.write_bytes(path.read_bytes() + bytes(4_000_000))
    with service_with_videos() as (running, client), open_page(browser, running.url) as page:
        page.page.set_input_files("#file", path)
        page.wait("tritonSam.video.isOpen && document.getElementById('busy').hidden")
        opened = len(client.videos)
        with slow_line(page):
            page.page.set_input_files("#file", large)
            page.wait(f"!{PART}.hidden && {PART}.value > 0")
            assert page.page.inner_text("#busy-text") == "Sending the video …"
            page.page.keyboard.press("Escape")
            page.wait("document.getElementById('busy').hidden")
        assert page.page.is_hidden("#banner")
        assert page.page.evaluate("tritonSam.video.info.name") == "clip.mp4"
        assert len(client.videos) == opened


OUTSIDE = """[...document.querySelectorAll(".sample")].filter((sample) => {
  const [box, card] = [sample, sample.closest(".card")].map((each) => each.getBoundingClientRect());
  return box.left < card.left || box.right > card.right || box.bottom > card.bottom;
}).length"""


def test_the_samples_fit_into_their_card_and_open(page):
    assert page.page.locator(".sample").count() == 4
    for size in ((390, 844), (844, 390), (1280, 800)):
        page.page.set_viewport_size({"width": size[0], "height": size[1]})
        assert page.page.evaluate(OUTSIDE) == 0
    page.page.click('[data-sample="cells.jpg"]')
    page.opened("cells.jpg")
    assert page.page.evaluate("[tritonSam.image.width, tritonSam.image.height]") == [800, 600]
