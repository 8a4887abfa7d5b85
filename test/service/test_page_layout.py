"""The page's layout while it finds everything, finds words and tracks a video: with a mouse and on a phone."""

import pytest
from support import clip
from support.running_browser import (
    ASIDE,
    CANVAS_FITS,
    LAYOUT_FAULTS,
    NAMELESS,
    NARROW,
    SMALL_TARGETS,
    WIDE,
    edited,
    open_clip,
    open_page,
    segmented,
)

SMALL, LOW = {"width": 900, "height": 600}, {"width": 360, "height": 390}
"""A small window, and a phone whose keyboard is open."""


SERVICE = {"words": True}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return clip.write_clip(tmp_path_factory.mktemp("clip") / "clip.mp4")


def find(page, button):
    page.page.click(button)
    page.wait("!tritonSam.everything.isSearching && tritonSam.everything.items.length > 0")
    page.page.keyboard.press("ArrowRight")
    page.wait("tritonSam.everything.selected.length === 1")


def everything(page, path, images):
    page.open(images / "shapes.jpg")
    find(page, "#find")


def words(page, path, images):
    page.page.select_option("#model", "sam3")
    page.open(images / "shapes.jpg")
    page.page.fill("#words-text", "dog")
    find(page, "#words-find")


def video(page, path, images):
    open_clip(page, path)
    for x in (60, 200):
        page.click(x, 120)
        segmented(page)
        page.page.keyboard.press("n")
    page.page.click("#track-forward")
    page.wait("tritonSam.video.ended === 1")


@pytest.mark.slow
@pytest.mark.parametrize("views", [[WIDE, SMALL], [NARROW, ASIDE, LOW]], ids=["mouse", "phone"])
@pytest.mark.parametrize("mode", [everything, words, video])
def test_nothing_overlaps_everything_has_a_name_and_fingers_hit(
    browser,
    drawn,
    images,
    path,
    mode,
    views,
):
    is_phone = NARROW in views
    options = {"color_scheme": "light" if is_phone else "dark", "has_touch": is_phone, "is_mobile": is_phone}
    with open_page(browser, drawn.service.url, viewport=views[0], **options) as page:
        page.uncheck("#hover")  # which asks a Triton
        mode(page, path, images)
        for view in views:
            page.page.set_viewport_size(view)
            page.wait(CANVAS_FITS)
            assert page.page.evaluate(LAYOUT_FAULTS) == []
            assert page.page.evaluate(NAMELESS) == []
            assert page.page.evaluate("document.documentElement.scrollWidth") == view["width"]
            assert not is_phone or page.page.evaluate(SMALL_TARGETS) == []


# --- phones and other screens: fingers hit each target, and the image has room ---------------------------------------


SHARE = """(() => {
  const [[left, top], [right, bottom]] = [tritonSam.stage.screenOf(0, 0), tritonSam.stage.screenOf(800, 600)];
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
    assert page.page.evaluate("tritonSam.stage.screenOf(1, 0)[0] - tritonSam.stage.screenOf(0, 0)[0]") > 0

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
    with open_page(browser, service.url, viewport=viewport, has_touch=True, is_mobile=True) as page:
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
        area = page.page.evaluate("tritonSam.masks.resultOf(tritonSam.scene.active).found.area")
        assert area == pytest.approx(500 * 400 / 2, rel=0.02)
        for width in (viewport["width"], 360):
            resize(page, width, viewport["height"])
            assert page.page.evaluate(TOOLS_OUTSIDE) == []
