"""The page on phones and other screens: fingers hit each target, the image has room, and canvas and clicks agree."""

import pytest

pytest.importorskip("playwright.sync_api")
pytest.importorskip("fastapi")
from support.running_browser import ASIDE, NARROW, SMALL_TARGETS, edited, open_phone

SHARE = """(() => {
  const [[left, top], [right, bottom]] = [tritonSam.screenOf(0, 0), tritonSam.screenOf(800, 600)];
  return (right - left) * (bottom - top) / (innerWidth * innerHeight);
})()"""
BEYOND = """[...document.querySelectorAll(".panel button, .top button")]
  .filter((each) => each.checkVisibility() && each.getBoundingClientRect().right > innerWidth)
  .map((each) => each.id || each.textContent.trim())"""
"""The buttons that the right edge of the window cuts."""
TOOLS_OUTSIDE = """[...document.querySelectorAll('.tools button')].filter((button) => {
    const { left, right } = button.getBoundingClientRect();
    return left < 0 || right > innerWidth;
}).map((button) => button.title)"""
CANVAS = "document.getElementById('canvas')"
SHARES = {(1280, 800): 0.5, (820, 600): 0.35, (844, 390): 0.4, (390, 844): 0.24, (360, 390): 0.2}
"""Least parts of the window for an image of 4 : 3; across a phone of 390 x 844, it has 0.35 at most."""


def resize(page, width, height):
    """Resize the window, and wait until the page has drawn in it."""
    page.page.set_viewport_size({"width": width, "height": height})
    page.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


@pytest.mark.slow
def test_the_image_has_a_large_part_of_every_window_and_stays_under_the_clicks(shapes):
    page = shapes
    page.uncheck("#hover")
    for (width, height), share in SHARES.items():
        resize(page, width, height)
        assert page.page.evaluate(BEYOND) == []
        assert page.page.evaluate(SHARE) > share, (width, height)
    page.click(200, 180)
    page.settled()
    assert page.page.evaluate("tritonSam.screenOf(1, 0)[0] - tritonSam.screenOf(0, 0)[0]") > 0

    # Chromium tells of an emulated ratio only together with a new size of the window: the stage keeps its own.
    resize(page, 1280, 800)
    page.page.evaluate("Object.assign(document.getElementById('stage').style, {width: '700px', height: '500px'})")
    page.wait(f"{CANVAS}.width === 700")
    before = page.pixel(600, 300)
    session = page.page.context.new_cdp_session(page.page)
    for width, ratio in ((1281, 2), (1282, 1.5)):
        screen = {"width": width, "height": 800, "deviceScaleFactor": ratio, "mobile": False}
        session.send("Emulation.setDeviceMetricsOverride", screen)
        page.wait(f"{CANVAS}.width === {700 * ratio:g}")
        assert page.pixel(600, 300) == pytest.approx(before, abs=10)


@pytest.mark.parametrize(
    "viewport", [NARROW, pytest.param(ASIDE, marks=pytest.mark.slow)], ids=["upright", "on its side"]
)
def test_a_finger_segments_objects(browser, service, images, viewport):
    with open_phone(browser, service.url, viewport) as page:
        assert page.page.evaluate(SMALL_TARGETS) == []
        assert page.page.get_attribute("#photo", "capture") == "environment"
        with page.page.expect_file_chooser() as chooser:
            page.page.tap("#camera")
        chooser.value.set_files(images / "coffee.jpg")
        page.opened("coffee.jpg")
        page.page.set_input_files("#file", [images / "shapes.jpg", images / "street.jpg"])
        page.opened("shapes.jpg")
        page.page.locator('[data-multi="1"]').tap()
        page.page.touchscreen.tap(*page.at(200, 180))
        page.settled()
        assert page.facts()[0].startswith("1 point")
        assert page.page.evaluate(SMALL_TARGETS) == []
        for dialog in ("keys-dialog", "token-dialog", "url-dialog"):
            page.page.evaluate("(id) => document.getElementById(id).showModal()", dialog)
            assert page.page.evaluate(SMALL_TARGETS) == []
            page.page.keyboard.press("Escape")
        assert page.page.locator(".object input").nth(0).bounding_box()["width"] >= 60
        assert page.page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
        page.page.keyboard.press("n")
        page.unfold()
        page.page.locator("[data-tool=polygon]").tap()
        for corner in [(100, 100), (600, 100), (600, 500), (100, 100)]:
            page.page.touchscreen.tap(*page.at(*corner))
        edited(page, 1)
        area = page.page.evaluate("tritonSam.resultOf(tritonSam.scene.active).found.area")
        assert area == pytest.approx(500 * 400 / 2, rel=0.02)
        for width in (viewport["width"], 360):
            resize(page, width, viewport["height"])
            assert page.page.evaluate(TOOLS_OUTSIDE) == []
