"""The page on a phone: each target of a finger has 44 pixels, and names can be read."""

import pytest

pytest.importorskip("playwright.sync_api")
pytest.importorskip("fastapi")

SMALL_TARGETS = """[...document.querySelectorAll("button, select, input:not([type=file]), a")].map((control) => {
  const box = (control.closest("label") ?? control).getBoundingClientRect();
  return [control.id || control.ariaLabel || control.textContent, Math.round(box.width), Math.round(box.height)];
}).filter(([, width, height]) => width && (width < 44 || height < 44))"""


SHARE = """(() => {
  const [[left, top], [right, bottom]] = [tritonSam.screenOf(0, 0), tritonSam.screenOf(800, 600)];
  return (right - left) * (bottom - top) / (innerWidth * innerHeight);
})()"""

BEYOND = """[...document.querySelectorAll(".panel button, .top button")]
  .filter((each) => each.checkVisibility() && each.getBoundingClientRect().right > innerWidth)
  .map((each) => each.id || each.textContent.trim())"""
"""The buttons that the right edge of the window cuts."""


@pytest.mark.parametrize(
    ("size", "share"),
    [((1280, 800), 0.5), ((820, 600), 0.35), ((844, 390), 0.4), ((390, 844), 0.24), ((360, 390), 0.2)],
)
def test_the_image_has_a_large_part_of_the_screen(browser, service, images, size, share):
    """The shares are those of an image of 4 : 3; across a phone of 390 x 844, it has 0.35 at most."""
    from support.running_browser import open_page

    with open_page(browser, service.url, viewport={"width": size[0], "height": size[1]}) as page:
        page.open(images / "shapes.jpg")
        assert page.page.evaluate(SHARE) > share
        assert page.page.evaluate(BEYOND) == []


def test_a_window_without_room_for_the_image_still_shows_it(browser, service, images):
    from support.running_browser import open_page

    with open_page(browser, service.url) as page:
        page.open(images / "shapes.jpg")
        page.click(200, 180)
        page.settled()
        page.page.set_viewport_size({"width": 360, "height": 390})
        scale = """new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() =>
            done(tritonSam.screenOf(1, 0)[0] - tritonSam.screenOf(0, 0)[0]))))"""
        assert page.page.evaluate(scale) > 0


TOOLS_OUTSIDE = """[...document.querySelectorAll('.tools button')].filter((button) => {
    const { left, right } = button.getBoundingClientRect();
    return left < 0 || right > innerWidth;
}).map((button) => button.title)"""


@pytest.mark.parametrize("size", [(390, 844), (844, 390)], ids=["upright", "on its side"])
def test_targets_are_large_enough_for_a_finger(browser, service, images, size):
    from support.running_browser import open_phone

    viewport = {"width": size[0], "height": size[1]}
    with open_phone(browser, service.url, viewport) as page:
        assert page.page.evaluate(SMALL_TARGETS) == []
        page.page.set_input_files("#file", [images / "shapes.jpg", images / "coffee.jpg"])
        page.opened("shapes.jpg")
        page.page.locator('[data-multi="1"]').tap()
        page.page.touchscreen.tap(*page.at(200, 180))
        page.settled()
        assert page.page.evaluate(SMALL_TARGETS) == []
        for dialog in ("keys-dialog", "token-dialog", "url-dialog"):
            page.page.evaluate("(id) => document.getElementById(id).showModal()", dialog)
            assert page.page.evaluate(SMALL_TARGETS) == []
            page.page.keyboard.press("Escape")
        assert page.page.locator(".object input").nth(0).bounding_box()["width"] >= 60
        assert page.page.evaluate("document.documentElement.scrollWidth") == size[0]
        for width in (size[0], 360):
            page.page.set_viewport_size({"width": width, "height": size[1]})
            assert page.page.evaluate(TOOLS_OUTSIDE) == []
